// The invariant everything rests on (DESIGN section 3): arithmetic is a function of the token sequence and the settings
// alone. Every comparison here is of bytes: state digests over valid ranges, tokens, and float bits.
#include <gmock/gmock.h>

#include <bit>
#include <map>

#include "decode/golden_fixture.h"
#include "state/ledger.h"

namespace draftprobe::decode {
namespace {

using state::Component;

struct Mode {
    const char* name;
    const char* target;
    numerics::NumericsClass cls;
    state::KvFormat kv;
    const char* draft = "draft-w64";
    model::DraftPrecision precision = model::DraftPrecision::stored;
};

std::string mode_name(const ::testing::TestParamInfo<Mode>& param_info) { return param_info.param.name; }

const Mode kModes[] = {
    {"f32_bf16_weights", "target-r2", numerics::NumericsClass::f32, state::KvFormat::bf16},
    {"f32_mlx4", "target-r2-mlx4", numerics::NumericsClass::f32, state::KvFormat::bf16},
    {"f32_mlx4_int8_kv", "target-r2-mlx4", numerics::NumericsClass::f32, state::KvFormat::int8},
    {"i8dot_mlx4", "target-r2-mlx4", numerics::NumericsClass::i8dot, state::KvFormat::bf16},
    {"i8dot_mlx4_int8_kv", "target-r2-mlx4", numerics::NumericsClass::i8dot, state::KvFormat::int8},
    {"v1_mixed_block16", "target-r2", numerics::NumericsClass::f32, state::KvFormat::bf16, "draft-v1-mixed"},
    {"v2_block16", "target-r2", numerics::NumericsClass::f32, state::KvFormat::bf16, "draft-b16"},
    {"v2_affine4", "target-r2", numerics::NumericsClass::f32, state::KvFormat::bf16, "draft-w64",
     model::DraftPrecision::affine4},
    {"v1_mixed_affine4_i8dot_mlx4", "target-r2-mlx4", numerics::NumericsClass::i8dot, state::KvFormat::bf16,
     "draft-v1-mixed", model::DraftPrecision::affine4},
    {"f32_experts_bf16_weights", "moe-hf", numerics::NumericsClass::f32, state::KvFormat::bf16},
    {"f32_experts_mlx4", "moe-mlx4", numerics::NumericsClass::f32, state::KvFormat::bf16},
    {"i8dot_experts_mlx4_int8_kv", "moe-mlx4", numerics::NumericsClass::i8dot, state::KvFormat::int8},
};

using StateDigests = std::map<std::string, std::string>;

StateDigests digests(const state::Lane& lane) {
    StateDigests result;
    for (const auto& entry : state::lane_ledger(lane, true)) {
        result[std::string(state::component_name(entry.component))] = entry.digest;
    }
    result["anchor"] = std::to_string(lane.anchor);
    result["length"] = std::to_string(lane.length);
    return result;
}

// What the draft proposes from a lane's state, bit for bit.
std::string proposal_bits(ProductionEngine& engine, int id) {
    DraftOutput out;
    state::Lane* const lanes[] = {&engine.lane(id)};
    engine.core().draft_forward()->run(lanes, {}, out);
    const DraftChoice& choice = out.choices[0];
    std::string bits;
    const auto add = [&bits](const auto& values) {
        bits.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
    };
    add(out.hidden);
    add(choice.candidates);
    add(choice.unary);
    add(choice.next_unary);
    add(choice.scores);
    add(choice.proposals);
    add(choice.q);
    add(choice.prefix_confidence);
    return bits;
}

class Invariant : public ::testing::TestWithParam<Mode> {
protected:
    // One prompt for all targets: they share the vocabulary.
    Invariant() : prompt_(Stages("target-r2").ids("input_ids")) {
        const auto target = load_golden_target(GetParam().target);
        models_ = {target, load_golden_draft(GetParam().draft, GetParam().precision, target->config().moe.has_value())};
    }

    std::size_t block() const { return static_cast<std::size_t>(models_.draft->config().block); }

