#include "cli/models.h"

#include <fmt/format.h>

#include "cli/command.h"

namespace draftprobe::cli {

Result<probe::Assembly> load_models(const Arguments& arguments, bool with_identity, Console& console) {
    const std::string draft = arguments.text("draft");
    bool export_damaged = false;
    probe::AssemblyOptions options;
    options.use_digest_cache = !arguments.given("no-digest-cache");
    options.require_manifest = arguments.given("require-manifest");
    options.export_damaged = &export_damaged;
    if (arguments.text("draft-bits") == "4") options.draft_precision = model::DraftPrecision::affine4;
    if (options.require_manifest && draft.empty()) {
        return invalid_argument(
            "--require-manifest: found no --draft, expected the draft whose selection.json it asks for");
    }
    Result<probe::Assembly> assembly = probe::load_assembly(arguments.text("target"), draft, with_identity, options);
    if (export_damaged) console.set_failure_exit(kExitCorrupt);
    if (assembly.ok() && !assembly->unread.empty()) {
        console.warning(
            fmt::format("{} tensor{} of the checkpoints {} not read, {} among them; 'draftprobe inspect' lists what is",
                        assembly->unread.size(), assembly->unread.size() == 1 ? "" : "s",
                        assembly->unread.size() == 1 ? "is" : "are", assembly->unread.front()));
    }
    return assembly;
}

}  // namespace draftprobe::cli
