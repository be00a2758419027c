#include "compare/ledger_diff.h"

#include <fmt/format.h>

#include <algorithm>

#include "compare/shift_search.h"

namespace draftprobe {
namespace {

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

// What the treated arm declared about a component at its restore.
enum class Form { exact, lossy, rebuilt, absent };

Form form_of(const CaptureHeader& header, Stage stage, std::string_view component) {
    if (header.arm != Arm::restored || stage == Stage::materialise) return Form::exact;
    const Treatment& treatment = header.treatment;
    const std::string& form = is_draft(component) ? treatment.restore_draft : treatment.restore_target;
    if (form == "rows-q4" || form == "int8-state") return Form::lossy;
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
            compare_event(Stage::restore, materialised, restore);
            compare_with_snapshot(find_event(treated_, request.key, "snapshot"), restore);
            compare_event(Stage::prefill, find_event(control_, request.key, "prefill"),
                          find_event(treated_, request.key, "prefill"));
            compare_event(Stage::end, find_event(control_, request.key, "end"),
                          find_event(treated_, request.key, "end"));
            if (restore != nullptr) warn_of_occupant(*restore);
        }
        return std::move(result_);
    }

private:
    struct Place {
        Stage stage;
        std::int32_t lane;
        std::string_view component;
    };
    // Which of several differences of one component is named: the one that explains most.
    enum Precision { rows_explained, counts, claims, content, kPrecisions };

