#include "budget/controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

namespace draftprobe::budget {

std::string_view budget_kind_name(BudgetKind kind) {
    switch (kind) {
        case BudgetKind::full: return "full";
        case BudgetKind::adaptive: return "adaptive";
        case BudgetKind::frozen: return "frozen";
    }
    return "unknown";
}

Controller Controller::full(std::size_t block) {
    assert(block > 0);
    return Controller(BudgetKind::full, block, 0);
}

Controller Controller::frozen(std::shared_ptr<const Seed> seed) {
    assert(seed != nullptr && seed->block > 0);
    Controller made(BudgetKind::frozen, seed->block, seed->lanes);
    made.seed_ = std::move(seed);
    return made;
}

Controller Controller::adaptive(std::size_t block, std::size_t lanes, CostTable initial_cost, const BetaPrior& prior) {
    assert(block > 0 && lanes > 0 && check_costs(initial_cost, block, "adaptive").ok());
    assert(prior.successes > 0 && prior.failures > 0);
    Controller made(BudgetKind::adaptive, block, lanes);
    made.learned_ = initial_state(kUpperEdges.size(), std::move(initial_cost), prior);
    return made;
}

Result<Controller> Controller::resumed(std::size_t block, std::size_t lanes, State learned) {
    if (block == 0 || lanes == 0) {
        return corrupt(fmt::format("adaptive budget: block {} and {} lanes, expected at least 1 each", block, lanes));
    }
    DP_RETURN_IF_ERROR(check_costs(learned.cost, block, "adaptive budget"));
    for (const std::vector<double>* counts : {&learned.successes, &learned.failures}) {
        if (counts->size() == kUpperEdges.size() &&
            std::all_of(counts->begin(), counts->end(), [](double n) { return std::isfinite(n) && n > 0; })) {
            continue;
        }
        return corrupt(
            fmt::format("adaptive budget: {} counts or some that are not positive, expected {} positive ones",
                        counts->size(), kUpperEdges.size()));
    }
    Controller made(BudgetKind::adaptive, block, lanes);
    made.learned_ = std::move(learned);
    return made;
}

std::span<const double> Controller::upper_edges() const {
    if (seed_) return seed_->upper_edges;
    return kUpperEdges;
}

Decision Controller::decide(std::span<const float> prefix_confidence) const {
    assert(prefix_confidence.size() < block_);
    const std::size_t widest = prefix_confidence.size() + 1;
    const auto finite = [](float c) { return std::isfinite(c); };
    if (kind_ == BudgetKind::full || widest == 1 ||
        !std::all_of(prefix_confidence.begin(), prefix_confidence.end(), finite)) {
        return {widest, std::nullopt};
    }
    const State& known = state();
    double survival = 1.0;
    double tokens = 1.0;
    double best = tokens / known.cost[0];
    double second = -std::numeric_limits<double>::infinity();
    std::size_t rows = 1;
    for (std::size_t r = 2; r <= widest; ++r) {
        const std::size_t bucket = bucket_of(upper_edges(), prefix_confidence[r - 2]);
        survival *= known.successes[bucket] / (known.successes[bucket] + known.failures[bucket]);
        tokens += survival;
        const double value = tokens / known.cost[r - 1];
        if (value >= best) {
            second = best;
            best = value;
            rows = r;
        } else {
            second = std::max(second, value);
        }
    }
    return {rows, best - second};
}

void Controller::observe(std::span<const float> prefix_confidence, std::size_t verified, std::size_t accepted) {
    if (kind_ != BudgetKind::adaptive) return;
    assert(accepted <= verified && verified <= prefix_confidence.size());
    const std::size_t seen = std::min(verified, accepted + 1);
    teach(kUpperEdges, prefix_confidence, 0, seen, accepted, learned_);
}

void Controller::observe_time(std::size_t rows, double seconds, std::size_t lanes_in_batch) {
    assert(rows >= 1 && rows <= block_);
    if (kind_ != BudgetKind::adaptive || lanes_in_batch != lanes_ || !valid_cost(seconds)) return;
    double& cost = learned_.cost[rows - 1];
    cost += (seconds - cost) * kCostWeight;
}

bool Controller::operator==(const Controller& other) const {
    const auto mine = upper_edges();
    const auto others = other.upper_edges();
    return kind_ == other.kind_ && block_ == other.block_ && lanes_ == other.lanes_ && state() == other.state() &&
           std::equal(mine.begin(), mine.end(), others.begin(), others.end());
}

}  // namespace draftprobe::budget