    EngineSettings settings() const {
        EngineSettings s = golden_settings(state::RowFormat::bf16, GetParam().kv);
        s.numerics = GetParam().cls;
        return s;
    }
    std::unique_ptr<ProductionEngine> engine(const EngineSettings& s) const {
        return std::make_unique<ProductionEngine>(make_core(models_, s));
    }
    std::unique_ptr<ProductionEngine> engine() const { return engine(settings()); }

    // Tokens and state of plain decoding: states[n] is the state after n plain steps.
    struct PlainRun {
        std::vector<TokenId> tokens;  // anchors, first one from prefill
        std::vector<StateDigests> states;
    };
    PlainRun plain(std::size_t steps) const {
        auto e = engine();
        e->begin_request(0, {{1000, {}}});
        EXPECT_TRUE(e->prefill(0, prompt_, 0, true).ok());
        PlainRun run;
        run.tokens.push_back(e->lane(0).anchor);
        run.states.push_back(digests(e->lane(0)));
        for (std::size_t i = 0; i < steps; ++i) {
            auto next = e->plain_step(0);
            EXPECT_TRUE(next.ok());
            run.tokens.push_back(next.value());
            run.states.push_back(digests(e->lane(0)));
        }
        return run;
    }

    // Proposes `accept(cycle)` right tokens of `reference` and wrong ones behind.
    ScriptedDrafter scripted(const PlainRun& reference, std::size_t prompt_length, std::size_t accepted) const {
        const auto vocab = static_cast<TokenId>(models_.target->config().vocab);
        return ScriptedDrafter(block(),
                               [&reference, prompt_length, accepted, vocab](const state::Lane& lane, std::size_t t) {
                                   const std::size_t at = static_cast<std::size_t>(lane.length) - prompt_length + t;
                                   const TokenId right = at < reference.tokens.size() ? reference.tokens[at] : 0;
                                   return t <= accepted ? right : (right + 1) % vocab;
                               });
    }

