#include <fmt/format.h>

#include <string>
#include <vector>

#include "cli/arms.h"
#include "cli/plan_probe.h"
#include "cli/probe_output.h"
#include "cli/probe_study.h"
#include "probe/arm_parts.h"
#include "report/recompute.h"
#include "study/factors.h"

namespace draftprobe::cli {

namespace {

namespace fs = std::filesystem;

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

// Runs every arm into `directory` and compares.
Result<Comparison> run_arms(ArmPlan& plan, const std::vector<Arm>& controls, const study::Case& item,
                            const AtomicDirectory& directory, Console& console) {
    ReportSources sources;
    sources.options.treat = item.treat;
    DP_RETURN_IF_ERROR(run_one(plan, Arm::fresh, directory.file(sources.control), console));
    if (item.lockstep)
        DP_RETURN_IF_ERROR(study::follow_control(directory.file(sources.control), plan.request, plan.settings));
    DP_RETURN_IF_ERROR(run_one(plan, Arm::restored, directory.file(sources.treated), console));
    for (const Arm arm : controls) {
        const std::string name(arm_name(arm));
        DP_RETURN_IF_ERROR(run_one(plan, arm, directory.file(name), console));
        sources.controls.push_back({name, name});
    }
    return compare_with_controls(directory.path(), sources);
}

Result<int> run_probe(const Arguments& arguments, Console& console) {
    if (arguments.given("list-faults")) {
        console.out(fault_list(arguments.given("json")));
        return kExitDone;
    }
    DP_RETURN_IF_ERROR(check_probe_output(arguments));
    DP_RETURN_IF_ERROR(check_study_options(arguments));
    if (arguments.given("plan")) return run_plan_probe(arguments, console);
    DP_ASSIGN_OR_RETURN(ArmPlan plan, plan_arms(arguments, console));
    if (arguments.given("factors")) DP_RETURN_IF_ERROR(study::factors_of(plan.settings).status());

    DP_ASSIGN_OR_RETURN(AtomicDirectory directory, create_probe_output(arguments));
    study::Case item{plan.request, plan.settings, arguments.given("lockstep"), arguments.all("treat")};
    ProbeOutput output;
    if (arguments.given("sweep")) {
        DP_ASSIGN_OR_RETURN(output.study, run_sweep_study(arguments, plan.assembly, item, directory, console));
        plan.request = item.request;
        plan.settings = item.settings;
    }
    DP_ASSIGN_OR_RETURN(output.comparison, run_arms(plan, further_controls(arguments), item, directory, console));
    if (!output.study) {
        DP_ASSIGN_OR_RETURN(output.study, run_pair_study(arguments, plan.assembly, item, directory, console));
    }
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
        "On success --out holds control/ and treated/ (captures), a capture for each further control under its name, "
        "and report.json, which names them. Nothing is left behind when the probe could not run.\n\n"
        "--factors, --minimize and --sweep run more of such pairs, and --plan runs several requests; each adds a "
        "table, "
        "a member of --json and a file of its name to --out. With --sweep the report is that of the first value "
        "with the gravest verdict, which decides the exit status; a value that tested nothing counts only if none was "
        "SAME. With --plan it is that of the first restored run with the gravest verdict; a plan whose restored runs "
        "tell nothing is INSUFFICIENT.",
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
