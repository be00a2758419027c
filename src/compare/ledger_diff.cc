#include "compare/ledger_diff.h"

#include <fmt/format.h>

#include <algorithm>

#include "compare/armed.h"
#include "compare/refuse.h"
#include "compare/shift_search.h"

namespace draftprobe {
namespace {

// Which of several differences of one component is named: the one that explains most.
enum Precision { shifted, counts, paired, claims, content_due, content, kPrecisions };

int rank_of(std::string_view component, Precision precision) {
    return component_rank(component) * kPrecisions + precision;
}

const LedgerEvent* find_event(const CaptureHeader& h, const std::string& request, std::string_view name) {
    for (const LedgerEvent& event : h.ledger) {
        if (event.request == request && event.event == name) return &event;
    }
    return nullptr;
}

const LedgerComponent* find_component(const LedgerEvent& event, std::string_view name) {
    for (const LedgerComponent& component : event.components) {
        if (component.component == name) return &component;
    }
    return nullptr;
}

DigestRows rows_of(const LedgerEvent& event) { return {event.row_first, event.row_digests}; }

bool is_draft(std::string_view component) { return component == kDraftContext || component == kDraftRing; }

bool is_recurrent(std::string_view component) { return component == kRecurrent || component == kConv; }

// What the treated arm declared about a component at its restore.
enum class Form { exact, lossy, rebuilt, absent };

Form form_of(const CaptureHeader& header, Stage stage, std::string_view component) {
    if (header.arm != Arm::restored || stage == Stage::materialise) return Form::exact;
    const Treatment& treatment = header.treatment;
    const std::string& form = is_draft(component) ? treatment.restore_draft : treatment.restore_target;
    if (form == "rows-q4") return Form::lossy;
    // KV and convolution rows are copied: they are exact where the restore left them, and only later rows, computed
    // from the lossy matrix, may differ.
    if (form == "int8-state") return component == kRecurrent || stage != Stage::restore ? Form::lossy : Form::exact;
    if (form == "masked" || form == "none") return Form::absent;
    if (form == "rows" && component == kDraftRing) return Form::rebuilt;
    if (form == "recompute") return Form::rebuilt;
    return Form::exact;
}

class LedgerComparison {
public:
    LedgerComparison(const CaptureHeader& control, const CaptureHeader& treated, Findings& findings)
        : control_(control), treated_(treated), findings_(findings) {}

    LedgerVerdict run() {
        for (const CapturedRequest& request : treated_.requests) {
            const LedgerEvent* materialised = find_event(control_, request.key, "materialise");
            compare_event(Stage::materialise, materialised, find_event(treated_, request.key, "materialise"));
            compare_event(Stage::snapshot, materialised, find_event(treated_, request.key, "snapshot"));
            const LedgerEvent* restore = find_event(treated_, request.key, "restore");
            compare_order(restore);
            compare_event(Stage::restore, materialised, restore);
            compare_with_snapshot(find_event(treated_, request.key, "snapshot"), restore);
            compare_event(Stage::prefill, find_event(control_, request.key, "prefill"),
                          find_event(treated_, request.key, "prefill"));
            compare_event(Stage::end, find_event(control_, request.key, "end"),
                          find_event(treated_, request.key, "end"));
            warn_of_occupant(request.key);
        }
        return std::move(result_);
    }

private:
    struct Place {
        Stage stage;
        std::int32_t lane;
        std::string_view component;
    };
    void report(const Place& place, Precision precision, Weight weight, const std::string& detail) {
        ++result_.differences;
        result_.hard = result_.hard || weight != Weight::explainable;
        findings_.offer(place.stage, rank_of(place.component, precision), place.component, std::nullopt, place.lane,
                        weight, [&] { return detail; });
    }

    void compare_event(Stage stage, const LedgerEvent* control, const LedgerEvent* treated) {
        if (treated == nullptr) return;
        const bool restoring = stage == Stage::restore || stage == Stage::snapshot;
        for (const LedgerComponent& c : treated->components) {
            if (c.component != kController) check_own(stage, *treated, c, control);
        }
        if (control == nullptr || control->position != treated->position) return;
        for (const LedgerComponent& c : control->components) {
            if (c.component == kController) continue;
            const Place place{stage, treated->lane, c.component};
            const LedgerComponent* t = find_component(*treated, c.component);
            if (t != nullptr) {
                compare_component(place, *control, *treated, c, *t);
            } else if (restoring && form_of(treated_, place.stage, c.component) == Form::absent) {
                report(place, claims, Weight::explainable,
                       fmt::format("not restored by declaration ({})", treated_.treatment.restore_draft));
            } else if (restoring && form_of(treated_, place.stage, c.component) == Form::rebuilt &&
                       stage == Stage::snapshot) {
                continue;
            } else {
                report(place, counts, Weight::broken,
                       fmt::format("{}component missing {} '{}'; the control has [{}, {})",
                                   is_draft(c.component) ? "draft " : "", stage == Stage::snapshot ? "in" : "at",
                                   treated->event, c.first, c.last));
            }
        }
    }

