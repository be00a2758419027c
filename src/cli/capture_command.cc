#include <fmt/format.h>

#include <utility>

#include "base/json_writer.h"
#include "capture/capture.h"
#include "cli/arms.h"
#include "instrument/faults.h"
#include "state/snapshot_file.h"

namespace draftprobe::cli {

namespace {

Arm arm_of(const std::string& name) {
    for (const Arm arm : {Arm::restored, Arm::natural, Arm::uninterrupted}) {
        if (arm_name(arm) == name) return arm;
    }
    return Arm::fresh;
}

// Options that only a restored arm reads, and faults that a restored arm does not take.
Status check_arm_options(const Arguments& arguments, Arm arm) {
    if (arm != Arm::restored) {
        constexpr std::pair<std::string_view, std::string_view> kOfRestore[] = {
            {"inject", "faults go into a restore"},
            {"save-snapshot", "only a restored arm takes a snapshot"},
            {"restore-draft", "the arm restores nothing"},
            {"restore-target", "the arm restores nothing"},
            {"tier", "the arm takes no snapshot"}};
        for (const auto& [option, why] : kOfRestore) {
            if (!arguments.given(option)) continue;
            return invalid_argument(
                fmt::format("capture: --{} with --arm {}: {}, expected --arm restored", option, arm_name(arm), why));
        }
        return {};
    }
    DP_ASSIGN_OR_RETURN(const std::vector<instrument::Fault> faults, parse_faults(arguments));
    for (const instrument::Fault& fault : faults) {
        if (!instrument::spoils_computing_arm(fault.kind)) continue;
        return invalid_argument(
            fmt::format("--inject {}: it could not act: it spoils an arm that should compute everything, found --arm "
                        "restored; nothing was injected; use 'draftprobe probe', whose control takes it",
                        fault.spelling));
    }
    return {};
}

// A file in the way is replaced only with --force, and only if it is a snapshot.
Status check_snapshot_file(const std::filesystem::path& path, bool force) {
    std::error_code error;
    if (path.empty() || !std::filesystem::exists(std::filesystem::symlink_status(path, error))) return {};
    if (!force) {
        return invalid_argument(fmt::format(
            "--save-snapshot {}: found something there already, expected a new name; choose another, or --force to "
            "replace a snapshot file",
            path.string()));
    }
    if (state::looks_like_snapshot(path)) return {};
    return invalid_argument(fmt::format(
        "--save-snapshot {}: found something that is not a snapshot file, which --force does not replace; choose "
        "another name",
        path.string()));
}

Result<int> run_capture(const Arguments& arguments, Console& console) {
    if (arguments.given("list-faults")) {
        console.out(fault_list(arguments.given("json")));
        return kExitDone;
    }
    const Arm arm = arm_of(arguments.text("arm"));
    DP_RETURN_IF_ERROR(check_arm_options(arguments, arm));
    const std::filesystem::path out = arguments.text("out");
    const bool force = arguments.given("force");
    DP_RETURN_IF_ERROR(check_out(out, force));
    DP_RETURN_IF_ERROR(check_snapshot_file(arguments.text("save-snapshot"), force));
    DP_ASSIGN_OR_RETURN(ArmPlan plan, plan_arms(arguments, console));
    plan.settings.snapshot_file = arguments.text("save-snapshot");
    plan.settings.replace_snapshot_file = force;
    plan.settings.progress = [&](std::string_view phase, std::size_t done, std::size_t total) {
        console.progress(arm_name(arm), phase, done, total);
    };
    DP_ASSIGN_OR_RETURN(const probe::ArmResult result,
                        probe::run_arm(plan.assembly, plan.request, plan.settings, arm, out, force));
    if (arguments.given("json")) {
        JsonWriter json;
        json.begin_object()
            .member("arm", arm_name(arm))
            .member("path", out.string())
            .member("digest", result.digest)
            .member("level", plan.settings.level)
            .member("cycles", result.cycles)
            .member("retained", result.retained)
            .member("prompt_tokens", plan.request.prompt.size())
            .member("prefix_tokens", plan.request.boundary)
            .end_object();
        console.out(json.take() + "\n");
    } else {
        console.out(fmt::format("{}: arm {}, level {}, {} cycle{}, {} token{} retained\ndigest {}\n", out.string(),
                                arm_name(arm), plan.settings.level, result.cycles, result.cycles == 1 ? "" : "s",
                                result.retained, result.retained == 1 ? "" : "s", result.digest));
    }
    return kExitDone;
}

}  // namespace

const Command kCaptureCommand = {
    .bit = kCapture,
    .name = "capture",
    .brief = "run one arm and record it as a capture",
    .description =
        "Runs the request in the arm that --arm names and writes the capture directory --out. 'draftprobe compare' "
        "judges two of them; 'sha256sum -c SHA256SUMS' checks one.",
    .exit_status =
        "0 the capture is complete\n2 usage error, or could not run; nothing is written\n"
        "5 the draft is not what its selection.json lists; nothing is written",
    .examples =
        "draftprobe capture --arm fresh --target T --draft D --prompt main.c --prefix-tokens 512 --out fresh\n"
        "draftprobe capture --arm restored --target T --draft D --prompt main.c --prefix-tokens 512 --out restored\n"
        "draftprobe compare fresh restored",
    .run = run_capture,
};

}  // namespace draftprobe::cli
