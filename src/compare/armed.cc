#include "compare/armed.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "compare/findings.h"
#include "compare/refuse.h"

namespace draftprobe {
namespace {

void add(ComponentRows& sum, const ComponentRows& rows) {
    sum.computed += rows.computed;
    sum.restored += rows.restored;
    sum.carried += rows.carried;
    sum.none += rows.none;
}

std::vector<ArmedComponent> sum_components(const CaptureHeader& control, const CaptureHeader& treated) {
    std::map<std::pair<int, std::string>, ArmedComponent> sums;
    const auto entry = [&](const std::string& name) -> ArmedComponent& {
        ArmedComponent& component = sums[{component_rank(name), name}];
        component.component = name;
        return component;
    };
    for (const ComponentRows& rows : control.totals.rows) add(entry(rows.component).control, rows);
    for (const ComponentRows& rows : treated.totals.rows) add(entry(rows.component).treated, rows);
    std::vector<ArmedComponent> result;
    for (auto& [key, component] : sums) result.push_back(std::move(component));
    return result;
}

// How often a request's own forward calls covered each stretch of positions, as what is wrong first with [first, last).
struct Coverage {
    std::optional<SourceRange> gap;     // never computed
    std::optional<SourceRange> repeat;  // computed more than once
    bool any = false;
};

Coverage coverage(const CaptureHeader& h, const std::string& request, bool with_materialise, Position first,
                  Position last) {
    std::vector<std::pair<Position, Position>> calls;
    for (const ForwardCall& call : h.schedule) {
        if (call.request != request || call.phase == ForwardPhase::scratch || call.kind == ForwardKind::verify)
            continue;
        if (call.phase == ForwardPhase::materialise && !with_materialise) continue;
        calls.emplace_back(call.start, call.start + call.rows);
    }
    std::sort(calls.begin(), calls.end());
    Coverage result;
    result.any = !calls.empty();
    Position end = first;
    for (const auto& [begin, stop] : calls) {
        if (begin < end && !result.repeat) result.repeat = SourceRange{begin, std::min(end, stop), RowSource::computed};
        if (begin > end && end < last && !result.gap)
            result.gap = SourceRange{end, std::min(begin, last), RowSource::none};
        end = std::max(end, stop);
    }
    if (end < last && !result.gap) result.gap = SourceRange{end, last, RowSource::none};
    return result;
}

// A computing arm holds nothing but rows it computed. Returns what contradicts that.
std::string contamination(const CaptureHeader& h, std::string_view which) {
    for (const ComponentRows& rows : h.totals.rows) {
        if (rows.restored + rows.carried + rows.none == 0) continue;
        return fmt::format("the {} arm is not {}: {} holds {} restored, {} carried and {} unwritten rows", which,
                           arm_name(h.arm), rows.component, rows.restored, rows.carried, rows.none);
    }
    for (const LedgerEvent& event : h.ledger) {
        for (const LedgerComponent& c : event.components) {
            for (const SourceRange& range : c.sources) {
                if (range.source == RowSource::computed) continue;
                return fmt::format("the {} arm is not {}: {} at '{}' says [{}, {}) is {}", which, arm_name(h.arm),
                                   c.component, event.event, range.first, range.last, row_source_name(range.source));
            }
        }
    }
    for (const CapturedRequest& r : h.requests) {
        // The last prompt token may be the anchor, which the prefill does not consume.
        const Coverage found = coverage(h, r.key, true, 0, std::max<Position>(0, r.prompt_length - 1));
        if (!found.any) continue;
        if (found.gap) {
            return fmt::format("the {} arm never computed positions [{}, {}): it was served from elsewhere", which,
                               found.gap->first, found.gap->last);
        }
        if (found.repeat) {
            return fmt::format("the {} arm computed positions [{}, {}) twice: positions repeat", which,
                               found.repeat->first, found.repeat->last);
        }
    }
    return {};
}

bool is_draft_component(std::string_view component) { return component == kDraftContext || component == kDraftRing; }

// A draft that keeps its window alone has forgotten the restored rows by the end of a long enough prompt: that is a
// lack of exposure, not of a restore.
bool window_left_the_restore(const CaptureHeader& h, const std::string& request) {
    for (const CapturedRequest& r : h.requests) {
        if (r.key == request) return r.window > 0 && r.prompt_length - r.window + 1 >= r.boundary;
    }
    return false;
}

bool demands_rows(const Treatment& treatment, std::string_view component) {
    const bool target = component == kTargetKv || component == kRecurrent || component == kConv;
    if (is_draft_component(component)) {
        return treatment.restore_draft == "exact" || treatment.restore_draft == "rows" ||
               treatment.restore_draft == "rows-q4";
    }
    return target && treatment.restore_target != "none";
}

// Whether more draft rows were computed than there are positions behind the boundary.
bool computed_below_boundary(const CaptureHeader& h, const ComponentRows& rows) {
    for (const CapturedRequest& r : h.requests) {
        if (r.key == rows.request) return rows.computed > r.prompt_length - r.boundary;
    }
    return true;
}

// Rows that nobody wrote, that stayed from before or that are simply not there are a fault of the restore and judged by
// their effect. Only rows that were computed again say that there was no restore.
std::string missing_restore(const CaptureHeader& h, Armed& armed) {
    std::map<std::string, Position> boundaries;
    for (const CapturedRequest& r : h.requests) boundaries[r.key] = r.boundary;
    for (const CapturedRequest& r : h.requests) {
        for (const ForwardCall& call : h.schedule) {
            if (call.request != r.key || call.phase != ForwardPhase::resume || call.kind == ForwardKind::verify)
                continue;
            armed.recomputed_rows += std::max<Position>(0, std::min(r.boundary, call.start + call.rows) - call.start);
        }
    }
    if (armed.recomputed_rows > 0) {
        return fmt::format(
            "the restored arm computed {} rows below the boundary again after its restore: positions repeat",
            armed.recomputed_rows);
    }
    for (const ComponentRows& rows : h.totals.rows) {
        if (!demands_rows(h.treatment, rows.component) || rows.restored > 0) continue;
        if (boundaries[rows.request] == 0) continue;  // there was nothing to restore, and nothing was claimed
        if (is_draft_component(rows.component) &&
            (window_left_the_restore(h, rows.request) || !computed_below_boundary(h, rows)))
            continue;
        if (rows.computed > 0 && rows.none + rows.carried == 0) {
            return fmt::format("{} holds {} computed rows and none restored, though the arm says it restored it",
                               rows.component, rows.computed);
        }
    }
    for (const CapturedRequest& r : h.requests) {
        const Coverage found = coverage(h, r.key, false, r.boundary, std::max(r.boundary, r.prompt_length - 1));
        if (!found.any) continue;
        if (found.repeat) {
            return fmt::format("the restored arm computed positions [{}, {}) twice: positions repeat",
                               found.repeat->first, found.repeat->last);
        }
        if (found.gap) {
            return fmt::format("positions [{}, {}) were neither restored nor computed", found.gap->first,
                               found.gap->last);
        }
    }
    return {};
}

bool same_schedule(const CaptureHeader& a, const CaptureHeader& b) {
    // Lanes and phases are not arithmetic: what counts is how the positions were cut into calls.
    const auto cuts = [](const CaptureHeader& h) {
        std::vector<std::tuple<std::string, Position, std::int64_t, std::string>> list;
        for (const ForwardCall& call : h.schedule) {
            if (call.phase == ForwardPhase::scratch) continue;
            list.emplace_back(call.request, call.start, call.rows, call.numerics_class);
        }
        std::sort(list.begin(), list.end());
        return list;
    };
    return cuts(a) == cuts(b);
}

// Settings that decide which bits come out of the arithmetic.
bool is_arithmetic_setting(std::string_view full) {
    constexpr std::string_view kOthers[] = {"settings.budget", "settings.lanes", "settings.cycles", "settings.sampling",
                                            kWidthSetting};
    for (std::string_view other : kOthers) {
        if (full == other) return false;
    }
    // Another draft is another function, not the same one in another format.
    return full.starts_with("settings.") && !full.starts_with("settings.draft.");
}

}  // namespace

bool is_width_declared(const std::vector<std::string>& declared) {
    return std::find(declared.begin(), declared.end(), kWidthSetting) != declared.end();
}

bool widths_follow_times(const std::vector<std::string>& declared) {
    const auto names = [&](std::string_view field) {
        return std::find(declared.begin(), declared.end(), field) != declared.end();
    };
    return names(kTimingField) && !names("settings.budget");
}

bool is_canonical_numerics(std::string_view numerics) { return numerics == "f32" || numerics == "i8dot"; }

bool restores_nothing(const CaptureHeader& header) {
    return std::all_of(header.requests.begin(), header.requests.end(),
                       [](const CapturedRequest& r) { return r.boundary == 0; });
}

bool is_computing_arm(const CaptureHeader& header) { return header.arm != Arm::restored; }

bool shortens_context(const CaptureHeader& header) {
    const std::string& form = header.treatment.restore_draft;
    return header.arm == Arm::restored && (form == "masked" || form == "none");
}

ArmCheck check_arms(const CaptureHeader& control, const CaptureHeader& treated) {
    ArmCheck result;
    result.armed.components = sum_components(control, treated);
    if (is_computing_arm(control)) {
        result.armed.reason = contamination(control, "control");
        if (!result.armed.reason.empty()) result.verdict = Verdict::contaminated;
    }
    if (!result.verdict && is_computing_arm(treated)) {
        result.armed.reason = contamination(treated, "treated");
        if (!result.armed.reason.empty()) result.verdict = Verdict::contaminated;
    }
    if (!result.verdict && !is_computing_arm(treated)) {
        result.armed.reason = missing_restore(treated, result.armed);
        if (!result.armed.reason.empty()) result.verdict = Verdict::not_restored;
    }
    if (result.verdict == Verdict::contaminated) {
        result.armed.advice = "make the control again with every cache off, on a lane that was reset";
    } else if (result.verdict == Verdict::not_restored) {
        result.armed.advice =
            "check that the restore found its snapshot, and that the rest of the prompt starts at the boundary";
    }
    if (!is_computing_arm(treated) && restores_nothing(treated)) {
        result.warnings.push_back(
            "boundary 0: the restore had nothing to restore; what is compared is a lane that was used before, and no "
            "restored state");
    }
    for (const CaptureHeader* h : {&control, &treated}) {
        if (h->schedule.empty()) {
            result.warnings.push_back(
                fmt::format("schedule: the {} arm records no forward calls, so recomputed rows were not "
                            "checked",
                            h == &control ? "control" : "treated"));
        }
    }
    return result;
}

std::string recorded_cause(const CaptureHeader& control, const CaptureHeader& treated,
                           const std::vector<std::string>& declared) {
    std::vector<std::string> causes;
    for (const std::string& field : declared) {
        if (is_arithmetic_setting(field)) causes.push_back(fmt::format("declared difference of {}", field));
    }
    const Treatment& c = control.treatment;
    const Treatment& t = treated.treatment;
    if (t.restore_target != c.restore_target &&
        (t.restore_target == "int8-state" || c.restore_target == "int8-state")) {
        causes.emplace_back("target state stored as int8");
    }
    if (t.restore_draft != c.restore_draft && (t.restore_draft == "rows-q4" || c.restore_draft == "rows-q4")) {
        causes.emplace_back("draft context rows stored in 4 bits");
    }
    const bool canonical = is_canonical_numerics(setting_value(control, "numerics"));
    if (!canonical && !same_schedule(control, treated)) causes.emplace_back("forward calls cut differently");
    if (!canonical && (is_width_declared(declared) || widths_follow_times(declared)))
        causes.emplace_back("verify calls of another width");
    // No cause of drift by itself: a draft that sees less is another draft.
    if (!causes.empty() && shortens_context(treated)) {
        causes.push_back(fmt::format("context shortened by declaration ({})", t.restore_draft));
    }
    return fmt::format("{}", fmt::join(causes, " and "));
}

}  // namespace draftprobe
