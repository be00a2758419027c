#include "compare/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

#include "compare/acceptance.h"
#include "compare/armed.h"
#include "compare/findings.h"
#include "compare/ledger_diff.h"
#include "compare/matcher.h"
#include "compare/pair_diff.h"
#include "compare/refuse.h"
#include "compare/series.h"
#include "compare/strata.h"

namespace draftprobe {
namespace {

CaptureSummary summarise(const CaptureReader& reader) {
    const CaptureHeader& h = reader.header();
    CaptureSummary summary;
    summary.arm = arm_name(h.arm);
    summary.restore_target = h.treatment.restore_target;
    summary.restore_draft = h.treatment.restore_draft;
    summary.tier = h.treatment.tier;
    summary.level = h.level;
    summary.numerics = setting_value(h, "numerics");
    summary.budget = setting_value(h, "budget");
    summary.faults = h.treatment.faults;
    summary.requests = static_cast<std::int64_t>(h.requests.size());
    summary.digest = reader.digest();
    summary.target = h.identity.target.digest;
    summary.draft = h.identity.draft.digest;
    summary.prompt_length = h.requests.front().prompt_length;
    summary.boundary = h.requests.front().boundary;
    summary.window = h.requests.front().window;
    return summary;
}

// Written rows inside the draft's window: by provenance where it is recorded, and never more than the step counts.
std::int64_t rows_in_window(const StepRecord& s, Position window) {
    const DraftContextUse& use = s.draft_context;
    const Position oldest = window == 0 ? 0 : std::max<Position>(0, s.length - window + 1);
    const std::int64_t counted = std::min<std::int64_t>(use.rows_valid, s.length - oldest);
    if (use.provenance.empty()) return counted;
    const Position first = std::max(oldest, use.first_position);
    const Position last = std::min(s.length, use.first_position + use.rows_claimed);
    std::int64_t written = 0;
    for (const SourceRange& range : use.provenance) {
        if (range.source == RowSource::none) continue;
        written += std::max<Position>(0, std::min(range.last, last) - std::max(range.first, first));
    }
    return std::min(counted, written);
}

class PairSink : public StepSink {
public:
    PairSink(const CaptureHeader& control, const CaptureHeader& treated, Comparison& result)
        : control_(control), treated_(treated), result_(result) {
        options_.scores = !result.sanitisable_evidence;
        options_.hidden = result.level == 3 ? control.hidden : 0;
        options_.candidates = control.candidates;
        options_.near_tie = result.near_tie;
        options_.width_declared = is_width_declared(result.declared) || widths_follow_times(result.declared);
        options_.masked_by_declaration = shortens_context(treated);
    }

    Status on_step(bool treated, const StepRecord& step) override {
        add_step(step, treated ? result_.treated : result_.control);
        ArmCounters& counters = arms_[treated ? 1 : 0];
        counters.survival.add(step);
        counters.hazards.add(step);
        counters.trend.add(step);
        if (const CapturedRequest* request = find_request(step.request)) {
            counters.reliability.add(step, request->window);
        }
        const CaptureHeader& header = treated ? treated_ : control_;
        const Exposure& seen = step.exposure;
        if (is_computing_arm(header) && seen.restored + seen.carried + seen.none > 0 && contaminated_.empty()) {
            contaminated_ =
                fmt::format("at cycle {} the {} arm's draft sees {} restored, {} carried and {} unwritten rows",
                            step.cycle, treated ? "treated" : "control", seen.restored, seen.carried, seen.none);
        }
        if (is_computing_arm(header) && contaminated_.empty()) check_provenance(treated, step);
        if (treated) check_witnesses(step);
        if (step.state_digests.empty()) cycles_without_digests = true;
        std::map<std::string, ArmStop>& stops = stops_[treated ? 1 : 0];
        if (has_error(step)) {
            const bool draft = step.drafted_cut == CutReason::error || step.offered_cut == CutReason::error;
            stops[step.request] = {std::string(stage_name(draft ? Stage::draft : Stage::verify)), step.cycle,
                                   step.lane};
        } else if (!stops.empty()) {
            stops.erase(step.request);  // it went on
        }
        if (treated && !exposed_requests_.contains(step.request)) {
            exposed_requests_.emplace(step.request, seen.total);
            Armed& armed = result_.armed;
            if (seen.total >= armed.draft_exposure.value_or(0)) armed.draft_exposure_split = seen;
            armed.draft_exposure = std::max(armed.draft_exposure.value_or(0), seen.total);
        }
        return {};
    }

