#include <fmt/format.h>

#include "base/json.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "cli/inspect.h"
#include "state/snapshot_file.h"

namespace draftprobe::cli {

namespace {

namespace fs = std::filesystem;

enum class Kind { target, draft, capture, snapshot };

constexpr std::uint64_t kMaxConfigBytes = 16u << 20;

bool present(const fs::path& path) {
    std::error_code error;
    return fs::exists(path, error);
}

// A draft names its architecture; everything else with a config.json is judged as a target.
Result<Kind> checkpoint_kind(const fs::path& path) {
    const fs::path config_path = path / "config.json";
    DP_ASSIGN_OR_RETURN(const Json config, parse_json_file(config_path, kMaxConfigBytes));
    const Json* names = json_find(config, "architectures");
    if (names != nullptr && names->is_array()) {
        for (const Json& name : *names) {
            if (name.is_string() && name.get_ref<const std::string&>().starts_with("DFlash")) return Kind::draft;
        }
    }
    return Kind::target;
}

Result<Kind> recognise(const fs::path& path) {
    constexpr std::string_view kExpected =
        "expected a target or draft checkpoint (config.json and weights), a capture (capture.json and SHA256SUMS) or a "
        "snapshot file";
    std::error_code error;
    if (!present(path))
        return not_found(fmt::format("inspect: {}: found nothing, {}; check the path", path.string(), kExpected));
    if (!fs::is_directory(path, error)) {
        if (state::looks_like_snapshot(path)) return Kind::snapshot;
        return invalid_argument(
            fmt::format("inspect: {}: found something that is not a directory and does not start "
                        "as a snapshot does, {}",
                        path.string(), kExpected));
    }
    if (present(path / "capture.json") || present(path / "SHA256SUMS")) return Kind::capture;
    if (present(path / "config.json")) return checkpoint_kind(path);
    if (present(path / "control" / "capture.json")) {
        return invalid_argument(fmt::format("inspect: {}: found the output of a probe, {}; inspect {} or {}",
                                            path.string(), kExpected, (path / "control").string(),
                                            (path / "treated").string()));
    }
    return invalid_argument(fmt::format("inspect: {}: found a directory without config.json and capture.json, {}",
                                        path.string(), kExpected));
}

Result<int> run_inspect(const Arguments& arguments, Console& console) {
    const fs::path path = arguments.positionals().front();
    const InspectForm form = arguments.given("json") ? InspectForm::json : InspectForm::text;
    DP_ASSIGN_OR_RETURN(const Kind kind, recognise(path));
    const auto tokens = static_cast<std::uint64_t>(*arguments.number("tokens"));
    Result<std::string> view = kind == Kind::capture    ? inspect_capture(path, form)
                               : kind == Kind::snapshot ? inspect_snapshot(path, form)
                               : kind == Kind::draft    ? inspect_draft(path, form, tokens)
                                                        : inspect_target(path, form, tokens);
    const bool evidence = kind == Kind::capture || kind == Kind::snapshot;
    if (!view.ok() && evidence && view.status().code() == StatusCode::corrupt) console.set_failure_exit(kExitCorrupt);
    if (!view.ok()) return view.status();
    console.out(*view);
    return kExitDone;
}

}  // namespace

const Command kInspectCommand = {
    .bit = kInspect,
    .name = "inspect",
    .positionals = "PATH",
    .brief = "say what a checkpoint, a capture or a snapshot holds",
    .description =
        "For a target or draft checkpoint, from its configuration and tensor headers alone: architecture, layers, "
        "shapes, experts, quantisation, taps, window and causality, parameters, files, the manifest, and the memory "
        "that a lane and a token take. Configuration and tensors are checked against each other. For a capture: arm, "
        "identity, settings, totals and ledger, after every checksum and every step was "
        "checked. For a snapshot: what made it, and its components with ranges, sources and digests, after every page "
        "was checked.",
    .exit_status = "0 done\n2 usage error, or PATH is none of these\n5 the capture or snapshot breaks its own rules",
    .examples = "draftprobe inspect models/mini-dense-mlx4\ndraftprobe inspect draftprobe-out/treated --json",
    .run = run_inspect,
};

}  // namespace draftprobe::cli
