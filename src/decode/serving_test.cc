// Serving: several lanes prefilling and decoding side by side, verify budgets, and sampled decoding in the engine.
#include <gmock/gmock.h>

#include <map>

#include "decode/batch.h"
#include "decode/cycle_costs.h"
#include "decode/golden_fixture.h"
#include "state/ledger.h"

namespace draftprobe::decode {
namespace {

using StateDigests = std::map<std::string, std::string>;

StateDigests digests(const state::Lane& lane) {
    StateDigests result;
    for (const auto& entry : state::lane_ledger(lane, true))
        result[std::string(state::component_name(entry.component))] = entry.digest;
    result["anchor"] = std::to_string(lane.anchor);
    result["length"] = std::to_string(lane.length);
    return result;
}

LaneSampling sampled(std::uint64_t seed, std::uint64_t request, std::int64_t top_k = 0) {
    LaneSampling sampling;
    sampling.settings.temperature = 0.8f;
    sampling.settings.top_k = top_k;
    sampling.settings.seed = seed;
    sampling.request = request;
    return sampling;
}

// A budget that prefers few rows: matches are unlikely and rows are dear.
std::shared_ptr<const budget::Seed> frugal_seed(double row_cost) {
    auto seed = std::make_shared<budget::Seed>();
    seed->block = 8;
    seed->lanes = 1;
    seed->upper_edges = {0.01, 0.1, 1};
    seed->state.successes = {1, 4, 9};
    seed->state.failures = {9, 6, 1};
    for (int rows = 1; rows <= 8; ++rows) seed->state.cost.push_back(1 + row_cost * rows);
    return seed;
}

class Serving : public ::testing::TestWithParam<numerics::NumericsClass> {
protected:
    Serving() : stages_("target-r2-mlx4"), prompt_(stages_.ids("input_ids")) {
        models_ = {load_golden_target("target-r2-mlx4"), load_golden_draft("draft-w64")};
    }
    std::unique_ptr<ProductionEngine> engine(int lanes, ModelPair models) const {
        EngineSettings s = golden_settings(state::RowFormat::bf16, state::KvFormat::bf16);
        s.numerics = GetParam();
        s.lanes = lanes;
        s.chunk_tokens = 32;
        return std::make_unique<ProductionEngine>(make_core(std::move(models), s));
    }
    std::unique_ptr<ProductionEngine> engine(int lanes) const { return engine(lanes, models_); }

    std::vector<TokenId> prompt(std::size_t length, std::size_t rotation) const {
        std::vector<TokenId> ids(prompt_.begin(), prompt_.begin() + static_cast<std::ptrdiff_t>(length));
        std::rotate(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(rotation), ids.end());
        return ids;
    }

