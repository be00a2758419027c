// What probe, capture and bench have in common: models, request and settings from the options, checked as far as
// possible before anything is written.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "probe/probe.h"

namespace draftprobe::cli {

struct ArmPlan {
    probe::Assembly assembly;
    probe::ProbeRequest request;
    probe::ProbeSettings settings;
};

// The part of it that no request has a say in: models and settings, without request and treatment.
Status load_engine(const Arguments& arguments, Console& console, ArmPlan& plan);

// Loads and checks. The plan's progress is not set, and near-tie thresholds are not measured.
Result<ArmPlan> load_arms(const Arguments& arguments, Console& console);
// The same, with thresholds where the numerics class needs them; says on stderr what is in effect.
Result<ArmPlan> plan_arms(const Arguments& arguments, Console& console);

// Faults named by --inject, in order.
Result<std::vector<instrument::Fault>> parse_faults(const Arguments& arguments);
// What --list-faults prints: text, or one JSON object.
std::string fault_list(bool as_json);

// An existing --out is refused here, before models are loaded; AtomicDirectory refuses again later.
Status check_out(const std::filesystem::path& out, bool force);

}  // namespace draftprobe::cli