    Status on_pair(const HeldStep& control, const HeldStep& treated) override {
        const PairOutcome pair = compare_pair(control, treated, options_, findings, result_.draft_drift,
                                              result_.target_drift, result_.flips);
        result_.pairs.forced += control.step.forced || treated.step.forced;
        if (pair.different) {
            ++result_.pairs.differing;
            result_.pairs.last_differing = control.step.cycle;
            result_.pairs.same_after = 0;
        } else {
            ++result_.pairs.same_after;
        }
        note_window(control.step, treated.step);
        result_.proposals_changed |= pair.proposals;
        result_.width_changed |=
            pair.width && !(options_.width_declared && control.step.drafted == treated.step.drafted);
        result_.acceptance_changed |= pair.acceptance;
        result_.output_changed |= pair.output;
        result_.target_choices_changed |= pair.target_choice;
        hard |= pair.hard;
        result_.paired.width_differs += pair.width;
        result_.paired.acceptance_differs += pair.acceptance;
        if (pair.first_proposal_difference >= 0) {
            auto& positions = result_.paired.first_proposal_difference;
            positions.resize(std::max(positions.size(), static_cast<std::size_t>(pair.first_proposal_difference) + 1));
            ++positions[static_cast<std::size_t>(pair.first_proposal_difference)];
        }
        result_.max_confidence_change = std::max(result_.max_confidence_change, pair.confidence_change);
        add_pair(control.step, treated.step, result_.paired);
        if (const CapturedRequest* request = find_request(control.step.request)) {
            const std::size_t prompt = prompt_number(*request);
            prompts_.add(prompt, static_cast<double>(treated.step.retained - control.step.retained));
            positions_.add(prompt, control.step, treated.step);
            if (request->boundary > 0) {
                strata_.add(prompt, control.step, treated.step, *request, tier_of(*request), pair.different);
            }
        }

        SeriesPoint point;
        point.first_cycle = control.step.cycle;
        point.pairs = 1;
        point.draft_drift = pair.draft_drift;
        point.target_drift = pair.target_drift;
        point.confidence_change = pair.confidence_change;
        point.verified_control = control.step.verified;
        point.verified_treated = treated.step.verified;
        point.retained_control = control.step.retained;
        point.retained_treated = treated.step.retained;
        point.exposure = treated.step.exposure.total;
        series_.add(point);
        return {};
    }

    // The committed prompt is equal by identity, so another context at the same length means other tokens came out.
    void on_context_differs(const StepRecord& control, const StepRecord& treated, bool first_of_request) override {
        if (control.forced || treated.forced) return;
        result_.output_changed = true;
        if (first_of_request) {
            first_token_flip(control.request, treated.lane);
        } else {
            findings.offer(Stage::commit, 0, "output", control.cycle, treated.lane, Weight::explainable,
                           [&] { return fmt::format("other tokens were committed before length {}", control.length); });
        }
    }

    // The token chosen behind the prompt is a decision like any other; its margin stands in the control's ledger.
    void first_token_flip(const std::string& request, std::int32_t lane) {
        if (!first_tokens_.insert(request).second) return;
        result_.output_changed = true;
        std::optional<double> margin;
        for (const LedgerEvent& event : control_.ledger) {
            if (event.request == request && event.event == "prefill" && event.anchor_margin)
                margin = double(*event.anchor_margin);
        }
        const Weight weight = count_flip(margin, &NearTie::target, result_.near_tie, result_.flips);
        findings.offer(Stage::prefill, ledger_content_rank(kAnchor), kAnchor, std::nullopt, lane, weight, [&] {
            return fmt::format("the first token after the prompt differs, the control's margin {}",
                               margin ? fmt::format("{:.6g}", *margin) : "not recorded");
        });
    }

    // An error that only the treated arm met is the strongest difference there is.
    void report_stops(const std::string& unwritten) {
        if (!stops_[0].empty()) result_.control_stop = stops_[0].begin()->second;
        if (stops_[1].empty()) return;
        const ArmStop& stop = stops_[1].begin()->second;
        result_.treated_stop = stop;
        if (result_.control_stop) return;
        hard = true;
        result_.output_changed = true;
        const bool draft = stop.stage == stage_name(Stage::draft);
        findings.offer(draft ? Stage::draft : Stage::verify, kBeforeAll,
                       !unwritten.empty() ? unwritten
                       : draft            ? "draft_hidden"
                                          : "target_hidden",
                       stop.cycle, stop.lane, Weight::real, [&] {
                           return fmt::format("the treated arm stopped with an error, the control went on{}",
                                              unwritten.empty() ? "" : "; the component claims rows that nobody wrote");
                       });
    }

