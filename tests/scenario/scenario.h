// Field scenarios as text: what tests/scenarios/*.json say, run by the engine and judged by the comparator. The format
// is described in tests/scenarios/README.md.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "compare/comparison.h"
#include "study/factors.h"
#include "study/plan_run.h"

namespace draftprobe::scenario {

// One run: a control and a treated arm with what has to come out of comparing them.
struct Scenario {
    std::string name;   // "d1-poison", "d1-poison twin"
    std::string field;  // "D1"
    Json spec;          // defaults, scenario and (in a twin) its overrides, merged
};

// A scenario and, where there is one, the same made healthy.
struct Pair {
    Scenario faulty;
    std::vector<Scenario> twins;  // 0 or 1
};

// All scenarios of a directory, by file name and order in the file. Errors: those of the JSON reader; corrupt for an
// unknown or missing key.
Result<std::vector<Pair>> read_scenarios(const std::filesystem::path& directory);

struct Outcome {
    Comparison comparison;                  // of a plan: its run with the gravest verdict
    std::optional<study::PlanResult> plan;  // of a scenario that is a plan
    std::optional<study::FactorStudy> factors;
};

// Runs both arms (or the plan) into `scratch` and compares. Errors: corrupt for a bad value, and whatever the engine
// says.
Result<Outcome> run_scenario(const Scenario& scenario, const std::filesystem::path& scratch);

// What of `expect` does not hold, one line each; empty when all of it does.
std::vector<std::string> unmet(const Json& expect, const Outcome& outcome);

}  // namespace draftprobe::scenario
