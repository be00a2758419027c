// Runs a plan on one engine, and judges every request that ran to its end against a fresh control of its own.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "compare/comparison.h"
#include "state/store.h"
#include "study/case.h"
#include "study/plan.h"

namespace draftprobe::study {

// One run of a request, from its start or restore to its end.
struct JudgedRun {
    std::string name;  // directory of its capture in runs/: "01-A"
    std::string request;
    Arm arm = Arm::repeat;  // repeat: it computed its prefix; restored: it did not
    int lane = 0;
    Comparison comparison;
    Treatment treatment;                      // of a restored run: tier, forms and faults as they acted
    std::vector<std::string> faults_dropped;  // asked for, and not injected: the snapshot came from another tier
    std::vector<std::string> warnings;        // the comparison's, dropped faults, and blind spots of a computing run
};

// A run whose lane was taken, or whose plan ended, before its end: not judged.
struct LeftRun {
    std::string request;
    Arm arm = Arm::repeat;
    int lane = 0;
    std::size_t cycles = 0;
};

struct RefusedRestore {
    std::size_t step = 0;  // index into the plan's steps
    std::string reason;
};

struct PlanResult {
    std::vector<JudgedRun> judged;  // at least one
    std::vector<LeftRun> left;
    std::vector<RefusedRestore> refused;
    state::PrefixStore::Usage store;  // of the snapshots in memory, at the end
    bool store_bounded = false;       // whether the plan gave it a budget
    std::size_t representative = 0;   // index of the run that stands for the plan, see representative_run
    // Of the plan: the gravest of its runs; but INSUFFICIENT where all are SAME and the plan restores, and no restored
    // run was judged, or each of them in a blind spot.
    Verdict verdict = Verdict::insufficient;
    std::string why;
};

// The first restored run with the gravest verdict; without one, the first run with it. `judged` is not empty.
std::size_t representative_run(const std::vector<JudgedRun>& judged);
// Sets representative, verdict and why from the runs.
void conclude_plan(PlanResult& result);

// `prompts`: token ids, one list per request of the plan. Settings: treatment and lockstep are not used. Captures go to
// `directory`: controls/NAME and runs/NN-NAME; it exists. Errors, before anything runs: those of probe::check_request,
// invalid_argument for a snapshot restored for a request with another prefix and for an adaptive budget. Later: those
// of the engine; mismatch for a restore that should have been refused and was not, or that touched its lane.
Result<PlanResult> run_plan(
    const probe::Assembly& assembly, const Plan& plan, const std::vector<std::vector<TokenId>>& prompts,
    const probe::ProbeSettings& settings, const std::filesystem::path& directory,
    const std::function<void(std::string_view phase, std::size_t done, std::size_t total)>& progress);

// "memory, draft exact, target exact, context-shift=8"; empty for a run that computed its prefix.
std::string restored_how(const JudgedRun& run);
std::string plan_text(const PlanResult& result);
std::string plan_json(const PlanResult& result);  // one object

}  // namespace draftprobe::study
