// Engine settings from options, the same for every command that runs a model.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "budget/controller.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "decode/engine_core.h"
#include "decode/sampling.h"

namespace draftprobe::cli {

// Numerics, instruction set, threads, lanes, KV format and chunk size. Warns when a choice has no effect.
// Errors: unsupported (an instruction set that this CPU lacks).
Result<decode::EngineSettings> engine_settings(const Arguments& arguments, const TargetConfig& target,
                                               Console& console);

// Sampling of the request. Errors: invalid_argument naming the setting.
Result<decode::SamplingSettings> sampling_settings(const Arguments& arguments);

// The verify budget: its kind, and its seed when it is frozen.
struct BudgetChoice {
    budget::BudgetKind kind = budget::BudgetKind::full;
    std::shared_ptr<const budget::Seed> seed;
};
// Errors: those of read_seed; mismatch when the seed was made for another block size.
Result<BudgetChoice> budget_choice(const Arguments& arguments, std::size_t block);

// "numerics i8dot (the target is quantised), kv bf16, isa avx2, 2 threads": what is in effect.
std::string engine_text(const Arguments& arguments, const decode::EngineSettings& settings);

}  // namespace draftprobe::cli
