#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/files.h"
#include "base/json_writer.h"
#include "cli/arms.h"
#include "cli/probe_study.h"
#include "cli/report_file.h"
#include "compare/compare.h"
#include "report/report.h"
#include "study/factors.h"

namespace draftprobe::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDefaultOut = "draftprobe-out";
constexpr std::string_view kReportName = "report.json";
// Everything an output directory holds; pages are put there with --report.
constexpr std::string_view kOutputEntries[] = {kReportName,    "control",       "treated",       "repeat",
                                               "natural",      "uninterrupted", "*.html",        "factors",
                                               "factors.json", "sweep.json",    "minimized.json"};

struct JudgedControl {
    Arm arm = Arm::repeat;
    Comparison comparison;  // against the fresh arm
};

struct Outcome {
    Comparison comparison;  // fresh against restored
    std::vector<JudgedControl> controls;
};

std::vector<Arm> further_controls(const Arguments& arguments) {
    std::vector<Arm> arms;
    for (const std::string& name : arguments.all("controls")) {
        for (const Arm arm : {Arm::repeat, Arm::natural, Arm::uninterrupted}) {
            if (arm_name(arm) == name) arms.push_back(arm);
        }
    }
    return arms;
}

Status run_one(ArmPlan& plan, Arm arm, const fs::path& path, Console& console) {
    plan.settings.progress = [&console, arm](std::string_view phase, std::size_t done, std::size_t total) {
        console.progress(arm_name(arm), phase, done, total);
    };
    return probe::run_arm(plan.assembly, plan.request, plan.settings, arm, path, false).status();
}

Result<Outcome> run_arms(ArmPlan& plan, const std::vector<Arm>& controls, bool lockstep,
                         const AtomicDirectory& directory, Console& console) {
    DP_RETURN_IF_ERROR(run_one(plan, Arm::fresh, directory.file("control"), console));
    if (lockstep) DP_RETURN_IF_ERROR(study::follow_control(directory.file("control"), plan.request, plan.settings));
    DP_RETURN_IF_ERROR(run_one(plan, Arm::restored, directory.file("treated"), console));
    for (const Arm arm : controls) DP_RETURN_IF_ERROR(run_one(plan, arm, directory.file(arm_name(arm)), console));
    Outcome outcome;
    DP_ASSIGN_OR_RETURN(outcome.comparison, compare_captures(directory.file("control"), directory.file("treated"), {}));
    for (const Arm arm : controls) {
        JudgedControl control;
        control.arm = arm;
        DP_ASSIGN_OR_RETURN(control.comparison,
                            compare_captures(directory.file("control"), directory.file(arm_name(arm)), {}));
        outcome.controls.push_back(std::move(control));
    }
    return outcome;
}

// A control that differs from the fresh arm without any restore takes the ground from under every attribution.
Comparison judged(const Outcome& outcome) {
    Comparison comparison = outcome.comparison;
    if (comparison.verdict == Verdict::corrupt) return comparison;
    for (const JudgedControl& control : outcome.controls) {
        if (control.comparison.verdict == Verdict::same) continue;
        comparison.why = fmt::format(
            "the control '{}' is {} against the fresh arm, so no difference can be attributed to the restore "
            "(fresh against restored alone: {}: {})",
            arm_name(control.arm), verdict_name(control.comparison.verdict), verdict_name(outcome.comparison.verdict),
            outcome.comparison.why);
        comparison.verdict = Verdict::not_comparable;
        comparison.next_step = "find out why the engine does not repeat itself, then probe again";
        break;
    }
    return comparison;
}

std::string controls_json(const Outcome& outcome) {
    JsonWriter json;
    json.begin_array();
    for (const JudgedControl& control : outcome.controls) {
        json.begin_object()
            .member("arm", arm_name(control.arm))
            .member("verdict", verdict_name(control.comparison.verdict))
            .member("why", control.comparison.why)
            .member("matched", control.comparison.pairs.matched)
            .member("digest", control.comparison.treated_capture.digest)
            .end_object();
    }
    json.end_array();
    return json.take();
}

std::string controls_text(const Outcome& outcome) {
    if (outcome.controls.empty()) return {};
    std::string out = "\nFurther controls, judged against the fresh arm\n";
    for (const JudgedControl& control : outcome.controls) {
        out += fmt::format("  {:<14}{}: {}\n", arm_name(control.arm), verdict_name(control.comparison.verdict),
                           control.comparison.why);
    }
    return out;
}