    std::vector<TokenId> prompt_;
    ModelPair models_;
};

INSTANTIATE_TEST_SUITE_P(Modes, Invariant, ::testing::ValuesIn(kModes), mode_name);

TEST_P(Invariant, SpeculativeEqualsPlainInTokensAndStateForEveryAcceptedLength) {
    const PlainRun reference = plain(5 * block());
    for (std::size_t accepted = 0; accepted < block(); ++accepted) {
        auto e = engine();
        e->begin_request(0, {{1000, {}}});
        ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
        ScriptedDrafter drafter = scripted(reference, prompt_.size(), accepted);
        const int lanes[] = {0};
        for (int cycle = 0; cycle < 4; ++cycle) {
            auto result = e->cycle(lanes, drafter, block());
            ASSERT_TRUE(result.ok()) << result.status().message();
            ASSERT_EQ(result.value()[0].accepted, accepted);
            ASSERT_EQ(result.value()[0].retained, accepted + 1);
            const std::size_t steps = static_cast<std::size_t>(e->lane(0).length) - prompt_.size();
            EXPECT_EQ(digests(e->lane(0)), reference.states[steps]) << "accepted " << accepted << ", cycle " << cycle;
        }
    }
}

// Has nothing to offer, as a draft without its state.
class SilentDrafter final : public Drafter {
public:
    ProposalSource source() const override { return ProposalSource::script; }
    void propose(std::span<state::Lane* const> lanes, std::span<const LaneSampling>, DraftOutput& out) override {
        out.hidden.clear();
        out.choices.assign(lanes.size(), DraftChoice());
    }
};

TEST_P(Invariant, ADrafterThatOffersNothingLeavesPlainDecoding) {
    const PlainRun reference = plain(3);
    for (const float temperature : {0.0f, 0.8f}) {
        auto e = engine();
        Request request{{1000, {}}};
        request.sampling.settings.temperature = temperature;
        e->begin_request(0, request);
        ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
        SilentDrafter drafter;
        const int lanes[] = {0};
        for (std::size_t cycle = 0; cycle < 3; ++cycle) {
            auto result = e->cycle(lanes, drafter, block());
            ASSERT_TRUE(result.ok()) << result.status().message();
            EXPECT_EQ(result.value()[0].drafted, 0u);
            EXPECT_EQ(result.value()[0].verified, 0u);
            EXPECT_EQ(result.value()[0].retained, 1u);
            EXPECT_EQ(e->lane(0).recurrent.current().consumed, e->lane(0).length);
            if (temperature == 0.0f) {
                EXPECT_EQ(digests(e->lane(0)), reference.states[cycle + 1]);
            }
        }
    }
}

TEST_P(Invariant, ForcedTokensLeaveTheStateOfPlainDecoding) {
    const PlainRun reference = plain(5 * block());
    // The block agrees with fewer, as many and more tokens than are forced, and with more than was verified.
    const struct {
        std::size_t width, accepted, count;
    } kCases[] = {{block(), 0, 4}, {block(), 3, block()}, {block(), block() - 1, 2}, {3, block() - 1, 5}, {1, 0, 1}};
    for (const auto& [width, accepted, count] : kCases) {
        auto e = engine();
        e->begin_request(0, {{1000, {}}});
        ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
        ScriptedDrafter drafter = scripted(reference, prompt_.size(), accepted);
        const int lane = 0;
        for (std::size_t cycle = 0; cycle < 3; ++cycle) {
            const std::size_t at = cycle * count;
            const ForcedCommit force{std::span(reference.tokens).subspan(at, count), reference.tokens[at + count]};
            auto done = e->step({}, {&lane, 1}, &drafter, width, {&force, 1});
            ASSERT_TRUE(done.ok()) << done.status().message();
            // Judged by its own target's choices, whatever was committed.
            ASSERT_EQ(done.value().cycles[0].accepted, std::min(accepted, width - 1));
            ASSERT_EQ(digests(e->lane(0)), reference.states[at + count])
                << "width " << width << ", accepted " << accepted << ", " << count << " forced";
        }
    }
}

TEST_P(Invariant, ForcedTokensThatDoNotStartAtTheAnchorAreRefusedBeforeAnythingMoves) {
    const PlainRun reference = plain(4);
    auto e = engine();
    e->begin_request(0, {{1000, {}}});
    ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
    const StateDigests before = digests(e->lane(0));
    ScriptedDrafter drafter = scripted(reference, prompt_.size(), 2);
    const TokenId other = reference.tokens[0] + 1;
    const ForcedCommit force{{&other, 1}, reference.tokens[1]};
    const int lane = 0;
    EXPECT_EQ(e->step({}, {&lane, 1}, &drafter, block(), {&force, 1}).status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(digests(e->lane(0)), before);
}

TEST_P(Invariant, ForcingOneLaneChangesNoBitOfAnother) {
    const PlainRun reference = plain(4 * block());
    auto alone = engine();
    auto both = engine();
    for (ProductionEngine* e : {alone.get(), both.get()}) {
        e->begin_request(0, {{1000, {}}});
        ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
    }
    both->begin_request(1, {{1000, {}}});
    ASSERT_TRUE(both->prefill(1, prompt_, 0, true).ok());
    ScriptedDrafter drafter = scripted(reference, prompt_.size(), 3);
    const int lanes[] = {1, 0};
    for (std::size_t cycle = 0; cycle < 3; ++cycle) {
        ASSERT_TRUE(alone->cycle({lanes + 1, 1}, drafter, block()).ok());
        const ForcedCommit forced[] = {
            {std::span(reference.tokens).subspan(6 * cycle, 6), reference.tokens[6 * cycle + 6]}, {}};
        ASSERT_TRUE(both->step({}, lanes, &drafter, block(), forced).ok());
        EXPECT_EQ(digests(both->lane(0)), digests(alone->lane(0))) << "cycle " << cycle;
        EXPECT_EQ(digests(both->lane(1)), reference.states[6 * cycle + 6]) << "cycle " << cycle;
    }
}

TEST_P(Invariant, VerifyWidthChangesNoBit) {
    const PlainRun reference = plain(5 * block());
    for (std::size_t width = 1; width <= block(); ++width) {
        auto e = engine();
        e->begin_request(0, {{1000, {}}});
        ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
        ScriptedDrafter drafter = scripted(reference, prompt_.size(), 5);
        const int lanes[] = {0};
        for (int cycle = 0; cycle < 3; ++cycle) {
            auto result = e->cycle(lanes, drafter, width);
            ASSERT_TRUE(result.ok());
            EXPECT_EQ(result.value()[0].accepted, std::min<std::size_t>(5, width - 1));
            const std::size_t steps = static_cast<std::size_t>(e->lane(0).length) - prompt_.size();
            EXPECT_EQ(digests(e->lane(0)), reference.states[steps]) << "width " << width;
        }
    }
}

TEST_P(Invariant, ModelDraftedDecodingEmitsPlainTokensAndEqualsItself) {
    const PlainRun reference = plain(24);
    std::vector<StateDigests> runs[2];
    std::vector<std::uint32_t> hidden_bits[2];
    for (int run = 0; run < 2; ++run) {
        auto e = engine();
        e->begin_request(0, {{1000, {}}});
        ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
        ModelDrafter drafter(*e->core().draft_forward());
        const int lanes[] = {0};
        std::vector<TokenId> emitted{e->lane(0).anchor};
        while (emitted.size() < 16) {
            DraftOutput out;
            state::Lane* const one[] = {&e->lane(0)};
            e->core().draft_forward()->run(one, {}, out);
            for (const float value : out.hidden) hidden_bits[run].push_back(std::bit_cast<std::uint32_t>(value));
            auto result = e->cycle(lanes, drafter, block());
            ASSERT_TRUE(result.ok());
            const auto& tokens = result.value()[0].emitted;
            emitted.insert(emitted.end(), tokens.begin(), tokens.end());
            runs[run].push_back(digests(e->lane(0)));
        }
        for (std::size_t i = 0; i < std::min(emitted.size(), reference.tokens.size()); ++i) {
            ASSERT_EQ(emitted[i], reference.tokens[i]) << "token " << i;
        }
    }
    EXPECT_EQ(runs[0], runs[1]);
    EXPECT_EQ(hidden_bits[0], hidden_bits[1]);
}

TEST_P(Invariant, ChunkingThreadsAndInstructionSetChangeNoBit) {
    auto base = engine();
    base->begin_request(0, {{1000, {}}});
    ASSERT_TRUE(base->prefill(0, prompt_, 0, true).ok());
    const StateDigests expected = digests(base->lane(0));
    const std::string proposed = proposal_bits(*base, 0);
    for (const std::size_t chunk : {1u, 7u, 32u, 33u, 1000u}) {
        EngineSettings s = settings();
        s.chunk_tokens = chunk;
        auto e = engine(s);
        e->begin_request(0, {{1000, {}}});
        ASSERT_TRUE(e->prefill(0, prompt_, 96, true).ok());
        EXPECT_EQ(digests(e->lane(0)), expected) << "chunk " << chunk;
        EXPECT_TRUE(proposal_bits(*e, 0) == proposed) << "chunk " << chunk;
    }
    for (const int threads : {1, 3, 4}) {
        EngineSettings s = settings();
        s.threads = threads;
        auto e = engine(s);
        e->begin_request(0, {{1000, {}}});
        ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
        EXPECT_EQ(digests(e->lane(0)), expected) << "threads " << threads;
        EXPECT_TRUE(proposal_bits(*e, 0) == proposed) << "threads " << threads;
    }
    for (const numerics::Isa isa : {numerics::Isa::portable, numerics::Isa::avx2, numerics::Isa::avx512}) {
        if (!numerics::isa_supported(isa)) continue;
        EngineSettings s = settings();
        s.isa = isa;
        auto e = engine(s);
        e->begin_request(0, {{1000, {}}});
        ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
        EXPECT_EQ(digests(e->lane(0)), expected) << "instruction set " << numerics::isa_name(isa);
        EXPECT_TRUE(proposal_bits(*e, 0) == proposed) << "instruction set " << numerics::isa_name(isa);
    }
}

TEST_P(Invariant, BatchCompositionChangesNoBit) {
    // Three requests of different length, alone and side by side in one batch, in other lanes.
    std::vector<std::vector<TokenId>> prompts;
    for (const std::size_t length : {150u, 37u, 96u}) {
        std::vector<TokenId> ids(prompt_.begin(), prompt_.begin() + static_cast<std::ptrdiff_t>(length));
        std::rotate(ids.begin(), ids.begin() + 5, ids.end());
        prompts.push_back(ids);
    }
    std::vector<std::vector<StateDigests>> alone;
    std::vector<std::string> proposed_alone;
    for (const auto& ids : prompts) {
        auto e = engine();
        e->begin_request(0, {{1000, {}}});
        ASSERT_TRUE(e->prefill(0, ids, 0, true).ok());
        ModelDrafter drafter(*e->core().draft_forward());
        std::vector<StateDigests> run;
        const int lanes[] = {0};
        for (int cycle = 0; cycle < 4; ++cycle) {
            ASSERT_TRUE(e->cycle(lanes, drafter, block()).ok());
            run.push_back(digests(e->lane(0)));
        }
        alone.push_back(run);
        proposed_alone.push_back(proposal_bits(*e, 0));
    }
    auto e = engine();
    const int lanes[] = {2, 0, 3};
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        e->begin_request(lanes[i], {{1000, {}}});
        ASSERT_TRUE(e->prefill(lanes[i], prompts[i], 0, true).ok());
    }
    ModelDrafter drafter(*e->core().draft_forward());
    for (std::size_t cycle = 0; cycle < 4; ++cycle) {
        ASSERT_TRUE(e->cycle(lanes, drafter, block()).ok());
        for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(digests(e->lane(lanes[i])), alone[i][cycle]);
    }
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_TRUE(proposal_bits(*e, lanes[i]) == proposed_alone[i]) << "lane " << lanes[i];
    }
    // One batch of all lanes proposes what each lane proposes alone.
    DraftOutput together;
    state::Lane* const batch[] = {&e->lane(2), &e->lane(0), &e->lane(3)};
    e->core().draft_forward()->run(batch, {}, together);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        DraftOutput single;
        e->core().draft_forward()->run({batch + i, 1}, {}, single);
        const std::size_t values = single.hidden.size();
        EXPECT_TRUE(std::equal(single.hidden.begin(), single.hidden.end(),
                               together.hidden.begin() + static_cast<std::ptrdiff_t>(i * values)));
        EXPECT_EQ(together.choices[i].proposals, single.choices[0].proposals);
        EXPECT_EQ(together.choices[i].q, single.choices[0].q);
    }
}

