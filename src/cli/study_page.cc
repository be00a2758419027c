#include "cli/study_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace draftprobe::cli {

using study::CaseSummary;

namespace {

template <typename T>
std::string count(T value) {
    return fmt::format("{}", value);
}

std::string drift_text(const CaseSummary& summary) {
    return summary.max_relative_l2 ? fmt::format("{:.3g}", *summary.max_relative_l2) : "-";
}

// Columns that every table of cases ends with, and their cells.
void add_summary_columns(std::vector<PageColumn>& columns) {
    for (const char* title : {"Verdict", "First difference", "Changed"}) columns.push_back({title, false});
    for (const char* title : {"Differing", "Matched", "Retained", "Max drift"}) columns.push_back({title, true});
}

void add_summary(std::vector<std::string>& row, const CaseSummary& s) {
    row.insert(row.end(), {std::string(verdict_name(s.verdict)), first_place(s), changed_list(s), count(s.differing),
                           count(s.matched), fmt::format("{:+}", s.retained_difference), drift_text(s)});
}

PageTable effects_table(const study::FactorStudy& study) {
    const auto number = [](const std::optional<std::int64_t>& value) {
        return value ? fmt::format("{:+}", *value) : std::string("unknown");
    };
    PageTable table{
        "Main effects and interactions",
        {{"Effect"}, {"Factors"}, {"Differs", true}, {"Lane-cycles", true}, {"Retained", true}, {"Max drift", true}},
        {}};
    for (const study::FactorEffect& effect : study.effects) {
        if (is_interaction(effect) && (is_zero(effect) || is_unknown(effect))) continue;
        table.rows.push_back({is_interaction(effect) ? "interaction" : "main", effect_label(study, effect),
                              number(effect.differs), number(effect.differing_pairs), number(effect.retained),
                              effect.drift ? fmt::format("{:+.3g}", *effect.drift) : "unknown"});
    }
    return table;
}

}  // namespace

PageSection factors_section(const study::FactorStudy& study) {
    PageSection section;
    section.title = "Factors";
    section.lead = attribution(study);
    section.lead.push_back(
        fmt::format("{} combinations of {} factors, {} arms run. Every combination is judged against the fresh "
                    "control of its KV format. Effects are of one factor beside those it needs; an interaction is "
                    "what the parts one by one do not explain. Interactions that are zero or unknown are left out.",
                    study.cells.size(), study.factors.size(), study.arms));
    if (study.kv_format) {
        section.lead.push_back(fmt::format("KV format itself, fresh against fresh, declared: {}: {}",
                                           verdict_name(study.kv_format->verdict), study.kv_format->why));
    }
    PageTable factors{"Factors", {{"Factor"}, {"Without it"}, {"With it"}, {"Needs"}}, {}};
    for (const study::Factor& factor : study.factors) {
        factors.rows.push_back({factor.name, factor.off, factor.on, cell_label(study.factors, factor.needs)});
    }
    PageTable cells{"Combinations", {{"Combination"}}, {}};
    add_summary_columns(cells.columns);
    for (const study::FactorCell& cell : study.cells) {
        std::vector<std::string> row{cell_label(study.factors, cell.factors)};
        add_summary(row, cell.summary);
        cells.rows.push_back(std::move(row));
    }
    section.tables = {std::move(factors), effects_table(study), std::move(cells)};
    return section;
}

