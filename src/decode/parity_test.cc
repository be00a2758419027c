// Stage parity with the public references (tests/golden/README.md): every stage runs on the reference's own inputs, so
// no error accumulates, with stored formats set to float32. Bound: relative L2 at most 1e-5.
#include <gmock/gmock.h>

#include <map>
#include <tuple>

#include "decode/feed_forward.h"
#include "decode/golden_fixture.h"

namespace draftprobe::decode {
namespace {

using numerics::ConstRows;
using numerics::Rows;

constexpr double kParityBound = 1e-5;

void expect_close(const std::vector<float>& ours, const std::vector<float>& reference, const std::string& stage,
                  double bound = kParityBound) {
    const double error = relative_l2(ours, reference);
    EXPECT_TRUE(error <= bound) << stage << ": relative L2 " << error << ", bound " << bound;
}

std::vector<float> transpose_free_slice(const std::vector<float>& values, std::size_t first, std::size_t count) {
    return {values.begin() + static_cast<std::ptrdiff_t>(first),
            values.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

// K and V rows of one attention layer over [0, tokens), as the reference dumps them: [T, heads, D].
void read_kv(const state::Lane& lane, std::size_t layer, std::size_t tokens, std::vector<float>& keys,
             std::vector<float>& values) {
    const state::StateShape& shape = lane.shape();
    const std::size_t d = shape.head_dim;
    keys.assign(tokens * shape.kv_heads * d, 0);
    values.assign(tokens * shape.kv_heads * d, 0);
    std::vector<float> kt(d * 32);
    std::vector<float> v(d * 32);
    for (std::size_t page = 0; page * 32 < tokens; ++page) {
        for (std::size_t head = 0; head < shape.kv_heads; ++head) {
            lane.kv.load_page(layer, static_cast<Position>(page), head, kt.data(), v.data());
            for (std::size_t slot = 0; slot < 32 && page * 32 + slot < tokens; ++slot) {
                const std::size_t row = ((page * 32 + slot) * shape.kv_heads + head) * d;
                for (std::size_t i = 0; i < d; ++i) {
                    keys[row + i] = kt[i * 32 + slot];
                    values[row + i] = v[slot * d + i];
                }
            }
        }
    }
}

class TargetParity : public ::testing::TestWithParam<const char*> {};

TEST_P(TargetParity, EveryStageOnTheReferencesOwnInputs) {
    const Stages stages(GetParam());
    const auto model = load_golden_target(GetParam());
    const auto core = make_core({model, nullptr}, golden_settings(state::RowFormat::f32, state::KvFormat::f32));
    TargetForward& forward = core->target_forward();
    const std::vector<TokenId> ids = stages.ids("input_ids");
    const auto hidden = static_cast<std::size_t>(model->config().hidden);
    const auto vocab = static_cast<std::size_t>(model->config().vocab);

    std::vector<float> embedded(ids.size() * hidden);
    forward.embed(ids, {embedded.data(), ids.size(), hidden, hidden});
    expect_close(embedded, stages.floats("hidden.0"), "embedding");

    state::Lane& lane = core->lane(0);
    ASSERT_TRUE(lane.kv.reserve(static_cast<Position>(ids.size()) - 1).ok());
    const Segment segment{&lane, ids, LogitRows::none, true};
    for (std::size_t i = 0; i < model->layers().size(); ++i) {
        std::vector<float> rows = stages.floats("hidden." + std::to_string(i));
        forward.layer(i, {&segment, 1}, {rows.data(), ids.size(), hidden, hidden});
        expect_close(rows, stages.floats("hidden." + std::to_string(i + 1)), "layer " + std::to_string(i));
        const std::size_t index = model->layers()[i].state_index;
        const std::string prefix = "layers." + std::to_string(i) + ".";
        if (std::holds_alternative<model::DeltaMixer>(model->layers()[i].mixer)) {
            expect_close(lane.recurrent.idle().matrix[index], stages.floats(prefix + "recurrent_state"),
                         prefix + "recurrent_state");
            const state::StoredRows& conv = lane.recurrent.idle().conv[index];
            std::vector<float> conv_rows(conv.rows() * conv.cols());
            for (std::size_t row = 0; row < conv.rows(); ++row) conv.read(row, conv_rows.data() + row * conv.cols());
            expect_close(conv_rows, stages.floats(prefix + "conv_state"), prefix + "conv_state");
        } else {
            std::vector<float> keys;
            std::vector<float> values;
            read_kv(lane, index, ids.size(), keys, values);
            expect_close(keys, stages.floats(prefix + "k"), prefix + "k");
            expect_close(values, stages.floats(prefix + "v"), prefix + "v");
        }
    }

    const std::vector<float> last = stages.floats("hidden." + std::to_string(model->layers().size()));
    std::vector<float> normed(last.size());
    forward.final_norm({last.data(), ids.size(), hidden, hidden}, {normed.data(), ids.size(), hidden, hidden});
    expect_close(normed, stages.floats("final_norm"), "final norm");
    const std::vector<float> reference_normed = stages.floats("final_norm");
    std::vector<float> logits(ids.size() * vocab);
    forward.logits({reference_normed.data(), ids.size(), hidden, hidden}, {logits.data(), ids.size(), vocab, vocab});
    expect_close(logits, stages.floats("logits"), "logits");
}

TEST_P(TargetParity, GreedyContinuationEqualsTheReference) {
    const Stages stages(GetParam());
    const auto model = load_golden_target(GetParam());
    ProductionEngine engine(make_core({model, nullptr}, golden_settings(state::RowFormat::f32, state::KvFormat::f32)));
    const std::vector<TokenId> expected = stages.ids("greedy.ids");
    engine.begin_request(0, {{expected.size(), {}}});
    ASSERT_TRUE(engine.prefill(0, stages.ids("input_ids"), 0, true).ok());
    std::vector<TokenId> found{engine.lane(0).anchor};
    while (found.size() < expected.size()) {
        auto next = engine.plain_step(0);
        ASSERT_TRUE(next.ok()) << next.status().message();
        found.push_back(next.value());
    }
    EXPECT_EQ(found, expected);
}

INSTANTIATE_TEST_SUITE_P(Golden, TargetParity,
                         ::testing::Values("target-r2", "target-r3", "target-r2-mlx4", "moe-hf", "moe-mlx4"),
                         [](const auto& param_info) {
                             std::string name = param_info.param;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

// The reference's own router logits give its experts and weights; it lists experts by weight, we by id.
class RouterParity : public ::testing::TestWithParam<const char*> {};

TEST_P(RouterParity, ExpertsAndWeightsEqualTheReference) {
    const Stages stages(GetParam());
    const auto model = load_golden_target(GetParam());
    const auto experts = static_cast<std::size_t>(model->config().moe->experts);
    const auto k = static_cast<std::size_t>(model->config().moe->experts_per_token);
    for (std::size_t layer = 0; layer < model->layers().size(); ++layer) {
        const std::string prefix = "layers." + std::to_string(layer) + ".router_";
        const std::vector<float> logits = stages.floats(prefix + "logits");
        const std::vector<TokenId> ids = stages.ids(prefix + "experts");
        const std::vector<float> weights = stages.floats(prefix + "weights");
        std::vector<float> expected;
        std::vector<float> found;
        for (std::size_t row = 0; row < ids.size() / k; ++row) {
            std::map<std::uint32_t, float> by_id;
            for (std::size_t i = row * k; i < (row + 1) * k; ++i) by_id[ids[i]] = weights[i];
            std::vector<std::uint32_t> ours(k);
            std::vector<float> shares(k);
            route(std::span(logits).subspan(row * experts, experts), ours, shares);
            std::vector<std::uint32_t> reference;
            for (const auto& [id, weight] : by_id) {
                reference.push_back(id);
                expected.push_back(weight);
            }
            ASSERT_EQ(ours, reference) << "layer " << layer << ", row " << row;
            found.insert(found.end(), shares.begin(), shares.end());
        }
        expect_close(found, expected, prefix + "weights", 1e-6);
    }
}

INSTANTIATE_TEST_SUITE_P(Golden, RouterParity, ::testing::Values("moe-hf", "moe-mlx4"),
                         [](const auto& param_info) { return std::string(param_info.param).substr(4); });

// With the formats that are served, one stage moves by its own rounding only; relative L2 of a layer's output (residual
// stream included) on the reference's inputs. Where the bounds come from:
//   BF16: a stored value carries a relative error of at most 2^-9, 1.1e-3 in relative L2. A delta layer's stored
//   convolution rows
//     pass through q and k normalisation and the recurrence, and its output through a norm that scales small outputs
//     up: 6e-3. An attention layer only averages rounded K and V: 2e-3.
//   INT8 KV: step absmax/127 per row; with absmax at 3 rms the uniform error step/sqrt(12) is 0.7 % of K and V: 8e-3 in
//   attention
//     layers, nothing in the others.
//   i8dot: activations to int8 per 64 carry about 1 % (numerics-notes: 1.1e-2 with outliers); a layer chains up to four
//   such
//     products, in quadrature 2 %, more where the delta norm scales up: 5e-2.
struct FormatCase {
    const char* name;
    state::RowFormat rows;
    state::KvFormat kv;
    numerics::NumericsClass cls;
    double delta_bound;
    double attention_bound;
    double attention_floor;  // a healthy run is above it: the format is really in use
};

class LayerFormatParity : public ::testing::TestWithParam<std::tuple<const char*, FormatCase>> {};

TEST_P(LayerFormatParity, LayersStayWithinTheBoundOfTheirFormat) {
    const auto& [target, format] = GetParam();
    const Stages stages(target);
    const auto model = load_golden_target(target);
    EngineSettings settings = golden_settings(format.rows, format.kv);
    settings.numerics = format.cls;
    const auto core = make_core({model, nullptr}, settings);
    const std::vector<TokenId> ids = stages.ids("input_ids");
    const auto hidden = static_cast<std::size_t>(model->config().hidden);
    state::Lane& lane = core->lane(0);
    ASSERT_TRUE(lane.kv.reserve(static_cast<Position>(ids.size()) - 1).ok());
    const Segment segment{&lane, ids, LogitRows::none, true};
    for (std::size_t i = 0; i < model->layers().size(); ++i) {
        std::vector<float> rows = stages.floats("hidden." + std::to_string(i));
        core->target_forward().layer(i, {&segment, 1}, {rows.data(), ids.size(), hidden, hidden});
        const double error = relative_l2(rows, stages.floats("hidden." + std::to_string(i + 1)));
        const bool attention = std::holds_alternative<model::AttentionMixer>(model->layers()[i].mixer);
        const double bound = attention ? format.attention_bound : format.delta_bound;
        EXPECT_TRUE(error <= bound) << "layer " << i << ": relative L2 " << error << ", bound " << bound;
        EXPECT_GT(error, attention ? format.attention_floor : kParityBound) << "layer " << i;
        RecordProperty("layer_" + std::to_string(i) + (attention ? "_attention" : "_delta"), std::to_string(error));
    }
}

const FormatCase kFormatCases[] = {
    {"bf16", state::RowFormat::bf16, state::KvFormat::bf16, numerics::NumericsClass::f32, 6e-3, 2e-3, 1e-5},
    {"int8_kv", state::RowFormat::bf16, state::KvFormat::int8, numerics::NumericsClass::f32, 6e-3, 8e-3, 3e-4},
    {"i8dot", state::RowFormat::bf16, state::KvFormat::bf16, numerics::NumericsClass::i8dot, 5e-2, 5e-2, 1e-3},
};

INSTANTIATE_TEST_SUITE_P(Served, LayerFormatParity,
                         ::testing::Combine(::testing::Values("target-r2-mlx4", "moe-mlx4"),
                                            ::testing::ValuesIn(kFormatCases)),
                         [](const auto& param_info) {
                             const bool experts = std::get<0>(param_info.param)[0] == 'm';
                             return std::string(std::get<1>(param_info.param).name) + (experts ? "_experts" : "");
                         });

// The last two stages under the served formats. final norm: float32 throughout, so the parity bound holds. logits:
// affine weights enter as they are in class f32 (parity bound); i8dot rounds one row of activations to int8, about 1 %:
// 2e-2.
TEST(FormatParity, FinalNormAndLogitsOfTheQuantisedHead) {
    const Stages stages("target-r2-mlx4");
    const auto model = load_golden_target("target-r2-mlx4");
    const auto hidden = static_cast<std::size_t>(model->config().hidden);
    const auto vocab = static_cast<std::size_t>(model->config().vocab);
    const std::vector<float> normed = stages.floats("final_norm");
    const std::size_t rows = normed.size() / hidden;
    for (const auto cls : {numerics::NumericsClass::f32, numerics::NumericsClass::i8dot}) {
        EngineSettings settings = golden_settings(state::RowFormat::bf16, state::KvFormat::bf16);
        settings.numerics = cls;
        const auto core = make_core({model, nullptr}, settings);
        std::vector<float> logits(rows * vocab);
        core->target_forward().logits({normed.data(), rows, hidden, hidden}, {logits.data(), rows, vocab, vocab});
        const bool exact = cls == numerics::NumericsClass::f32;
        expect_close(logits, stages.floats("logits"), "logits", exact ? kParityBound : 2e-2);
        if (!exact) {
            EXPECT_GT(relative_l2(logits, stages.floats("logits")), 1e-4);
        }
    }
}

// The draft with BF16 context rows and rings: a context row is rounded once (1.1e-3 in relative L2 at most), a ring row
// is made from the rounded row and rounded again (together 3e-3), and attention averages them: a layer's output moves
// by less, 3e-3.
TEST(FormatParity, DraftStagesWithBf16ContextRows) {
    const Stages stages("draft-w64");
    const auto draft = load_golden_draft("draft-w64");
    const auto core = make_core({load_golden_target("target-r2"), draft},
                                golden_settings(state::RowFormat::bf16, state::KvFormat::bf16));
    DraftForward& forward = *core->draft_forward();
    const auto hidden = static_cast<std::size_t>(draft->config().hidden);
    const std::vector<float> taps = stages.floats("taps");
    const std::vector<TokenId> block_ids = stages.ids("long.block_ids");
    const auto first = static_cast<std::size_t>(stages.ids("long.first_position")[0]);
    const std::size_t tap_width = taps.size() / first;
    state::Lane& lane = core->lane(0);
    lane.length = static_cast<Position>(first);
    lane.anchor = block_ids[0];
    lane.has_anchor = true;
    forward.append_context(lane, 0, {taps.data(), first, tap_width, tap_width}, state::RowSource::computed);
    const auto rounded_rows = [&](const state::StoredRows& rows) {
        std::vector<float> values;
        for (Position p = lane.draft.first(); p < lane.draft.end(); ++p) {
            values.resize(values.size() + rows.cols());
            rows.read(lane.draft.slot(p), values.data() + values.size() - rows.cols());
        }
        return values;
    };
    const auto expect_within = [&](const std::vector<float>& ours, const std::string& stage, double bound) {
        const std::vector<float> all = stages.floats(stage);
        const std::vector<float> reference(all.end() - static_cast<std::ptrdiff_t>(ours.size()), all.end());
        expect_close(ours, reference, stage, bound);
        EXPECT_GT(relative_l2(ours, reference), kParityBound) << stage << ": BF16 is not in use";
    };
    expect_within(rounded_rows(lane.draft.rows()), "long.context", 2e-3);
    state::Lane* const lanes[] = {&lane};
    for (std::size_t layer = 0; layer < draft->layers().size(); ++layer) {
        const std::string prefix = "long.layers." + std::to_string(layer) + ".context_";
        expect_within(rounded_rows(lane.draft.keys(layer)), prefix + "k", 3e-3);
        expect_within(rounded_rows(lane.draft.values(layer)), prefix + "v", 3e-3);
        std::vector<float> rows = stages.floats("long.hidden." + std::to_string(layer));
        forward.layer(layer, lanes, {rows.data(), block_ids.size(), hidden, hidden});
        expect_within(rows, "long.hidden." + std::to_string(layer + 1), 3e-3);
    }
}

// The Hugging Face and the MLX form of the same weights differ by the 4-bit (8-bit) codes and by bf16(1+w). With the
// MLX form's own dequantised weights as reference both load alike; against the unquantised form a layer moves by the
// weights' error.
TEST(TwoForms, HuggingFaceAndMlxFormsOfTheSameWeightsAgreeWithinQuantisation) {
    const Stages stages("target-r2");
    const std::vector<TokenId> ids = stages.ids("input_ids");
    std::vector<float> outputs[2];
    const char* names[] = {"target-r2", "target-r2-mlx4"};
    for (int form = 0; form < 2; ++form) {
        const auto model = load_golden_target(names[form]);
        const auto core = make_core({model, nullptr}, golden_settings(state::RowFormat::f32, state::KvFormat::f32));
        const auto hidden = static_cast<std::size_t>(model->config().hidden);
        state::Lane& lane = core->lane(0);
        ASSERT_TRUE(lane.kv.reserve(static_cast<Position>(ids.size()) - 1).ok());
        const Segment segment{&lane, ids, LogitRows::none, true};
        outputs[form] = stages.floats("hidden.0");
        core->target_forward().layer(0, {&segment, 1}, {outputs[form].data(), ids.size(), hidden, hidden});
    }
    // Measured 0.1 to 0.2 for random weights at 4 bits; a norm shifted twice (or not at all) moves a layer by more than
    // 0.5.
    const double difference = relative_l2(outputs[1], outputs[0]);
    EXPECT_TRUE(difference <= 0.3) << difference;
    EXPECT_GT(difference, 1e-3);
}

struct DraftCase {
    const char* set;
    const char* name;
};

class DraftParity : public ::testing::TestWithParam<DraftCase> {};

TEST_P(DraftParity, EveryStageOnTheReferencesOwnInputs) {
    const std::string name = GetParam().name;
    const Stages stages(GetParam().set);
    const auto target = load_golden_target("target-r2");
    const auto draft = load_golden_draft(GetParam().set);
    const auto core = make_core({target, draft}, golden_settings(state::RowFormat::f32, state::KvFormat::f32));
    DraftForward& forward = *core->draft_forward();
    const auto hidden = static_cast<std::size_t>(draft->config().hidden);
    const auto vocab = static_cast<std::size_t>(draft->config().vocab);
    const auto heads = static_cast<std::size_t>(draft->config().kv_heads * draft->config().head_dim);
    const auto first = static_cast<std::size_t>(stages.ids(name + ".first_position")[0]);
    const std::vector<TokenId> block_ids = stages.ids(name + ".block_ids");
    const std::size_t block = block_ids.size();

    const std::vector<float> taps = stages.floats("taps");
    const std::size_t tap_width = draft->config().taps.size() * hidden;
    std::vector<float> context(first * hidden);
    forward.context_rows({taps.data(), first, tap_width, tap_width}, {context.data(), first, hidden, hidden});
    expect_close(context, transpose_free_slice(stages.floats("long.context"), 0, first * hidden), "context rows");

    state::Lane& lane = core->lane(0);
    lane.length = static_cast<Position>(first);
    lane.anchor = block_ids[0];
    lane.has_anchor = true;
    forward.append_context(lane, 0, {taps.data(), first, tap_width, tap_width}, state::RowSource::computed);
    for (std::size_t layer = 0; layer < draft->layers().size(); ++layer) {
        const std::string prefix = "long.layers." + std::to_string(layer) + ".context_";
        const std::vector<float> all_keys = stages.floats(prefix + "k");
        const std::vector<float> all_values = stages.floats(prefix + "v");
        std::vector<float> keys;
        std::vector<float> values;
        for (Position p = lane.draft.first(); p < lane.draft.end(); ++p) {
            keys.resize(keys.size() + heads);
            values.resize(values.size() + heads);
            lane.draft.keys(layer).read(lane.draft.slot(p), keys.data() + keys.size() - heads);
            lane.draft.values(layer).read(lane.draft.slot(p), values.data() + values.size() - heads);
        }
        const std::size_t skip = static_cast<std::size_t>(lane.draft.first()) * heads;
        expect_close(keys, transpose_free_slice(all_keys, skip, keys.size()), "context keys");
        expect_close(values, transpose_free_slice(all_values, skip, values.size()), "context values");
    }

    state::Lane* const lanes[] = {&lane};
    std::vector<float> embedded(block * hidden);
    forward.embed_block(lanes, {embedded.data(), block, hidden, hidden});
    expect_close(embedded, stages.floats(name + ".hidden.0"), "block embeddings");
    for (std::size_t layer = 0; layer < draft->layers().size(); ++layer) {
        std::vector<float> rows = stages.floats(name + ".hidden." + std::to_string(layer));
        forward.layer(layer, lanes, {rows.data(), block, hidden, hidden});
        expect_close(rows, stages.floats(name + ".hidden." + std::to_string(layer + 1)),
                     "draft layer " + std::to_string(layer));
    }
    std::vector<float> last = stages.floats(name + ".hidden." + std::to_string(draft->layers().size()));
    last.erase(last.begin(), last.begin() + static_cast<std::ptrdiff_t>(hidden));
    std::vector<float> normed(last.size());
    forward.final_norm({last.data(), block - 1, hidden, hidden}, {normed.data(), block - 1, hidden, hidden});
    const std::vector<float> reference_normed = stages.floats(name + ".draft_hidden");
    expect_close(normed, reference_normed, "draft hidden");
    std::vector<float> logits((block - 1) * vocab);
    forward.logits({reference_normed.data(), block - 1, hidden, hidden}, {logits.data(), block - 1, vocab, vocab});
    const std::vector<float> reference_logits = stages.floats(name + ".logits");
    expect_close(logits, reference_logits, "draft logits");

    const DraftChoice choice = forward.choose(lane, {reference_normed.data(), block - 1, hidden, hidden},
                                              {reference_logits.data(), block - 1, vocab, vocab}, nullptr);
    EXPECT_EQ(choice.candidates, stages.ids(name + ".candidate_ids"));
    EXPECT_EQ(choice.proposals, stages.ids(name + ".proposals"));
    expect_close(choice.unary, stages.floats(name + ".unary"), "unary");
    // q of the chosen candidate: for a selector the reference dumps the whole conditional.
    std::vector<float> chosen_q = stages.floats(name + ".q");
    if (draft->selector()) {
        expect_close(choice.scores, stages.floats(name + ".scores"), "selector scores");
        const std::vector<float> conditional = std::move(chosen_q);
        chosen_q.clear();
        for (std::size_t i = 0; i < conditional.size(); ++i) {
            if (choice.candidates[i] == choice.proposals[i / choice.top_k]) chosen_q.push_back(conditional[i]);
        }
    } else {
        EXPECT_TRUE(choice.scores.empty());
    }
    expect_close(choice.q, chosen_q, "q");
    float path = 1;
    for (std::size_t t = 0; t < block - 1; ++t) EXPECT_EQ(choice.prefix_confidence[t], path *= choice.q[t]);
    EXPECT_TRUE(choice.distributions.empty());
}

const DraftCase kDraftCases[] = {
    {"draft-w64", "long"},      {"draft-w64", "edge"},      {"draft-w64", "short"},
    {"draft-b16", "long"},      {"draft-b16", "edge"},      {"draft-b16", "short"},
    {"draft-v1-mixed", "long"}, {"draft-v1-mixed", "edge"}, {"draft-v1-mixed", "short"},
};

INSTANTIATE_TEST_SUITE_P(Golden, DraftParity, ::testing::ValuesIn(kDraftCases), [](const auto& param_info) {
    std::string name = std::string(param_info.param.set) + "_" + param_info.param.name;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
});

TEST(DraftFromPrompt, WholeBlockFromThePromptProposesWhatTheReferenceProposes) {
    const std::vector<TokenId> prompt = Stages("target-r2").ids("input_ids");
    for (const char* set : {"draft-w64", "draft-b16", "draft-v1-mixed"}) {
        const Stages stages(set);
        ProductionEngine engine(make_core({load_golden_target("target-r2"), load_golden_draft(set)},
                                          golden_settings(state::RowFormat::f32, state::KvFormat::f32)));
        const auto first = static_cast<std::size_t>(stages.ids("long.first_position")[0]);
        engine.begin_request(0, {{64, {}}});
        ASSERT_TRUE(engine.prefill(0, std::span(prompt).first(first), 0, true).ok());
        const TokenId anchor = stages.ids("long.block_ids")[0];
        if (first == prompt.size()) {
            EXPECT_EQ(engine.lane(0).anchor, anchor);
        }
        engine.lane(0).anchor = anchor;
        DraftOutput out;
        state::Lane* const lanes[] = {&engine.lane(0)};
        engine.core().draft_forward()->run(lanes, {}, out);
        EXPECT_EQ(out.choices[0].proposals, stages.ids("long.proposals")) << set;
        expect_close(out.hidden, stages.floats("long.draft_hidden"), "draft hidden after the whole run", 1e-4);
    }
}

}  // namespace
}  // namespace draftprobe::decode