const state::StateIdentity kIdentity{.target = "this engine"};
const state::StateIdentity kAnotherIdentity{.target = "another engine"};

TEST_P(Invariant, ExactRestoreIntoADirtyLaneEqualsTheControlForEveryForm) {
    constexpr Position kBoundary = 128;
    auto control = engine();
    control->begin_request(0, {{1000, {}}});
    ASSERT_TRUE(control->prefill(0, prompt_, kBoundary, true).ok());
    ModelDrafter control_drafter(*control->core().draft_forward());
    const int control_lanes[] = {0};
    std::vector<StateDigests> expected{digests(control->lane(0))};
    for (int cycle = 0; cycle < 6; ++cycle) {
        ASSERT_TRUE(control->cycle(control_lanes, control_drafter, block()).ok());
        expected.push_back(digests(control->lane(0)));
    }
    for (const auto form : {state::DraftRestore::exact, state::DraftRestore::rows, state::DraftRestore::recompute}) {
        auto e = engine();
        std::vector<TokenId> other(prompt_.rbegin(), prompt_.rend());
        e->begin_request(3, {{1000, {}}});
        ASSERT_TRUE(e->prefill(3, other, 0, true).ok());
        ModelDrafter drafter(*e->core().draft_forward());
        const int lanes[] = {3};
        ASSERT_TRUE(e->cycle(lanes, drafter, block()).ok());

        e->begin_request(0, {{1000, {}}});
        const std::span<const TokenId> all(prompt_);
        ASSERT_TRUE(e->prefill(0, all.first(kBoundary), kBoundary, false).ok());
        auto snapshot = state::take_snapshot(e->lane(0), kIdentity);
        ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
        ASSERT_TRUE(e->core().restore(snapshot.value(), kIdentity, form, 3).ok());
        EXPECT_EQ(digests(e->lane(3)), digests(e->lane(0)));
        e->set_request(3, {{1000, {}}});
        ASSERT_TRUE(e->prefill(3, all.subspan(kBoundary), kBoundary, true).ok());
        EXPECT_EQ(digests(e->lane(3)), expected[0]) << state::draft_restore_name(form);
        for (std::size_t cycle = 0; cycle < 6; ++cycle) {
            ASSERT_TRUE(e->cycle(lanes, drafter, block()).ok());
            EXPECT_EQ(digests(e->lane(3)), expected[cycle + 1])
                << state::draft_restore_name(form) << ", cycle " << cycle;
        }
    }
}

