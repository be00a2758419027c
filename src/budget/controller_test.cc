#include "budget/controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

namespace draftprobe::budget {
namespace {

constexpr std::size_t kBlock = 8;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One confidence in each of the buckets 6, 5, 4, ... so that every position teaches a bucket of its own.
const std::vector<float> kApart = {0.4f, 0.2f, 0.05f, 0.02f, 0.005f, 0.002f, 0.0005f};
constexpr std::size_t kApartBucket[] = {6, 5, 4, 3, 2, 1, 0};

std::shared_ptr<Seed> seed_with(CostTable cost, double successes = 1, double failures = 1) {
    auto seed = std::make_shared<Seed>();
    seed->block = cost.size();
    seed->lanes = 1;
    seed->upper_edges.assign(kUpperEdges.begin(), kUpperEdges.end());
    seed->state = initial_state(kUpperEdges.size(), std::move(cost), {successes, failures});
    return seed;
}

class Random {
public:
    double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(engine_); }
    // Falling, from near 1 down over decades, as products of probabilities are.
    std::vector<float> confidences(std::size_t count) {
        std::vector<float> values;
        float product = 1;
        for (std::size_t i = 0; i < count; ++i) {
            product *= static_cast<float>(std::pow(10.0, -uniform(0, 1.2)));
            values.push_back(product);
        }
        return values;
    }
    State state(CostTable cost) {
        State state = initial_state(kUpperEdges.size(), std::move(cost), {1, 1});
        for (double& count : state.successes) count = std::pow(10.0, uniform(-3, 4));
        for (double& count : state.failures) count = std::pow(10.0, uniform(-3, 4));
        return state;
    }

private:
    std::mt19937_64 engine_{20240607};
};

// The rule as its definition reads: every width from scratch, then the best and the second best of all.
Decision oracle(const Seed& seed, std::span<const float> confidence) {
    std::vector<double> values;
    for (std::size_t r = 1; r <= confidence.size() + 1; ++r) {
        double tokens = 1;
        for (std::size_t p = 1; p < r; ++p) {
            double survival = 1;
            for (std::size_t i = 1; i <= p; ++i) {
                std::size_t bucket = 0;
                while (bucket + 1 < seed.upper_edges.size() &&
                       static_cast<double>(confidence[i - 1]) > seed.upper_edges[bucket]) {
                    ++bucket;
                }
                const double successes = seed.state.successes[bucket];
                survival *= successes / (successes + seed.state.failures[bucket]);
            }
            tokens += survival;
        }
        values.push_back(tokens / seed.state.cost[r - 1]);
    }
    std::size_t best = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (values[i] >= values[best]) best = i;
    }
    const double top = values[best];
    values.erase(values.begin() + static_cast<std::ptrdiff_t>(best));
    if (values.empty()) return {1, std::nullopt};
    return {best + 1, top - *std::max_element(values.begin(), values.end())};
}

TEST(Decide, agrees_with_the_definition_on_random_tables) {
    Random random;
    std::vector<int> chosen(kBlock + 1);
    for (int round = 0; round < 20000; ++round) {
        CostTable cost;
        for (std::size_t r = 1; r <= kBlock; ++r) {
            cost.push_back(1 + random.uniform(0, 0.5) * static_cast<double>(r - 1) + random.uniform(0, 0.05));
        }
        auto seed = seed_with(cost);
        seed->state = random.state(cost);
        const std::vector<float> confidence = random.confidences(static_cast<std::size_t>(round) % kBlock);
        const Decision decision = Controller::frozen(seed).decide(confidence);
        ASSERT_EQ(decision, oracle(*seed, confidence)) << "round " << round;
        ++chosen[decision.rows];
    }
    for (std::size_t r = 1; r <= kBlock; ++r) EXPECT_GT(chosen[r], 50) << "the tables hardly reach " << r << " rows";
}