    Stages stages_;
    std::vector<TokenId> prompt_;
    ModelPair models_;
};

INSTANTIATE_TEST_SUITE_P(Classes, Serving,
                         ::testing::Values(numerics::NumericsClass::f32, numerics::NumericsClass::i8dot),
                         [](const auto& param_info) {
                             return std::string(numerics::numerics_class_name(param_info.param));
                         });

TEST_P(Serving, WhatARequestEmitsDependsOnNothingElse) {
    // Seven requests of different length, greedy and sampled, with full and frozen budgets.
    std::vector<std::vector<TokenId>> prompts;
    std::vector<BatchRequest> requests;
    const std::size_t lengths[] = {150, 5, 37, 96, 1, 64, 33};
    for (std::size_t i = 0; i < std::size(lengths); ++i) prompts.push_back(prompt(lengths[i], i % lengths[i]));
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        Request request{{12 + i, {}}, {}, {}};
        if (i % 3 == 1) request.sampling = sampled(5, i);
        if (i % 3 == 2) request.controller = budget::Controller::frozen(frugal_seed(0.2));
        requests.push_back({prompts[i], request});
    }
    const auto nothing = [](const BatchProgress&) {};
    std::vector<BatchResult> alone;
    for (const BatchRequest& request : requests) {
        auto e = engine(1);
        ModelDrafter drafter(*e->core().draft_forward());
        auto result = run_batch(*e, {&request, 1}, drafter, nothing);
        ASSERT_TRUE(result.ok()) << result.status().message();
        EXPECT_EQ(result.value()[0].tokens.size(), request.request.limits.max_new_tokens);
        alone.push_back(result.value()[0]);
    }
    for (const int lanes : {1, 2, 4}) {
        auto e = engine(lanes);
        ModelDrafter drafter(*e->core().draft_forward());
        BatchProgress last;
        auto result = run_batch(*e, requests, drafter, [&last](const BatchProgress& progress) { last = progress; });
        ASSERT_TRUE(result.ok()) << result.status().message();
        for (std::size_t i = 0; i < requests.size(); ++i) {
            EXPECT_EQ(result.value()[i].tokens, alone[i].tokens) << "request " << i << " on " << lanes << " lanes";
            EXPECT_EQ(result.value()[i].cycles, alone[i].cycles) << "request " << i << " on " << lanes << " lanes";
            EXPECT_EQ(result.value()[i].verified, alone[i].verified) << "request " << i << " on " << lanes << " lanes";
        }
        EXPECT_EQ(last.finished, requests.size());
        EXPECT_EQ(last.prefilled, 150u + 5 + 37 + 96 + 1 + 64 + 33);
    }
}

TEST_P(Serving, PrefillingBesideDecodingChangesNoByteOfEither) {
    const std::vector<TokenId> a = prompt(40, 3);
    const std::vector<TokenId> b = prompt(150, 0);
    // Alone: b's state after every chunk, a's after every cycle.
    std::vector<StateDigests> cycles_alone;
    std::vector<StateDigests> chunks_alone;
    {
        auto e = engine(1);
        ModelDrafter drafter(*e->core().draft_forward());
        e->begin_request(0, {{1000, {}}});
        ASSERT_TRUE(e->prefill(0, a, 0, true).ok());
        const int lane = 0;
        for (int cycle = 0; cycle < 5; ++cycle) {
            ASSERT_TRUE(e->cycle({&lane, 1}, drafter, 8).ok());
            cycles_alone.push_back(digests(e->lane(0)));
        }
        e->begin_request(0, {{1000, {}}});
        std::span<const TokenId> rest(b);
        while (!rest.empty()) {
            const std::size_t count = std::min<std::size_t>(32, rest.size());
            ASSERT_TRUE(e->prefill(0, rest.first(count), 0, count == rest.size()).ok());
            rest = rest.subspan(count);
            chunks_alone.push_back(digests(e->lane(0)));
        }
    }
    auto e = engine(4);
    ModelDrafter drafter(*e->core().draft_forward());
    e->begin_request(3, {{1000, {}}});
    ASSERT_TRUE(e->prefill(3, a, 0, true).ok());
    e->begin_request(1, {{1000, {}}});
    std::span<const TokenId> rest(b);
    const int decoding = 3;
    for (std::size_t step = 0; step < 5; ++step) {
        const PrefillWork work{1, rest, 0, true};
        auto done = e->step({&work, 1}, {&decoding, 1}, &drafter, 8);
        ASSERT_TRUE(done.ok()) << done.status().message();
        EXPECT_EQ(done.value().prefilled[0], std::min<std::size_t>(32, rest.size()));
        rest = rest.subspan(done.value().prefilled[0]);
        EXPECT_EQ(digests(e->lane(3)), cycles_alone[step]) << "step " << step;
        EXPECT_EQ(digests(e->lane(1)), chunks_alone[step]) << "step " << step;
    }
    EXPECT_TRUE(rest.empty());
}

TEST_P(Serving, AFrozenBudgetCutsRowsAndNoToken) {
    auto full = engine(1);
    auto frozen = engine(1);
    const int lane = 0;
    full->begin_request(0, {{1000, {}}});
    frozen->begin_request(0, {{1000, {}}, {}, budget::Controller::frozen(frugal_seed(0.2))});
    std::vector<TokenId> emitted[2];
    std::size_t verified[2] = {0, 0};
    std::size_t next = 0;
    for (ProductionEngine* e : {full.get(), frozen.get()}) {
        ModelDrafter drafter(*e->core().draft_forward());
        ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
        while (emitted[next].size() < 16) {
            auto result = e->cycle({&lane, 1}, drafter, 8);
            ASSERT_TRUE(result.ok());
            const CycleResult& cycle = result.value()[0];
            verified[next] += cycle.verified;
            EXPECT_EQ(cycle.width_margin.has_value(), next == 1);
            EXPECT_EQ(cycle.offered, cycle.verified);
            EXPECT_EQ(cycle.drafted, 7u);
            emitted[next].insert(emitted[next].end(), cycle.emitted.begin(), cycle.emitted.end());
        }
        emitted[next].resize(16);
        ++next;
    }
    EXPECT_EQ(emitted[0], emitted[1]);
    EXPECT_LT(verified[1], verified[0]);
}

TEST_P(Serving, SampledRequestsVerifyAllRowsWhateverTheBudgetSays) {
    auto e = engine(1);
    const int lane = 0;
    e->begin_request(0, {{1000, {}}, sampled(1, 0), budget::Controller::frozen(frugal_seed(5))});
    ModelDrafter drafter(*e->core().draft_forward());
    ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
    for (int cycle = 0; cycle < 4; ++cycle) {
        auto result = e->cycle({&lane, 1}, drafter, 8);
        ASSERT_TRUE(result.ok());
        EXPECT_EQ(result.value()[0].verified, 7u);
    }
}

TEST_P(Serving, AnAdaptiveBudgetLearnsFromItsLaneAndAFlatTableMeansFull) {
    auto e = engine(1);
    const int lane = 0;
    e->begin_request(0, {{1000, {}}, {}, budget::Controller::adaptive(8, 2, std::vector<double>(8, 1.0))});
    ModelDrafter drafter(*e->core().draft_forward());
    ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
    const budget::State before = e->controller(0)->state();
    for (int cycle = 0; cycle < 3; ++cycle) {
        auto result = e->cycle({&lane, 1}, drafter, 8);
        ASSERT_TRUE(result.ok());
        // The costs belong to two lanes, so this lane's times change nothing and the table stays flat.
        EXPECT_EQ(result.value()[0].verified, 7u);
    }
    EXPECT_EQ(e->controller(0)->state().cost, before.cost);
    EXPECT_NE(e->controller(0)->state().failures, before.failures);
}

TEST_P(Serving, MeasuringCostsMovesNoState) {
    auto e = engine(2);
    ModelDrafter drafter(*e->core().draft_forward());
    const int lanes[] = {0, 1};
    for (const int lane : lanes) {
        e->begin_request(lane, {{1000, {}}});
        ASSERT_TRUE(e->prefill(lane, prompt(90 + static_cast<std::size_t>(lane), 1), 0, true).ok());
    }
    const StateDigests before[] = {digests(e->lane(0)), digests(e->lane(1))};
    auto costs = measure_cycle_costs(e->core(), lanes, drafter, 3);
    ASSERT_TRUE(costs.ok()) << costs.status().message();
    ASSERT_EQ(costs.value().size(), 8u);
    for (const double cost : costs.value()) EXPECT_GT(cost, 0);
    EXPECT_EQ(digests(e->lane(0)), before[0]);
    EXPECT_EQ(digests(e->lane(1)), before[1]);
}

TEST_P(Serving, CostsOfADrafterThatOffersNothingAreRefused) {
    class Silent final : public Drafter {
    public:
        ProposalSource source() const override { return ProposalSource::script; }
        void propose(std::span<state::Lane* const> lanes, std::span<const LaneSampling>, DraftOutput& out) override {
            out.choices.assign(lanes.size(), DraftChoice());
        }
    };
    auto e = engine(1);
    e->begin_request(0, {{1000, {}}});
    ASSERT_TRUE(e->prefill(0, prompt(90, 1), 0, true).ok());
    Silent drafter;
    const int lane = 0;
    EXPECT_EQ(measure_cycle_costs(e->core(), {&lane, 1}, drafter, 1).status().code(), StatusCode::invalid_argument);
}

TEST_P(Serving, EqualContextsDrawEqualNumbersAfterAnyNumberOfCycles) {
    auto e = engine(2);
    ModelDrafter drafter(*e->core().draft_forward());
    e->begin_request(0, {{1000, {}}, sampled(11, 4, 20)});
    ASSERT_TRUE(e->prefill(0, prompt(60, 2), 0, true).ok());
    const int first = 0;
    for (int cycle = 0; cycle < 3; ++cycle) ASSERT_TRUE(e->cycle({&first, 1}, drafter, 8).ok());
    // The same context again in another lane, this time all of it as a prompt. The anchor is drawn anew, from the
    // numbers of its position, and the target's row is the same: it must come out equal.
    const std::vector<TokenId> context = e->lane(0).tokens;
    e->begin_request(1, {{1000, {}}, sampled(11, 4, 20)});
    ASSERT_TRUE(e->prefill(1, context, 0, true).ok());
    // Not so when the anchor was accepted from the draft: then `accept` decided, not `residual`.
    e->lane(1).anchor = e->lane(0).anchor;
    const int second = 1;
    auto a = e->cycle({&first, 1}, drafter, 8);
    auto b = e->cycle({&second, 1}, drafter, 8);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a.value()[0].emitted, b.value()[0].emitted);
    EXPECT_EQ(digests(e->lane(0)), digests(e->lane(1)));
}

