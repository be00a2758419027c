#include <fmt/format.h>

#include "compare/verdict.h"
#include "report/report.h"

namespace draftprobe {
namespace {

constexpr std::size_t kLabelWidth = 14;
constexpr std::size_t kColumns = 100;

// `label` in its own column, then `text` wrapped beside it. Text from captures passes here too: control bytes become
// '?'.
void line(std::string& out, std::string_view label, std::string_view text) {
    if (text.empty()) return;
    out += fmt::format("{:<{}}", label, kLabelWidth);
    std::size_t column = kLabelWidth;
    while (!text.empty()) {
        const std::size_t space = text.find(' ');
        const std::string_view word = text.substr(0, space);
        text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
        if (column > kLabelWidth && column + 1 + word.size() > kColumns) {
            out += fmt::format("\n{:<{}}", "", kLabelWidth);
            column = kLabelWidth;
        } else if (column > kLabelWidth) {
            out += ' ';
            ++column;
        }
        for (char c : word) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
        column += word.size();
    }
    out += '\n';
}

std::string reasons_text(const UnmatchedReasons& r) {
    std::string text;
    const auto add = [&](std::int64_t count, std::string_view words) {
        if (count == 0) return;
        if (!text.empty()) text += ", ";
        text += fmt::format("{} {}", count, words);
    };
    add(r.cycle_boundaries, "at lengths without a cycle in the other arm");
    add(r.context_differs, "after other tokens");
    add(r.arm_ended, "after the other arm ended");
    add(r.request_missing, "of a request the other arm lacks");
    return text;
}

std::string with_prefix(std::string_view prefix, const std::string& text) {
    return text.empty() ? text : std::string(prefix) + text;
}

std::string changed_text(const Comparison& c) {
    std::string text;
    const auto add = [&](bool changed, std::string_view word) {
        if (changed) text += (text.empty() ? "" : ", ") + std::string(word);
    };
    add(c.proposals_changed, "proposals");
    add(c.width_changed, "width");
    add(c.acceptance_changed, "acceptance");
    add(c.output_changed, "output");
    return text;
}

void write_first(std::string& out, const Comparison& c) {
    if (!c.first) return;
    std::string place = fmt::format("stage {}, component {}", c.first->stage, c.first->component);
    if (c.first->cycle) place += fmt::format(", cycle {}", *c.first->cycle);
    if (c.first->lane) place += fmt::format(", lane {}", *c.first->lane);
    line(out, "first", place + ": " + c.first->detail);
    if (c.shift_tokens) {
        line(out, "shift",
             fmt::format("draft context rows landed {} positions too {}", std::abs(*c.shift_tokens),
                         *c.shift_tokens > 0 ? "high" : "low"));
    }
}

// The counts that are not zero: "341 computed + 2560 restored".
std::string rows_text(const ComponentRows& rows) {
    std::string text;
    const auto add = [&](std::int64_t count, std::string_view word) {
        if (count != 0) text += fmt::format("{}{} {}", text.empty() ? "" : " + ", count, word);
    };
    add(rows.computed, "computed");
    add(rows.restored, "restored");
    add(rows.carried, "carried");
    add(rows.none, "unwritten");
    return text.empty() ? "none" : text;
}

// What the draft sees below the boundary: restored rows alone, or how many of which kind.
std::string exposure_text(const Armed& armed) {
    const Exposure& seen = armed.draft_exposure_split;
    std::string text = fmt::format("{} restored", seen.restored);
    const auto add = [&](std::int64_t count, std::string_view word) {
        if (count != 0) text += fmt::format(", {} {}", count, word);
    };
    add(seen.computed, "computed");
    add(seen.carried, "carried");
    add(seen.none, "unwritten");
    return text + " positions visible to the draft at its first cycle";
}

std::string flips_text(const Comparison& c) {
    const Flips& flips = c.flips;
    std::string text = fmt::format("{}", flips.total);
    if (flips.widths > 0) text += fmt::format(" ({} of widths)", flips.widths);
    text += c.near_tie ? fmt::format(", {} of them near-ties", flips.near_ties)
                       : ", near-ties unknown: no thresholds recorded";
    if (flips.largest_margin) text += fmt::format(", largest control margin {:.6g}", *flips.largest_margin);
    return text;
}

void write_armed(std::string& out, const Comparison& c) {
    const Armed& armed = c.armed;
    const bool restored = c.treated_capture.arm == "restored";
    const bool swapped = !restored && c.control_capture.arm == "restored";
    std::string words = armed.armed ? "yes" : "no";
    // Where the verdict is not about the arms, `why` does not say it.
    if (c.verdict == Verdict::changed && !armed.reason.empty()) words += fmt::format(": {}", armed.reason);
    if (!restored) words = "no restored arm: both arms computed";
    if (swapped) words = "the control is the restored arm and the treated one computed: name the computing arm first";
    line(out, "armed", words);
    if (armed.draft_exposure && restored) line(out, "exposure", exposure_text(armed));
    for (const ArmedComponent& component : armed.components) {
        line(out, "rows",
             fmt::format("{}: control {}; treated {}", component.component, rows_text(component.control),
                         rows_text(component.treated)));
    }
}

std::string effect_text(const PopulationEffect& e) {
    std::string text = fmt::format("{} prompts: {:+.4g}, 95 % interval {:.4g} to {:.4g}, detectable from {:.4g}",
                                   e.prompts, e.difference, e.low, e.high, e.minimum_detectable);
    return e.claim() == "insufficient" ? "insufficient, " + text : text;
}

std::string adjusted_text(const std::optional<double>& p) {
    return p ? fmt::format(", adjusted p {:.3g}", *p) : std::string();
}

void write_cells(std::string& out, const Comparison& c);

void write_acceptance(std::string& out, const Comparison& c) {
    std::string means =
        fmt::format("control {:.3f} accepted, {:.3f} retained a cycle ({} cycles); treated {:.3f}, {:.3f} ({} cycles)",
                    c.control.mean_accepted(), c.control.mean_retained(), c.control.lane_cycles,
                    c.treated.mean_accepted(), c.treated.mean_retained(), c.treated.lane_cycles);
    if (mostly_unmatched(c)) {
        means += fmt::format("; {}: {} of {} cycles matched",
                             c.output_changed ? "different texts after the first output difference"
                                              : "the cycles of the arms end at different lengths",
                             c.pairs.matched,
                             c.pairs.matched + std::max(c.pairs.unmatched_control, c.pairs.unmatched_treated));
    }
    line(out, "acceptance", means);
    std::string positions;
    for (std::size_t i = 0; i < c.paired.at_risk.size(); ++i) {
        if (c.paired.accepted_control[i] == c.paired.accepted_treated[i]) continue;
        positions += fmt::format("{}position {}: accepted {} in the control and {} in the treated arm, of {}",
                                 positions.empty() ? "" : "; ", i + 1, c.paired.accepted_control[i],
                                 c.paired.accepted_treated[i], c.paired.at_risk[i]);
    }
    line(out, "by position", positions);
    if (c.control.lane_cycles > 0) line(out, "survival", c.survival_refused);
    if (c.population) {
        line(out, "population", effect_text(*c.population) + " retained a cycle");
    } else if (c.pairs.matched > 0) {
        line(out, "population", "no claim: " + c.population_refused);
    }
    for (const PositionEffect& p : c.positions) {
        if (!p.effect || p.effect->difference == 0) continue;
        line(out, "at position",
             fmt::format("{}: {} match rate{}", p.position, effect_text(*p.effect), adjusted_text(p.adjusted_p)));
    }
    write_cells(out, c);
}

// Only where something differs: a healthy restore has one short report.
void write_cells(std::string& out, const Comparison& c) {
    std::string throughout;
    for (const Cell& cell : c.cells) {
        if (c.pairs.differing == 0) break;
        if (cell.pairs == c.pairs.matched) {  // the whole dimension
            throughout += fmt::format("{}{} {}", throughout.empty() ? "" : ", ", cell.dimension, cell.band);
            continue;
        }
        std::string text = fmt::format(
            "{} {}: {} of {} pairs differ; accepted {} in the control and {} in the treated arm, of {} seen in both",
            cell.dimension, cell.band, cell.differing, cell.pairs, cell.accepted_control, cell.accepted_treated,
            cell.at_risk);
        if (cell.effect) {
            text += fmt::format("; {} retained a cycle{}", effect_text(*cell.effect), adjusted_text(cell.adjusted_p));
        }
        line(out, "by stratum", text);
    }
    line(out, "throughout", throughout);
    for (const Reliability& r : c.reliability) {
        if (c.pairs.differing == 0) break;
        line(out, "confidence",
             fmt::format("{} arm, exposure {}: Brier score {:.4g} over {} positions", r.arm, r.exposure, r.brier(),
                         r.positions));
    }
    for (const auto& [name, hazards] :
         {std::pair("control", &c.control_hazards), std::pair("treated", &c.treated_hazards)}) {
        for (const Hazard& h : *hazards) {
            line(out, "hazard",
                 fmt::format("{} arm, confidence {:.1f} to {:.1f}: between {:.4g} and {:.4g} matched ({} known, {} not "
                             "verified; informative censoring)",
                             name, static_cast<double>(h.stratum) / 10, static_cast<double>(h.stratum + 1) / 10, h.low,
                             h.high, h.known, h.unknown));
        }
    }
}

void write_drift(std::string& out, std::string_view label, const RowDrift& drift) {
    if (drift.rows == 0) return;
    std::string text = fmt::format("{} of {} hidden rows differ", drift.rows_different, drift.rows);
    if (drift.max_relative_l2 && drift.rows_different > 0) {
        text += fmt::format(", relative L2 at most {:.6g} (cycle {}, row {})", *drift.max_relative_l2, drift.cycle,
                            drift.row);
    }
    if (drift.rows_input_differs > 0) text += fmt::format("; {} not compared: input differs", drift.rows_input_differs);
    line(out, label, text);
}

}  // namespace

std::string report_text(const Comparison& c) {
    std::string out;
    line(out, "verdict", fmt::format("{} (level {})", verdict_name(c.verdict), c.level));
    line(out, "why", c.why);
    // What limits the verdict is read with it, not after the figures.
    const auto blind = static_cast<std::size_t>(c.blind_spots);
    for (std::size_t i = 0; i < c.warnings.size() && i < blind; ++i) line(out, "beware", c.warnings[i]);
    if (c.corruption != c.why) line(out, "corrupt", c.corruption);
    for (const Refusal& refusal : c.refusals) {
        line(out, "differs",
             fmt::format("{}: control {}, treated {}", refusal.field, refusal.control, refusal.treated));
    }
    line(out, "changed", changed_text(c));
    write_first(out, c);
    if (c.verdict != Verdict::corrupt && c.verdict != Verdict::not_comparable) {
        line(out, "pairs",
             fmt::format("{} matched, {} of them differ; unmatched: {} control, {} treated", c.pairs.matched,
                         c.pairs.differing, c.pairs.unmatched_control, c.pairs.unmatched_treated));
        line(out, "unmatched", with_prefix("control: ", reasons_text(c.pairs.control)));
        line(out, "unmatched", with_prefix("treated: ", reasons_text(c.pairs.treated)));
        if (c.pairs.forced > 0) {
            line(out, "lockstep",
                 fmt::format("{} matched lane-cycles were forced to the control's tokens and count in no output length",
                             c.pairs.forced));
        }
        write_armed(out, c);
        write_acceptance(out, c);
        write_drift(out, "draft drift", c.draft_drift);
        write_drift(out, "target drift", c.target_drift);
        if (c.flips.total > 0) line(out, "flips", flips_text(c));
        line(out, "cause", c.drift_explained_by);
    }
    for (const std::string& declared : c.declared) line(out, "declared", declared);
    for (const ControlVerdict& control : c.controls) {
        line(out, "control", fmt::format("{}: {}: {}", control.arm, verdict_name(control.verdict), control.why));
    }
    for (std::size_t i = blind; i < c.warnings.size(); ++i) line(out, "warning", c.warnings[i]);
    for (const std::string& note : c.notes) line(out, "note", note);
    line(out, "next", c.next_step);
    return out;
}

}  // namespace draftprobe
