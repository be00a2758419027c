// Sampled decoding, lossless: the target's final distribution of a position, draws from a distribution, the rejection
// test against the draft's conditional q, and counter-based random numbers (dflash2.md section 6).
//
// Random numbers are a pure function of (seed, request, absolute position, stream): no generator state, so equal
// contexts reached after different cycle counts, on any lane, draw equal numbers. The three streams are independent
// (separate Philox counters); one (stream, position) pair decides at most one emitted token:
//   draft     which candidate is proposed for the position
//   accept    whether the proposal at the position is accepted
//   residual  the token taken from the target at the position: after a rejection, after full acceptance, in plain
//             decoding and for the first token after the prompt
// A position that is drafted again in a later cycle reuses its draft number. That is no bias: a cycle that ends before
// the position has used none of the position's numbers for anything that was emitted.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace draftprobe::decode {

struct SamplingSettings {
    float temperature = 0;   // below kGreedyTemperature: greedy, and everything else here is ignored
    std::int64_t top_k = 0;  // keep the k most likely tokens; 0: all
    float top_p = 1;         // (0, 1]: keep the smallest set, most likely first, whose mass reaches top_p
    float min_p = 0;         // [0, 1): keep tokens at least min_p times as likely as the most likely one
    std::uint64_t seed = 0;

    bool greedy() const;
    bool operator==(const SamplingSettings&) const = default;
};
// Softmax at a temperature below this is a point mass for any float32 logits worth sampling from.
inline constexpr float kGreedyTemperature = 1e-5f;

// "greedy", or "temperature=0.8,top_k=20,top_p=0.95,min_p=0,seed=7": the effective setting of a capture.
std::string sampling_text(const SamplingSettings& settings);

// invalid_argument naming the setting, what was found and what is expected.
Status check_sampling(const SamplingSettings& settings);

// How one lane's request draws. `request` tells requests with equal seeds apart.
struct LaneSampling {
    SamplingSettings settings;
    std::uint64_t request = 0;
};

enum class RandomStream : std::uint32_t { draft = 1, accept = 2, residual = 3 };

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// Uniform in [0, 1) with 53 bits: Philox with key = seed, counter = (position, stream, request). Requires 0 <= position
// < 2^48.
double uniform(std::uint64_t seed, std::uint64_t request, Position position, RandomStream stream);
inline double uniform(const LaneSampling& lane, Position position, RandomStream stream) {
    return uniform(lane.settings.seed, lane.request, position, stream);
}

// A distribution over tokens: ids ascending, probabilities parallel to them, positive, summing to 1 up to rounding.
struct TokenDistribution {
    std::vector<TokenId> ids;
    std::vector<double> probabilities;

    double probability(TokenId token) const;  // 0 for a token that is not listed
    static TokenDistribution point(TokenId token) { return {{token}, {1.0}}; }
};

// Temperature, then top-k, top-p and min-p (the order of Hugging Face's warpers), then normalisation. Ranking is by
// logit descending, id ascending: with ties at the edge of top-k the lower ids stay. Top-p keeps a token iff the mass
// ranked before it is below top_p; the first is always kept. Terms are float32 exp(logit / T - max / T), sums double in
// ascending id order (top-p: rank order). Logits that are not finite count as minus infinity; without a finite one (a
// poisoned row) the lowest id gets everything, so that no input makes a distribution that cannot be drawn from.
TokenDistribution target_distribution(std::span<const float> logits, const SamplingSettings& settings);

// softmax(scores / temperature) over `ids` (any order, distinct): the conditional q of a candidate list. Scores that
// are not finite count as minus infinity; without a finite one the first id gets everything.
TokenDistribution candidate_distribution(std::span<const TokenId> ids, std::span<const float> scores,
                                         float temperature);

// Inverse of the cumulative sum in ascending id order. Requires 0 <= u < 1 and a distribution that is not empty.
TokenId draw(const TokenDistribution& distribution, double u);

// The rejection test of a proposal that was drawn from q: accept iff u * q(token) < p(token).
bool accepts(const TokenDistribution& p, const TokenDistribution& q, TokenId token, double u);

// normalise(max(p - q, 0)); p itself when no mass is left.
TokenDistribution residual_distribution(const TokenDistribution& p, const TokenDistribution& q);

}  // namespace draftprobe::decode