    void report(const Place& place, Precision precision, bool hard, const std::string& detail) {
        ++result_.differences;
        result_.hard = result_.hard || hard;
        findings_.offer(place.stage, component_rank(place.component) * kPrecisions + precision, place.component,
                        std::nullopt, place.lane, [&] { return detail; });
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
                report(place, claims, false,
                       fmt::format("not restored by declaration ({})", treated_.treatment.restore_draft));
            } else if (restoring && form_of(treated_, place.stage, c.component) == Form::rebuilt &&
                       stage == Stage::snapshot) {
                continue;
            } else {
                report(place, counts, true,
                       fmt::format("the component is missing at '{}'; the control has [{}, {})", treated->event,
                                   c.first, c.last));
            }
        }
    }

    // What a treated ledger entry says against itself. A control with the same oddity clears it of the treatment.
    void check_own(Stage stage, const LedgerEvent& event, const LedgerComponent& t, const LedgerEvent* control_event) {
        const Place place{stage, event.lane, t.component};
        const LedgerComponent* c = control_event == nullptr ? nullptr : find_component(*control_event, t.component);
        const bool declared_absent = form_of(treated_, stage, t.component) == Form::absent;
        const std::int64_t missing = t.rows_claimed - t.rows_written;
        if (missing > 0 && (c == nullptr || c->rows_claimed - c->rows_written != missing)) {
            report(place, counts, !declared_absent,
                   fmt::format("{} rows claimed, {} written", t.rows_claimed, t.rows_written));
        }
        const bool covers_tokens = component_rank(t.component) < component_rank(kAnchor);
        if (covers_tokens && t.last != event.position && (c == nullptr || c->last == control_event->position) &&
            t.rows_claimed > 0) {
            report(place, counts, !declared_absent,
                   fmt::format("covers {} tokens, labelled {}", t.last, event.position));
        }
    }

    void compare_component(const Place& place, const LedgerEvent& control, const LedgerEvent& treated,
                           const LedgerComponent& c, const LedgerComponent& t) {
        const Form form = form_of(treated_, place.stage, c.component);
        if (c.base != t.base && c.first == t.first) {
            report(place, counts, true, fmt::format("position base {}, expected {}", t.base, c.base));
        }
        if (c.rows_claimed != t.rows_claimed && form == Form::absent) {
            report(place, claims, false,
                   fmt::format("context shortened by declaration ({}): {} rows of {}", treated_.treatment.restore_draft,
                               t.rows_claimed, c.rows_claimed));
        } else if (c.rows_claimed != t.rows_claimed && form == Form::exact) {
            report(place, claims, true,
                   fmt::format("{} rows claimed, the control has {}", t.rows_claimed, c.rows_claimed));
        }
        if (c.component == kDraftContext && !control.row_digests.empty() && !treated.row_digests.empty()) {
            compare_rows(place, control, treated, t);
        }
        const bool same_range = c.first == t.first && c.last == t.last;
        if (!same_range || c.digest.empty() || t.digest.empty() || c.digest == t.digest) return;
        report(place, content, false, fmt::format("content of [{}, {}) differs from the control's", c.first, c.last));
    }

    void compare_rows(const Place& place, const LedgerEvent& control, const LedgerEvent& treated,
                      const LedgerComponent& t) {
        const DigestRows c_rows = rows_of(control);
        const DigestRows t_rows = rows_of(treated);
        const RowDifferences rows = row_differences(c_rows, t_rows);
        const bool exact = form_of(treated_, place.stage, t.component) == Form::exact;
        if (rows.different + rows.extra == 0 && (rows.missing == 0 || !exact)) return;
        const std::string claimed = fmt::format("claimed {}, written {}", t.rows_claimed, t.rows_written);
        if (const auto shift = find_constant_shift(c_rows, t_rows)) {
            if (!result_.shift_tokens) result_.shift_tokens = shift->tokens;
            report(place, rows_explained, true,
                   fmt::format("{} of {} rows hold the control's row of {} positions {}; {}", shift->matching,
                               rows.compared + rows.extra, std::abs(shift->tokens),
                               shift->tokens > 0 ? "earlier" : "later", claimed));
            return;
        }
        if (const auto position = position_of_row(c_rows, t_rows, rows.first_different)) {
            report(place, rows_explained, true,
                   fmt::format("row {} holds the control's row {}; {} of {} rows differ; {}", rows.first_different,
                               *position, rows.different, rows.compared, claimed));
            return;
        }
        report(place, content, false,
               fmt::format("{} of {} rows differ, the first at position {}; {} missing, {} beyond the control's; {}",
                           rows.different, rows.compared, rows.first_different, rows.missing, rows.extra, claimed));
    }

    // A lane that differs from the snapshot it was restored from is broken whatever the schedule was.
    void compare_with_snapshot(const LedgerEvent* snapshot, const LedgerEvent* restore) {
        if (snapshot == nullptr || restore == nullptr) return;
        for (const LedgerComponent& s : snapshot->components) {
            const LedgerComponent* r = find_component(*restore, s.component);
            if (r == nullptr || s.component == kController || s.digest.empty() || r->digest.empty()) continue;
            if (form_of(treated_, Stage::restore, s.component) != Form::exact) continue;
            if (s.first != r->first || s.last != r->last || s.digest == r->digest) continue;
            report({Stage::restore, restore->lane, s.component}, content, true,
                   fmt::format("content of [{}, {}) differs from the snapshot it was restored from", s.first, s.last));
        }
    }

    void warn_of_occupant(const LedgerEvent& restore) {
        // A few equal first tokens are no page of state.
        if (restore.previous_shared_tokens < std::min(restore.position, kPageTokens)) return;
        result_.warnings.push_back(fmt::format(
            "blind spot: lane {} held the same first {} tokens before the restore; rows that were left there are "
            "the right rows, so a restore that wrote nothing would look the same. Use another request to dirty "
            "the lane",
            restore.lane, restore.previous_shared_tokens));
    }

    const CaptureHeader& control_;
    const CaptureHeader& treated_;
    Findings& findings_;
    LedgerVerdict result_;
};

}  // namespace

LedgerVerdict compare_ledgers(const CaptureHeader& control, const CaptureHeader& treated, Findings& findings) {
    return LedgerComparison(control, treated, findings).run();
}

}  // namespace draftprobe