Result<int> run_probe(const Arguments& arguments, Console& console) {
    if (arguments.given("list-faults")) {
        console.out(fault_list());
        return kExitDone;
    }
    const fs::path out = arguments.given("out") ? arguments.text("out") : std::string(kDefaultOut);
    const bool force = arguments.given("force");
    DP_RETURN_IF_ERROR(check_out(out, force));
    DP_RETURN_IF_ERROR(check_report_path(arguments, out));
    DP_RETURN_IF_ERROR(check_study_options(arguments));
    DP_ASSIGN_OR_RETURN(ArmPlan plan, plan_arms(arguments, console));
    if (arguments.given("factors")) DP_RETURN_IF_ERROR(study::factors_of(plan.settings).status());

    DP_ASSIGN_OR_RETURN(AtomicDirectory directory, AtomicDirectory::create(out, force, {kReportName, kOutputEntries}));
    study::Case item{plan.request, plan.settings, arguments.given("lockstep")};
    std::optional<StudyOutput> extra;
    if (arguments.given("sweep")) {
        DP_ASSIGN_OR_RETURN(extra, run_sweep_study(arguments, plan.assembly, item, directory, console));
        plan.request = item.request;
        plan.settings = item.settings;
    }
    DP_ASSIGN_OR_RETURN(const Outcome outcome,
                        run_arms(plan, further_controls(arguments), item.lockstep, directory, console));
    DP_RETURN_IF_ERROR(write_file(directory.file(kReportName), report_json(outcome.comparison)));
    if (!extra) {
        DP_ASSIGN_OR_RETURN(extra,
                            run_pair_study(arguments, plan.assembly, item, outcome.comparison, directory, console));
    }
    if (extra) DP_RETURN_IF_ERROR(write_file(directory.file(extra->file), extra->file_text));
    const Comparison comparison = judged(outcome);
    if (arguments.given("report")) {
        const fs::path page = arguments.text("report");
        const bool inside = report_inside(arguments, out);
        DP_RETURN_IF_ERROR(write_report_page(inside ? directory.file(page.filename().string()) : page, comparison));
    }
    DP_RETURN_IF_ERROR(directory.commit());

    const CaptureNames names{(out / "control").string(), (out / "treated").string()};
    if (arguments.given("json")) {
        std::string json = with_member(report_json(comparison, names), "controls", controls_json(outcome));
        if (extra) json = with_member(json, extra->key, extra->json);
        console.out(json);
    } else {
        console.out(report_text(comparison) + controls_text(outcome));
        if (extra) console.out(extra->text);
        console.out(fmt::format("\nCaptures: {}, {}\n", names.control, names.treated));
    }
    return exit_of(arguments, comparison);
}

}  // namespace

const Command kProbeCommand = {
    .bit = kProbe,
    .name = "probe",
    .brief = "run one request fresh and restored, and say whether the restore changed the draft",
    .description =
        "The fresh arm materialises the first N tokens of the prompt and goes on in place. The restored arm does the "
        "same, takes a "
        "snapshot, restores it into a lane that another request left dirty, and goes on there. Both prefill the rest "
        "of the prompt "
        "and decode; each is recorded as a capture, and the captures are compared.\n\n"
        "On success --out holds control/ and treated/ (captures), one capture for each further control, and "
        "report.json. Nothing is "
        "left behind when the probe could not run.",
    .exit_status =
        "0 SAME\n"
        "1 CHANGED\n"
        "2 usage error, or could not run\n"
        "3 DRIFT only\n"
        "4 NOT_COMPARABLE, NOT_RESTORED or CONTAMINATED\n"
        "5 CORRUPT, or the draft is not what its selection.json lists\n"
        "6 INSUFFICIENT: the restore was not visible to the draft\n"
        "with --bisect: 0 good, 1 bad, 125 undecided",
    .examples =
        "draftprobe probe --target T --draft D --prompt main.c --prefix-tokens 512\n"
        "draftprobe probe --target T --draft D --prompt main.c --prefix-tokens 512 --inject context-shift=32 --force\n"
        "git bisect run draftprobe probe --target T --draft D --prompt main.c --prefix-tokens 512 --bisect --force",
    .run = run_probe,
};

}  // namespace draftprobe::cli
