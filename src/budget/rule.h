// What the verify-row rule knows: how often a proposal matches at a given prefix confidence, and what a width costs.
//
// h_p = P(proposal p matches | proposals 1..p-1 matched, and row p was verified) is estimated per bucket of the prefix
// confidence at p, as the mean of a Beta posterior: successes / (successes + failures), prior included (the conjugate
// update of a Bernoulli rate; Gelman et al., Bayesian Data Analysis, 3rd edition, section 2.4).
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace draftprobe::budget {

// Default buckets by their upper edges, both used online and by calibration. A prefix confidence is a product of up to
// block - 1 probabilities: it spans decades towards 0, while the first positions crowd towards 1. The edges are
// therefore about equal steps in log odds (a factor of 3 in c / (1 - c)), which resolves both ends with few buckets,
// so that each of them learns from a few hundred cycles.
inline constexpr std::array<double, 12> kUpperEdges = {0.001, 0.003, 0.01, 0.03, 0.1,  0.25,
                                                       0.5,   0.75,  0.9,  0.97, 0.99, 1.0};

// Index of the first edge that is not below `confidence`; above all edges (rounding, a foreign draft), the last bucket.
// Requires a finite confidence and at least one edge.
std::size_t bucket_of(std::span<const double> upper_edges, float confidence);

// Beta counts that every bucket starts with. Weak (two observations) and optimistic (mean 0.875): a position that is
// not verified never teaches, so a rule that starts pessimistic would stay so, while an optimistic one is corrected by
// what it verifies. Both are dyadic: counts are then exact, and their order does not matter.
struct BetaPrior {
    double successes = 1.75;
    double failures = 0.25;
    bool operator==(const BetaPrior&) const = default;
};

// [rows - 1], for rows 1..block: what one cycle costs when this lane verifies so many rows. Any unit, as only ratios
// decide; measured tables are in seconds.
using CostTable = std::vector<double>;

inline constexpr double kMinCost = 1e-12;
inline constexpr double kMaxCost = 1e12;
bool valid_cost(double cost);  // finite, in [kMinCost, kMaxCost]

// Checks that `costs` has `block` entries that are all valid. Errors: corrupt, naming `subject` and the index.
Status check_costs(std::span<const double> costs, std::size_t block, std::string_view subject);

// Same shape as capture::ControllerState.
struct State {
    std::vector<double> successes;  // [bucket], prior included
    std::vector<double> failures;   // [bucket], prior included
    CostTable cost;                 // [block]
    bool operator==(const State&) const = default;
};

// Every bucket at the prior.
State initial_state(std::size_t buckets, CostTable cost, const BetaPrior& prior);

// Learns from positions `first` .. `last` - 1 (from 0) of one lane-cycle: the leading `accepted` ones are successes,
// the rest failures; a confidence that is not finite has no bucket and teaches nothing. The caller passes positions
// that were reached and verified. Requires last <= prefix_confidence.size().
void teach(std::span<const double> upper_edges, std::span<const float> prefix_confidence, std::size_t first,
           std::size_t last, std::size_t accepted, State& state);

}  // namespace draftprobe::budget