TEST_P(Invariant, ARefusedRestoreLeavesTheLaneUntouched) {
    auto e = engine();
    const std::span<const TokenId> all(prompt_);
    e->begin_request(0, {{1000, {}}});
    ASSERT_TRUE(e->prefill(0, all.first(64), 64, false).ok());
    auto snapshot = state::take_snapshot(e->lane(0), kIdentity);
    ASSERT_TRUE(snapshot.ok());
    e->begin_request(1, {{1000, {}}});
    ASSERT_TRUE(e->prefill(1, all.subspan(3, 70), 0, true).ok());
    const StateDigests before = digests(e->lane(1));

    EXPECT_EQ(e->core().restore(snapshot.value(), kAnotherIdentity, state::DraftRestore::exact, 1).code(),
              StatusCode::mismatch);
    EXPECT_EQ(digests(e->lane(1)), before);
    for (auto& part : snapshot.value().components) {
        part.bytes.writable().back() ^= std::byte{1};
        EXPECT_EQ(e->core().restore(snapshot.value(), kIdentity, state::DraftRestore::exact, 1).code(),
                  StatusCode::corrupt)
            << state::component_name(part.component);
        part.bytes.writable().back() ^= std::byte{1};
        const state::Payload whole = part.bytes;
        part.bytes = state::Payload::copy_of(part.bytes.writable().first(whole.size() - 1));
        EXPECT_EQ(e->core().restore(snapshot.value(), kIdentity, state::DraftRestore::exact, 1).code(),
                  StatusCode::corrupt);
        part.bytes = whole;
        EXPECT_EQ(digests(e->lane(1)), before);
    }
}