PageSection sweep_section(const study::Sweep& sweep) {
    const std::string name(sweep_variable_name(sweep.range.variable));
    PageSection section;
    section.title = fmt::format("Sweep of {}", name);
    section.lead.push_back(fmt::format(
        "From {} to {} by {}: {} value{}, {} of them untested. The report above is that of {} = {}, the first of the "
        "gravest.",
        sweep.range.from, sweep.range.to, sweep.range.step, sweep.points.size(), sweep.points.size() == 1 ? "" : "s",
        sweep.untested, name, sweep.points[sweep.representative].value));
    section.strip.variable = name;
    PageTable rules{rules_title(sweep, "value"), {{"What"}, {"Rule"}, {"Values", true}, {"Not judged"}}, {}};
    for (const study::SweepRule& rule : sweep.rules)
        rules.rows.push_back({rule.observable, rule_text(rule.rule, name), count(rule.points),
                              rule.not_judged.empty() ? "-" : fmt::format("{}", fmt::join(rule.not_judged, ", "))});
    PageTable points{"Values", {{name, true}}, {}};
    add_summary_columns(points.columns);
    for (const study::SweepPoint& point : sweep.points) {
        const CaseSummary& s = point.summary;
        section.strip.points.push_back({point.value, s.verdict, s.differing, s.matched});
        std::vector<std::string> row{count(point.value)};
        add_summary(row, s);
        points.rows.push_back(std::move(row));
    }
    section.tables = {std::move(rules), std::move(points)};
    return section;
}

PageSection plan_section(const study::PlanResult& result) {
    PageSection section;
    section.title = "Plan";
    section.lead.push_back(fmt::format(
        "{}: {}. {} run{} judged, each against a fresh control of its request. The report above is that of run {}, the "
        "first restored run with the gravest verdict, or the first run with it where none was restored.",
        verdict_name(result.verdict), result.why, result.judged.size(), result.judged.size() == 1 ? "" : "s",
        result.judged[result.representative].name));
    PageTable runs{"Runs", {{"Run"}, {"Request"}, {"Lane", true}, {"Arm"}}, {}};
    add_summary_columns(runs.columns);
    runs.columns.push_back({"Restored from and how", false});
    PageTable warnings{"Warnings", {{"Run"}, {"What limits its verdict"}}, {}};
    for (const study::JudgedRun& run : result.judged) {
        std::vector<std::string> row{run.name, run.request, count(run.lane), std::string(arm_name(run.arm))};
        add_summary(row, study::summarise(run.comparison));
        row.push_back(restored_how(run));
        runs.rows.push_back(std::move(row));
        for (const std::string& warning : run.warnings) warnings.rows.push_back({run.name, warning});
    }
    PageTable left{"Not judged: left before their end", {{"Request"}, {"Lane", true}, {"Cycles", true}}, {}};
    for (const study::LeftRun& run : result.left)
        left.rows.push_back({run.request, count(run.lane), count(run.cycles)});
    PageTable refused{"Restores refused as expected, their lanes bit-identical afterwards", {{"Step"}, {"Reason"}}, {}};
    for (const study::RefusedRestore& step : result.refused)
        refused.rows.push_back({fmt::format("steps[{}]", step.step), step.reason});
    section.tables = {std::move(runs), std::move(warnings), std::move(left), std::move(refused)};
    return section;
}

PageSection minimised_section(const study::Minimised& m, const std::string& command) {
    const probe::ProbeRequest& request = m.item.request;
    PageSection section;
    section.title = "Minimised case";
    section.lead.push_back(
        fmt::format("{} run{} of both arms{}. The smallest request that gives the same verdict, "
                    "stage and component{}:",
                    m.runs, m.runs == 1 ? "" : "s", m.bounded ? " (their bound: it may shrink further)" : "",
                    m.summary.shift_tokens ? ", and the same shift of context rows" : ""));
    PageTable sizes{"", {{""}, {"Prompt tokens", true}, {"Prefix", true}, {"Cycles", true}}, {}};
    sizes.rows = {{"as asked", count(m.prompt_before), count(m.boundary_before), count(m.cycles_before)},
                  {"smallest", count(request.prompt.size()), count(request.boundary), count(request.cycles)}};
    PageTable finding{"What it still shows", {}, {}};
    add_summary_columns(finding.columns);
    finding.columns.push_back({"Shift", true});
    std::vector<std::string> row;
    add_summary(row, m.summary);
    row.push_back(m.summary.shift_tokens ? fmt::format("{:+}", *m.summary.shift_tokens) : "-");
    finding.rows.push_back(std::move(row));
    section.tables = {std::move(sizes), std::move(finding)};
    section.command = command;
    return section;
}

}  // namespace draftprobe::cli
