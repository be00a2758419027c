// One case of a study: a request under one treatment, judged against its own fresh control.
//
// Studies run many cases and keep of each what a table needs. Captures lie where the caller says; scratch ones are
// removed by whoever made them.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json_writer.h"
#include "compare/comparison.h"
#include "probe/probe.h"

namespace draftprobe::study {

struct Case {
    probe::ProbeRequest request;
    probe::ProbeSettings settings;  // lockstep is set by run_treated
    bool lockstep = false;
    std::vector<std::string> treat;  // declared treatments of the comparison (compare/compare.h)
};

// What a case says about the treatment. Only CHANGED and DRIFT are differences, only SAME is none; every other verdict
// leaves the question open.
enum class Outcome { same, differs, untested };
Outcome outcome_of(Verdict verdict);
std::string_view outcome_name(Outcome outcome);

struct CaseSummary {
    Verdict verdict = Verdict::insufficient;
    std::string why;
    bool proposals_changed = false;
    bool width_changed = false;
    bool acceptance_changed = false;
    bool output_changed = false;
    std::optional<FirstDifference> first;
    std::optional<std::int64_t> shift_tokens;
    std::int64_t matched = 0;
    std::int64_t differing = 0;             // matched pairs in which anything compared differs
    std::int64_t retained_difference = 0;   // over matched pairs, treated minus control, tokens
    std::optional<double> max_relative_l2;  // draft or target, the larger; absent when no tensors were compared
    std::vector<std::string> warnings;
};
CaseSummary summarise(const Comparison& comparison);

// "proposals, acceptance", or "" when no decision changed.
std::string changed_list(const CaseSummary& summary);
// "stage/component", or "".
std::string first_place(const CaseSummary& summary);
// Members verdict, outcome, changed, first, shift_tokens, matched, differing, retained_difference and
// max_relative_l2 of the object that is open.
void write_summary(JsonWriter& json, const CaseSummary& summary);

// Makes `settings` follow the cycles of a control's capture.
Status follow_control(const std::filesystem::path& control, const probe::ProbeRequest& request,
                      probe::ProbeSettings& settings);

Status run_control(const probe::Assembly& assembly, const Case& item, const std::filesystem::path& control);
// Runs the restored arm and compares. The control is a capture of the same case.
Result<Comparison> run_treated(const probe::Assembly& assembly, const Case& item, const std::filesystem::path& control,
                               const std::filesystem::path& treated);
// Whether a fault that cannot act in the case, or found nothing to act on, is one of the results or refused
// (invalid_argument).
enum class IdleFaults { allowed, refused };

// Both, in a directory that is made for them and removed afterwards.
Result<CaseSummary> run_case(const probe::Assembly& assembly, const Case& item, const std::filesystem::path& scratch,
                             IdleFaults idle = IdleFaults::allowed);

}  // namespace draftprobe::study
