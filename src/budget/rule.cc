#include "budget/rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

namespace draftprobe::budget {

std::size_t bucket_of(std::span<const double> upper_edges, float confidence) {
    assert(!upper_edges.empty() && std::isfinite(confidence));
    const auto edge = std::lower_bound(upper_edges.begin(), upper_edges.end(), static_cast<double>(confidence));
    return std::min(static_cast<std::size_t>(edge - upper_edges.begin()), upper_edges.size() - 1);
}

bool valid_cost(double cost) { return cost >= kMinCost && cost <= kMaxCost; }

Status check_costs(std::span<const double> costs, std::size_t block, std::string_view subject) {
    if (costs.size() != block) {
        return corrupt(fmt::format("{}: found {} costs, expected {}, one for each number of rows from 1 to the block",
                                   subject, costs.size(), block));
    }
    for (std::size_t i = 0; i < costs.size(); ++i) {
        if (valid_cost(costs[i])) continue;
        return corrupt(fmt::format("{}: found {} as the cost of {} rows, expected a number from {} to {}", subject,
                                   costs[i], i + 1, kMinCost, kMaxCost));
    }
    return {};
}

State initial_state(std::size_t buckets, CostTable cost, const BetaPrior& prior) {
    return {std::vector<double>(buckets, prior.successes), std::vector<double>(buckets, prior.failures),
            std::move(cost)};
}

void teach(std::span<const double> upper_edges, std::span<const float> prefix_confidence, std::size_t first,
           std::size_t last, std::size_t accepted, State& state) {
    assert(last <= prefix_confidence.size());
    for (std::size_t i = first; i < last; ++i) {
        if (!std::isfinite(prefix_confidence[i])) continue;
        const std::size_t bucket = bucket_of(upper_edges, prefix_confidence[i]);
        (i < accepted ? state.successes : state.failures)[bucket] += 1.0;
    }
}

}  // namespace draftprobe::budget
