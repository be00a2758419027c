// Reports that rest on more than two captures, made again from captures alone: a probe's report.json with its further
// controls, or that of a plan's representative run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "compare/compare.h"

namespace draftprobe {

// A further control of a report, and where its capture lies.
struct ControlCapture {
    std::string arm;
    std::string capture;  // below the report's directory
};

// Captures that a report rests on, below the directory that holds it.
struct ReportSources {
    std::string control = "control";
    std::string treated = "treated";
    std::vector<ControlCapture> controls;
    CompareOptions options;
};

// Compares control and treated, judges every further control against the control, and lets them judge the result: a
// control that is not SAME without any restore takes the ground from under every attribution, and the verdict becomes
// NOT_COMPARABLE. A control that is DRIFT in the numerics class schedule-sensitive is what that class promises. Errors:
// those of compare_captures.
Result<Comparison> compare_with_controls(const std::filesystem::path& directory, const ReportSources& sources);

// What `report.json` (and `plan.json`, where the report is that of a plan) in `directory` says it rests on. Errors:
// corrupt (not a report, or a capture's name leaves the directory), not_found, io.
Result<ReportSources> report_sources(const std::filesystem::path& directory);

}  // namespace draftprobe