// s_p >= 0, so tokens(r) never falls, and dividing by one cost keeps the order: the last width is among the best.
TEST(Decide, a_flat_cost_table_means_all_rows) {
    Random random;
    for (int round = 0; round < 20000; ++round) {
        auto seed = seed_with(CostTable(kBlock, std::pow(10.0, random.uniform(-9, 9))));
        seed->state = random.state(seed->state.cost);
        // Counts at the edge of their range make hazards of 0 and 1 in double precision.
        if (round % 3 == 0) std::fill(seed->state.failures.begin(), seed->state.failures.end(), 0x1p53);
        if (round % 9 == 0) std::fill(seed->state.successes.begin(), seed->state.successes.end(), 1e-300);
        const Decision decision = Controller::frozen(seed).decide(random.confidences(kBlock - 1));
        ASSERT_EQ(decision.rows, kBlock);
        ASSERT_GE(*decision.margin, 0);
    }
}

TEST(Decide, gives_the_margin_between_best_and_second_best_width) {
    // h = 1/2: tokens 1, 1.5, 1.75; values 1, 1.25, 1.09375.
    const Controller controller = Controller::frozen(seed_with({1, 1.2, 1.6}));
    const std::vector<float> confidence = {0.5f, 0.25f};
    const Decision decision = controller.decide(confidence);
    EXPECT_EQ(decision.rows, 2u);
    EXPECT_DOUBLE_EQ(*decision.margin, 0.15625);
}

TEST(Decide, ties_go_to_the_larger_width) {
    // Tokens 1, 1.5, 1.75, 1.875 at costs in the same proportion: every width is worth 1/2.
    const std::vector<float> confidence = {0.5f, 0.25f, 0.125f};
    EXPECT_EQ(Controller::frozen(seed_with({2, 3, 3.5, 3.75})).decide(confidence), (Decision{4, 0.0}));
    // 2 and 3 rows tie above the rest.
    EXPECT_EQ(Controller::frozen(seed_with({2, 3, 3.5, 7.5})).decide(confidence), (Decision{3, 0.0}));
}

TEST(Decide, a_confidence_that_is_not_finite_means_all_rows) {
    const CostTable steep = {1, 2, 3, 4, 5, 6, 7, 8};
    const Controller frozen = Controller::frozen(seed_with(steep));
    const Controller adaptive = Controller::adaptive(kBlock, 1, steep);
    for (const Controller& controller : {frozen, adaptive}) {
        ASSERT_EQ(controller.decide(kApart).rows, 1u);
        for (std::size_t at = 0; at < kApart.size(); ++at) {
            for (const float bad : {kNaN, kInfinity, -kInfinity}) {
                std::vector<float> confidence = kApart;
                confidence[at] = bad;
                EXPECT_EQ(controller.decide(confidence), (Decision{kBlock, std::nullopt})) << at << " " << bad;
            }
        }
    }
}

TEST(Decide, full_weighs_nothing) {
    EXPECT_EQ(Controller::full(kBlock).decide(kApart), (Decision{kBlock, std::nullopt}));
    EXPECT_EQ(Controller::full(1).decide({}), (Decision{1, std::nullopt}));
}

TEST(Decide, fewer_proposals_bound_the_width) {
    const Controller flat = Controller::frozen(seed_with(CostTable(kBlock, 1.0)));
    for (std::size_t proposals = 0; proposals < kBlock; ++proposals) {
        const std::span<const float> some(kApart.data(), proposals);
        EXPECT_EQ(flat.decide(some).rows, proposals + 1);
        EXPECT_EQ(flat.decide(some).margin.has_value(), proposals > 0);
        EXPECT_EQ(Controller::full(kBlock).decide(some).rows, proposals + 1);
    }
}