    void finish(bool full_budget) {
        if (result_.level == 0) {
            result_.survival_refused =
                "a capture holds totals only: which sequences were cut short is not known; capture at --level 1 or "
                "above";
        } else if (full_budget) {
            result_.control.survival = arms_[0].survival.estimate();
            result_.treated.survival = arms_[1].survival.estimate();
        } else {
            result_.survival_refused =
                "informative censoring: under this budget the rows verified depend on the draft's confidence, so a "
                "survival estimate would be biased; hazards by confidence have worst-case bounds instead, and "
                "capturing "
                "with --budget full gives the estimate";
            result_.control_hazards = arms_[0].hazards.take();
            result_.treated_hazards = arms_[1].hazards.take();
        }
        result_.series = series_.take();
        result_.positions = positions_.estimate();
        result_.cells = strata_.estimate();
        for (const auto& [arm, name] : {std::pair(0, "control"), std::pair(1, "treated")}) {
            const std::vector<Reliability> bands = arms_[arm].reliability.take(name);
            result_.reliability.insert(result_.reliability.end(), bands.begin(), bands.end());
        }
        result_.control_trend = take_trend(0, "control");
        result_.treated_trend = take_trend(1, "treated");
        const std::vector<double> means = prompts_.means();
        if (static_cast<std::int64_t>(means.size()) >= kPromptsForPopulation) {
            result_.population = effect_over_prompts(means);
        } else {
            result_.population_refused =
                fmt::format("prompts compared: {}; at least {} are needed for a claim about prompts", means.size(),
                            kPromptsForPopulation);
        }
    }

    const std::string& contaminated() const { return contaminated_; }

    Findings findings;
    bool hard = false;
    bool cycles_without_digests = false;

private:
    static constexpr int kBeforeAll = -1;

    struct ArmCounters {
        SurvivalCounter survival;
        HazardCounter hazards;
        ReliabilityCounter reliability;
        TrendCounter trend;
    };

    const CapturedRequest* find_request(const std::string& key) {
        if (requests_.empty()) {
            for (const CapturedRequest& r : treated_.requests) requests_.emplace(r.key, &r);
        }
        const auto found = requests_.find(key);
        return found == requests_.end() ? nullptr : found->second;
    }

    // Several runs of one prompt are one prompt.
    std::size_t prompt_number(const CapturedRequest& request) {
        const std::string& name = request.prompt_digest.empty() ? request.key : request.prompt_digest;
        return prompt_numbers_.try_emplace(name, prompt_numbers_.size()).first->second;
    }

    // The tier that this request was restored from: the ledger knows it per request, the treatment for all.
    const std::string& tier_of(const CapturedRequest& request) {
        const auto [entry, inserted] = tiers_.try_emplace(request.key, treated_.treatment.tier);
        if (!inserted) return entry->second;
        for (const LedgerEvent& event : treated_.ledger) {
            if (event.request != request.key || event.event != "restore") continue;
            for (const LedgerComponent& c : event.components) {
                if (c.tier.empty()) continue;
                entry->second = c.tier;
                return entry->second;
            }
        }
        return entry->second;
    }

    std::optional<Trend> take_trend(int arm, std::string_view name) {
        const std::optional<Trend> trend = arms_[arm].trend.estimate();
        if (trend && trend->flagged) {
            result_.warnings.push_back(fmt::format(
                "trend: the {} arm's accepted proposals a cycle go from {:.4g} to {:.4g} over {} requests, {:.3g} "
                "standard errors from level (flagged from {} requests, {} standard errors and {} % on)",
                name, trend->first, trend->last, trend->requests, trend->t, Trend::kRequests, Trend::kErrors,
                100 * Trend::kShare));
        }
        return trend;
    }

