// The verify budget of one lane: how many rows of the block the target verifies in a cycle.
//
//   full      all of them
//   adaptive  the rule below, learning online from this lane's own cycles and their measured times
//   frozen    the rule below, read from a seed file and never changed
//
// The rule: r maximises value(r) = tokens(r) / cost(r) over r = 1 .. proposals + 1, where
//     tokens(r) = 1 + sum of s_p for p < r      expected tokens of the cycle: the target's own one and every match
//     s_p       = product of h_i for i <= p     probability that proposals 1..p all match
// and h_i is the posterior mean of the bucket that the prefix confidence at i falls into (budget/rule.h). It is the
// expected number of tokens per unit of time of Leviathan, Kalman and Matias, "Fast inference from transformers via
// speculative decoding" (2023), with a hazard per position in place of one acceptance rate. Double precision; p
// ascending; s and the sum are accumulated one position at a time. Ties go to the larger r: every s_p >= 0, so a flat
// cost table always means all rows. A non-finite confidence at any position means all rows: it says that the draft is
// broken, and only the target's answer to every proposal can show how.
//
// A decision depends on this lane's confidences and controller alone. A frozen lane therefore decides the same whoever
// else is batched; an adaptive one does not, because its costs are times (captures of it are marked timing_confounded).
// A sampled lane verifies all rows: give it full(). Its acceptances are draws, not matches, and teach nothing.
//
// Value type: copying forks the learned state. One thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "budget/rule.h"
#include "budget/seed.h"

namespace draftprobe::budget {

enum class BudgetKind { full, adaptive, frozen };

std::string_view budget_kind_name(BudgetKind kind);

// Weight of the newest time in the moving average of a cost: cost += (time - cost) / 8.
inline constexpr double kCostWeight = 0.125;

struct Decision {
    std::size_t rows = 0;  // 1 .. proposals + 1
    // value(rows) minus the largest value of another width, in tokens per unit of cost; 0 for a tie. Absent when no
    // two widths were weighed: full budget, no proposals, or a confidence that is not finite.
    std::optional<double> margin;
    bool operator==(const Decision&) const = default;
};

class Controller {
public:
    // `block`: rows of a full verification, anchor included; at least 1.
    static Controller full(std::size_t block);
    // Shares the seed, which read_seed or parse_seed has checked.
    static Controller frozen(std::shared_ptr<const Seed> seed);
    // `initial_cost` was measured with `lanes` lanes and passes check_costs (asserted), as widths that are never chosen
    // keep it.
    static Controller adaptive(std::size_t block, std::size_t lanes, CostTable initial_cost,
                               const BetaPrior& prior = {});

    // An adaptive controller that goes on from what another one had learned: state() of it. Errors: corrupt, for counts
    // or costs that no adaptive controller of this block can have.
    static Result<Controller> resumed(std::size_t block, std::size_t lanes, State learned);

    // `prefix_confidence`: float32 [proposals], at temperature 1, proposals <= block - 1 (all of them, before any cut).
    Decision decide(std::span<const float> prefix_confidence) const;

    // What the cycle showed; others than adaptive ignore it. Only positions that were reached (p <= accepted + 1) and
    // verified (p <= verified) teach. Requires accepted <= verified <= proposals. When the sequence was cut (retained <
    // accepted + 1), matches that were not retained are not evidence: pass min(accepted, retained) for both counts,
    // which is capture's observed_acceptance.
    void observe(std::span<const float> prefix_confidence, std::size_t verified, std::size_t accepted);

    // Wall time of the whole cycle (draft, verify, commit) in which this lane verified `rows` rows. Adaptive only, and
    // only when `lanes_in_batch` is the recorded number and the time passes valid_cost. In a batch every lane reports
    // its own rows with the same whole cycle's seconds, because each of them waits for all: cost(r) is the time of a
    // cycle in which this lane had r rows, averaged over whatever the others had. It rises less with r than alone, and
    // leaves out what this lane's rows cost the others.
    void observe_time(std::size_t rows, double seconds, std::size_t lanes_in_batch);

    BudgetKind kind() const { return kind_; }
    std::size_t block() const { return block_; }
    // Number of lanes that the costs belong to; 0 for full.
    std::size_t lanes() const { return lanes_; }
    // Digest of the seed that is read; empty unless frozen.
    std::string seed_digest() const { return seed_ ? seed_->digest : std::string(); }
    // What decide() goes by; empty vectors for full.
    const State& state() const { return seed_ ? seed_->state : learned_; }

    bool operator==(const Controller& other) const;

private:
    Controller(BudgetKind kind, std::size_t block, std::size_t lanes) : kind_(kind), block_(block), lanes_(lanes) {}

    std::span<const double> upper_edges() const;

    BudgetKind kind_;
    std::size_t block_;
    std::size_t lanes_;
    std::shared_ptr<const Seed> seed_;  // frozen only
    State learned_;                     // adaptive only
};

}  // namespace draftprobe::budget
