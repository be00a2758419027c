#include <fmt/format.h>

#include <string>
#include <vector>

#include "cli/arms.h"
#include "cli/plan_probe.h"
#include "cli/probe_output.h"
#include "cli/probe_study.h"
#include "compare/compare.h"
#include "probe/arm_parts.h"
#include "study/factors.h"

namespace draftprobe::cli {

namespace {

namespace fs = std::filesystem;

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
    probe::ProbeSettings settings = plan.settings;
    settings.treatment.faults = probe::faults_of(plan.settings.treatment, arm);
    return probe::run_arm(plan.assembly, plan.request, settings, arm, path, false).status();
}

// A class that depends on the schedule, and a control that has another one: such a control cannot be SAME.
bool drifts_as_expected(const Comparison& control) {
    return control.verdict == Verdict::drift && control.control_capture.numerics == "schedule-sensitive";
}

std::string why_of_control(const Comparison& control) {
    if (!drifts_as_expected(control)) return control.why;
    return fmt::format("DRIFT, as expected in the numerics class {}: {}", control.control_capture.numerics,
                       control.why);
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
        outcome.comparison.controls.push_back({std::string(arm_name(arm)), control.comparison.verdict,
                                               why_of_control(control.comparison), control.comparison.pairs.matched,
                                               control.comparison.treated_capture.digest});
        outcome.controls.push_back(std::move(control));
    }
    return outcome;
}

// A control that differs from the fresh arm without any restore takes the ground from under every attribution.
Comparison judged(const Outcome& outcome) {
    Comparison comparison = outcome.comparison;
    if (comparison.verdict == Verdict::corrupt) return comparison;
    for (const JudgedControl& control : outcome.controls) {
        if (control.comparison.verdict == Verdict::same || drifts_as_expected(control.comparison)) continue;
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

Result<int> run_probe(const Arguments& arguments, Console& console) {
    if (arguments.given("list-faults")) {
        console.out(fault_list());
        return kExitDone;
    }
    DP_RETURN_IF_ERROR(check_probe_output(arguments));
    DP_RETURN_IF_ERROR(check_study_options(arguments));
    if (arguments.given("plan")) return run_plan_probe(arguments, console);
    DP_ASSIGN_OR_RETURN(ArmPlan plan, plan_arms(arguments, console));
    if (arguments.given("factors")) DP_RETURN_IF_ERROR(study::factors_of(plan.settings).status());

    DP_ASSIGN_OR_RETURN(AtomicDirectory directory, create_probe_output(arguments));
    study::Case item{plan.request, plan.settings, arguments.given("lockstep")};
    ProbeOutput output;
    if (arguments.given("sweep")) {
        DP_ASSIGN_OR_RETURN(output.study, run_sweep_study(arguments, plan.assembly, item, directory, console));
        plan.request = item.request;
        plan.settings = item.settings;
    }
    DP_ASSIGN_OR_RETURN(const Outcome outcome,
                        run_arms(plan, further_controls(arguments), item.lockstep, directory, console));
    if (!output.study) {
        DP_ASSIGN_OR_RETURN(output.study,
                            run_pair_study(arguments, plan.assembly, item, outcome.comparison, directory, console));
    }
    output.canonical = outcome.comparison;
    output.comparison = judged(outcome);
    return finish_probe_output(arguments, console, std::move(directory), output);
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
        "left behind when the probe could not run.\n\n"
        "--factors, --minimize and --sweep run more of such pairs, and --plan runs several requests; each adds a "
        "table, "
        "a member of --json and a file of its name to --out. With --sweep and --plan the report is that of the first "
        "value or run with the gravest verdict, which decides the exit status; a value that tested nothing counts only "
        "if none was SAME.",
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
        "draftprobe probe --target T --draft D --prompt main.c --prefix-tokens 512 --sweep suffix=1..128 --lockstep\n"
        "git bisect run draftprobe probe --target T --draft D --prompt main.c --prefix-tokens 512 --bisect --force",
    .run = run_probe,
};

}  // namespace draftprobe::cli
