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

// The keys that each block row sees, as a closed range of positions (dflash2.md section 3.1).
struct BlockVisibility {
    std::vector<Position> first;
    std::vector<Position> last;
};

// `length`: the anchor row's position; `oldest`: the oldest context row that is held.
BlockVisibility block_visibility(const DraftLayer& layer, Position length, Position oldest, std::size_t block) {
    BlockVisibility visible;
    const Position end = length + static_cast<Position>(block) - 1;
    for (std::size_t j = 0; j < block; ++j) {
        const Position position = length + static_cast<Position>(j);
        const Position latest = layer.causal ? position : end;
        if (layer.window == 0) {
            visible.first.push_back(oldest);
            visible.last.push_back(latest);
        } else {
            // Strict window: distances 0 .. window - 1.
            visible.first.push_back(std::max(oldest, position - layer.window + 1));
            visible.last.push_back(std::min(latest, position + layer.window - 1));
        }
    }
    return visible;
}

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
    Scratch key(context.rows, kv_heads * head_dim);
    Scratch value(context.rows, kv_heads * head_dim);
    for (std::size_t index = 0; index < draft_.layers().size(); ++index) {
        const model::DraftLayerWeights& layer = draft_.layers()[index];
        compute_.matmul(layer.k_proj, context, key.rows());
        compute_.matmul(layer.v_proj, context, value.rows());
        compute_.parallel_for(context.rows, [&](std::size_t r) {
            const Position position = first + static_cast<Position>(r);
            turn_heads(key.row(r), kv_heads, layer.k_norm, position);
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

template <class Inner>
void DraftForward::sublayer(const std::vector<float>& norm, const std::optional<model::DynamicConv>& conv, Rows hidden,
                            const Inner& inner) const {
    const auto& kernels = compute_.kernels();
    const auto eps = static_cast<float>(draft_.config().rms_norm_eps);
    const std::size_t width = hidden.cols;
    Scratch normed(hidden.rows, width);
    Scratch update(hidden.rows, width);
    compute_.parallel_for(
        hidden.rows, [&](std::size_t r) { kernels.rms_norm(hidden.row(r), norm.data(), width, eps, normed.row(r)); });
    if (conv) {
        // The post-side coefficients come from the sublayer's normalised input, so both sides are projected at once.
        Scratch delta(hidden.rows, conv->kernel_projection.out());
        Scratch shaped(hidden.rows, width);
        Scratch result(hidden.rows, width);
        compute_.matmul(conv->kernel_projection, normed.rows(), delta.rows());
        convolve(*conv, 0, delta.rows(), normed.rows(), shaped.rows());
        inner(shaped.rows(), result.rows());
        convolve(*conv, 1, delta.rows(), result.rows(), update.rows());
    } else {
        inner(normed.rows(), update.rows());
    }
    compute_.parallel_for(hidden.rows, [&](std::size_t r) { kernels.add(hidden.row(r), update.row(r), width); });
}

void DraftForward::turn_heads(float* row, std::size_t heads, const std::vector<float>& norm, Position position) const {
    const auto head_dim = static_cast<std::size_t>(draft_.config().head_dim);
    const auto eps = static_cast<float>(draft_.config().rms_norm_eps);
    std::vector<float> cosine;
    std::vector<float> sine;
    rope_angles(draft_.inverse_frequencies(), position, cosine, sine);
    for (std::size_t h = 0; h < heads; ++h) {
        float* head = row + h * head_dim;
        compute_.kernels().rms_norm(head, norm.data(), head_dim, eps, head);
        compute_.kernels().rope(head, cosine.data(), sine.data(), head_dim);
    }
}

void DraftForward::attention(std::size_t index, std::span<Lane* const> lanes, ConstRows x, Rows out) const {
    const model::DraftLayerWeights& weights = draft_.layers()[index];
    const DraftConfig& config = draft_.config();
    const auto head_dim = static_cast<std::size_t>(config.head_dim);
    const auto q_heads = static_cast<std::size_t>(config.q_heads);
    const auto kv_heads = static_cast<std::size_t>(config.kv_heads);
    Scratch query(x.rows, q_heads * head_dim);
    Scratch key(x.rows, kv_heads * head_dim);
    Scratch value(x.rows, kv_heads * head_dim);
    Scratch mixed(x.rows, q_heads * head_dim);
    compute_.matmul(weights.q_proj, x, query.rows());
    compute_.matmul(weights.k_proj, x, key.rows());
    compute_.matmul(weights.v_proj, x, value.rows());
    compute_.parallel_for(x.rows, [&](std::size_t r) {
        const Position position = lanes[r / block()]->length + static_cast<Position>(r % block());
        turn_heads(query.row(r), q_heads, weights.q_norm, position);
        turn_heads(key.row(r), kv_heads, weights.k_norm, position);
    });
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        const Lane& lane = *lanes[i];
        const BlockKeys keys(lane, index, slice(key.rows(), i * block(), block()),
                             slice(value.rows(), i * block(), block()), head_dim);
        const BlockVisibility visible =
            block_visibility(config.layer_attention[index], lane.length, lane.draft.first(), block());
        numerics::AttendArgs args;
        args.queries = slice(query.rows(), i * block(), block());
        args.out = {mixed.row(i * block()), block(), mixed.cols, mixed.cols};
        args.q_heads = static_cast<int>(q_heads);
        args.kv_heads = static_cast<int>(kv_heads);
        args.head_dim = static_cast<int>(head_dim);
        args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
        args.first_visible = visible.first;
        args.last_visible = visible.last;
        numerics::attend(compute_, keys, args);
    }
    compute_.matmul(weights.o_proj, mixed.rows(), out);
}

void DraftForward::feed_forward(const model::DraftLayerWeights& weights, ConstRows x, Rows out) const {
    const std::size_t ffn = weights.gate_proj.out();
    Scratch gate(x.rows, ffn);
    Scratch up(x.rows, ffn);
    compute_.matmul(weights.gate_proj, x, gate.rows());
    compute_.matmul(weights.up_proj, x, up.rows());
    compute_.parallel_for(
        x.rows, [&](std::size_t r) { compute_.kernels().silu_mul(gate.row(r), up.row(r), ffn, gate.row(r)); });
    compute_.matmul(weights.down_proj, gate.rows(), out);
}

void DraftForward::layer(std::size_t index, std::span<Lane* const> lanes, Rows hidden) const {
    const model::DraftLayerWeights& weights = draft_.layers()[index];
    sublayer(weights.input_norm, weights.attention_conv, hidden,
             [&](ConstRows x, Rows out) { attention(index, lanes, x, out); });
    sublayer(weights.post_attention_norm, weights.mlp_conv, hidden,
             [&](ConstRows x, Rows out) { feed_forward(weights, x, out); });
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

void DraftForward::rank_candidates(ConstRows logits, DraftChoice& choice) const {
    const std::size_t top_k = choice.top_k;
    choice.candidates.resize(logits.rows * top_k);
    choice.unary.resize(logits.rows * top_k);
    choice.next_unary.resize(logits.rows);
    compute_.parallel_for(logits.rows, [&](std::size_t t) {
        const std::vector<RankedLogit> best = top_logits({logits.row(t), logits.cols}, top_k + 1);
        for (std::size_t i = 0; i < top_k; ++i) {
            choice.candidates[t * top_k + i] = best[i].token;
            choice.unary[t * top_k + i] = best[i].logit;
        }
        choice.next_unary[t] = best.size() > top_k ? best[top_k].logit : -std::numeric_limits<float>::infinity();
    });
}

void DraftForward::walk_selector(const Lane& lane, ConstRows hidden, const LaneSampling* sampling,
                                 DraftChoice& choice) const {
    const model::Selector& selector = *draft_.selector();
    const std::size_t top_k = choice.top_k;
    const std::size_t rank = selector.hidden_projection.out();
    Scratch projected(hidden.rows, rank);
    compute_.matmul(selector.hidden_projection, hidden, projected.rows());
    std::vector<float> predecessor(rank);
    std::vector<float> successor(rank);
    TokenId previous = lane.anchor;
    for (std::size_t t = 0; t < hidden.rows; ++t) {
        const std::span<const TokenId> ids(choice.candidates.data() + t * top_k, top_k);
        std::vector<float> scores(top_k);
        std::size_t best = 0;
        selector.predecessor.read(previous, predecessor.data());
        for (std::size_t i = 0; i < top_k; ++i) {
            selector.successor.read(ids[i], successor.data());
            scores[i] = choice.unary[t * top_k + i] +
                        compute_.kernels().dot3(predecessor.data(), projected.row(t), successor.data(), rank);
            if (scores[i] > scores[best]) best = i;  // the first maximal score wins
        }
        previous = ids[best];
        if (sampling != nullptr) {
            choice.distributions.push_back(candidate_distribution(ids, scores, sampling->settings.temperature));
            const Position position = lane.length + static_cast<Position>(t) + 1;
            previous = draw(choice.distributions.back(), uniform(*sampling, position, RandomStream::draft));
        }
        // Softmax in candidate order: terms and sum ascending.
        float total = 0;
        float chosen = 0;
        for (std::size_t i = 0; i < top_k; ++i) {
            const float term = numerics::exp_f32(scores[i] - scores[best]);
            total += term;
            if (ids[i] == previous) chosen = term;
        }
        choice.q.push_back(chosen / total);
        choice.scores.insert(choice.scores.end(), scores.begin(), scores.end());
        choice.proposals.push_back(previous);
    }
}

void DraftForward::choose_apart(const Lane& lane, ConstRows logits, const LaneSampling* sampling,
                                DraftChoice& choice) const {
    choice.proposals.resize(logits.rows);
    choice.q.resize(logits.rows);
    if (sampling != nullptr) choice.distributions.resize(logits.rows);
    compute_.parallel_for(logits.rows, [&](std::size_t t) {
        const std::span<const float> row(logits.row(t), logits.cols);
        TokenId& proposal = choice.proposals[t];
        proposal = choice.candidates[t * choice.top_k];
        if (sampling != nullptr) {
            choice.distributions[t] = target_distribution(row, sampling->settings);
            const Position position = lane.length + static_cast<Position>(t) + 1;
            proposal = draw(choice.distributions[t], uniform(*sampling, position, RandomStream::draft));
        }
        // Softmax over the vocabulary: float32 terms, ids ascending, a double sum.
        const float best = choice.unary[t * choice.top_k];
        double total = 0;
        for (const float logit : row) total += static_cast<double>(numerics::exp_f32(logit - best));
        choice.q[t] = static_cast<float>(static_cast<double>(numerics::exp_f32(row[proposal] - best)) / total);
    });
}

DraftChoice DraftForward::choose(const Lane& lane, ConstRows hidden, ConstRows logit_rows,
                                 const LaneSampling* sampling) const {
    if (sampling != nullptr && sampling->settings.greedy()) sampling = nullptr;
    DraftChoice choice;
    choice.top_k = static_cast<std::size_t>(draft_.config().candidates());
    rank_candidates(logit_rows, choice);
    if (draft_.selector()) {
        walk_selector(lane, hidden, sampling, choice);
    } else {
        choose_apart(lane, logit_rows, sampling, choice);
    }
    float path_confidence = 1.0f;
    for (const float q : choice.q) {
        path_confidence *= q;
        choice.prefix_confidence.push_back(path_confidence);
    }
    return choice;
}

void DraftForward::run(std::span<Lane* const> lanes, std::span<const LaneSampling> sampling, DraftOutput& out) {
    assert(sampling.empty() || sampling.size() == lanes.size());
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
        out.choices.push_back(choose(*lanes[i], slice(normed, i * positions, positions),
                                     slice(scores.rows(), i * positions, positions),
                                     sampling.empty() ? nullptr : &sampling[i]));
    }
}

}  // namespace draftprobe::decode
