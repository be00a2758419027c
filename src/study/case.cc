#include "study/case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "compare/compare.h"
#include "probe/arm_parts.h"

namespace draftprobe::study {

namespace fs = std::filesystem;

Outcome outcome_of(Verdict verdict) {
    if (verdict == Verdict::same) return Outcome::same;
    return verdict == Verdict::changed || verdict == Verdict::drift ? Outcome::differs : Outcome::untested;
}

std::string_view outcome_name(Outcome outcome) {
    switch (outcome) {
        case Outcome::same: return "same";
        case Outcome::differs: return "differs";
        case Outcome::untested: return "untested";
    }
    return "untested";
}

CaseSummary summarise(const Comparison& c) {
    CaseSummary summary;
    summary.verdict = c.verdict;
    summary.why = c.why;
    summary.proposals_changed = c.proposals_changed;
    summary.width_changed = c.width_changed;
    summary.acceptance_changed = c.acceptance_changed;
    summary.output_changed = c.output_changed;
    summary.first = c.first;
    summary.shift_tokens = c.shift_tokens;
    summary.matched = c.pairs.matched;
    summary.differing = c.pairs.differing;
    summary.retained_difference = c.paired.retained_treated - c.paired.retained_control;
    for (const auto& drift : {c.draft_drift.max_relative_l2, c.target_drift.max_relative_l2}) {
        if (drift) summary.max_relative_l2 = std::max(summary.max_relative_l2.value_or(0), *drift);
    }
    summary.warnings = c.warnings;
    return summary;
}

std::string changed_list(const CaseSummary& summary) {
    std::vector<std::string_view> words;
    if (summary.proposals_changed) words.push_back("proposals");
    if (summary.width_changed) words.push_back("width");
    if (summary.acceptance_changed) words.push_back("acceptance");
    if (summary.output_changed) words.push_back("output");
    return fmt::format("{}", fmt::join(words, ", "));
}

std::string first_place(const CaseSummary& summary) {
    return summary.first ? fmt::format("{}/{}", summary.first->stage, summary.first->component) : std::string();
}

void write_summary(JsonWriter& json, const CaseSummary& summary) {
    json.member("verdict", verdict_name(summary.verdict));
    json.member("outcome", outcome_name(outcome_of(summary.verdict)));
    json.key("changed").begin_array();
    if (summary.proposals_changed) json.value("proposals");
    if (summary.width_changed) json.value("width");
    if (summary.acceptance_changed) json.value("acceptance");
    if (summary.output_changed) json.value("output");
    json.end_array();
    json.key("first");
    if (summary.first) {
        json.begin_object().member("stage", summary.first->stage).member("component", summary.first->component);
        json.member("detail", summary.first->detail).end_object();
    } else {
        json.null();
    }
    json.key("shift_tokens");
    if (summary.shift_tokens) {
        json.value(*summary.shift_tokens);
    } else {
        json.null();
    }
    json.member("matched", summary.matched).member("differing", summary.differing);
    json.member("retained_difference", summary.retained_difference);
    json.key("max_relative_l2");
    if (summary.max_relative_l2) {
        json.value_rounded(*summary.max_relative_l2);
    } else {
        json.null();
    }
}

Status follow_control(const fs::path& control, const probe::ProbeRequest& request, probe::ProbeSettings& settings) {
    DP_ASSIGN_OR_RETURN(probe::ControlTokens tokens, probe::read_control_tokens(control, request.key));
    settings.lockstep = std::make_shared<const probe::ControlTokens>(std::move(tokens));
    return {};
}

Status run_control(const probe::Assembly& assembly, const Case& item, const fs::path& control) {
    probe::ProbeSettings settings = item.settings;
    settings.lockstep = nullptr;
    settings.treatment.faults = probe::faults_of(item.settings.treatment, Arm::fresh);
    return probe::run_arm(assembly, item.request, settings, Arm::fresh, control, false).status();
}

Result<Comparison> run_treated(const probe::Assembly& assembly, const Case& item, const fs::path& control,
                               const fs::path& treated) {
    probe::ProbeSettings settings = item.settings;
    settings.treatment.faults = probe::faults_of(item.settings.treatment, Arm::restored);
    if (item.lockstep) DP_RETURN_IF_ERROR(follow_control(control, item.request, settings));
    DP_RETURN_IF_ERROR(probe::run_arm(assembly, item.request, settings, Arm::restored, treated, false).status());
    return compare_captures(control, treated, {item.treat});
}

Result<CaseSummary> run_case(const probe::Assembly& assembly, const Case& item, const fs::path& scratch,
                             IdleFaults idle) {
    std::error_code error;
    fs::create_directory(scratch, error);
    if (error) return io_error(fmt::format("{}: {}, expected to make a directory", scratch.string(), error.message()));
    const auto run = [&]() -> Result<CaseSummary> {
        Case varied = item;
        varied.settings.treatment.idle_faults = idle == IdleFaults::allowed;
        DP_RETURN_IF_ERROR(run_control(assembly, varied, scratch / "control"));
        DP_ASSIGN_OR_RETURN(const Comparison comparison,
                            run_treated(assembly, varied, scratch / "control", scratch / "treated"));
        return summarise(comparison);
    };
    Result<CaseSummary> result = run();
    fs::remove_all(scratch, error);
    return result;
}

}  // namespace draftprobe::study