TEST_P(Invariant, ARowThatIsNotFiniteEndsTheRunAndMovesNothing) {
    auto e = engine();
    const std::span<const TokenId> all(prompt_);
    e->begin_request(0, {{1000, {}}});
    ASSERT_TRUE(e->prefill(0, all.first(64), 64, false).ok());
    const auto page = e->lane(0).kv.page_bytes(1);
    std::fill(page.begin(), page.end(), std::byte{0xff});
    const StateDigests before = digests(e->lane(0));
    const Status status = e->prefill(0, all.subspan(64, 20), 0, true);
    EXPECT_EQ(status.code(), StatusCode::corrupt);
    EXPECT_THAT(status.message(), ::testing::HasSubstr("position 64"));
    EXPECT_EQ(digests(e->lane(0)), before);
}

// Keeps what a drafter proposed.
class KeepingDrafter final : public Drafter {
public:
    explicit KeepingDrafter(DraftForward& forward) : inner_(forward) {}
    ProposalSource source() const override { return inner_.source(); }
    void propose(std::span<state::Lane* const> lanes, std::span<const LaneSampling> sampling,
                 DraftOutput& out) override {
        inner_.propose(lanes, sampling, out);
        kept = out;
    }
    DraftOutput kept;

private:
    ModelDrafter inner_;
};

