#include <fmt/format.h>

#include <algorithm>

#include "compare/verdict.h"
#include "report/report.h"
#include "report/svg.h"

namespace draftprobe {
namespace {

// Blue and orange stay apart for the common forms of colour blindness, on light and on dark ground.
constexpr std::string_view kStyle = R"(
:root{color-scheme:light dark;--ink:#1d2430;--quiet:#5a6473;--ground:#ffffff;--rule:#d9dee6;--panel:#f4f6f9;
--blue:#1f6fc4;--orange:#c25a0a;--teal:#0b7a75;--grey:#8a93a1;--bad:#b3261e;--good:#1b7f3b;--warn:#8a5a00}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--quiet:#a3adba;--ground:#12161c;--rule:#333c48;--panel:#1b2129;
--blue:#6fb1f5;--orange:#f2a15f;--teal:#5fc9c3;--grey:#7f8a99;--bad:#f28b82;--good:#7bd594;--warn:#f0c36d}}
body{margin:0 auto;max-width:60rem;padding:1.5rem;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:0 0 .25rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.same{color:var(--good)}.changed,.corrupt{color:var(--bad)}.other{color:var(--warn)}
.quiet{color:var(--quiet);margin:.25rem 0}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25rem .75rem .25rem 0;
border-bottom:1px solid var(--rule);vertical-align:top}th{font-weight:600}td.n,th.n{text-align:right}
figure{margin:1.5rem 0}figcaption{font-weight:600;margin-bottom:.25rem}svg{width:100%;height:auto}
.legend span{margin-right:1rem;color:var(--quiet)}.key{display:inline-block;width:.8rem;height:.8rem;
margin-right:.35rem;border-radius:2px;vertical-align:-1px}
.grid{stroke:var(--rule)}.tick{fill:var(--quiet);font-size:11px}.track{fill:var(--panel)}
polyline{fill:none;stroke-width:2}.c{stroke:var(--blue)}.t{stroke:var(--orange)}.d{stroke:var(--orange)}
.g{stroke:var(--teal)}.e{stroke:var(--teal)}.t,.d{stroke-dasharray:none}
.dot.c,.key.c{fill:var(--blue);background:var(--blue)}.dot.t,.key.t,.dot.d,.key.d{fill:var(--orange);
background:var(--orange)}.dot.g,.key.g,.dot.e,.key.e{fill:var(--teal);background:var(--teal)}.hollow{fill:none}
.s-computed{fill:var(--blue);background:var(--blue)}.s-restored{fill:var(--orange);background:var(--orange)}
.s-carried{fill:var(--teal);background:var(--teal)}.s-none{fill:var(--grey);background:var(--grey)}
.mark{fill:none;stroke:var(--bad);stroke-width:2}.tick.marked{fill:var(--bad);font-weight:600}
.bar{fill:var(--orange)}.v-same{fill:var(--good)}.v-changed,.v-corrupt{fill:var(--bad)}.v-other{fill:var(--warn)}
ul{padding-left:1.2rem}caption{text-align:left;font-weight:600;padding-top:.75rem}.wide{overflow-x:auto}
pre{background:var(--panel);padding:.75rem;white-space:pre-wrap;overflow-wrap:anywhere}
)";

void row(std::string& out, std::string_view label, std::string_view value) {
    if (value.empty()) return;
    out += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", html_escape(label), html_escape(value));
}

std::string short_digest(const std::string& digest) { return digest.empty() ? "absent" : digest.substr(0, 12); }

// What was compared, as both captures say it; one value where they agree.
std::string both(const std::string& control, const std::string& treated) {
    return control == treated ? control : fmt::format("control {}, treated {}", control, treated);
}

std::string subject(const Comparison& c) {
    const CaptureSummary& control = c.control_capture;
    const CaptureSummary& treated = c.treated_capture;
    if (control.arm.empty()) return {};
    const auto number = [](std::int64_t value) { return fmt::format("{}", value); };
    std::string out = "<table>\n";
    row(out, "Prompt",
        both(number(control.prompt_length), number(treated.prompt_length)) + " tokens" +
            (control.requests > 1 ? fmt::format(" (the first of {} requests)", control.requests) : ""));
    row(out, "Boundary", "position " + both(number(control.boundary), number(treated.boundary)));
    row(out, "Draft window", control.window == 0 ? "everything" : both(number(control.window), number(treated.window)));
    row(out, "Target", both(short_digest(control.target), short_digest(treated.target)));
    row(out, "Draft", both(short_digest(control.draft), short_digest(treated.draft)));
    row(out, "Numerics", both(control.numerics, treated.numerics));
    row(out, "Budget", both(control.budget, treated.budget));
    return out + "</table>\n";
}

std::string controls_table(const Comparison& c) {
    if (c.controls.empty()) return {};
    std::string out =
        "<h2>Further controls</h2>\n<table>\n<tr><th>Arm</th><th>Verdict</th><th class=\"n\">Matched</th>"
        "<th>Why</th></tr>\n";
    for (const ControlVerdict& control : c.controls) {
        out += fmt::format("<tr><td>{}</td><td class=\"{}\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>\n",
                           html_escape(control.arm), verdict_class(control.verdict), verdict_name(control.verdict),
                           control.matched, html_escape(control.why));
    }
    return out + "</table>\n";
}

std::string facts(const Comparison& c) {
    std::string out = "<table>\n";
    if (c.first) {
        std::string place = fmt::format("stage {}, component {}", c.first->stage, c.first->component);
        if (c.first->cycle) place += fmt::format(", cycle {}", *c.first->cycle);
        if (c.first->lane) place += fmt::format(", lane {}", *c.first->lane);
        row(out, "First difference", place + ": " + c.first->detail);
    }
    if (c.window_fill) {
        row(out, "Draft window filled",
            fmt::format("{} of {} at cycle {} (the control {})", c.window_fill->rows, c.window_fill->window,
                        c.window_fill->cycle, c.window_fill->control));
    }
    if (c.shift_tokens) row(out, "Shift of context rows", fmt::format("{:+} positions", *c.shift_tokens));
    row(out, "Matched lane-cycles", fmt::format("{}, {} of them differ", c.pairs.matched, c.pairs.differing));
    row(out, "Unmatched", fmt::format("{} control, {} treated", c.pairs.unmatched_control, c.pairs.unmatched_treated));
    if (c.armed.draft_exposure) {
        row(out, "Exposure at the first cycle", fmt::format("{} positions", *c.armed.draft_exposure));
    }
    row(out, "Armed", c.armed.armed ? "yes" : c.armed.reason);
    row(out, "Recorded cause of drift", c.drift_explained_by);
    if (c.flips.total > 0) row(out, "Flips", fmt::format("{}, {} near-ties", c.flips.total, c.flips.near_ties));
    for (const Refusal& refusal : c.refusals) {
        row(out, refusal.field, fmt::format("control {}, treated {}", refusal.control, refusal.treated));
    }
    row(out, "Next step", c.next_step);
    return out + "</table>\n";
}

// The class of a cell that holds a verdict's name; "" for any other text.
std::string_view cell_class(const std::string& text) {
    for (const Verdict verdict :
         {Verdict::same, Verdict::drift, Verdict::changed, Verdict::not_restored, Verdict::not_comparable,
          Verdict::contaminated, Verdict::insufficient, Verdict::corrupt}) {
        if (text == verdict_name(verdict)) return verdict_class(verdict);
    }
    return {};
}

std::string page_table(const PageTable& table) {
    if (table.rows.empty()) return {};
    std::string out = "<div class=\"wide\"><table>\n";
    if (!table.caption.empty()) out += fmt::format("<caption>{}</caption>\n", html_escape(table.caption));
    out += "<tr>";
    for (const PageColumn& column : table.columns)
        out += fmt::format("<th{}>{}</th>", column.number ? " class=\"n\"" : "", html_escape(column.title));
    out += "</tr>\n";
    for (const std::vector<std::string>& cells : table.rows) {
        out += "<tr>";
        for (std::size_t i = 0; i < cells.size(); ++i) {
            const std::string_view css = table.columns[i].number ? "n" : cell_class(cells[i]);
            out += css.empty() ? std::string("<td>") : fmt::format("<td class=\"{}\">", css);
            out += html_escape(cells[i]) + "</td>";
        }
        out += "</tr>\n";
    }
    return out + "</table></div>\n";
}

std::string page_section(const PageSection& section) {
    std::string out = fmt::format("<h2>{}</h2>\n", html_escape(section.title));
    for (const std::string& sentence : section.lead) out += fmt::format("<p>{}</p>\n", html_escape(sentence));
    out += strip_figure(section.strip);
    for (const PageTable& table : section.tables) out += page_table(table);
    if (!section.command.empty()) out += fmt::format("<pre>{}</pre>\n", html_escape(section.command));
    return out;
}

std::string list(std::string_view title, const std::vector<std::string>& items) {
    if (items.empty()) return {};
    std::string out = fmt::format("<h2>{}</h2>\n<ul>\n", html_escape(title));
    for (const std::string& item : items) out += fmt::format("<li>{}</li>\n", html_escape(item));
    return out + "</ul>\n";
}

std::string acceptance_table(const Comparison& c) {
    std::string out =
        "<h2>Acceptance</h2>\n<table>\n<tr><th>Arm</th><th class=\"n\">Cycles</th><th class=\"n\">Verified</th>"
        "<th class=\"n\">Accepted</th><th class=\"n\">Retained</th><th class=\"n\">Accepted a cycle</th>"
        "<th class=\"n\">Retained a cycle</th></tr>\n";
    const auto arm = [&](std::string_view name, const ArmAcceptance& a) {
        out += fmt::format(
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
            "<td class=\"n\">{}</td><td class=\"n\">{:.4g}</td><td class=\"n\">{:.4g}</td></tr>\n",
            name, a.lane_cycles, a.verified, a.accepted, a.retained, a.mean_accepted(), a.mean_retained());
    };
    arm("control", c.control);
    arm("treated", c.treated);
    out += "</table>\n";
    for (const std::string& refused : {c.survival_refused, c.population_refused}) {
        if (!refused.empty()) out += fmt::format("<p class=\"quiet\">{}</p>\n", html_escape(refused));
    }
    return out;
}

std::string interval(const std::optional<PopulationEffect>& effect) {
    if (!effect) return "no claim";
    return fmt::format("{:+.4g} ({:.4g} to {:.4g}){}", effect->difference, effect->low, effect->high,
                       effect->claim() == "insufficient"
                           ? fmt::format(", insufficient below {:.4g}", effect->minimum_detectable)
                           : "");
}

std::string positions_table(const Comparison& c) {
    const PairedAcceptance& paired = c.paired;
    if (paired.at_risk.empty()) return {};
    std::string out =
        "<h2>By position, where both arms saw it</h2>\n<table>\n<tr><th class=\"n\">Position</th>"
        "<th class=\"n\">Seen in both</th><th class=\"n\">Accepted, control</th><th class=\"n\">treated</th>"
        "<th>Match rate, over prompts</th><th class=\"n\">Adjusted p</th></tr>\n";
    for (std::size_t i = 0; i < paired.at_risk.size(); ++i) {
        const PositionEffect effect = i < c.positions.size() ? c.positions[i] : PositionEffect{};
        out += fmt::format(
            "<tr><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
            "<td>{}</td><td class=\"n\">{}</td></tr>\n",
            i + 1, paired.at_risk[i], paired.accepted_control[i], paired.accepted_treated[i], interval(effect.effect),
            effect.adjusted_p ? fmt::format("{:.3g}", *effect.adjusted_p) : "");
    }
    return out + "</table>\n";
}

std::string cells_table(const Comparison& c) {
    if (c.cells.empty()) return {};
    std::string out =
        "<h2>By exposure, distance from the restore and tier</h2>\n<table>\n<tr><th>Stratum</th>"
        "<th class=\"n\">Pairs</th><th class=\"n\">Differ</th><th class=\"n\">Seen in both</th>"
        "<th class=\"n\">Accepted, control</th><th class=\"n\">treated</th><th>Retained a cycle</th>"
        "<th class=\"n\">Adjusted p</th></tr>\n";
    for (const Cell& cell : c.cells) {
        out += fmt::format(
            "<tr><td>{} {}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
            "<td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td><td class=\"n\">{}</td></tr>\n",
            html_escape(cell.dimension), html_escape(cell.band), cell.pairs, cell.differing, cell.at_risk,
            cell.accepted_control, cell.accepted_treated, interval(cell.effect),
            cell.adjusted_p ? fmt::format("{:.3g}", *cell.adjusted_p) : "");
    }
    return out + "</table>\n";
}

std::string reliability_table(const Comparison& c) {
    if (c.reliability.empty()) return {};
    std::string out =
        "<h2>Confidence against outcome</h2>\n<table>\n<tr><th>Arm</th><th>Exposure</th>"
        "<th class=\"n\">Positions</th><th class=\"n\">Brier score</th><th>Predicted and realised retained, by "
        "verified proposals</th></tr>\n";
    for (const Reliability& r : c.reliability) {
        std::string widths;
        for (const auto& [verified, width] : r.widths) {
            const double cycles = static_cast<double>(width.cycles);
            widths += fmt::format("{}{}: {:.3g} and {:.3g} ({} cycles)", widths.empty() ? "" : "; ", verified,
                                  width.predicted / cycles, width.realised / cycles, width.cycles);
        }
        out += fmt::format(
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{:.4g}</td><td>{}</td></tr>\n",
            html_escape(r.arm), html_escape(r.exposure), r.positions, r.brier(), widths);
    }
    return out + "</table>\n";
}

std::string hazards_table(const Comparison& c) {
    if (c.control_hazards.empty() && c.treated_hazards.empty()) return {};
    std::string out =
        "<h2>Match rate of reached positions</h2>\n<p class=\"quiet\">Informative censoring: which positions were "
        "verified follows the confidence. The bounds take every unverified position as a miss and as a match.</p>\n"
        "<table>\n<tr><th>Arm</th><th>Confidence</th><th class=\"n\">Known</th><th class=\"n\">Not verified</th>"
        "<th class=\"n\">At least</th><th class=\"n\">At most</th></tr>\n";
    for (const auto& [name, hazards] :
         {std::pair("control", &c.control_hazards), std::pair("treated", &c.treated_hazards)}) {
        for (const Hazard& h : *hazards) {
            out += fmt::format(
                "<tr><td>{}</td><td>{:.1f} to {:.1f}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
                "<td class=\"n\">{:.3g}</td><td class=\"n\">{:.3g}</td></tr>\n",
                name, static_cast<double>(h.stratum) / 10, static_cast<double>(h.stratum + 1) / 10, h.known, h.unknown,
                h.low, h.high);
        }
    }
    return out + "</table>\n";
}

// Curves by cycle hold matched pairs alone.
std::string where_curves_stop(const Comparison& c) {
    const std::int64_t unmatched = c.pairs.unmatched_control + c.pairs.unmatched_treated;
    if (unmatched == 0 || c.series.empty()) return {};
    const SeriesPoint& last = *std::max_element(
        c.series.begin(), c.series.end(), [](const auto& a, const auto& b) { return a.first_cycle < b.first_cycle; });
    return fmt::format(
        "The curves hold matched lane-cycles only, the last near cycle {}; {} of the control and {} of the "
        "treated arm have no partner.",
        last.first_cycle, c.pairs.unmatched_control, c.pairs.unmatched_treated);
}

std::vector<std::pair<double, double>> survival_points(const std::optional<Survival>& survival) {
    std::vector<std::pair<double, double>> points;
    if (!survival || survival->survival.empty()) return points;
    points.emplace_back(0, 1);
    for (std::size_t i = 0; i < survival->survival.size(); ++i) {
        points.emplace_back(static_cast<double>(i + 1), survival->survival[i]);
    }
    return points;
}

template <typename Value>
ChartLine series_line(const Comparison& c, std::string name, std::string css, Value value) {
    ChartLine line{std::move(name), std::move(css), {}, false};
    for (const SeriesPoint& point : c.series)
        line.points.emplace_back(static_cast<double>(point.first_cycle), value(point));
    std::stable_sort(line.points.begin(), line.points.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    return line;
}

double mean(std::int64_t sum, const SeriesPoint& point) {
    return static_cast<double>(sum) / static_cast<double>(point.pairs);
}

std::string charts(const Comparison& c) {
    std::string out;
    const std::string stops = where_curves_stop(c);
    out += chart_figure({"Survival of acceptance length",
                         "accepted at least this many",
                         "estimated probability",
                         {{"control", "c", survival_points(c.control.survival), true},
                          {"treated", "t", survival_points(c.treated.survival), true}},
                         1,
                         ""});
    Chart drift{"Hidden-row drift by cycle", "cycle", "relative L2, largest row", {}, 0, stops};
    if (c.draft_drift.max_relative_l2) {
        drift.lines.push_back(series_line(c, "draft", "d", [](const SeriesPoint& p) { return p.draft_drift; }));
    }
    if (c.target_drift.max_relative_l2) {
        drift.lines.push_back(series_line(c, "target", "g", [](const SeriesPoint& p) { return p.target_drift; }));
    }
    out += chart_figure(drift);
    out += chart_figure({"Change of prefix confidence by cycle",
                         "cycle",
                         "largest absolute change at equal inputs",
                         {series_line(c, "change", "e", [](const SeriesPoint& p) { return p.confidence_change; })},
                         0,
                         stops});
    out += chart_figure(
        {"Verified proposals by cycle",
         "cycle",
         "proposals verified",
         {series_line(c, "control", "c", [](const SeriesPoint& p) { return mean(p.verified_control, p); }),
          series_line(c, "treated", "t", [](const SeriesPoint& p) { return mean(p.verified_treated, p); })},
         0,
         stops});
    out += chart_figure({"Exposure by cycle",
                         "cycle",
                         "restored positions that the treated arm's draft sees",
                         {series_line(c, "exposure", "t", [](const SeriesPoint& p) { return mean(p.exposure, p); })},
                         0,
                         stops});
    return out + ledger_figure(c.ledger, c.first);
}

}  // namespace

std::string report_html(const Comparison& c, const std::vector<PageSection>& sections) {
    std::string out =
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n";
    out += kPageMark;
    out += "\n<style>";
    out += kStyle;
    out += "</style>\n</head>\n<body>\n";
    out += fmt::format("<h1 class=\"{}\">{}</h1>\n<p>{}</p>\n", verdict_class(c.verdict), verdict_name(c.verdict),
                       html_escape(c.why));
    out += fmt::format("<p class=\"quiet\">control: {}; treated: {}, target {}, draft {}, tier {}; level {}</p>\n",
                       html_escape(c.control_capture.arm), html_escape(c.treated_capture.arm),
                       html_escape(c.treated_capture.restore_target), html_escape(c.treated_capture.restore_draft),
                       html_escape(c.treated_capture.tier), c.level);
    if (!c.corruption.empty() && c.corruption != c.why) out += fmt::format("<p>{}</p>\n", html_escape(c.corruption));
    out += list("Warnings", c.warnings);
    out += list("Notes", c.notes);
    out += facts(c);
    out += controls_table(c);
    for (const PageSection& section : sections) out += page_section(section);
    out += subject(c);
    if (c.verdict != Verdict::corrupt && c.verdict != Verdict::not_comparable) {
        out += acceptance_table(c);
        out += positions_table(c);
        out += cells_table(c);
        out += reliability_table(c);
        out += hazards_table(c);
        out += charts(c);
    }
    return out + "</body>\n</html>\n";
}

}  // namespace draftprobe