    // What a treated ledger entry says against itself. A control with the same oddity clears it of the treatment.
    void check_own(Stage stage, const LedgerEvent& event, const LedgerComponent& t, const LedgerEvent* control_event) {
        const Place place{stage, event.lane, t.component};
        const LedgerComponent* c = control_event == nullptr ? nullptr : find_component(*control_event, t.component);
        const bool declared_absent = form_of(treated_, stage, t.component) == Form::absent;
        const std::int64_t missing = t.rows_claimed - t.rows_written;
        // No declaration makes a row right that nobody wrote: a shortened context claims less.
        if (missing > 0 && (c == nullptr || c->rows_claimed - c->rows_written != missing)) {
            if (result_.unwritten.empty()) result_.unwritten = t.component;
            // The form `none` is such a defect by declaration, below the boundary: another one is told beside it.
            const std::string suffix = suffix_text(stage, event, t);
            report(place, counts, declared_absent && suffix.empty() ? Weight::real : Weight::broken,
                   suffix + unwritten_text(t.rows_claimed, t.rows_written, t.last, t.first, t.sources));
        } else if (is_draft(t.component) && !declared_absent && t.last - t.first > t.rows_claimed &&
                   (c == nullptr || c->last - c->first <= c->rows_claimed)) {
            report(place, counts, Weight::broken, fmt::format("logical offset {}, fill {}", t.last, t.rows_written));
        }
        if (stage != Stage::snapshot && !t.expected.empty() && !t.digest.empty() && t.expected != t.digest) {
            report(
                place, content_due, Weight::broken,
                fmt::format("content of [{}, {}) differs from what the lane's own rows make of it", t.first, t.last));
        }
        const bool covers_tokens = component_rank(t.component) < component_rank(kAnchor);
        if (!covers_tokens || t.last == event.position || t.rows_claimed == 0) return;
        if (c != nullptr && c->last != control_event->position) return;
        report(place, counts, declared_absent ? Weight::explainable : Weight::broken,
               is_draft(t.component) && t.last > event.position
                   ? fmt::format("claims [{}, {}) at length {}: claimed length exceeds positions", t.first, t.last,
                                 event.position)
                   : fmt::format("covers {}, labelled {}", t.last, event.position));
    }

    // Which part of the tokens behind the boundary left a row to the draft; empty when all did.
    std::string suffix_text(Stage stage, const LedgerEvent& event, const LedgerComponent& t) const {
        if (stage != Stage::prefill || t.component != kDraftContext) return {};
        for (const CapturedRequest& r : treated_.requests) {
            if (r.key != event.request) continue;
            const Position first = std::max(r.boundary, t.first);
            Position rows = 0;
            for (const SourceRange& range : t.sources) {
                if (range.source != RowSource::none)
                    rows += std::max<Position>(0, std::min(range.last, event.position) - std::max(range.first, first));
            }
            if (rows >= event.position - first) return {};
            return fmt::format("context rows {} of {} behind the boundary; ", rows, event.position - first);
        }
        return {};
    }

    void compare_component(const Place& place, const LedgerEvent& control, const LedgerEvent& treated,
                           const LedgerComponent& c, const LedgerComponent& t) {
        const Form form = form_of(treated_, place.stage, c.component);
        // Another range may keep its rows at the same base or move the base along; anything else is a wrong one.
        if (t.base != c.base && t.base - t.first != c.base - c.first) {
            report(place, counts, Weight::broken,
                   fmt::format("position base {}, expected {}", t.base, c.base - c.first + t.first));
        }
        if (c.rows_claimed != t.rows_claimed && form == Form::absent) {
            report(place, claims, Weight::explainable,
                   fmt::format("context shortened by declaration ({}): {} rows of {}", treated_.treatment.restore_draft,
                               t.rows_claimed, c.rows_claimed));
        } else if (c.rows_claimed != t.rows_claimed && (form == Form::exact || lacks_visible_rows(treated, t))) {
            const bool gap = is_draft(c.component) && t.first > c.first && t.last == c.last;
            report(place, claims, Weight::broken,
                   gap ? fmt::format("position gap: {} rows from {}, expected {} from {}", t.rows_claimed, t.first,
                                     c.rows_claimed, c.first)
                       : fmt::format("{} rows claimed, the control has {}", t.rows_claimed, c.rows_claimed));
        }
        if (c.component == kDraftContext && !control.row_digests.empty() && !treated.row_digests.empty()) {
            compare_rows(place, rows_of(control), treated, t, {});
        }
        const bool same_range = c.first == t.first && c.last == t.last;
        if (!same_range || c.digest.empty() || t.digest.empty() || c.digest == t.digest) return;
        if (is_recurrent(c.component)) {
            compare_stop(place, treated, t);
            return;
        }
        if (place.stage == Stage::prefill && c.component == kAnchor) {
            // A flipped decision, judged by its margin like any other.
            result_.first_token_differs.push_back(treated.request);
            return;
        }
        report(place, content, Weight::explainable,
               fmt::format("content of [{}, {}) differs from the control's", c.first, c.last));
    }