TEST(Bucket, upper_edges_are_inclusive_and_ends_are_open) {
    const std::vector<double> edges = {0.125, 0.5, 1.0};
    const struct {
        float confidence;
        std::size_t bucket;
    } rows[] = {{-1.0f, 0}, {0.0f, 0},  {0.125f, 0}, {std::nextafterf(0.125f, 1.0f), 1},
                {0.5f, 1},  {0.51f, 2}, {1.0f, 2},   {std::nextafterf(1.0f, 2.0f), 2},
                {1e30f, 2}};
    for (const auto& row : rows) EXPECT_EQ(bucket_of(edges, row.confidence), row.bucket) << row.confidence;
    for (std::size_t i = 0; i < kApart.size(); ++i) EXPECT_EQ(bucket_of(kUpperEdges, kApart[i]), kApartBucket[i]);
}

TEST(Adaptive, only_positions_reached_and_verified_teach) {
    const struct {
        std::size_t verified, accepted, successes, failures;
    } rows[] = {{0, 0, 0, 0}, {1, 0, 0, 1}, {1, 1, 1, 0}, {7, 0, 0, 1}, {7, 3, 3, 1},
                {7, 6, 6, 1}, {7, 7, 7, 0}, {4, 3, 3, 1}, {4, 4, 4, 0}, {3, 1, 1, 1}};
    for (const auto& row : rows) {
        Controller controller = Controller::adaptive(kBlock, 1, CostTable(kBlock, 1.0));
        State expected = controller.state();
        for (std::size_t p = 0; p < row.successes; ++p) expected.successes[kApartBucket[p]] += 1;
        if (row.failures == 1) expected.failures[kApartBucket[row.successes]] += 1;
        controller.observe(kApart, row.verified, row.accepted);
        EXPECT_EQ(controller.state(), expected) << row.verified << " verified, " << row.accepted << " accepted";
    }
}

TEST(Adaptive, a_confidence_that_is_not_finite_teaches_nothing) {
    Controller controller = Controller::adaptive(kBlock, 1, CostTable(kBlock, 1.0));
    State expected = controller.state();
    expected.successes[kApartBucket[0]] += 1;
    expected.failures[kApartBucket[2]] += 1;
    std::vector<float> confidence = kApart;
    confidence[1] = kNaN;
    controller.observe(confidence, 7, 2);
    EXPECT_EQ(controller.state(), expected);
}

TEST(Adaptive, the_order_of_cycles_does_not_matter_for_counts) {
    Random random;
    struct Cycle {
        std::vector<float> confidence;
        std::size_t accepted;
    };
    std::vector<Cycle> cycles;
    for (int i = 0; i < 500; ++i) {
        cycles.push_back({random.confidences(kBlock - 1), static_cast<std::size_t>(random.uniform(0, 7.999))});
    }
    const auto learn = [&] {
        Controller controller = Controller::adaptive(kBlock, 1, CostTable(kBlock, 1.0));
        for (const Cycle& cycle : cycles) controller.observe(cycle.confidence, kBlock - 1, cycle.accepted);
        return controller;
    };
    const Controller forwards = learn();
    std::reverse(cycles.begin(), cycles.end());
    EXPECT_EQ(forwards, learn());
}

TEST(Adaptive, rejections_narrow_and_acceptances_widen_again) {
    Controller controller = Controller::adaptive(kBlock, 1, {1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7});
    const std::vector<float> confidence(kBlock - 1, 0.6f);
    EXPECT_EQ(controller.decide(confidence).rows, kBlock) << "the prior is optimistic";
    for (int i = 0; i < 40; ++i) controller.observe(confidence, 7, 0);
    EXPECT_EQ(controller.decide(confidence).rows, 1u);
    for (int i = 0; i < 300; ++i) controller.observe(confidence, 7, 7);
    EXPECT_EQ(controller.decide(confidence).rows, kBlock);
}

