#include "decode/draft_forward.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include "decode/ranking.h"
#include "decode/scratch.h"
#include "decode/target_forward.h"
#include "numerics/scalar_math.h"

namespace draftprobe::decode {

using numerics::ConstRows;
using numerics::Rows;
using state::Lane;

namespace {

// Keys of one lane and layer by absolute position: the ring below the anchor's position, the block's own rows from it
// on.
class BlockKeys : public numerics::KeySource {
public:
    BlockKeys(const Lane& lane, std::size_t layer, ConstRows block_keys, ConstRows block_values, std::size_t head_dim)
        : lane_(lane), layer_(layer), block_keys_(block_keys), block_values_(block_values), head_dim_(head_dim) {}

    void load_page(Position page, int kv_head, float* keys_t, float* values) const override {
        const std::size_t offset = static_cast<std::size_t>(kv_head) * head_dim_;
        const state::DraftContext& context = lane_.draft;
        const state::StoredRows& ring_keys = context.keys(layer_);
        const state::StoredRows& ring_values = context.values(layer_);
        std::vector<float> row(ring_keys.cols());
        for (Position slot = 0; slot < kPageTokens; ++slot) {
            const Position position = page * kPageTokens + slot;
            const float* key = nullptr;
            const float* value = nullptr;
            if (position >= lane_.length) {
                const auto block_row = static_cast<std::size_t>(position - lane_.length);
                if (block_row >= block_keys_.rows) continue;
                key = block_keys_.row(block_row) + offset;
                value = block_values_.row(block_row) + offset;
                for (std::size_t d = 0; d < head_dim_; ++d) keys_t[d * kPageTokens + slot] = key[d];
                std::memcpy(values + static_cast<std::size_t>(slot) * head_dim_, value, head_dim_ * sizeof(float));
                continue;
            }
            if (position < context.first() || position >= context.end()) continue;
            ring_keys.read(context.slot(position), row.data());
            for (std::size_t d = 0; d < head_dim_; ++d) keys_t[d * kPageTokens + slot] = row[offset + d];
            ring_values.read(context.slot(position), row.data());
            std::memcpy(values + static_cast<std::size_t>(slot) * head_dim_, row.data() + offset,
                        head_dim_ * sizeof(float));
        }
    }

private:
    const Lane& lane_;
    std::size_t layer_;
    ConstRows block_keys_;
    ConstRows block_values_;
    std::size_t head_dim_;
};

}  // namespace

DraftForward::DraftForward(const model::DraftModel& draft, const model::TargetModel& target,
                           const numerics::Compute& compute)
    : draft_(draft), target_(target), compute_(compute) {}

void DraftForward::context_rows(ConstRows taps, Rows out) const {
    compute_.matmul(draft_.fc(), taps, out);
    const auto eps = static_cast<float>(draft_.config().rms_norm_eps);
    compute_.parallel_for(out.rows, [&](std::size_t r) {
        compute_.kernels().rms_norm(out.row(r), draft_.hidden_norm().data(), out.cols, eps, out.row(r));
    });
}

void DraftForward::write_rings(Lane& lane, Position first, ConstRows context) {
    const DraftConfig& config = draft_.config();
    const auto head_dim = static_cast<std::size_t>(config.head_dim);
    const auto kv_heads = static_cast<std::size_t>(config.kv_heads);
    const auto eps = static_cast<float>(config.rms_norm_eps);
    const auto& kernels = compute_.kernels();
    Scratch key(context.rows, kv_heads * head_dim);
    Scratch value(context.rows, kv_heads * head_dim);
    for (std::size_t index = 0; index < draft_.layers().size(); ++index) {
        const model::DraftLayerWeights& layer = draft_.layers()[index];
        compute_.matmul(layer.k_proj, context, key.rows());
        compute_.matmul(layer.v_proj, context, value.rows());
        compute_.parallel_for(context.rows, [&](std::size_t r) {
            const Position position = first + static_cast<Position>(r);
            std::vector<float> cosine;
            std::vector<float> sine;
            rope_angles(draft_.inverse_frequencies(), position, cosine, sine);
            for (std::size_t h = 0; h < kv_heads; ++h) {
                float* k = key.row(r) + h * head_dim;
                kernels.rms_norm(k, layer.k_norm.data(), head_dim, eps, k);
                kernels.rope(k, cosine.data(), sine.data(), head_dim);
            }
            const std::size_t slot = lane.draft.slot(position);
            lane.draft.keys(index).write(slot, key.row(r));
            lane.draft.values(index).write(slot, value.row(r));
        });
    }
    for (std::size_t r = 0; r < context.rows; ++r) lane.draft.mark_written(first + static_cast<Position>(r), true);
}

void DraftForward::append_context(Lane& lane, Position first, ConstRows taps, state::RowSource source) {
    assert(first == lane.draft.end());
    const Position end = first + static_cast<Position>(taps.rows);
    const Position keep = std::max(first, end - static_cast<Position>(lane.draft.capacity()));
    const std::size_t skipped = static_cast<std::size_t>(keep - first);
    const std::size_t rows = taps.rows - skipped;
    Scratch context(rows, static_cast<std::size_t>(draft_.config().hidden));
    context_rows(slice(taps, skipped, rows), context.rows());
    for (std::size_t r = 0; r < rows; ++r) {
        const Position position = keep + static_cast<Position>(r);
        const std::size_t slot = lane.draft.slot(position);
        lane.draft.rows().write(slot, context.row(r));
        lane.draft.rows().read(slot, context.row(r));  // the rings are made from the stored row
        lane.draft.mark_written(position, false);
    }
    write_rings(lane, keep, context.rows());
    lane.draft.advance(end, source);
}

void DraftForward::rebuild_rings(Lane& lane) {
    const Position first = lane.draft.first();
    const Position end = lane.draft.end();
    // In blocks: the scratch of a whole long window is not needed at once. Rows are independent, so the cut has no
    // effect.
    constexpr Position kBlock = 512;
    for (Position at = first; at < end; at += kBlock) {
        const auto rows = static_cast<std::size_t>(std::min(kBlock, end - at));
        Scratch context(rows, static_cast<std::size_t>(draft_.config().hidden));
        for (std::size_t r = 0; r < rows; ++r) {
            lane.draft.rows().read(lane.draft.slot(at + static_cast<Position>(r)), context.row(r));
        }
        write_rings(lane, at, context.rows());
    }
}

void DraftForward::embed_block(std::span<Lane* const> lanes, Rows out) const {
    const auto scale = static_cast<float>(draft_.config().input_embedding_scale);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        for (std::size_t j = 0; j < block(); ++j) {
            const TokenId token = j == 0 ? lanes[i]->anchor : draft_.config().mask_token;
            float* row = out.row(i * block() + j);
            target_.embedding().dequantise_row(token, row);
            if (scale != 1.0f) {
                for (std::size_t c = 0; c < out.cols; ++c) row[c] *= scale;
            }
        }
    }
}