    // A form that makes rows again needs only those that the draft can still see.
    bool lacks_visible_rows(const LedgerEvent& event, const LedgerComponent& t) const {
        for (const CapturedRequest& request : treated_.requests) {
            if (request.key != event.request || !is_draft(t.component)) continue;
            const Position oldest =
                request.window == 0 ? 0 : std::max<Position>(0, event.position - request.window + 1);
            return t.first > oldest || t.last < event.position;
        }
        return false;
    }

    // A recurrent state says nothing about how many tokens it consumed, except by being the control's at that point.
    void compare_stop(const Place& place, const LedgerEvent& treated, const LedgerComponent& t) {
        for (const LedgerEvent& event : control_.ledger) {
            if (event.request != treated.request || event.position == treated.position) continue;
            const LedgerComponent* other = find_component(event, t.component);
            if (other == nullptr || other->digest != t.digest) continue;
            report(place, counts, Weight::broken,
                   fmt::format("covers {}, labelled {}: it is the control's state at '{}'", event.position,
                               treated.position, event.event));
            return;
        }
        report(place, content, Weight::explainable,
               fmt::format("state labelled {} differs from the control's, which stopped there", treated.position));
    }

    // `due`: where the rows come from that these have to be, bit for bit; empty for the control's, which rows under a
    // lossy form are not.
    void compare_rows(const Place& place, const DigestRows& c_rows, const LedgerEvent& treated,
                      const LedgerComponent& t, std::string_view due) {
        const DigestRows t_rows = rows_of(treated);
        const RowDifferences rows = row_differences(c_rows, t_rows);
        const bool exact = !due.empty() || form_of(treated_, place.stage, t.component) == Form::exact;
        if (rows.different + rows.extra == 0 && (rows.missing == 0 || !exact)) return;
        std::string claimed = fmt::format("claimed {}, written {}", t.rows_claimed, t.rows_written);
        if (t.last > treated.position) claimed += "; claimed length exceeds positions";
        const std::string_view owner = due.empty() ? "control's" : "due";
        if (const auto shift = find_constant_shift(c_rows, t_rows)) {
            if (!result_.shift_tokens) result_.shift_tokens = shift->tokens;
            report(place, shifted, Weight::broken,
                   fmt::format("rows shifted by {:+}: {} of {} rows hold the {} row of {} positions {}; {}",
                               shift->tokens, shift->matching, rows.compared + rows.extra, owner,
                               std::abs(shift->tokens), shift->tokens > 0 ? "earlier" : "later", claimed));
            return;
        }
        if (const auto origin = origin_of(treated, rows.first_different, c_rows, t_rows)) {
            report(place, paired, Weight::broken,
                   fmt::format("pairing: expected row {}, got {}; {} of {} rows differ; {}", rows.first_different,
                               *origin, rows.different, rows.compared, claimed));
            return;
        }
        report(place, claims, due.empty() ? Weight::explainable : Weight::broken,
               fmt::format("{} of {} rows differ{}{}, the first at position {}; {} missing, {} beyond the {}; {}",
                           rows.different, rows.compared, due.empty() ? "" : " from ", due, rows.first_different,
                           rows.missing, rows.extra, due.empty() ? "control's" : "due ones", claimed));
    }

    // Where else the treated row at `p` stands: in the control at the same moment, later in the same request, or in
    // another request of either arm.
    std::optional<std::string> origin_of(const LedgerEvent& treated, Position p, const DigestRows& c_rows,
                                         const DigestRows& t_rows) {
        if (const auto position = position_of_row(c_rows, t_rows, p)) return fmt::format("row {}", *position);
        if (t_rows.at(p) == 0 || t_rows.at(p) == c_rows.at(p)) return std::nullopt;
        if (searches_left_ == 0) return std::nullopt;
        --searches_left_;
        for (const bool same_request : {true, false}) {
            for (const CaptureHeader* header : {&control_, &treated_}) {
                for (const LedgerEvent& event : header->ledger) {
                    if ((event.request == treated.request) != same_request) continue;
                    if (same_request && header == &treated_) continue;
                    const auto found = std::find(event.row_digests.begin(), event.row_digests.end(), t_rows.at(p));
                    if (found == event.row_digests.end()) continue;
                    const Position position = event.row_first + (found - event.row_digests.begin());
                    return same_request ? fmt::format("row {} (of '{}')", position, event.event)
                                        : fmt::format("row {} (earlier request)", position);
                }
            }
        }
        return std::nullopt;
    }

