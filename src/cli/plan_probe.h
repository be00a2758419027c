// probe --plan: a sequence over several requests and lanes instead of one request.
#pragma once

#include "base/status.h"
#include "cli/arguments.h"
#include "cli/console.h"

namespace draftprobe::cli {

Result<int> run_plan_probe(const Arguments& arguments, Console& console);

}  // namespace draftprobe::cli
