#include "compare/compare.h"

#include "cli/arguments.h"
#include "cli/capture_path.h"
#include "cli/console.h"
#include "cli/report_file.h"
#include "report/report.h"

namespace draftprobe::cli {

namespace {

Result<int> run_compare(const Arguments& arguments, Console& console) {
    DP_RETURN_IF_ERROR(check_report_path(arguments, {}));
    const std::string& control = arguments.positionals()[0];
    const std::string& treated = arguments.positionals()[1];
    for (const std::string& path : {control, treated}) {
        DP_RETURN_IF_ERROR(check_is_capture(path, "compare its control/ and treated/"));
    }
    DP_ASSIGN_OR_RETURN(const Comparison comparison, compare_captures(control, treated, {arguments.all("treat")}));
    if (arguments.given("report")) DP_RETURN_IF_ERROR(write_report_page(arguments.text("report"), comparison));
    if (comparison.verdict == Verdict::corrupt) console.error(comparison.corruption);
    if (arguments.given("json")) {
        console.out(report_json(comparison, {control, treated}));
    } else {
        console.out(report_text(comparison));
    }
    return exit_of(arguments, comparison.verdict, console);
}

}  // namespace

const Command kCompareCommand = {
    .bit = kCompare,
    .name = "compare",
    .positionals = "CONTROL TREATED",
    .brief = "compare two captures",
    .description =
        "CONTROL and TREATED are capture directories, of this engine or another. Captures that differ in identity or "
        "effective "
        "settings are refused, unless --treat declares the difference as the treatment; all mismatches are listed.",
    .exit_status =
        "0 SAME\n"
        "1 CHANGED\n"
        "2 usage error, or could not run\n"
        "3 DRIFT only\n"
        "4 NOT_COMPARABLE, NOT_RESTORED or CONTAMINATED\n"
        "5 CORRUPT: a capture breaks its own rules\n"
        "6 INSUFFICIENT\n"
        "with --bisect: 0 good, 1 bad, 125 undecided",
    .examples =
        "draftprobe compare draftprobe-out/control draftprobe-out/treated\n"
        "draftprobe compare bf16 int8 --treat kv_format --report kv.html",
    .run = run_compare,
};

}  // namespace draftprobe::cli