TEST_P(Invariant, LimitsAndVerifyWidthLeaveProposalsUnchanged) {
    const int lanes[] = {0};
    DraftOutput full;
    for (const auto& [limit, width] : {std::pair<std::size_t, std::size_t>{1000, block()}, {2, block()}, {3, 2}}) {
        auto e = engine();
        e->begin_request(0, {{limit, {}}});
        ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
        KeepingDrafter drafter(*e->core().draft_forward());
        ASSERT_TRUE(e->cycle(lanes, drafter, width).ok());
        ASSERT_EQ(drafter.kept.choices[0].proposals.size(), block() - 1);
        if (limit == 1000) full = drafter.kept;
        EXPECT_EQ(drafter.kept.choices[0].proposals, full.choices[0].proposals);
        EXPECT_EQ(drafter.kept.choices[0].q, full.choices[0].q);
        EXPECT_EQ(drafter.kept.hidden, full.hidden);
    }
}

TEST_P(Invariant, StopAndLimitCutAfterAcceptance) {
    const PlainRun reference = plain(20);
    const int lanes[] = {0};
    // A stop token in the middle of an accepted block.
    auto e = engine();
    const TokenId stop = reference.tokens[3];
    std::size_t expected = 3;
    for (std::size_t i = 1; i < 3; ++i) {
        if (reference.tokens[i] == stop) expected = std::min(expected, i);
    }
    e->begin_request(0, {{1000, {stop}}});
    ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
    ScriptedDrafter drafter = scripted(reference, prompt_.size(), block() - 1);
    auto result = e->cycle(lanes, drafter, block());
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result.value()[0].accepted, block() - 1);
    EXPECT_EQ(result.value()[0].retained, expected);
    EXPECT_EQ(result.value()[0].cut, Cut::stop);
    EXPECT_TRUE(result.value()[0].finished);
    EXPECT_EQ(digests(e->lane(0)), reference.states[expected]);
    // A limit of 5 new tokens, the prefill's anchor included.
    auto limited = engine();
    limited->begin_request(0, {{5, {}}});
    ASSERT_TRUE(limited->prefill(0, prompt_, 0, true).ok());
    auto cut = limited->cycle(lanes, drafter, block());
    ASSERT_TRUE(cut.ok());
    EXPECT_EQ(cut.value()[0].emitted.size(), 4u);
    EXPECT_EQ(cut.value()[0].cut, Cut::limit);
    EXPECT_EQ(digests(limited->lane(0)), reference.states[4]);
}

// Stops and limits at every place of a cycle's emitted tokens: in the middle, at the end, and both at once.
TEST_P(Invariant, EveryCutRetainsWhatItEmits) {
    const PlainRun reference = plain(10);
    const int lanes[] = {0};
    for (const std::size_t accepted : {0u, 3u, 7u}) {
        ScriptedDrafter drafter = scripted(reference, prompt_.size(), accepted);
        for (const std::size_t at : {1u, 3u, 4u, 8u}) {
            const TokenId stop = reference.tokens[at];
            std::size_t stop_at = 100;  // tokens emitted up to the first stop token
            for (std::size_t j = accepted + 1; j >= 1; --j) {
                if (reference.tokens[j] == stop) stop_at = j;
            }
            for (const std::size_t room : {1u, 3u, 4u, 8u, 20u}) {
                SCOPED_TRACE(testing::Message()
                             << "accepted " << accepted << ", stop " << stop_at << ", room " << room);
                auto e = engine();
                e->begin_request(0, {{room + 1, {stop}}});  // the anchor of the prefill is the first token
                ASSERT_TRUE(e->prefill(0, prompt_, 0, true).ok());
                auto results = e->cycle(lanes, drafter, 8);
                ASSERT_TRUE(results.ok());
                const CycleResult& result = results.value()[0];
                const std::size_t count = std::min({accepted + 1, stop_at, room});
                const Cut cut = count == accepted + 1 ? Cut::none : count == stop_at ? Cut::stop : Cut::limit;
                EXPECT_EQ(result.accepted, accepted);
                EXPECT_EQ(result.emitted,
                          std::vector<TokenId>(reference.tokens.begin() + 1,
                                               reference.tokens.begin() + 1 + static_cast<std::ptrdiff_t>(count)));
                EXPECT_EQ(result.retained, count);
                EXPECT_EQ(result.cut, cut);
                EXPECT_EQ(result.finished, stop_at == count || room == count);
                EXPECT_EQ(digests(e->lane(0)), reference.states[count]);
            }
        }
    }
}

}  // namespace
}  // namespace draftprobe::decode
