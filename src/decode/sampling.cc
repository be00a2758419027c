#include "decode/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "decode/ranking.h"
#include "numerics/scalar_math.h"

namespace draftprobe::decode {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Unnormalised: ids ascending, terms parallel to them.
struct Terms {
    std::vector<TokenId> ids;
    std::vector<double> terms;
};

TokenDistribution normalised(Terms kept) {
    const double total = std::accumulate(kept.terms.begin(), kept.terms.end(), 0.0);
    TokenDistribution result;
    for (std::size_t i = 0; i < kept.ids.size(); ++i) {
        if (kept.terms[i] <= 0) continue;  // a term that underflowed can never be drawn
        result.ids.push_back(kept.ids[i]);
        result.probabilities.push_back(kept.terms[i] / total);
    }
    // Only infinite logits were kept.
    if (result.ids.empty()) return TokenDistribution::point(kept.ids.front());
    return result;
}

float finite_or_lowest(float x) { return std::isfinite(x) ? x : kMinusInfinity; }

double term(float logit, float best, float temperature) {
    const float x = finite_or_lowest(logit);
    if (x == kMinusInfinity) return 0;
    return static_cast<double>(numerics::exp_f32((x - best) / temperature));
}

// Length of the shortest leading part of `ranked` whose mass reaches `mass`, at least 1; nothing when all of it does
// not.
std::optional<std::size_t> reaching(std::span<const RankedLogit> ranked, double mass, float best, float temperature) {
    double before = 0;
    for (std::size_t count = 0; count < ranked.size();) {
        before += term(ranked[count++].logit, best, temperature);
        if (before >= mass) return count;
    }
    return std::nullopt;
}

// What top-k and then top-p keep, in rank order. Ranking a whole vocabulary is dear and hardly ever needed, so the
// leading part grows until its mass suffices; how it grew does not show in the result.
std::vector<RankedLogit> nucleus(std::span<const float> logits, float best, const SamplingSettings& settings) {
    const std::size_t limit =
        settings.top_k > 0 ? std::min(logits.size(), static_cast<std::size_t>(settings.top_k)) : logits.size();
    if (settings.top_p >= 1) return top_logits(logits, limit);
    double total = 0;
    if (limit == logits.size()) {
        for (const float logit : logits) total += term(logit, best, settings.temperature);
    } else {
        for (const RankedLogit& entry : top_logits(logits, limit))
            total += term(entry.logit, best, settings.temperature);
    }
    const double mass = static_cast<double>(settings.top_p) * total;
    constexpr std::size_t kFirst = 64;
    for (std::size_t count = std::min(kFirst, limit);; count = std::min(4 * count, limit)) {
        std::vector<RankedLogit> ranked = top_logits(logits, count);
        const auto kept = reaching(ranked, mass, best, settings.temperature);
        if (!kept && count < limit) continue;
        ranked.resize(kept.value_or(ranked.size()));  // rounding may leave the sum of all just below
        return ranked;
    }
}

}  // namespace

bool SamplingSettings::greedy() const { return !(temperature >= kGreedyTemperature); }

std::string sampling_text(const SamplingSettings& settings) {
    if (settings.greedy()) return "greedy";
    return fmt::format("temperature={},top_k={},top_p={},min_p={},seed={}", settings.temperature, settings.top_k,
                       settings.top_p, settings.min_p, settings.seed);
}

Status check_sampling(const SamplingSettings& settings) {
    const auto refuse = [](std::string_view name, double found, std::string_view expected) {
        return invalid_argument(fmt::format("sampling: {} is {}, expected {}", name, found, expected));
    };
    if (!(settings.temperature >= 0 && settings.temperature <= 100)) {
        return refuse("temperature", settings.temperature, "a number from 0 (greedy) to 100");
    }
    if (settings.top_k < 0) return refuse("top-k", static_cast<double>(settings.top_k), "0 (all) or more");
    if (!(settings.top_p > 0 && settings.top_p <= 1)) return refuse("top-p", settings.top_p, "above 0, at most 1");
    if (!(settings.min_p >= 0 && settings.min_p < 1)) return refuse("min-p", settings.min_p, "from 0, below 1");
    return {};
}

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> x, std::array<std::uint32_t, 2> key) {
    constexpr std::uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
    constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t first = kMultiplier0 * x[0];
        const std::uint64_t second = kMultiplier1 * x[2];
        x = {static_cast<std::uint32_t>(second >> 32) ^ x[1] ^ key[0], static_cast<std::uint32_t>(second),
             static_cast<std::uint32_t>(first >> 32) ^ x[3] ^ key[1], static_cast<std::uint32_t>(first)};
        key[0] += kWeyl0;
        key[1] += kWeyl1;
    }
    return x;
}

