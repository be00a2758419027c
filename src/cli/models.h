// Models from options, the same for every command that runs one.
#pragma once

#include "base/status.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "probe/assembly.h"

namespace draftprobe::cli {

// --target and --draft with --require-manifest and --no-digest-cache. A draft whose files are not those of its manifest
// makes the program end with kExitCorrupt. Errors: those of load_assembly; invalid_argument for --require-manifest
// without a draft.
Result<probe::Assembly> load_models(const Arguments& arguments, bool with_identity, Console& console);

}  // namespace draftprobe::cli
