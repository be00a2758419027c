#include "report/recompute.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "compare/verdict.h"

namespace draftprobe {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMaxReportBytes = std::uint64_t{256} << 20;

// A name below the report's directory, whoever wrote the report.
Result<std::string> capture_name(const Json& object, std::string_view key, const std::string& subject) {
    DP_ASSIGN_OR_RETURN(std::string name, json_get_string(object, key, subject));
    const fs::path path = name;
    const bool inside = !name.empty() && path.is_relative() &&
                        std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
    if (inside) return name;
    return corrupt(fmt::format("{}: {}: found {}, expected a name below the report's directory", subject, key,
                               quoted_excerpt(name)));
}

// The run whose report stands for the plan.
Status use_plan(const fs::path& file, ReportSources& sources) {
    DP_ASSIGN_OR_RETURN(const Json plan, parse_json_file(file, kMaxReportBytes));
    DP_ASSIGN_OR_RETURN(const std::string representative, json_get_string(plan, "representative", file.string()));
    DP_ASSIGN_OR_RETURN(const Json* judged, json_get_array(plan, "judged", file.string()));
    for (const Json& run : *judged) {
        DP_ASSIGN_OR_RETURN(const std::string name, json_get_string(run, "run", file.string()));
        if (name != representative) continue;
        DP_ASSIGN_OR_RETURN(sources.control, capture_name(run, "control", file.string()));
        DP_ASSIGN_OR_RETURN(sources.treated, capture_name(run, "capture", file.string()));
        return {};
    }
    return corrupt(fmt::format("{}: found no run {}, expected the representative among the judged ones", file.string(),
                               quoted_excerpt(representative)));
}

// A class that depends on the schedule, and a control that has another one: such a control cannot be SAME.
bool drifts_as_expected(Verdict control, const Comparison& comparison) {
    return control == Verdict::drift && comparison.control_capture.numerics == "schedule-sensitive";
}

std::string why_of_control(const Comparison& control) {
    if (!drifts_as_expected(control.verdict, control)) return control.why;
    return fmt::format("DRIFT, as expected in the numerics class {}: {}", control.control_capture.numerics,
                       control.why);
}

void let_controls_judge(Comparison& comparison) {
    if (comparison.verdict == Verdict::corrupt) return;
    for (const ControlVerdict& control : comparison.controls) {
        if (control.verdict == Verdict::same || drifts_as_expected(control.verdict, comparison)) continue;
        comparison.why = fmt::format(
            "the control '{}' is {} against the fresh arm, so no difference can be attributed to the restore "
            "(fresh against restored alone: {}: {})",
            control.arm, verdict_name(control.verdict), verdict_name(comparison.verdict), comparison.why);
        comparison.verdict = Verdict::not_comparable;
        comparison.next_step = "find out why the engine does not repeat itself, then probe again";
        return;
    }
}

}  // namespace

Result<Comparison> compare_with_controls(const fs::path& directory, const ReportSources& sources) {
    DP_ASSIGN_OR_RETURN(Comparison comparison,
                        compare_captures(directory / sources.control, directory / sources.treated, sources.options));
    for (const ControlCapture& control : sources.controls) {
        DP_ASSIGN_OR_RETURN(const Comparison judged, compare_captures(directory / sources.control,
                                                                      directory / control.capture, sources.options));
        comparison.controls.push_back({control.arm, control.capture, judged.verdict, why_of_control(judged),
                                       judged.pairs.matched, judged.treated_capture.digest});
    }
    let_controls_judge(comparison);
    return comparison;
}

Result<ReportSources> report_sources(const fs::path& directory) {
    ReportSources sources;
    const fs::path file = directory / "report.json";
    DP_ASSIGN_OR_RETURN(const Json report, parse_json_file(file, kMaxReportBytes));
    DP_ASSIGN_OR_RETURN(const std::string evidence, json_get_string(report, "evidence", file.string()));
    if (evidence == "sanitisable") sources.options.evidence = Evidence::sanitisable;
    DP_ASSIGN_OR_RETURN(const Json* declared, json_get_array(report, "declared", file.string()));
    for (const Json& field : *declared) {
        if (!field.is_string()) return corrupt(fmt::format("{}: declared: expected texts", file.string()));
        sources.options.treat.push_back(field.get<std::string>());
    }
    DP_ASSIGN_OR_RETURN(const Json* controls, json_array_or_null(report, "controls", file.string()));
    for (std::size_t i = 0; controls != nullptr && i < controls->size(); ++i) {
        ControlCapture control;
        DP_ASSIGN_OR_RETURN(control.arm, json_get_string((*controls)[i], "arm", file.string()));
        DP_ASSIGN_OR_RETURN(control.capture, capture_name((*controls)[i], "capture", file.string()));
        sources.controls.push_back(std::move(control));
    }
    std::error_code error;
    if (fs::exists(directory / "plan.json", error)) DP_RETURN_IF_ERROR(use_plan(directory / "plan.json", sources));
    return sources;
}

}  // namespace draftprobe