double uniform(std::uint64_t seed, std::uint64_t request, Position position, RandomStream stream) {
    const auto at = static_cast<std::uint64_t>(position);
    const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
    const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
    const std::uint32_t stream_bits = static_cast<std::uint32_t>(stream) << 16;
    const auto x =
        philox4x32({low(at), (high(at) & 0xFFFF) | stream_bits, low(request), high(request)}, {low(seed), high(seed)});
    const std::uint64_t bits = (std::uint64_t{x[0]} << 32 | x[1]) >> 11;
    return static_cast<double>(bits) * 0x1p-53;
}

double TokenDistribution::probability(TokenId token) const {
    const auto found = std::lower_bound(ids.begin(), ids.end(), token);
    if (found == ids.end() || *found != token) return 0;
    return probabilities[static_cast<std::size_t>(found - ids.begin())];
}

TokenDistribution target_distribution(std::span<const float> logits, const SamplingSettings& settings) {
    float best = kMinusInfinity;
    for (const float logit : logits) best = std::max(best, finite_or_lowest(logit));
    if (best == kMinusInfinity) return TokenDistribution::point(0);
    Terms kept;
    if (settings.top_k == 0 && settings.top_p >= 1) {
        // Nothing needs a ranking: terms in id order.
        for (std::size_t i = 0; i < logits.size(); ++i) {
            const double value = term(logits[i], best, settings.temperature);
            if (value < static_cast<double>(settings.min_p)) continue;  // the best token's term is 1
            kept.ids.push_back(static_cast<TokenId>(i));
            kept.terms.push_back(value);
        }
        return normalised(std::move(kept));
    }
    std::vector<RankedLogit> order = nucleus(logits, best, settings);
    const auto likely = [&](const RankedLogit& entry) {
        return term(entry.logit, best, settings.temperature) >= static_cast<double>(settings.min_p);
    };
    while (order.size() > 1 && !likely(order.back())) order.pop_back();
    std::sort(order.begin(), order.end(), [](const RankedLogit& a, const RankedLogit& b) { return a.token < b.token; });
    for (const RankedLogit& entry : order) {
        kept.ids.push_back(entry.token);
        kept.terms.push_back(term(entry.logit, best, settings.temperature));
    }
    return normalised(std::move(kept));
}

TokenDistribution candidate_distribution(std::span<const TokenId> ids, std::span<const float> scores,
                                         float temperature) {
    float best = kMinusInfinity;
    for (const float score : scores) best = std::max(best, finite_or_lowest(score));
    if (best == kMinusInfinity) return TokenDistribution::point(ids[0]);
    std::vector<std::size_t> order(ids.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&ids](std::size_t a, std::size_t b) { return ids[a] < ids[b]; });
    Terms all;
    for (const std::size_t i : order) {
        all.ids.push_back(ids[i]);
        all.terms.push_back(term(scores[i], best, temperature));
    }
    return normalised(std::move(all));
}

TokenId draw(const TokenDistribution& distribution, double u) {
    double cumulative = 0;
    for (std::size_t i = 0; i < distribution.ids.size(); ++i) {
        cumulative += distribution.probabilities[i];
        if (u < cumulative) return distribution.ids[i];
    }
    return distribution.ids.back();  // the sum may round to just below 1
}

bool accepts(const TokenDistribution& p, const TokenDistribution& q, TokenId token, double u) {
    return u * q.probability(token) < p.probability(token);
}

TokenDistribution residual_distribution(const TokenDistribution& p, const TokenDistribution& q) {
    Terms kept;
    std::size_t j = 0;
    for (std::size_t i = 0; i < p.ids.size(); ++i) {
        while (j < q.ids.size() && q.ids[j] < p.ids[i]) ++j;
        const double taken = j < q.ids.size() && q.ids[j] == p.ids[i] ? q.probabilities[j] : 0.0;
        if (p.probabilities[i] <= taken) continue;
        kept.ids.push_back(p.ids[i]);
        kept.terms.push_back(p.probabilities[i] - taken);
    }
    if (kept.ids.empty()) return p;
    return normalised(std::move(kept));
}

}  // namespace draftprobe::decode