TEST(Adaptive, times_move_the_cost_of_their_width_alone) {
    Controller controller = Controller::adaptive(4, 2, {1, 1, 1, 1});
    controller.observe_time(3, 2.0, 2);
    EXPECT_EQ(controller.state().cost, (CostTable{1, 1, 1.125, 1}));
    controller.observe_time(3, 0.125, 2);
    EXPECT_EQ(controller.state().cost, (CostTable{1, 1, 1, 1}));
}

TEST(Adaptive, other_batches_and_times_that_are_none_are_ignored) {
    Controller controller = Controller::adaptive(4, 2, {1, 1, 1, 1});
    const State before = controller.state();
    controller.observe_time(3, 2.0, 1);
    controller.observe_time(3, 2.0, 3);
    for (const double bad :
         {0.0, -1.0, 1e-13, 1e13, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
        controller.observe_time(3, bad, 2);
    }
    EXPECT_EQ(controller.state(), before);
}

TEST(Adaptive, a_copy_learns_by_itself) {
    Controller controller = Controller::adaptive(kBlock, 1, CostTable(kBlock, 1.0));
    const Controller before = controller;
    Controller copy = controller;
    EXPECT_EQ(copy, controller);
    copy.observe(kApart, 7, 3);
    EXPECT_NE(copy, controller);
    EXPECT_EQ(controller, before);
}

TEST(Frozen, nothing_that_happens_changes_a_decision) {
    Random random;
    const auto seed = seed_with({1, 1.2, 1.5, 1.8, 2.1, 2.4, 2.7, 3.0}, 5, 2);
    const Controller untouched = Controller::frozen(seed);
    Controller busy = untouched;
    for (int round = 0; round < 1000; ++round) {
        const std::vector<float> confidence = random.confidences(kBlock - 1);
        ASSERT_EQ(busy.decide(confidence), untouched.decide(confidence));
        busy.observe(confidence, 7, static_cast<std::size_t>(random.uniform(0, 7.999)));
        busy.observe_time(1 + static_cast<std::size_t>(round) % kBlock, random.uniform(0.1, 9), 1);
    }
    EXPECT_EQ(busy, untouched);
    EXPECT_EQ(busy.state(), seed->state);
}

TEST(Frozen, decides_as_the_online_rule_that_learned_the_same) {
    Random random;
    Controller online = Controller::adaptive(kBlock, 1, {1, 1.2, 1.5, 1.8, 2.1, 2.4, 2.7, 3.0});
    for (int round = 0; round < 300; ++round) {
        const std::vector<float> confidence = random.confidences(kBlock - 1);
        online.observe(confidence, 7, static_cast<std::size_t>(random.uniform(0, 7.999)));
        online.observe_time(1 + static_cast<std::size_t>(round) % kBlock, random.uniform(0.9, 3.2), 1);
        const auto seed = seed_with(online.state().cost);
        seed->state = online.state();
        const Controller frozen = Controller::frozen(seed);
        EXPECT_EQ(frozen.decide(confidence), online.decide(confidence));
        EXPECT_NE(frozen, online) << "the kind is part of a controller";
    }
}

TEST(Frozen, uses_the_edges_of_its_seed) {
    auto seed = std::make_shared<Seed>();
    seed->block = 2;
    seed->lanes = 1;
    seed->upper_edges = {0.3, 1.0};
    seed->state = {{1, 9}, {9, 1}, {1, 1.5}};
    const Controller controller = Controller::frozen(seed);
    EXPECT_EQ(controller.decide(std::vector<float>{0.29f}).rows, 1u);
    EXPECT_EQ(controller.decide(std::vector<float>{0.31f}).rows, 2u);
}

TEST(Full, learns_nothing) {
    Controller controller = Controller::full(kBlock);
    controller.observe(kApart, 7, 3);
    controller.observe_time(8, 1.0, 1);
    EXPECT_EQ(controller, Controller::full(kBlock));
    EXPECT_EQ(controller.state(), State());
    EXPECT_NE(controller, Controller::full(4));
}

}  // namespace
}  // namespace draftprobe::budget
