#include "compare/pair_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float_bits.h"
#include "compare/ledger_diff.h"

namespace draftprobe {
namespace {

enum VerifyRank { kTargetHiddenRank, kTargetChoiceRank, kTargetMarginRank };

bool same_bits(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

// First index below `count` at which the two differ, or `count`. Values that only one side recorded are not compared.
template <typename T>
std::int64_t first_difference(const std::vector<T>& a, const std::vector<T>& b, std::int64_t count) {
    const auto stored = static_cast<std::int64_t>(std::min(a.size(), b.size()));
    for (std::int64_t i = 0; i < std::min(count, stored); ++i) {
        const auto at = static_cast<std::size_t>(i);
        if constexpr (std::is_same_v<T, float>) {
            if (!same_bits(a[at], b[at])) return i;
        } else {
            if (a[at] != b[at]) return i;
        }
    }
    return count;
}

struct RowDistance {
    double relative_l2 = 0;
    bool equal = true;
};

RowDistance row_distance(const std::byte* control, const std::byte* treated, std::int64_t hidden) {
    if (std::memcmp(control, treated, static_cast<std::size_t>(hidden) * sizeof(Bf16)) == 0) return {};
    double difference = 0;
    double norm = 0;
    for (std::int64_t i = 0; i < hidden; ++i) {
        Bf16 c = 0;
        Bf16 t = 0;
        std::memcpy(&c, control + i * 2, 2);
        std::memcpy(&t, treated + i * 2, 2);
        const double cv = bf16_to_f32(c);
        const double d = static_cast<double>(bf16_to_f32(t)) - cv;
        difference += d * d;
        norm += cv * cv;
    }
    if (difference == 0 && std::isfinite(norm)) return {0, false};  // +0 against -0
    const double relative = std::sqrt(difference) / std::sqrt(norm);
    return {std::isfinite(relative) ? relative : std::numeric_limits<double>::infinity(), false};
}

class PairComparison {
public:
    PairComparison(const HeldStep& control, const HeldStep& treated, const PairOptions& options, Findings& findings,
                   RowDrift& draft_drift, RowDrift& target_drift, Flips& flips)
        : c_(control.step),
          t_(treated.step),
          control_(control),
          treated_(treated),
          options_(options),
          findings_(findings),
          draft_drift_(draft_drift),
          target_drift_(target_drift),
          flips_(flips) {}

    PairOutcome run() {
        drafted_ = std::min(c_.drafted, t_.drafted);
        agreed_ = first_difference(c_.proposals, t_.proposals, drafted_);
        // Target row j reads proposals 1..j: rows 0..agreed_ had equal inputs.
        rows_ = std::min({c_.verified, t_.verified, agreed_}) + 1;
        draft_context();
        draft_hidden();
        candidates();
        proposals();
        confidence();
        width();
        target_rows();
        acceptance();
        output();
        return outcome_;
    }

private:
    template <typename Detail>
    void report(Stage stage, int rank, std::string_view component, Weight weight, Detail detail) {
        outcome_.different = true;
        findings_.offer(stage, rank, component, c_.cycle, t_.lane, weight, detail);
    }

    Weight flip(const std::vector<float>& margins, std::int64_t at, double NearTie::*threshold) {
        const bool known = at < static_cast<std::int64_t>(margins.size());
        return flip(known ? std::optional<double>(margins[static_cast<std::size_t>(at)]) : std::nullopt, threshold);
    }
    Weight flip(std::optional<double> margin, double NearTie::*threshold) {
        return count_flip(margin, threshold, options_.near_tie, flips_);
    }

    void draft_context() {
        const DraftContextUse& c = c_.draft_context;
        const DraftContextUse& t = t_.draft_context;
        const Position end = t.first_position + t.rows_claimed;
        const auto say = [&](const std::string& detail, bool hard) {
            outcome_.hard = outcome_.hard || hard;
            context_differs_ = true;
            const Weight fault = options_.masked_by_declaration ? Weight::real : Weight::broken;
            report(Stage::draft, kContextRank, kDraftContext, hard ? fault : Weight::explainable,
                   [&] { return detail; });
        };
        if (const auto pairing = wrong_pairing(t_, &c_)) say(*pairing, true);
        if (t.rows_claimed != t.rows_valid && t.rows_claimed - t.rows_valid != c.rows_claimed - c.rows_valid) {
            say(unwritten_text(t.rows_claimed, t.rows_valid, end, t.first_position, t.provenance), true);
        }
        if (t.rows_claimed != c.rows_claimed || t.first_position != c.first_position) {
            say(options_.masked_by_declaration
                    ? fmt::format("context shortened by declaration: [{}, {}) of [{}, {})", t.first_position, end,
                                  c.first_position, c.first_position + c.rows_claimed)
                    : wrong_claim(c, t, end),
                !options_.masked_by_declaration);
        }
        if (!c.digest.empty() && !t.digest.empty() && c.digest != t.digest)
            say("content of the rows read differs", false);
    }

    std::string wrong_claim(const DraftContextUse& c, const DraftContextUse& t, Position end) const {
        const std::string claims = fmt::format("claims [{}, {})", t.first_position, end);
        if (end != t_.length) {
            return fmt::format(
                "{} at length {}: {}", claims, t_.length,
                end > t_.length ? "claimed length exceeds positions" : "positions are missing at the end");
        }
        if (t.rows_claimed == 0) return fmt::format("logical offset {}, fill 0", end);
        const std::string control =
            fmt::format("{}, the control [{}, {})", claims, c.first_position, c.first_position + c.rows_claimed);
        if (t.first_position <= c.first_position) return control;
        return fmt::format("position gap: context rows {} of {}, first position {}, expected {}; {}", t.rows_claimed,
                           c.rows_claimed, t.first_position, c.first_position, control);
    }

    // Row i of both: compared by tensor where both have one, and by the digest of the float32 row where both have one.
    void rows(const std::vector<std::uint64_t>& c_digests, const std::vector<std::uint64_t>& t_digests,
              std::span<const std::byte> c_bytes, std::span<const std::byte> t_bytes, std::int64_t count, Stage stage,
              int rank, std::string_view component, std::string_view beside, RowDrift& drift, double& worst_of_pair) {
        const auto row_bytes = static_cast<std::size_t>(options_.hidden) * sizeof(Bf16);
        for (std::int64_t i = 0; i < count; ++i) {
            const auto at = static_cast<std::size_t>(i);
            const bool by_digest = at < c_digests.size() && at < t_digests.size();
            const bool by_tensor = row_bytes > 0 && (at + 1) * row_bytes <= std::min(c_bytes.size(), t_bytes.size());
            if (!by_digest && !by_tensor) continue;
            ++drift.rows;
            RowDistance distance;
            if (by_tensor) {
                distance =
                    row_distance(c_bytes.data() + at * row_bytes, t_bytes.data() + at * row_bytes, options_.hidden);
                if (!drift.max_relative_l2) drift.max_relative_l2 = 0.0;
                drift.sum_relative_l2 += distance.relative_l2;
                worst_of_pair = std::max(worst_of_pair, distance.relative_l2);
                if (distance.relative_l2 > *drift.max_relative_l2) {
                    drift.max_relative_l2 = distance.relative_l2;
                    drift.cycle = c_.cycle;
                    drift.row = i;
                }
            }
            const bool digest_differs = by_digest && c_digests[at] != t_digests[at];
            if (distance.equal && !digest_differs) continue;
            ++drift.rows_different;
            report(stage, rank, component, Weight::explainable, [&] {
                if (!by_tensor) return fmt::format("row {} differs (by digest){}", i, beside);
                if (distance.equal) return fmt::format("row {} differs before rounding, not after{}", i, beside);
                return fmt::format("row {} differs, relative L2 {:.6g}{}", i, distance.relative_l2, beside);
            });
        }
    }

    void draft_hidden() {
        const bool context_known = !c_.draft_context.digest.empty() && !t_.draft_context.digest.empty();
        rows(c_.draft_hidden_digests, t_.draft_hidden_digests, control_.draft_hidden, treated_.draft_hidden, drafted_,
             Stage::draft, kHiddenRank, "draft_hidden",
             context_known && !context_differs_
                 ? "; the recorded context rows are equal, so another input of the draft "
                   "differs (its rings, a stale anchor or a pending row)"
                 : "",
             draft_drift_, outcome_.draft_drift);
    }

    void candidates() {
        const std::int64_t count = drafted_ * options_.candidates;
        const std::int64_t ids = first_difference(c_.candidate_ids, t_.candidate_ids, count);
        const std::int64_t scores =
            options_.scores ? first_difference(c_.candidate_scores, t_.candidate_scores, count) : count;
        const std::int64_t margins = first_difference(c_.candidate_margins, t_.candidate_margins, drafted_);
        if (ids < count || scores < count) {
            const std::int64_t at = std::min(ids, scores);
            report(Stage::select, kCandidateRank, "candidates", Weight::explainable, [&] {
                return fmt::format("{} differ at position {}, rank {}", ids <= scores ? "ids" : "scores",
                                   at / options_.candidates + 1, at % options_.candidates + 1);
            });
        } else if (margins < drafted_) {
            report(Stage::select, kCandidateRank, "candidates", Weight::explainable, [&] {
                return fmt::format("the margin behind the last candidate differs at position {}", margins + 1);
            });
        }
    }

    void proposals() {
        if (agreed_ < drafted_) {
            outcome_.proposals = true;
            outcome_.first_proposal_difference = agreed_;
            // A winner that the other arm had no choice of was lost or won at the last candidate's place.
            // Without a threshold for that, selector thresholds were measured with such flips among them.
            const bool measured = options_.near_tie && options_.near_tie->candidate > 0;
            const Weight weight = measured && chose_among_others()
                                      ? flip(c_.candidate_margins, agreed_, &NearTie::candidate)
                                      : flip(c_.selector_margins, agreed_, &NearTie::selector);
            report(Stage::select, kProposalRank, "proposals", weight,
                   [&] { return fmt::format("first at position {} of {}", agreed_ + 1, drafted_); });
        }
        if (c_.proposal_source != t_.proposal_source && drafted_ > 0) {
            report(Stage::select, kProposalRank, "proposals", Weight::explainable, [&] {
                return fmt::format("made by '{}', the control's by '{}'", t_.proposal_source, c_.proposal_source);
            });
        }
    }

    // Whether either arm's first flipped proposal is none of the other arm's candidates there.
    bool chose_among_others() const {
        const auto at = static_cast<std::size_t>(agreed_);
        const auto misses = [&](const StepRecord& arm, CapturedId token) {
            const auto count = static_cast<std::size_t>(options_.candidates);
            if (arm.candidate_ids.size() < (at + 1) * count) return false;
            const auto first = arm.candidate_ids.begin() + static_cast<std::ptrdiff_t>(at * count);
            const auto last = first + static_cast<std::ptrdiff_t>(count);
            return std::find(first, last, token) == last;
        };
        return misses(t_, c_.proposals[at]) || misses(c_, t_.proposals[at]);
    }

    void confidence() {
        const std::int64_t comparable = std::min(drafted_, agreed_ + 1);
        for (std::int64_t i = 0; i < agreed_; ++i) {
            const auto at = static_cast<std::size_t>(i);
            if (at >= c_.prefix_confidence.size() || at >= t_.prefix_confidence.size()) break;
            const double change = std::fabs(double(t_.prefix_confidence[at]) - double(c_.prefix_confidence[at]));
            if (std::isfinite(change)) outcome_.confidence_change = std::max(outcome_.confidence_change, change);
        }
        const std::int64_t q = first_difference(c_.q, t_.q, agreed_);
        const std::int64_t prefix = first_difference(c_.prefix_confidence, t_.prefix_confidence, agreed_);
        const std::int64_t margins = first_difference(c_.selector_margins, t_.selector_margins, comparable);
        if (q < agreed_ || prefix < agreed_ || margins < comparable) {
            report(Stage::select, kConfidenceRank, "confidence", Weight::explainable, [&] {
                return fmt::format("first at position {}", std::min({q, prefix, margins}) + 1);
            });
        }
    }

    void width() {
        const bool drafted = c_.drafted != t_.drafted;
        if (!drafted && c_.offered == t_.offered && c_.verified == t_.verified) return;
        outcome_.width = true;
        if (options_.width_declared && !drafted) return;
        Weight weight = Weight::explainable;
        if (drafted || !outcome_.proposals) {
            weight = flip(drafted ? std::nullopt : c_.width_margin, &NearTie::width);
        }
        report(Stage::width, 0, "verify_rows", weight, [&] {
            return fmt::format("drafted {}, offered {}, verified {}; the control {}, {}, {}", t_.drafted, t_.offered,
                               t_.verified, c_.drafted, c_.offered, c_.verified);
        });
    }

    void target_rows() {
        target_drift_.rows_input_differs += std::min(c_.verified, t_.verified) + 1 - rows_;
        rows(c_.target_hidden_digests, t_.target_hidden_digests, control_.target_hidden, treated_.target_hidden, rows_,
             Stage::verify, kTargetHiddenRank, "target_hidden", "", target_drift_, outcome_.target_drift);
        // A flipped row changes which later rows matter, not what they are: each row stands for itself.
        for (std::int64_t row = 0; row < rows_; ++row) {
            const auto at = static_cast<std::size_t>(row);
            if (c_.target_choices[at] == t_.target_choices[at]) continue;
            outcome_.target_choice = true;
            const Weight weight = flip(c_.target_margins, row, &NearTie::target);
            report(Stage::verify, kTargetChoiceRank, "target_choice", weight, [&] {
                const bool known = at < c_.target_margins.size();
                return fmt::format("first at row {}, the control's margin {}", row,
                                   known ? fmt::format("{:.6g}", c_.target_margins[at]) : "not recorded");
            });
        }
        const std::int64_t ids = first_difference(c_.target_top2, t_.target_top2, 2 * rows_);
        const std::int64_t margins = first_difference(c_.target_margins, t_.target_margins, rows_);
        const std::int64_t row = std::min(ids / 2, margins);
        if (row < rows_) {
            report(Stage::verify, kTargetMarginRank, "target_margins", Weight::explainable,
                   [&] { return fmt::format("the two best differ first at row {}", row); });
        }
    }

    // Accepted counts up to the rows that both arms verified: a narrower verification is a change of width, not of
    // acceptance.
    void acceptance() {
        if (has_error(c_) || has_error(t_)) return;  // what an error cut short was not accepted or rejected
        const std::int64_t both = std::min(c_.verified, t_.verified);
        const std::int64_t c_accepted = std::min(c_.accepted, both);
        const std::int64_t t_accepted = std::min(t_.accepted, both);
        const bool emitted_differs = !c_.forced && !t_.forced && c_.emitted != t_.emitted;
        const bool cut_differs = c_.accepted == t_.accepted && (c_.retained != t_.retained || emitted_differs);
        if (c_accepted == t_accepted && !cut_differs) return;
        outcome_.acceptance = true;
        const bool unexplained = agreed_ >= both && !target_choices_differ(both);
        outcome_.hard = outcome_.hard || unexplained;
        report(Stage::accept, 0, cut_differs ? "retained" : "accepted",
               unexplained ? Weight::broken : Weight::explainable, [&] {
                   if (cut_differs) {
                       return fmt::format("{} accepted in both, retained {} and emitted {}, the control {} and {}",
                                          t_.accepted, t_.retained, t_.emitted, c_.retained, c_.emitted);
                   }
                   return fmt::format("accepted {} of {} rows verified in both arms, the control {}{}", t_accepted,
                                      both, c_accepted,
                                      unexplained ? ", though proposals and target choices agree" : "");
               });
    }

    bool target_choices_differ(std::int64_t both) const {
        return first_difference(c_.target_choices, t_.target_choices, both) < both;
    }

    // What the arm itself would give out as its i-th token of this cycle. A forced step commits the control's tokens,
    // and its own are the target's choices: up to `accepted` they are the proposals.
    static CapturedId token(const StepRecord& s, std::int64_t i) {
        const auto at = static_cast<std::size_t>(i);
        if (s.forced) return s.target_choices[at];
        return at + 1 < s.committed.size() ? s.committed[at + 1] : s.next_anchor;
    }

    // Of two lists of different length the common part is judged; the rest shows in other cycles.
    void output() {
        const std::int64_t count = std::min(c_.retained, t_.retained);
        std::int64_t i = 0;
        while (i < count && token(c_, i) == token(t_, i)) ++i;
        if (i < count) {
            outcome_.output = true;
            const bool forced = c_.forced || t_.forced;
            report(Stage::commit, kOutputRank, "output", Weight::explainable, [&] {
                return fmt::format("first at token {} of the cycle{}", i + 1,
                                   forced ? ", though the control's tokens were committed" : "");
            });
        }
        // The state after a cycle is comparable when the same tokens went into it.
        if (c_.committed == t_.committed) states();
    }

    void states() {
        for (const StateDigest& c : c_.state_digests) {
            if (c.component == kController) continue;
            for (const StateDigest& t : t_.state_digests) {
                if (t.component != c.component || t.digest == c.digest) continue;
                report(Stage::commit, kStateRank + component_rank(c.component), c.component, Weight::explainable,
                       [&] { return std::string("state after the commit differs"); });
            }
        }
    }

    const StepRecord& c_;
    const StepRecord& t_;
    const HeldStep& control_;
    const HeldStep& treated_;
    const PairOptions& options_;
    Findings& findings_;
    RowDrift& draft_drift_;
    RowDrift& target_drift_;
    Flips& flips_;
    PairOutcome outcome_;
    std::int64_t drafted_ = 0;
    bool context_differs_ = false;
    std::int64_t agreed_ = 0;  // leading proposals that agree
    std::int64_t rows_ = 0;    // target rows with equal inputs
};

}  // namespace

Weight count_flip(std::optional<double> margin, double NearTie::*threshold, const std::optional<NearTie>& near_tie,
                  Flips& flips) {
    const bool width = threshold == &NearTie::width;
    ++flips.total;
    flips.widths += width;
    if (!margin) return Weight::real;
    if (!width && (!flips.largest_margin || *margin > *flips.largest_margin)) flips.largest_margin = margin;
    if (!near_tie || !(*margin <= (*near_tie).*threshold)) return Weight::real;
    ++flips.near_ties;
    return Weight::explainable;
}

bool has_error(const StepRecord& step) {
    for (CutReason cut : {step.drafted_cut, step.offered_cut, step.verified_cut, step.accepted_cut, step.retained_cut,
                          step.emitted_cut}) {
        if (cut == CutReason::error) return true;
    }
    return false;
}

std::optional<std::string> wrong_pairing(const StepRecord& step, const StepRecord* control) {
    for (const RowPairing& pair : step.draft_context.pairing) {
        if (pair.request == step.request && pair.position == pair.row) continue;
        if (control != nullptr) {
            const std::vector<RowPairing>& alike = control->draft_context.pairing;
            if (std::find(alike.begin(), alike.end(), pair) != alike.end()) continue;
        }
        return fmt::format("pairing: expected row {}, got row {}{}", pair.row, pair.position,
                           pair.request.empty() ? " (earlier request)" : "");
    }
    return std::nullopt;
}

PairOutcome compare_pair(const HeldStep& control, const HeldStep& treated, const PairOptions& options,
                         Findings& findings, RowDrift& draft_drift, RowDrift& target_drift, Flips& flips) {
    return PairComparison(control, treated, options, findings, draft_drift, target_drift, flips).run();
}

}  // namespace draftprobe
