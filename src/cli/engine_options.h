// Engine settings from options, the same for every command that runs a model.
#pragma once

#include <string>

#include "base/status.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "decode/engine_core.h"

namespace draftprobe::cli {

// Numerics, instruction set, threads, KV format and chunk size; lanes stay 1. Warns when a choice has no effect.
// Errors: unsupported (an instruction set that this CPU lacks).
Result<decode::EngineSettings> engine_settings(const Arguments& arguments, const TargetConfig& target,
                                               Console& console);

// "numerics i8dot (the target is quantised), kv bf16, isa avx2, 2 threads": what is in effect.
std::string engine_text(const Arguments& arguments, const decode::EngineSettings& settings);

}  // namespace draftprobe::cli
