#include "base/json_writer.h"
#include "compare/verdict.h"
#include "report/report.h"

namespace draftprobe {
namespace {

void optional_number(JsonWriter& out, std::string_view key, const std::optional<double>& value) {
    out.key(key);
    if (value) {
        out.value_rounded(*value);
    } else {
        out.null();
    }
}

template <typename T>
void optional_integer(JsonWriter& out, std::string_view key, const std::optional<T>& value) {
    out.key(key);
    if (value) {
        out.value(*value);
    } else {
        out.null();
    }
}

template <typename T>
void list(JsonWriter& out, std::string_view key, const std::vector<T>& values) {
    out.key(key).begin_array();
    for (const T& value : values) out.value(value);
    out.end_array();
}

void write_changed(JsonWriter& out, const Comparison& c) {
    out.key("changed").begin_array();
    if (c.proposals_changed) out.value("proposals");
    if (c.width_changed) out.value("width");
    if (c.acceptance_changed) out.value("acceptance");
    if (c.output_changed) out.value("output");
    out.end_array();
}

void write_first(JsonWriter& out, const Comparison& c) {
    out.key("first");
    if (!c.first) {
        out.null();
        return;
    }
    out.begin_object();
    out.member("stage", c.first->stage);
    out.member("component", c.first->component);
    optional_integer(out, "cycle", c.first->cycle);
    optional_integer(out, "lane", c.first->lane);
    out.member("detail", c.first->detail);
    out.end_object();
}

void write_refusals(JsonWriter& out, const Comparison& c) {
    out.key("refusals").begin_array();
    for (const Refusal& refusal : c.refusals) {
        out.begin_object();
        out.member("field", refusal.field).member("control", refusal.control).member("treated", refusal.treated);
        out.end_object();
    }
    out.end_array();
}

void write_rows(JsonWriter& out, std::string_view key, const ComponentRows& rows) {
    out.key(key).begin_object();
    out.member("computed", rows.computed).member("restored", rows.restored);
    out.member("carried", rows.carried).member("none", rows.none);
    out.end_object();
}

void write_armed(JsonWriter& out, const Armed& armed) {
    out.key("armed").begin_object();
    out.member("armed", armed.armed).member("reason", armed.reason).member("advice", armed.advice);
    optional_integer(out, "draft_exposure", armed.draft_exposure);
    out.member("recomputed_rows", armed.recomputed_rows);
    out.key("components").begin_array();
    for (const ArmedComponent& component : armed.components) {
        out.begin_object();
        out.member("component", component.component);
        write_rows(out, "control", component.control);
        write_rows(out, "treated", component.treated);
        out.end_object();
    }
    out.end_array();
    out.end_object();
}

void write_reasons(JsonWriter& out, std::string_view key, const UnmatchedReasons& reasons) {
    out.key(key).begin_object();
    out.member("cycle_boundaries", reasons.cycle_boundaries).member("context_differs", reasons.context_differs);
    out.member("arm_ended", reasons.arm_ended).member("request_missing", reasons.request_missing);
    out.end_object();
}

void write_pairs(JsonWriter& out, const Pairs& pairs) {
    out.key("pairs").begin_object();
    out.member("matched", pairs.matched);
    out.member("unmatched_control", pairs.unmatched_control).member("unmatched_treated", pairs.unmatched_treated);
    out.member("differing", pairs.differing);
    optional_integer(out, "last_differing", pairs.last_differing);
    out.member("same_after", pairs.same_after).member("forced", pairs.forced);
    out.member("duplicates_control", pairs.duplicates_control);
    out.member("duplicates_treated", pairs.duplicates_treated);
    out.key("unmatched_reasons").begin_object();
    write_reasons(out, "control", pairs.control);
    write_reasons(out, "treated", pairs.treated);
    out.end_object();
    out.end_object();
}

void write_arm_acceptance(JsonWriter& out, std::string_view key, const ArmAcceptance& arm) {
    out.key(key).begin_object();
    out.member("lane_cycles", arm.lane_cycles).member("drafted", arm.drafted).member("verified", arm.verified);
    out.member("accepted", arm.accepted).member("retained", arm.retained).member("emitted", arm.emitted);
    out.member("forced_cycles", arm.forced_cycles);
    out.key("mean_accepted").value_rounded(arm.mean_accepted());
    out.key("mean_retained").value_rounded(arm.mean_retained());
    out.member("computed_rows", arm.computed_rows).member("restored_rows", arm.restored_rows);
    out.key("survival");
    if (!arm.survival) {
        out.null();
    } else {
        out.begin_object();
        list(out, "at_risk", arm.survival->at_risk);
        list(out, "rejected", arm.survival->rejected);
        out.key("survival").begin_array();
        for (double value : arm.survival->survival) out.value_rounded(value);
        out.end_array();
        out.end_object();
    }
    out.end_object();
}

void write_effect(JsonWriter& out, std::string_view key, const std::optional<PopulationEffect>& effect) {
    out.key(key);
    if (!effect) {
        out.null();
        return;
    }
    out.begin_object();
    out.member("prompts", effect->prompts).member("claim", effect->claim());
    out.key("difference").value_rounded(effect->difference);
    out.key("low").value_rounded(effect->low);
    out.key("high").value_rounded(effect->high);
    out.key("minimum_detectable").value_rounded(effect->minimum_detectable);
    out.key("p_value").value_rounded(effect->p_value);
    out.end_object();
}

void write_positions(JsonWriter& out, const Comparison& c) {
    out.key("positions").begin_array();
    for (const PositionEffect& p : c.positions) {
        out.begin_object();
        out.member("position", p.position).member("prompts", p.prompts);
        write_effect(out, "effect", p.effect);
        optional_number(out, "adjusted_p", p.adjusted_p);
        out.end_object();
    }
    out.end_array();
}

void write_cells(JsonWriter& out, const Comparison& c) {
    out.key("cells").begin_array();
    for (const Cell& cell : c.cells) {
        out.begin_object();
        out.member("dimension", cell.dimension).member("band", cell.band);
        out.member("pairs", cell.pairs).member("differing", cell.differing).member("prompts", cell.prompts);
        out.member("at_risk", cell.at_risk);
        out.member("accepted_control", cell.accepted_control).member("accepted_treated", cell.accepted_treated);
        out.member("retained_control", cell.retained_control).member("retained_treated", cell.retained_treated);
        write_effect(out, "effect", cell.effect);
        optional_number(out, "adjusted_p", cell.adjusted_p);
        out.end_object();
    }
    out.end_array();
}

void write_reliability(JsonWriter& out, const Comparison& c) {
    out.key("reliability").begin_array();
    for (const Reliability& r : c.reliability) {
        out.begin_object();
        out.member("arm", r.arm).member("exposure", r.exposure).member("positions", r.positions);
        out.key("brier").value_rounded(r.brier());
        out.key("buckets").begin_array();
        for (std::size_t i = 0; i < r.buckets.size(); ++i) {
            const ReliabilityBucket& bucket = r.buckets[i];
            if (bucket.positions == 0) continue;
            out.begin_object();
            out.member("bucket", static_cast<std::int64_t>(i));
            out.member("positions", bucket.positions).member("matched", bucket.matched);
            out.key("mean_confidence").value_rounded(bucket.confidence / static_cast<double>(bucket.positions));
            out.end_object();
        }
        out.end_array();
        out.key("widths").begin_array();
        for (const auto& [verified, width] : r.widths) {
            out.begin_object();
            out.member("verified", verified).member("cycles", width.cycles);
            out.key("predicted_retained").value_rounded(width.predicted / static_cast<double>(width.cycles));
            out.key("realised_retained").value_rounded(width.realised / static_cast<double>(width.cycles));
            out.end_object();
        }
        out.end_array();
        out.end_object();
    }
    out.end_array();
}

void write_hazards(JsonWriter& out, std::string_view key, const std::vector<Hazard>& hazards) {
    out.key(key).begin_array();
    for (const Hazard& h : hazards) {
        out.begin_object();
        out.member("stratum", h.stratum).member("known", h.known).member("matched", h.matched);
        out.member("unknown", h.unknown);
        out.key("low").value_rounded(h.low);
        out.key("high").value_rounded(h.high);
        out.end_object();
    }
    out.end_array();
}

void write_trend(JsonWriter& out, std::string_view key, const std::optional<Trend>& trend) {
    out.key(key);
    if (!trend) {
        out.null();
        return;
    }
    out.begin_object();
    out.member("requests", trend->requests);
    out.key("first").value_rounded(trend->first);
    out.key("last").value_rounded(trend->last);
    out.key("t").value_rounded(trend->t);
    out.member("flagged", trend->flagged);
    out.end_object();
}

void write_stop(JsonWriter& out, std::string_view key, const std::optional<ArmStop>& stop) {
    out.key(key);
    if (!stop) {
        out.null();
        return;
    }
    out.begin_object();
    out.member("stage", stop->stage).member("cycle", stop->cycle).member("lane", stop->lane);
    out.end_object();
}

void write_window(JsonWriter& out, const Comparison& c) {
    out.key("window_fill");
    if (!c.window_fill) {
        out.null();
        return;
    }
    out.begin_object();
    out.member("rows", c.window_fill->rows).member("control", c.window_fill->control);
    out.member("window", c.window_fill->window).member("cycle", c.window_fill->cycle);
    out.end_object();
}

// `with_files`: with the digests of their captures.
void write_controls(JsonWriter& out, const Comparison& c, bool with_files) {
    if (c.controls.empty()) return;
    out.key("controls").begin_array();
    for (const ControlVerdict& control : c.controls) {
        out.begin_object();
        out.member("arm", control.arm).member("capture", control.capture);
        out.member("verdict", verdict_name(control.verdict));
        out.member("why", control.why).member("matched", control.matched);
        if (with_files) out.member("digest", control.digest);
        out.end_object();
    }
    out.end_array();
}

void write_acceptance(JsonWriter& out, const Comparison& c) {
    out.key("acceptance").begin_object();
    write_arm_acceptance(out, "control", c.control);
    write_arm_acceptance(out, "treated", c.treated);
    out.member("survival_refused", c.survival_refused);
    out.key("paired").begin_object();
    list(out, "at_risk", c.paired.at_risk);
    list(out, "accepted_control", c.paired.accepted_control);
    list(out, "accepted_treated", c.paired.accepted_treated);
    out.member("retained_control", c.paired.retained_control).member("retained_treated", c.paired.retained_treated);
    out.member("width_differs", c.paired.width_differs).member("acceptance_differs", c.paired.acceptance_differs);
    list(out, "first_proposal_difference", c.paired.first_proposal_difference);
    out.end_object();
    write_effect(out, "population", c.population);
    out.member("population_refused", c.population_refused);
    write_positions(out, c);
    write_cells(out, c);
    write_reliability(out, c);
    out.key("hazards").begin_object();
    write_hazards(out, "control", c.control_hazards);
    write_hazards(out, "treated", c.treated_hazards);
    out.end_object();
    out.key("trend").begin_object();
    write_trend(out, "control", c.control_trend);
    write_trend(out, "treated", c.treated_trend);
    out.end_object();
    out.end_object();
}

void write_row_drift(JsonWriter& out, std::string_view key, const RowDrift& drift) {
    out.key(key).begin_object();
    optional_number(out, "max_relative_l2", drift.max_relative_l2);
    out.key("mean_relative_l2");
    if (drift.max_relative_l2 && drift.rows > 0) {
        out.value_rounded(drift.sum_relative_l2 / static_cast<double>(drift.rows));
    } else {
        out.null();
    }
    out.member("rows", drift.rows).member("rows_different", drift.rows_different);
    out.member("rows_input_differs", drift.rows_input_differs);
    out.member("cycle", drift.cycle).member("row", drift.row);
    out.end_object();
}

void write_drift(JsonWriter& out, const Comparison& c) {
    std::optional<double> worst = c.draft_drift.max_relative_l2;
    if (c.target_drift.max_relative_l2 && (!worst || *c.target_drift.max_relative_l2 > *worst)) {
        worst = c.target_drift.max_relative_l2;
    }
    out.key("drift").begin_object();
    optional_number(out, "max_relative_l2", worst);
    write_row_drift(out, "draft", c.draft_drift);
    write_row_drift(out, "target", c.target_drift);
    out.key("max_confidence_change").value_rounded(c.max_confidence_change);
    out.member("explained_by", c.drift_explained_by);
    out.key("flips").begin_object();
    out.member("total", c.flips.total).member("near_ties", c.flips.near_ties);
    optional_number(out, "largest_margin", c.flips.largest_margin);
    out.end_object();
    out.key("near_tie");
    if (!c.near_tie) {
        out.null();
    } else {
        out.begin_object();
        out.key("target").value_rounded(c.near_tie->target);
        out.key("selector").value_rounded(c.near_tie->selector);
        out.key("width").value_rounded(c.near_tie->width);
        out.member("samples", c.near_tie->samples);
        out.end_object();
    }
    out.end_object();
}

void write_capture(JsonWriter& out, std::string_view key, const CaptureSummary& capture, const std::string* path) {
    out.key(key).begin_object();
    out.member("arm", capture.arm).member("restore_target", capture.restore_target);
    out.member("restore_draft", capture.restore_draft).member("tier", capture.tier);
    out.member("level", capture.level).member("numerics", capture.numerics).member("budget", capture.budget);
    list(out, "faults", capture.faults);
    if (path != nullptr) out.member("path", *path).member("digest", capture.digest);
    out.end_object();
}

std::string write(const Comparison& c, const CaptureNames* names) {
    JsonWriter out(JsonWriter::Style::pretty);
    out.begin_object();
    out.member("report", "draftprobe-comparison");
    out.member("report_version", kReportVersion);
    out.member("verdict", verdict_name(c.verdict));
    out.member("exit", verdict_exit(c.verdict));
    out.member("why", c.why);
    out.member("level", c.level);
    out.member("evidence", c.sanitisable_evidence ? "sanitisable" : "all");
    write_changed(out, c);
    write_first(out, c);
    optional_integer(out, "shift_tokens", c.shift_tokens);
    write_window(out, c);
    out.key("stopped").begin_object();
    write_stop(out, "control", c.control_stop);
    write_stop(out, "treated", c.treated_stop);
    out.end_object();
    write_refusals(out, c);
    list(out, "declared", c.declared);
    write_armed(out, c.armed);
    write_pairs(out, c.pairs);
    write_acceptance(out, c);
    write_drift(out, c);
    write_controls(out, c, names != nullptr);
    list(out, "warnings", c.warnings);
    out.member("blind_spots", c.blind_spots);
    list(out, "notes", c.notes);
    out.member("next_step", c.next_step);
    out.member("corrupt_capture", c.corrupt_capture);
    if (names != nullptr) out.member("corruption", c.corruption);
    out.key("captures").begin_object();
    write_capture(out, "control", c.control_capture, names == nullptr ? nullptr : &names->control);
    write_capture(out, "treated", c.treated_capture, names == nullptr ? nullptr : &names->treated);
    out.end_object();
    out.end_object();
    return out.take() + "\n";
}

}  // namespace

std::string report_json(const Comparison& comparison) { return write(comparison, nullptr); }

std::string report_json(const Comparison& comparison, const CaptureNames& names) { return write(comparison, &names); }

}  // namespace draftprobe