// Proposes from fixed conditionals, whatever the context: interior mass, tokens that the target never gives, and tokens
// that only the target gives.
class FixedConditionals final : public Drafter {
public:
    explicit FixedConditionals(std::vector<TokenDistribution> q) : q_(std::move(q)) {}
    ProposalSource source() const override { return ProposalSource::script; }
    void propose(std::span<state::Lane* const> lanes, std::span<const LaneSampling> sampling,
                 DraftOutput& out) override {
        out.hidden.clear();
        out.choices.clear();
        for (std::size_t i = 0; i < lanes.size(); ++i) {
            DraftChoice choice;
            for (std::size_t t = 1; t <= q_.size(); ++t) {
                const Position position = lanes[i]->length + static_cast<Position>(t);
                const double u = uniform(sampling[i], position, RandomStream::draft);
                choice.proposals.push_back(draw(q_[t - 1], u));
                choice.q.push_back(1);
                choice.prefix_confidence.push_back(1);
            }
            choice.distributions = q_;
            out.choices.push_back(std::move(choice));
        }
    }

private:
    std::vector<TokenDistribution> q_;
};

TEST_P(Serving, TheJointOfTwoEmittedTokensIsTheTargets) {
    // Without a draft model the block is free: two proposals. Every request starts from the same restored state and
    // draws with its own number; the first two tokens behind the anchor are counted and compared with the exact joint
    // of plain sampling, found by forcing each first token.
    constexpr std::size_t kTop = 3;
    constexpr std::size_t kRuns = 1500;
    EngineSettings s = golden_settings(state::RowFormat::bf16, state::KvFormat::bf16);
    s.numerics = GetParam();
    s.lanes = 2;
    s.block = 3;
    ProductionEngine e(make_core({models_.target, nullptr}, s));
    LaneSampling sampling = sampled(77, 0, kTop);
    e.begin_request(0, {{1000, {}}, sampling});
    ASSERT_TRUE(e.prefill(0, std::span<const TokenId>(prompt_).first(64), 0, false).ok());
    auto snapshot = state::take_snapshot(e.lane(0), {.target = "identity"});
    ASSERT_TRUE(snapshot.ok());
    const TokenId anchor = prompt_[64];
    const auto row_distribution = [&](std::vector<TokenId> tokens) {
        ForwardOutput out;
        const Segment segment{&e.lane(0), tokens, LogitRows::last, true};
        EXPECT_TRUE(e.core().target_forward().run({&segment, 1}, out).ok());
        return target_distribution(out.logits, sampling.settings);
    };
    const TokenDistribution first = row_distribution({anchor});
    ASSERT_EQ(first.ids.size(), kTop);
    std::map<std::pair<TokenId, TokenId>, double> expected;
    TokenId outside = 0;
    while (first.probability(outside) > 0) ++outside;
    std::vector<TokenDistribution> seconds;
    for (std::size_t i = 0; i < kTop; ++i) {
        seconds.push_back(row_distribution({anchor, first.ids[i]}));
        for (std::size_t j = 0; j < seconds[i].ids.size(); ++j)
            expected[{first.ids[i], seconds[i].ids[j]}] = first.probabilities[i] * seconds[i].probabilities[j];
    }
    // q: most mass on one token of the target's three, none on the third, some on a token outside.
    const auto tilted = [outside](const TokenDistribution& p) {
        const std::vector<TokenId> ids{p.ids[0], p.ids[1], outside};
        return candidate_distribution(ids, std::vector<float>{1.0f, 0.2f, -0.5f}, 1);
    };
    FixedConditionals drafter({tilted(first), tilted(seconds[0])});

    std::map<std::pair<TokenId, TokenId>, std::size_t> counts;
    std::map<std::size_t, std::size_t> accepted;
    const int lane = 1;
    for (std::uint64_t run = 0; run < kRuns; ++run) {
        sampling.request = run;
        ASSERT_TRUE(e.core().restore(snapshot.value(), {.target = "identity"}, state::DraftRestore::exact, lane).ok());
        e.set_request(lane, {{1000, {}}, sampling});
        e.lane(lane).anchor = anchor;
        e.lane(lane).has_anchor = true;
        std::vector<TokenId> emitted;
        while (emitted.size() < 2) {
            auto result = e.cycle({&lane, 1}, drafter, 3);
            ASSERT_TRUE(result.ok());
            if (emitted.empty()) ++accepted[result.value()[0].accepted];
            const auto& tokens = result.value()[0].emitted;
            emitted.insert(emitted.end(), tokens.begin(), tokens.end());
        }
        ++counts[{emitted[0], emitted[1]}];
    }
    for (std::size_t a = 0; a <= 2; ++a) EXPECT_GT(accepted[a], 20u) << "accepted length " << a << " hardly occurs";
    double chi_square = 0;
    std::size_t total = 0;
    for (const auto& [pair, probability] : expected) {
        const double mean = probability * kRuns;
        ASSERT_GT(mean, 5) << "cell too small for the test";
        const double difference = static_cast<double>(counts[pair]) - mean;
        chi_square += difference * difference / mean;
        total += counts[pair];
    }
    EXPECT_EQ(total, kRuns) << "a token came out that the target gives no mass";
    // 8 degrees of freedom: 26.1 is the 99.9 % point. The seed is fixed, so the outcome is too.
    EXPECT_LT(chi_square, 26.1);
}

}  // namespace
}  // namespace draftprobe::decode