void DraftForward::convolve(const model::DynamicConv& conv, int side, ConstRows delta, ConstRows x, Rows out) const {
    const auto taps = static_cast<std::size_t>(draft_.config().conv->kernel);
    const auto group = static_cast<std::size_t>(draft_.config().conv->group_size);
    const std::size_t groups = x.cols / group;
    const float* base = conv.base.data() + static_cast<std::size_t>(side) * taps * x.cols;
    compute_.parallel_for(x.rows, [&](std::size_t r) {
        // Taps never reach over the block's first row.
        const std::size_t row_in_block = r % block();
        std::vector<const float*> rows(taps, nullptr);
        for (std::size_t tap = 0; tap < taps && tap <= row_in_block; ++tap) rows[tap] = x.row(r - tap);
        const float* coefficients = delta.row(r) + static_cast<std::size_t>(side) * taps * groups;
        compute_.kernels().dynamic_conv(rows.data(), base, coefficients, taps, group, x.cols, out.row(r));
    });
}

void DraftForward::layer(std::size_t index, std::span<Lane* const> lanes, Rows hidden) const {
    const model::DraftLayerWeights& weights = draft_.layers()[index];
    const DraftConfig& config = draft_.config();
    const auto& kernels = compute_.kernels();
    const auto eps = static_cast<float>(config.rms_norm_eps);
    const auto head_dim = static_cast<std::size_t>(config.head_dim);
    const auto q_heads = static_cast<std::size_t>(config.q_heads);
    const auto kv_heads = static_cast<std::size_t>(config.kv_heads);
    const std::size_t rows = hidden.rows;
    const std::size_t width = hidden.cols;

    Scratch normed(rows, width);
    Scratch shaped(rows, width);
    Scratch update(rows, width);
    Scratch delta(rows, weights.attention_conv.kernel_projection.out());
    const auto normalise = [&](const std::vector<float>& weight) {
        compute_.parallel_for(
            rows, [&](std::size_t r) { kernels.rms_norm(hidden.row(r), weight.data(), width, eps, normed.row(r)); });
    };
    // The post-side coefficients come from the sublayer's normalised input, so both sides are projected at once.
    const auto prepare = [&](const model::DynamicConv& conv) {
        compute_.matmul(conv.kernel_projection, normed.rows(), delta.rows());
        convolve(conv, 0, delta.rows(), normed.rows(), shaped.rows());
    };
    const auto finish = [&](const model::DynamicConv& conv) {
        convolve(conv, 1, delta.rows(), update.rows(), shaped.rows());
        compute_.parallel_for(rows, [&](std::size_t r) { kernels.add(hidden.row(r), shaped.row(r), width); });
    };

    normalise(weights.input_norm);
    prepare(weights.attention_conv);
    Scratch query(rows, q_heads * head_dim);
    Scratch key(rows, kv_heads * head_dim);
    Scratch value(rows, kv_heads * head_dim);
    Scratch mixed(rows, q_heads * head_dim);
    compute_.matmul(weights.q_proj, shaped.rows(), query.rows());
    compute_.matmul(weights.k_proj, shaped.rows(), key.rows());
    compute_.matmul(weights.v_proj, shaped.rows(), value.rows());
    compute_.parallel_for(rows, [&](std::size_t r) {
        const Position position = lanes[r / block()]->length + static_cast<Position>(r % block());
        std::vector<float> cosine;
        std::vector<float> sine;
        rope_angles(draft_.inverse_frequencies(), position, cosine, sine);
        for (std::size_t h = 0; h < q_heads; ++h) {
            float* q = query.row(r) + h * head_dim;
            kernels.rms_norm(q, weights.q_norm.data(), head_dim, eps, q);
            kernels.rope(q, cosine.data(), sine.data(), head_dim);
        }
        for (std::size_t h = 0; h < kv_heads; ++h) {
            float* k = key.row(r) + h * head_dim;
            kernels.rms_norm(k, weights.k_norm.data(), head_dim, eps, k);
            kernels.rope(k, cosine.data(), sine.data(), head_dim);
        }
    });
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        const Lane& lane = *lanes[i];
        const BlockKeys keys(lane, index, slice(key.rows(), i * block(), block()),
                             slice(value.rows(), i * block(), block()), head_dim);
        const auto window = static_cast<Position>(config.layer_attention[index].window);
        std::vector<Position> first(block());
        const std::vector<Position> last(block(), lane.length + static_cast<Position>(block()) - 1);
        for (std::size_t j = 0; j < block(); ++j) {
            // Strict window: key s is visible to position p iff p - s < window.
            const Position oldest = window == 0 ? 0 : lane.length + static_cast<Position>(j) - window + 1;
            first[j] = std::max({Position{0}, oldest, lane.draft.first()});
        }
        numerics::AttendArgs args;
        args.queries = slice(query.rows(), i * block(), block());
        args.out = {mixed.row(i * block()), block(), mixed.cols, mixed.cols};
        args.q_heads = static_cast<int>(q_heads);
        args.kv_heads = static_cast<int>(kv_heads);
        args.head_dim = static_cast<int>(head_dim);
        args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
        args.first_visible = first;
        args.last_visible = last;
        numerics::attend(compute_, keys, args);
    }
    compute_.matmul(weights.o_proj, mixed.rows(), update.rows());
    finish(weights.attention_conv);

    normalise(weights.post_attention_norm);
    prepare(weights.mlp_conv);
    const std::size_t ffn = weights.gate_proj.out();
    Scratch gate(rows, ffn);
    Scratch up(rows, ffn);
    compute_.matmul(weights.gate_proj, shaped.rows(), gate.rows());
    compute_.matmul(weights.up_proj, shaped.rows(), up.rows());
    compute_.parallel_for(rows, [&](std::size_t r) { kernels.silu_mul(gate.row(r), up.row(r), ffn, gate.row(r)); });
    compute_.matmul(weights.down_proj, gate.rows(), update.rows());
    finish(weights.mlp_conv);
}