    // A lane that differs from the snapshot it was restored from is broken whatever the schedule was; so is one that
    // differs from what a lossy form has to make of it.
    void compare_with_snapshot(const LedgerEvent* snapshot, const LedgerEvent* restore) {
        if (snapshot == nullptr || restore == nullptr) return;
        for (const LedgerComponent& s : snapshot->components) {
            const LedgerComponent* r = find_component(*restore, s.component);
            if (r == nullptr || s.component == kController || r->digest.empty()) continue;
            const Place place{Stage::restore, restore->lane, s.component};
            const std::string source = due_from(s);
            const std::string& due = s.expected.empty() ? s.digest : s.expected;
            if (source.empty() || due.empty()) continue;
            if (s.component == kDraftContext && !snapshot->expected_row_digests.empty() &&
                !restore->row_digests.empty()) {
                compare_rows(place, {snapshot->expected_row_first, snapshot->expected_row_digests}, *restore, *r,
                             source);
            }
            if (s.first != r->first || s.last != r->last || due == r->digest) continue;
            report(place, content_due, Weight::broken,
                   fmt::format("content of [{}, {}) differs from {}", s.first, s.last, source));
        }
    }

    // What the restored component has to equal; empty where nothing says so.
    std::string due_from(const LedgerComponent& s) const {
        const Treatment& treatment = treated_.treatment;
        if (!s.expected.empty()) {
            return fmt::format("what the form {} makes of the snapshot",
                               is_draft(s.component) ? treatment.restore_draft : treatment.restore_target);
        }
        const Form form = form_of(treated_, Stage::restore, s.component);
        if (form == Form::exact) return "the snapshot it was restored from";
        // Canonical numerics compute the same rows again, whatever the schedule.
        const bool canonical = is_canonical_numerics(setting_value(treated_, "numerics"));
        return form == Form::rebuilt && canonical ? "the snapshot whose tokens it was computed from" : "";
    }

    // State that was still being made when it was read.
    void compare_order(const LedgerEvent* restore) {
        if (restore == nullptr || restore->read_step == 0) return;
        if (restore->written_step != 0 && restore->written_step < restore->read_step) return;
        const bool same = restore->written_step == restore->read_step;
        report({Stage::restore, restore->lane, kTargetKv}, shifted, Weight::broken,
               fmt::format("read before write{}: [0, {}) was read in step {} and {}", same ? ", same step" : "",
                           restore->position, restore->read_step,
                           restore->written_step == 0 ? std::string("never written")
                                                      : fmt::format("written in step {}", restore->written_step)));
    }

    void warn_of_occupant(const std::string& request) {
        if (treated_.arm != Arm::restored) return;
        for (const LedgerEvent& event : treated_.ledger) {
            // A few equal first tokens are no page of state.
            const Position enough = std::min(event.position, kPageTokens);
            if (event.request != request || event.previous_shared_tokens == 0) continue;
            if (event.previous_shared_tokens < enough) continue;
            result_.blind_spots.push_back(fmt::format(
                "blind spot: lane {} held the same first {} tokens before the restore; stale rows would be the right "
                "rows and are undetectable, so a restore that wrote nothing would look the same. Use another request "
                "to dirty the lane",
                event.lane, event.previous_shared_tokens));
            return;
        }
    }

    const CaptureHeader& control_;
    const CaptureHeader& treated_;
    Findings& findings_;
    LedgerVerdict result_;
    int searches_left_ = 16;  // each reads the whole ledger; the earliest finding is among the first
};

}  // namespace

std::string unwritten_text(std::int64_t claimed, std::int64_t written, Position last, Position first,
                           const std::vector<SourceRange>& sources) {
    std::string text = fmt::format("{} rows claimed, {} written", claimed, written);
    if (written == 0) text += fmt::format("; logical offset {}, fill 0", last);
    for (const SourceRange& range : sources) {
        const Position begin = std::max(range.first, first);
        const Position end = std::min(range.last, last);
        if (range.source != RowSource::none || begin >= end) continue;
        text += fmt::format("; nobody wrote [{}, {})", begin, end);
        break;
    }
    return text;
}

int ledger_content_rank(std::string_view component) { return rank_of(component, content); }

LedgerVerdict compare_ledgers(const CaptureHeader& control, const CaptureHeader& treated, Findings& findings) {
    return LedgerComparison(control, treated, findings).run();
}

}  // namespace draftprobe
