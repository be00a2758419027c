#include "cli/probe_output.h"

#include <fmt/format.h>

#include "capture/layout.h"
#include "cli/arms.h"
#include "cli/report_file.h"
#include "report/report.h"

namespace draftprobe::cli {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kDefaultOut = "draftprobe-out";
constexpr std::string_view kReportName = "report.json";
// Everything an output directory holds; pages are put there with --report.
constexpr std::string_view kOutputEntries[] = {kReportName,      "control",  "treated", "repeat",       "natural",
                                               "uninterrupted",  "*.html",   "factors", "factors.json", "sweep.json",
                                               "minimized.json", "controls", "runs",    "plan.json"};

fs::path out_of(const Arguments& arguments) {
    return arguments.given("out") ? arguments.text("out") : std::string(kDefaultOut);
}

}  // namespace

Status check_probe_output(const Arguments& arguments) {
    DP_RETURN_IF_ERROR(check_out(out_of(arguments), arguments.given("force")));
    return check_report_path(arguments, out_of(arguments));
}

Result<AtomicDirectory> create_probe_output(const Arguments& arguments) {
    return AtomicDirectory::create(out_of(arguments), arguments.given("force"),
                                   {kReportName, kOutputEntries, kCaptureEntries, kPageMark});
}

Result<int> finish_probe_output(const Arguments& arguments, Console& console, AtomicDirectory directory,
                                const ProbeOutput& output) {
    DP_RETURN_IF_ERROR(write_file(directory.file(kReportName), report_json(output.comparison)));
    if (output.study) DP_RETURN_IF_ERROR(write_file(directory.file(output.study->file), output.study->file_text));
    const fs::path out = out_of(arguments);
    if (arguments.given("report")) {
        const fs::path page = arguments.text("report");
        const bool inside = report_inside(arguments, out);
        std::vector<PageSection> sections;
        if (output.study) sections.push_back(output.study->page);
        DP_RETURN_IF_ERROR(
            write_report_page(inside ? directory.file(page.filename().string()) : page, output.comparison, sections));
    }
    DP_RETURN_IF_ERROR(directory.commit());

    const CaptureNames names{(out / output.control).string(), (out / output.treated).string()};
    if (arguments.given("json")) {
        Comparison said = output.comparison;
        if (output.verdict && *output.verdict != said.verdict) {
            said.verdict = *output.verdict;
            said.why = output.why;
        }
        std::string json = report_json(said, names);
        if (output.study) json = with_member(json, output.study->key, output.study->json);
        console.out(json);
    } else {
        if (!output.lead.empty()) console.out(output.lead);
        console.out(report_text(output.comparison));
        if (output.study) console.out(output.study->text);
        console.out(fmt::format("\nCaptures: {}, {}\n", names.control, names.treated));
    }
    return exit_of(arguments, output.verdict.value_or(output.comparison.verdict), console);
}

}  // namespace draftprobe::cli