    // What the treated arm holds against what it made again of the same, and against its own ledger.
    void check_witnesses(const StepRecord& step) {
        for (const Witness& witness : step.witness) {
            if (witness.found == witness.expected) continue;
            hard = true;
            const bool draft = witness.component == "draft_hidden";
            findings.offer(draft ? Stage::draft : Stage::commit,
                           draft ? kHiddenRank : kStateRank + component_rank(witness.component), witness.component,
                           step.cycle, step.lane, Weight::broken, [&] {
                               return std::string(
                                   draft
                                       ? "the rows differ from what the draft makes of the lane's own rows, rings and "
                                         "anchor: its window, its positions or its anchor is another"
                                       : "the state after the commit is not what its operands make of the state "
                                         "before it");
                           });
        }
        if (!started_.insert(step.request).second || step.draft_context.digest.empty()) return;
        const std::optional<std::string> pairing = wrong_pairing(step);
        for (const LedgerEvent& event : treated_.ledger) {
            if (event.request != step.request || event.event != "prefill" || event.position != step.length) continue;
            for (const LedgerComponent& c : event.components) {
                if (c.component != kDraftContext || c.digest.empty() || c.first != step.draft_context.first_position ||
                    c.rows_claimed != step.draft_context.rows_claimed || c.digest == step.draft_context.digest)
                    continue;
                hard = true;
                findings.offer(Stage::draft, kContextRank, kDraftContext, step.cycle, step.lane, Weight::broken, [&] {
                    return pairing.value_or(
                        "content of the rows read differs from the rows that the lane held before its first cycle");
                });
            }
        }
    }

    void check_provenance(bool treated, const StepRecord& step) {
        for (const RowPairing& pair : step.draft_context.pairing) {
            if (!pair.request.empty()) continue;
            contaminated_ = fmt::format(
                "at cycle {} the {} arm's draft reads at position {} the row {} of an earlier request: pairing: "
                "expected row {}, got row {} (earlier request)",
                step.cycle, treated ? "treated" : "control", pair.row, pair.position, pair.row, pair.position);
            return;
        }
        for (const SourceRange& range : step.draft_context.provenance) {
            if (range.source == RowSource::computed) continue;
            contaminated_ =
                fmt::format("at cycle {} the {} arm's draft reads rows [{}, {}) that are {}, not computed", step.cycle,
                            treated ? "treated" : "control", range.first, range.last, row_source_name(range.source));
            return;
        }
    }

    void note_window(const StepRecord& control, const StepRecord& treated) {
        if (result_.window_fill || !windowed_requests_.insert(control.request).second) return;
        Position window = 0;
        if (const CapturedRequest* request = find_request(control.request)) window = request->window;
        const WindowFill fill{rows_in_window(treated, window), rows_in_window(control, window),
                              window == 0 ? treated.length : std::min(window, treated.length), control.cycle};
        if (fill.rows < fill.control) result_.window_fill = fill;
    }