void DraftForward::final_norm(ConstRows hidden, Rows out) const {
    const auto eps = static_cast<float>(draft_.config().rms_norm_eps);
    compute_.parallel_for(hidden.rows, [&](std::size_t r) {
        compute_.kernels().rms_norm(hidden.row(r), draft_.norm().data(), hidden.cols, eps, out.row(r));
    });
}

void DraftForward::logits(ConstRows normed, Rows out) const {
    compute_.matmul(target_.head(), normed, out);
    const auto multiplier = static_cast<float>(draft_.config().output_multiplier);
    const auto cap = static_cast<float>(draft_.config().logit_softcap);
    if (multiplier == 1.0f && cap == 0.0f) return;
    compute_.parallel_for(out.rows, [&](std::size_t r) {
        float* row = out.row(r);
        for (std::size_t c = 0; c < out.cols; ++c) {
            float value = row[c] * multiplier;
            // tanh(x) = 2 sigmoid(2x) - 1, with the canonical exponential.
            if (cap != 0.0f) value = (2.0f * numerics::sigmoid_f32(2.0f * (value / cap)) - 1.0f) * cap;
            row[c] = value;
        }
    });
}

DraftChoice DraftForward::choose(TokenId anchor, ConstRows hidden, ConstRows logit_rows) const {
    const std::size_t top_k = static_cast<std::size_t>(draft_.config().selector->top_k);
    const std::size_t positions = hidden.rows;
    const std::size_t rank = draft_.rank();
    DraftChoice choice;
    choice.top_k = top_k;
    Scratch projected(positions, rank);
    compute_.matmul(draft_.selector_hidden(), hidden, projected.rows());
    TokenId previous = anchor;
    float path_confidence = 1.0f;
    for (std::size_t t = 0; t < positions; ++t) {
        const std::vector<RankedLogit> best = top_logits({logit_rows.row(t), logit_rows.cols}, top_k + 1);
        std::vector<float> scores(top_k);
        std::size_t winner = 0;
        for (std::size_t i = 0; i < top_k; ++i) {
            choice.candidates.push_back(best[i].token);
            choice.unary.push_back(best[i].logit);
            scores[i] = best[i].logit + compute_.kernels().dot3(draft_.predecessor(previous), projected.row(t),
                                                                draft_.successor(best[i].token), rank);
            if (scores[i] > scores[winner]) winner = i;  // the first maximal score wins
        }
        choice.next_unary.push_back(best.size() > top_k ? best[top_k].logit : -std::numeric_limits<float>::infinity());
        // Softmax in candidate order: terms and sum ascending.
        float total = 0;
        float chosen = 0;
        for (std::size_t i = 0; i < top_k; ++i) {
            const float term = numerics::exp_f32(scores[i] - scores[winner]);
            total += term;
            if (i == winner) chosen = term;
        }
        choice.q.push_back(chosen / total);
        path_confidence *= chosen / total;
        choice.prefix_confidence.push_back(path_confidence);
        choice.scores.insert(choice.scores.end(), scores.begin(), scores.end());
        previous = best[winner].token;
        choice.proposals.push_back(previous);
    }
    return choice;
}

void DraftForward::run(std::span<Lane* const> lanes, DraftOutput& out) {
    const auto width = static_cast<std::size_t>(draft_.config().hidden);
    const auto vocab = static_cast<std::size_t>(target_.config().vocab);
    const std::size_t positions = block() - 1;
    Scratch hidden(lanes.size() * block(), width);
    embed_block(lanes, hidden.rows());
    for (std::size_t i = 0; i < draft_.layers().size(); ++i) layer(i, lanes, hidden.rows());
    Scratch proposed(lanes.size() * positions, width);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        std::memcpy(proposed.row(i * positions), hidden.row(i * block() + 1), positions * width * sizeof(float));
    }
    out.hidden.resize(proposed.data.size());
    const Rows normed{out.hidden.data(), lanes.size() * positions, width, width};
    final_norm(proposed.rows(), normed);
    Scratch scores(lanes.size() * positions, vocab);
    logits(normed, scores.rows());
    out.choices.clear();
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        out.choices.push_back(choose(lanes[i]->anchor, slice(normed, i * positions, positions),
                                     slice(scores.rows(), i * positions, positions)));
    }
}

}  // namespace draftprobe::decode