    const CaptureHeader& control_;
    const CaptureHeader& treated_;
    Comparison& result_;
    PairOptions options_;
    std::map<std::string, ArmStop> stops_[2];  // by request, while its last step has an error
    std::set<std::string> windowed_requests_;
    ArmCounters arms_[2];
    PromptMeans prompts_;
    PositionEffects positions_;
    StrataCounter strata_;
    std::unordered_map<std::string, const CapturedRequest*> requests_;
    std::unordered_map<std::string, std::size_t> prompt_numbers_;
    std::unordered_map<std::string, std::string> tiers_;
    Series series_;
    std::unordered_map<std::string, std::int64_t> exposed_requests_;
    std::string contaminated_;
    std::set<std::string> first_tokens_;  // requests whose first token flipped
    std::set<std::string> started_;       // requests of the treated arm whose first step was seen
};

void sum_rows(const CaptureHeader& header, ArmAcceptance& arm) {
    for (const ComponentRows& rows : header.totals.rows) {
        arm.computed_rows += rows.computed;
        arm.restored_rows += rows.restored;
    }
}

// A level-0 capture has no steps to count.
void take_totals(const CaptureHeader& header, ArmAcceptance& arm) {
    if (header.level > 0) return;
    const CaptureTotals& t = header.totals;
    arm.lane_cycles = t.lane_cycles;
    arm.drafted = t.drafted;
    arm.verified = t.verified;
    arm.accepted = t.accepted;
    arm.retained = t.retained;
    arm.emitted = t.emitted;
}

std::vector<LedgerRow> ledger_rows(const CaptureHeader& control, const CaptureHeader& treated) {
    std::vector<LedgerRow> rows;
    const std::string first = control.requests.front().key;
    for (const CaptureHeader* h : {&control, &treated}) {
        for (const LedgerEvent& event : h->ledger) {
            if (event.request != first) continue;
            for (const LedgerComponent& c : event.components) {
                rows.push_back({h == &control ? "control" : "treated", event.event, event.lane, c});
            }
        }
    }
    return rows;
}

std::int32_t lane_of(const CaptureHeader& header, const std::string& request) {
    for (const LedgerEvent& event : header.ledger) {
        if (event.request == request && event.event == "prefill") return event.lane;
    }
    return header.treatment.lane_to;
}

std::string field_list(const std::vector<Refusal>& refusals) {
    std::vector<std::string_view> fields;
    for (const Refusal& refusal : refusals) fields.push_back(refusal.field);
    return fmt::format("{}", fmt::join(fields, ", "));
}

std::string changed_words(const Comparison& c) {
    std::vector<std::string_view> words;
    if (c.proposals_changed) words.push_back("proposals");
    if (c.width_changed) words.push_back("width");
    if (c.acceptance_changed) words.push_back("acceptance");
    if (c.output_changed) words.push_back("output");
    if (!words.empty()) return fmt::format("{}", fmt::join(words, ", "));
    return c.target_choices_changed ? "target choices only, in rows from which nothing was accepted or emitted"
                                    : "inputs only, no decision yet";
}

std::string first_words(const Comparison& c) {
    if (!c.first) return "nothing was located";
    return fmt::format("first at stage '{}', component '{}': {}", c.first->stage, c.first->component, c.first->detail);
}

// What the reader needs beside the first difference to know how far it reaches.
std::string reach_words(const Comparison& c) {
    std::string text;
    if (c.window_fill) {
        text += fmt::format("; window filled {} of {} at cycle {} (the control {})", c.window_fill->rows,
                            c.window_fill->window, c.window_fill->cycle, c.window_fill->control);
    }
    if (c.treated_stop) {
        text += fmt::format("; the treated arm stopped with an error at cycle {}, stage '{}'", c.treated_stop->cycle,
                            c.treated_stop->stage);
    }
    if (c.pairs.differing > 0 && c.pairs.same_after > 0) {
        text +=
            fmt::format("; {} of {} matched lane-cycles differ, the last at cycle {}: the {} behind it are the same",
                        c.pairs.differing, c.pairs.matched, *c.pairs.last_differing, c.pairs.same_after);
    }
    return text;
}

// Widths that follow measured times differ without a cause in either arm, and cycles end elsewhere because of them.
std::string width_words(const Comparison& c) {
    if (c.paired.width_differs == 0) return {};
    std::string text;
    if (widths_follow_times(c.declared)) text += "; widths follow measured times: not attributed";
    const std::int64_t unmatched = c.pairs.unmatched_control + c.pairs.unmatched_treated;
    if (c.verdict == Verdict::same && unmatched > 0) {
        text += fmt::format("; {} lane-cycles of the control and {} of the treated arm have no partner because of it",
                            c.pairs.unmatched_control, c.pairs.unmatched_treated);
    }
    return text;
}

// Everything is measured; what does it mean?
void conclude(Comparison& c, bool hard, std::int64_t differences, const std::optional<FirstDifference>& drifted) {
    const bool undecided_flips = c.flips.near_ties < c.flips.total;
    if (differences == 0) {
        c.verdict = Verdict::same;
        c.why = fmt::format("{} matched lane-cycles{} at level {}", c.pairs.matched,
                            c.level < 2 ? " have equal steps" : " and the ledger are bit-equal", c.level);
        if (c.paired.width_differs > 0) {
            c.why += fmt::format("; {} of them verify another number of rows{}", c.paired.width_differs,
                                 widths_follow_times(c.declared) ? "" : ", as declared");
        }
        if (c.blind_spots > 0) c.why += "; a blind spot remains, see the warnings";
    } else if (!hard && !c.drift_explained_by.empty() && !undecided_flips) {
        c.verdict = Verdict::drift;
        c.why = fmt::format("{}; recorded cause: {}",
                            c.flips.total == 0   ? "values differ and no decision flipped"
                            : c.flips.total == 1 ? "the only flip is a near-tie"
                                                 : fmt::format("all {} flips are near-ties", c.flips.total),
                            c.drift_explained_by);
    } else {
        c.verdict = Verdict::changed;
        c.why = fmt::format("changed: {}; {}{}", changed_words(c), first_words(c), reach_words(c));
        if (!c.drift_explained_by.empty()) {
            c.why += fmt::format("; second, DRIFT: {}", c.drift_explained_by);
            if (drifted) {
                c.why += fmt::format(" (from stage '{}', component '{}' on)", drifted->stage, drifted->component);
            }
            if (undecided_flips && !c.near_tie) c.why += ", and no near-tie thresholds are recorded";
        }
    }
    c.why += width_words(c);
}

void explain_insufficient(Comparison& c, const std::string& reason, const std::string& advice, bool found) {
    c.verdict = Verdict::insufficient;
    c.armed.reason = reason;
    c.armed.advice = advice;
    c.why = reason;
    if (found) c.why += fmt::format("; found nevertheless: {}; {}", changed_words(c), first_words(c));
}

bool is_timing_confounded(const Comparison& c) {
    return std::any_of(c.refusals.begin(), c.refusals.end(), [](const Refusal& r) { return r.field == kTimingField; });
}

constexpr std::string_view kLockstepStep = "repeat with --lockstep, so that every cycle has a partner";

// What narrows a change down further than this comparison could.
std::string step_after_change(const Comparison& c, bool cycles_without_digests) {
    const bool in_cycle = c.first && c.first->cycle;
    std::string step;
    if (!c.drift_explained_by.empty() && !c.near_tie && c.flips.total > 0) {
        step =
            "have near-tie thresholds recorded (--numerics schedule-sensitive measures them), or run a control with "
            "the same schedule and format; ";
    }
    if (c.level < 2 && (in_cycle || !c.first)) {
        step += "repeat at --level 2 to have the ledger name the component";
    } else if (!in_cycle) {
        step += "read the ledger of both captures with 'draftprobe inspect', from the stage named above on";
    } else {
        if (cycles_without_digests) {
            step += c.first->stage == stage_name(Stage::verify)
                        ? "repeat both arms with --digest-every 1, which tells which state the row read; "
                        : "repeat both arms with --digest-every 1, which tells after which cycle the state differs; ";
        }
        step += fmt::format("read cycle {} in steps.jsonl of both captures: what was read, the margins, the witness",
                            *c.first->cycle);
    }
    if (mostly_unmatched(c)) step += fmt::format("; {}", kLockstepStep);
    return step;
}

std::string next_step_of(const Comparison& c, bool cycles_without_digests = false) {
    switch (c.verdict) {
        case Verdict::same:
            if (c.blind_spots > 0) return "dirty the lane with another request before the restore, and compare again";
            if (c.level < 2) return "repeat at --level 3 to compare state and hidden rows as well";
            return mostly_unmatched(c) ? std::string(kLockstepStep) : "";
        case Verdict::drift:
            return fmt::format("compare against a control with the same schedule and format to see it vanish{}{}",
                               mostly_unmatched(c) ? "; " : "", mostly_unmatched(c) ? kLockstepStep : "");
        case Verdict::changed: return step_after_change(c, cycles_without_digests);
        case Verdict::not_comparable:
            if (is_timing_confounded(c)) {
                return "measured times decided the widths: repeat both arms with a frozen seed (--budget SEED.json) or "
                       "with --budget full, or declare it with --treat timing_confounded (of compare or probe)";
            }
            return "make both arms alike, or declare the one intended difference with --treat FIELD";
        case Verdict::corrupt: return "make the capture again or restore it from a good copy";
        case Verdict::not_restored:
        case Verdict::contaminated:
        case Verdict::insufficient: return c.armed.advice;
    }
    return "";
}

void judge_pairs(Comparison& c, const CaptureHeader& control, const CaptureHeader& treated, bool hard,
                 std::int64_t differences, const std::optional<FirstDifference>& drifted) {
    // A restored draft state that claims something has to be seen by the draft before the comparison says anything of
    // it.
    const bool must_be_seen =
        treated.arm == Arm::restored && !treated.identity.draft.digest.empty() && !restores_nothing(treated);
    const bool found = differences > 0;
    if (c.level == 0) {
        explain_insufficient(c, "a capture holds totals only, which say nothing about single contexts",
                             "capture both arms at --level 1 or above", found);
    } else if (must_be_seen && c.armed.draft_exposure == 0) {
        explain_insufficient(c,
                             "no context row from the restore is visible to the draft at its first cycle: the draft's "
                             "restore was not tested",
                             fmt::format("choose a boundary less than {} tokens before the end of the prompt",
                                         std::max<Position>(1, control.requests.front().window - 1)),
                             found);
    } else if (!found && c.pairs.matched > 0 && c.paired.width_differs == 0 &&
               c.pairs.unmatched_control + c.pairs.unmatched_treated > 0) {
        // Equal contexts lead to equal contexts where no width differs, so nothing found and cycles left over means:
        // one arm stopped early.
        explain_insufficient(
            c,
            fmt::format("{} matched lane-cycles are equal, and {} of the control and {} of the treated arm have no "
                        "partner: one arm ended before the other",
                        c.pairs.matched, c.pairs.unmatched_control, c.pairs.unmatched_treated),
            "run both arms for the same number of cycles; if they were, find out why one ended early", found);
    } else if (c.control.lane_cycles + c.treated.lane_cycles == 0 && !found) {
        explain_insufficient(c,
                             fmt::format("neither arm ran a decode cycle: the request ended with its first token{}",
                                         setting_value(control, "stop_tokens").empty() ? "" : ", a stop token"),
                             "cut the prompt elsewhere, so that its first token is no stop token", found);
    } else if (c.pairs.matched == 0 && !found) {
        explain_insufficient(c, "no lane-cycle of one arm has its context in the other",
                             "run both arms with the same prompt and more cycles", found);
    } else {
        c.armed.armed = !must_be_seen || c.armed.draft_exposure.has_value();
        if (!c.armed.armed) {
            c.armed.reason = "the restored arm ran no decode cycle: no draft saw its restore";
            c.armed.advice = "cut the prompt elsewhere, so that decode cycles follow";
        }
        conclude(c, hard, differences, drifted);
    }
}

Comparison corrupt_result(const Status& status, bool in_treated) {
    Comparison c;
    c.verdict = Verdict::corrupt;
    c.corrupt_capture = in_treated ? "treated" : "control";
    c.why = fmt::format("the {} capture breaks its format", c.corrupt_capture);
    c.corruption = status.message();
    c.next_step = next_step_of(c);
    return c;
}

struct Outcome {
    Comparison comparison;
    Status failure;
    bool failed_in_treated = false;
};

// Names the first difference. A schedule or a lossy form moves bits long before a fault shows, and flips follow: what
// contradicts the arm's own record comes first, then what no schedule explains. Returns what drifted before it.
std::optional<FirstDifference> name_first(const Findings& findings, const CaptureHeader& treated, Comparison& c) {
    c.first = findings.first();
    const bool drifts = !c.drift_explained_by.empty();
    const bool shortened = shortens_context(treated);
    const auto& broken = findings.first(Weight::broken);
    const auto& telling = (drifts || shortened) && broken ? broken : findings.first(Weight::real);
    if (!telling || !(drifts || (shortened && broken))) return std::nullopt;
    std::optional<FirstDifference> drifted;
    if (drifts && c.first->detail != telling->detail) drifted = c.first;
    c.first = telling;
    return drifted;
}

Outcome run(CaptureReader& control, CaptureReader& treated, const CompareOptions& options) {
    Outcome outcome;
    Comparison& c = outcome.comparison;
    const CaptureHeader& ch = control.header();
    const CaptureHeader& th = treated.header();
    c.sanitisable_evidence = options.evidence == Evidence::sanitisable || ch.sanitised || th.sanitised;
    c.level = std::min({ch.level, th.level, c.sanitisable_evidence ? 2 : 3});
    c.control_capture = summarise(control);
    c.treated_capture = summarise(treated);
    c.near_tie = ch.near_tie;
    c.notes = ch.notes;
    for (const std::string& note : th.notes) {
        if (std::find(c.notes.begin(), c.notes.end(), note) == c.notes.end()) c.notes.push_back(note);
    }
    Comparability comparability = check_comparable(ch, th, options.treat);
    if (!comparability.unknown.empty()) {
        outcome.failure = invalid_argument(
            fmt::format("declared treatment '{}': no field of these captures has that name; expected a settings field "
                        "such as kv_format or an identity group such as draft (see 'draftprobe inspect')",
                        comparability.unknown.front()));
        return outcome;
    }
    c.refusals = std::move(comparability.refusals);
    c.declared = std::move(comparability.declared);
    c.warnings = std::move(comparability.warnings);
    if (!c.refusals.empty()) {
        c.verdict = Verdict::not_comparable;
        c.why = fmt::format("{} undeclared difference{} of identity or settings: {}", c.refusals.size(),
                            c.refusals.size() == 1 ? "" : "s", field_list(c.refusals));
        if (is_timing_confounded(c)) {
            c.why += "; the verify budget learned online, so measured times decided how many rows each arm verified";
        }
        c.next_step = next_step_of(c);
        return outcome;
    }
    for (const CaptureHeader* header : {&ch, &th}) {
        if (header->treatment.faults.empty()) continue;
        c.warnings.push_back(fmt::format("the {} capture was made with an injected fault: {}",
                                         header == &ch ? "control" : "treated",
                                         fmt::join(header->treatment.faults, ", ")));
    }
    if (ch.arm == Arm::restored && th.arm != Arm::restored) {
        c.warnings.push_back("the control is a restored arm and the treated one is not: they look swapped");
    }
    ArmCheck arms = check_arms(ch, th);
    c.armed = std::move(arms.armed);
    c.warnings.insert(c.warnings.end(), arms.warnings.begin(), arms.warnings.end());
    c.drift_explained_by = recorded_cause(ch, th, c.declared);
    c.ledger = ledger_rows(ch, th);
    sum_rows(ch, c.control);
    sum_rows(th, c.treated);
    take_totals(ch, c.control);
    take_totals(th, c.treated);

    PairSink sink(ch, th, c);
    const LedgerVerdict ledger = compare_ledgers(ch, th, sink.findings);
    c.shift_tokens = ledger.shift_tokens;
    for (const std::string& request : ledger.first_token_differs) sink.first_token_flip(request, lane_of(th, request));
    c.blind_spots = static_cast<std::int64_t>(ledger.blind_spots.size());
    c.warnings.insert(c.warnings.begin(), ledger.blind_spots.begin(), ledger.blind_spots.end());
    Matcher matcher(control, treated, sink, c.pairs);
    outcome.failure = matcher.run();
    outcome.failed_in_treated = matcher.failed_in_treated();
    if (!outcome.failure.ok()) return outcome;
    sink.finish(setting_value(ch, "budget") == "full" && setting_value(th, "budget") == "full");
    sink.report_stops(ledger.unwritten);
    const std::optional<FirstDifference> drifted = name_first(sink.findings, th, c);

    if (!arms.verdict && !sink.contaminated().empty()) {
        arms.verdict = Verdict::contaminated;
        c.armed.reason = sink.contaminated();
        c.armed.advice = "make the control again with every cache off, on a lane that was reset";
    }
    if (c.control_stop) {
        // Without a control that ran to its end there is nothing to judge by: its numbers or its capture are damaged.
        c.verdict = Verdict::corrupt;
        c.corrupt_capture = "control";
        c.why = c.corruption = fmt::format(
            "the control stopped with an error at cycle {}, stage '{}': a control that did not run is no control",
            c.control_stop->cycle, c.control_stop->stage);
    } else if (arms.verdict) {
        c.verdict = *arms.verdict;
        c.why = c.armed.reason;
    } else {
        judge_pairs(c, ch, th, ledger.hard || sink.hard, sink.findings.count(), drifted);
    }
    c.next_step = next_step_of(c, sink.cycles_without_digests);
    return outcome;
}

}  // namespace

Result<Comparison> compare(CaptureReader& control, CaptureReader& treated, const CompareOptions& options) {
    Outcome outcome = run(control, treated, options);
    if (outcome.failure.ok()) return std::move(outcome.comparison);
    if (outcome.failure.code() != StatusCode::corrupt) return outcome.failure;
    return corrupt_result(outcome.failure, outcome.failed_in_treated);
}

Result<Comparison> compare_captures(const std::filesystem::path& control, const std::filesystem::path& treated,
                                    const CompareOptions& options) {
    Result<CaptureReader> control_reader = CaptureReader::open(control);
    if (!control_reader.ok() && control_reader.status().code() != StatusCode::corrupt) return control_reader.status();
    Result<CaptureReader> treated_reader = CaptureReader::open(treated);
    if (!treated_reader.ok() && treated_reader.status().code() != StatusCode::corrupt) return treated_reader.status();
    if (!control_reader.ok()) return corrupt_result(control_reader.status(), false);
    if (!treated_reader.ok()) return corrupt_result(treated_reader.status(), true);
    return compare(*control_reader, *treated_reader, options);
}

}  // namespace draftprobe
