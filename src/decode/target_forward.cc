#include "decode/target_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "decode/feed_forward.h"
#include "decode/scratch.h"
#include "numerics/delta_chunk.h"
#include "numerics/scalar_math.h"

namespace draftprobe::decode {

using model::AttentionMixer;
using model::DeltaMixer;
using numerics::ConstRows;
using numerics::Rows;
using state::Lane;

namespace {

class LaneKeys : public numerics::KeySource {
public:
    LaneKeys(const state::KvPages& pages, std::size_t layer) : pages_(pages), layer_(layer) {}
    void load_page(Position page, int kv_head, float* keys_t, float* values) const override {
        pages_.load_page(layer_, page, static_cast<std::size_t>(kv_head), keys_t, values);
    }

private:
    const state::KvPages& pages_;
    std::size_t layer_;
};

std::size_t total_rows(std::span<const Segment> segments) {
    std::size_t rows = 0;
    for (const Segment& segment : segments) rows += segment.tokens.size();
    return rows;
}

// A NaN or an infinity spreads over everything behind it, and then every row equals every other bit for bit: a
// comparison of such rows proves nothing, so the run ends here.
Status check_finite(std::span<const Segment> segments, ConstRows hidden) {
    std::size_t row = 0;
    for (const Segment& segment : segments) {
        for (std::size_t i = 0; i < segment.tokens.size(); ++i, ++row) {
            if (std::all_of(hidden.row(row), hidden.row(row) + hidden.cols, [](float x) { return std::isfinite(x); })) {
                continue;
            }
            return corrupt(
                fmt::format("target: the hidden row of position {} (lane {}) is not finite after the final "
                            "norm, expected finite numbers; the weights overflow float32, or state was "
                            "read that nobody wrote",
                            segment.lane->length + static_cast<Position>(i), segment.lane->id()));
        }
    }
    return {};
}

}  // namespace

void rope_angles(std::span<const float> inverse_frequencies, Position position, std::vector<float>& cosine,
                 std::vector<float>& sine) {
    cosine.resize(inverse_frequencies.size());
    sine.resize(inverse_frequencies.size());
    for (std::size_t i = 0; i < inverse_frequencies.size(); ++i) {
        numerics::sincos_f32(static_cast<float>(position) * inverse_frequencies[i], &sine[i], &cosine[i]);
    }
}

TargetForward::TargetForward(const model::TargetModel& model, const numerics::Compute& compute,
                             std::vector<std::int64_t> taps, state::RowFormat row_format)
    : model_(model), compute_(compute), taps_(std::move(taps)), row_format_(row_format) {}

void TargetForward::embed(std::span<const TokenId> tokens, Rows out) const {
    compute_.parallel_for(tokens.size(),
                          [&](std::size_t i) { model_.embedding().dequantise_row(tokens[i], out.row(i)); });
}

void TargetForward::final_norm(ConstRows hidden, Rows out) const {
    const auto eps = static_cast<float>(model_.config().rms_norm_eps);
    compute_.parallel_for(hidden.rows, [&](std::size_t r) {
        compute_.kernels().rms_norm(hidden.row(r), model_.final_norm().data(), hidden.cols, eps, out.row(r));
    });
}

void TargetForward::logits(ConstRows normed, Rows out) const { compute_.matmul(model_.head(), normed, out); }

void TargetForward::attention_mixer(const AttentionMixer& mixer, std::size_t state_index,
                                    std::span<const Segment> segments, ConstRows x, Rows out) {
    const TargetConfig& config = model_.config();
    const auto head_dim = static_cast<std::size_t>(config.head_dim);
    const auto q_heads = static_cast<std::size_t>(config.q_heads);
    const auto kv_heads = static_cast<std::size_t>(config.kv_heads);
    const auto rotary = static_cast<std::size_t>(config.rotary_dim);
    const auto eps = static_cast<float>(config.rms_norm_eps);
    const auto& kernels = compute_.kernels();

    Scratch gated(x.rows, 2 * q_heads * head_dim);
    Scratch query(x.rows, q_heads * head_dim);
    Scratch gate(x.rows, q_heads * head_dim);
    Scratch key(x.rows, kv_heads * head_dim);
    Scratch value(x.rows, kv_heads * head_dim);
    Scratch mixed(x.rows, q_heads * head_dim);
    compute_.matmul(mixer.q_proj, x, gated.rows());
    compute_.matmul(mixer.k_proj, x, key.rows());
    compute_.matmul(mixer.v_proj, x, value.rows());

    std::size_t base = 0;
    for (const Segment& segment : segments) {
        const std::size_t rows = segment.tokens.size();
        Lane& lane = *segment.lane;
        compute_.parallel_for(rows, [&](std::size_t i) {
            const std::size_t r = base + i;
            const Position position = lane.length + static_cast<Position>(i);
            std::vector<float> cosine;
            std::vector<float> sine;
            rope_angles(model_.inverse_frequencies(), position, cosine, sine);
            for (std::size_t h = 0; h < q_heads; ++h) {
                const float* source = gated.row(r) + h * 2 * head_dim;
                float* q = query.row(r) + h * head_dim;
                kernels.rms_norm(source, mixer.q_norm.data(), head_dim, eps, q);
                kernels.rope(q, cosine.data(), sine.data(), rotary);
                std::memcpy(gate.row(r) + h * head_dim, source + head_dim, head_dim * sizeof(float));
            }
            for (std::size_t h = 0; h < kv_heads; ++h) {
                float* k = key.row(r) + h * head_dim;
                kernels.rms_norm(k, mixer.k_norm.data(), head_dim, eps, k);
                kernels.rope(k, cosine.data(), sine.data(), rotary);
            }
            // Rounded (or quantised) here, before any reader, this row included.
            lane.kv.write(state_index, position, key.row(r), value.row(r));
        });
        std::vector<Position> first(rows, 0);
        std::vector<Position> last(rows);
        for (std::size_t i = 0; i < rows; ++i) last[i] = lane.length + static_cast<Position>(i);
        const LaneKeys keys(lane.kv, state_index);
        numerics::AttendArgs args;
        args.queries = slice(ConstRows(query.rows()), base, rows);
        args.out = slice(mixed.rows(), base, rows);
        args.q_heads = static_cast<int>(q_heads);
        args.kv_heads = static_cast<int>(kv_heads);
        args.head_dim = static_cast<int>(head_dim);
        args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
        args.first_visible = first;
        args.last_visible = last;
        numerics::attend(compute_, keys, args);
        base += rows;
    }
    compute_.parallel_for(x.rows, [&](std::size_t r) {
        kernels.sigmoid_mul(mixed.row(r), gate.row(r), q_heads * head_dim, mixed.row(r));
    });
    compute_.matmul(mixer.o_proj, mixed.rows(), out);
}

void TargetForward::delta_mixer(const DeltaMixer& mixer, std::size_t state_index, std::span<const Segment> segments,
                                ConstRows x, Rows out) {
    const TargetConfig& config = model_.config();
    const auto key_heads = static_cast<std::size_t>(config.linear_key_heads);
    const auto value_heads = static_cast<std::size_t>(config.linear_value_heads);
    const auto dk = static_cast<std::size_t>(config.linear_key_dim);
    const auto dv = static_cast<std::size_t>(config.linear_value_dim);
    const auto taps = static_cast<std::size_t>(config.conv_kernel);
    const auto channels = static_cast<std::size_t>(config.conv_channels());
    const auto eps = static_cast<float>(config.rms_norm_eps);
    const std::size_t key_width = key_heads * dk;
    const std::size_t value_width = value_heads * dv;
    const auto& kernels = compute_.kernels();
    // q is scaled after normalisation, k is not; eps sits inside the sum (qwen35-hybrid.md section 5).
    constexpr float kNormEps = 1e-6f;
    const float query_scale = 1.0f / std::sqrt(static_cast<float>(dk));

    Scratch qkv(x.rows, channels);
    Scratch z(x.rows, value_width);
    Scratch b(x.rows, value_heads);
    Scratch a(x.rows, value_heads);
    compute_.matmul(mixer.in_proj_qkv, x, qkv.rows());
    compute_.matmul(mixer.in_proj_z, x, z.rows());
    compute_.matmul(mixer.in_proj_b, x, b.rows());
    compute_.matmul(mixer.in_proj_a, x, a.rows());
    Scratch mixed(x.rows, value_width);

    std::size_t base = 0;
    for (const Segment& segment : segments) {
        const std::size_t rows = segment.tokens.size();
        state::RecurrentState& recurrent = segment.lane->recurrent;
        const state::RecurrentCell& current = recurrent.current();
        state::RecurrentCell& idle = recurrent.idle();

        // Convolution rows are state: rounded at birth, before the convolution reads them.
        const state::StoredRows& old_rows = current.conv[state_index];
        Scratch history(taps - 1 + rows, channels);
        for (std::size_t i = 0; i + 1 < taps; ++i) old_rows.read(i, history.row(i));
        compute_.parallel_for(rows, [&](std::size_t i) {
            float* row = history.row(taps - 1 + i);
            std::memcpy(row, qkv.row(base + i), channels * sizeof(float));
            if (old_rows.format() == state::RowFormat::bf16) kernels.round_bf16(row, channels);
        });
        state::StoredRows& new_rows = idle.conv[state_index];
        for (std::size_t i = 0; i + 1 < taps; ++i) new_rows.write(i, history.row(rows + i));

        Scratch activated(rows, channels);
        const bool chunked = compute_.options().cls == numerics::NumericsClass::schedule_sensitive;
        Scratch log_decay(chunked ? rows : 0, value_heads);
        Scratch decay(rows, value_heads);
        Scratch beta(rows, value_heads);
        compute_.parallel_for(rows, [&](std::size_t i) {
            std::vector<const float*> window(taps);
            for (std::size_t tap = 0; tap < taps; ++tap) window[tap] = history.row(i + tap);
            float* row = activated.row(i);
            kernels.conv_silu(window.data(), mixer.conv.data(), taps, channels, row);
            for (std::size_t h = 0; h < key_heads; ++h) {
                kernels.l2_normalise(row + h * dk, dk, kNormEps, query_scale, row + h * dk);
                float* k = row + key_width + h * dk;
                kernels.l2_normalise(k, dk, kNormEps, 1.0f, k);
            }
            for (std::size_t h = 0; h < value_heads; ++h) {
                const float step = numerics::softplus_f32(a.row(base + i)[h] + mixer.dt_bias[h]);
                if (chunked) log_decay.row(i)[h] = -(mixer.decay_rate[h] * step);
                decay.row(i)[h] = numerics::exp_f32(-(mixer.decay_rate[h] * step));
                beta.row(i)[h] = numerics::sigmoid_f32(b.row(base + i)[h]);
            }
        });

        compute_.parallel_for(value_heads, [&](std::size_t h) {
            const std::size_t key_head = h / (value_heads / key_heads);
            const std::size_t cell = h * dk * dv;
            const float* from = current.matrix[state_index].data() + cell;
            float* to = idle.matrix[state_index].data() + cell;
            if (chunked) {
                numerics::DeltaRows scan;
                scan.query = activated.row(0) + key_head * dk;
                scan.key = activated.row(0) + key_width + key_head * dk;
                scan.value = activated.row(0) + 2 * key_width + h * dv;
                scan.stride = channels;
                scan.log_decay = log_decay.row(0) + h;
                scan.beta = beta.row(0) + h;
                scan.scalar_stride = value_heads;
                scan.out = mixed.row(base) + h * dv;
                scan.out_stride = value_width;
                scan.rows = rows;
                scan.dk = dk;
                scan.dv = dv;
                numerics::delta_scan_chunked(scan, from, to);
                return;
            }
            for (std::size_t i = 0; i < rows; ++i) {
                const float* row = activated.row(i);
                kernels.delta_step(from, to, row + key_head * dk, row + key_width + key_head * dk,
                                   row + 2 * key_width + h * dv, decay.row(i)[h], beta.row(i)[h], dk, dv,
                                   mixed.row(base + i) + h * dv);
                from = to;
            }
        });
        compute_.parallel_for(rows, [&](std::size_t i) {
            for (std::size_t h = 0; h < value_heads; ++h) {
                float* o = mixed.row(base + i) + h * dv;
                kernels.gated_rms_norm(o, mixer.norm.data(), z.row(base + i) + h * dv, dv, eps, o);
            }
        });

        if (segment.keep_operands) {
            state::DeltaOperands& operands = recurrent.operands;
            operands.rows = rows;
            const std::size_t layers = current.matrix.size();
            for (auto* part : {&operands.key, &operands.value, &operands.decay, &operands.beta, &operands.conv}) {
                part->resize(layers);
            }
            auto& key = operands.key[state_index];
            auto& value = operands.value[state_index];
            key.resize(rows * key_width);
            value.resize(rows * value_width);
            for (std::size_t i = 0; i < rows; ++i) {
                std::memcpy(key.data() + i * key_width, activated.row(i) + key_width, key_width * sizeof(float));
                std::memcpy(value.data() + i * value_width, activated.row(i) + 2 * key_width,
                            value_width * sizeof(float));
            }
            operands.decay[state_index] = decay.data;
            operands.beta[state_index] = beta.data;
            operands.conv[state_index].assign(history.row(taps - 1), history.row(taps - 1) + rows * channels);
        }
        base += rows;
    }
    compute_.matmul(mixer.out_proj, mixed.rows(), out);
}

void TargetForward::layer(std::size_t index, std::span<const Segment> segments, Rows hidden) {
    const model::TargetLayer& weights = model_.layers()[index];
    const auto& kernels = compute_.kernels();
    const auto eps = static_cast<float>(model_.config().rms_norm_eps);
    Scratch normed(hidden.rows, hidden.cols);
    Scratch update(hidden.rows, hidden.cols);
    const auto normalise = [&](const std::vector<float>& weight) {
        compute_.parallel_for(hidden.rows, [&](std::size_t r) {
            kernels.rms_norm(hidden.row(r), weight.data(), hidden.cols, eps, normed.row(r));
        });
    };
    const auto add_update = [&] {
        compute_.parallel_for(hidden.rows,
                              [&](std::size_t r) { kernels.add(hidden.row(r), update.row(r), hidden.cols); });
    };
    normalise(weights.input_norm);
    if (const auto* delta = std::get_if<DeltaMixer>(&weights.mixer)) {
        delta_mixer(*delta, weights.state_index, segments, normed.rows(), update.rows());
    } else {
        attention_mixer(std::get<AttentionMixer>(weights.mixer), weights.state_index, segments, normed.rows(),
                        update.rows());
    }
    add_update();
    normalise(weights.post_attention_norm);
    std::visit([&](const auto& ffn) { feed_forward(compute_, ffn, normed.rows(), update.rows()); }, weights.ffn);
    add_update();
}

Status TargetForward::run(std::span<const Segment> segments, ForwardOutput& out) {
    const auto hidden_size = static_cast<std::size_t>(model_.config().hidden);
    const auto vocab = static_cast<std::size_t>(model_.config().vocab);
    for (const Segment& segment : segments) {
        if (segment.tokens.empty()) return invalid_argument("forward: a segment without tokens");
        for (const TokenId token : segment.tokens) {
            if (token >= vocab) {
                return invalid_argument(
                    fmt::format("forward: token id {} is outside the target's vocabulary of {} rows", token, vocab));
            }
        }
        DP_RETURN_IF_ERROR(
            segment.lane->kv.reserve(segment.lane->length + static_cast<Position>(segment.tokens.size()) - 1));
    }
    const std::size_t rows = total_rows(segments);
    out.rows = rows;
    Scratch hidden(rows, hidden_size);
    std::size_t base = 0;
    for (const Segment& segment : segments) {
        embed(segment.tokens, slice(hidden.rows(), base, segment.tokens.size()));
        base += segment.tokens.size();
    }
    out.taps.assign(rows * taps_.size() * hidden_size, 0.0f);
    std::size_t next_tap = 0;
    for (std::size_t i = 0; i < model_.layers().size(); ++i) {
        layer(i, segments, hidden.rows());
        if (next_tap < taps_.size() && taps_[next_tap] == static_cast<std::int64_t>(i)) {
            compute_.parallel_for(rows, [&](std::size_t r) {
                float* tap = out.taps.data() + (r * taps_.size() + next_tap) * hidden_size;
                std::memcpy(tap, hidden.row(r), hidden_size * sizeof(float));
                if (row_format_ == state::RowFormat::bf16) compute_.kernels().round_bf16(tap, hidden_size);
            });
            ++next_tap;
        }
    }
    out.hidden.resize(rows * hidden_size);
    const Rows normed{out.hidden.data(), rows, hidden_size, hidden_size};
    final_norm(hidden.rows(), normed);
    if (!keep_non_finite_) DP_RETURN_IF_ERROR(check_finite(segments, normed));

    out.logit_rows.clear();
    base = 0;
    for (const Segment& segment : segments) {
        const std::size_t end = base + segment.tokens.size();
        if (segment.logits == LogitRows::last) out.logit_rows.push_back(end - 1);
        for (std::size_t r = base; segment.logits == LogitRows::all && r < end; ++r) out.logit_rows.push_back(r);
        base = end;
    }
    if (out.logit_rows.empty()) {
        out.logits.clear();
        return {};
    }
    Scratch chosen(out.logit_rows.size(), hidden_size);
    for (std::size_t i = 0; i < out.logit_rows.size(); ++i) {
        std::memcpy(chosen.row(i), normed.row(out.logit_rows[i]), hidden_size * sizeof(float));
    }
    out.logits.resize(out.logit_rows.size() * vocab);
    logits(chosen.rows(), {out.logits.data(), out.logit_rows.size(), vocab, vocab});
    return {};
}

void TargetForward::commit(Lane& lane, std::span<const TokenId> tokens, std::size_t retained, bool kept_operands) {
    assert(retained <= tokens.size());
    assert(retained == tokens.size() || kept_operands);
    if (retained == 0) return;  // the current cell already is the state after `length` tokens
    state::RecurrentState& recurrent = lane.recurrent;
    if (retained < tokens.size()) {
        const state::DeltaOperands& operands = recurrent.operands;
        assert(operands.rows == tokens.size());
        const TargetConfig& config = model_.config();
        const auto key_heads = static_cast<std::size_t>(config.linear_key_heads);
        const auto value_heads = static_cast<std::size_t>(config.linear_value_heads);
        const auto dk = static_cast<std::size_t>(config.linear_key_dim);
        const auto dv = static_cast<std::size_t>(config.linear_value_dim);
        const std::size_t channels = static_cast<std::size_t>(config.conv_channels());
        const state::RecurrentCell& current = recurrent.current();
        state::RecurrentCell& idle = recurrent.idle();
        for (std::size_t layer = 0; layer < current.matrix.size(); ++layer) {
            compute_.parallel_for(value_heads, [&](std::size_t h) {
                const std::size_t key_head = h / (value_heads / key_heads);
                const float* from = current.matrix[layer].data() + h * dk * dv;
                float* to = idle.matrix[layer].data() + h * dk * dv;
                for (std::size_t i = 0; i < retained; ++i) {
                    compute_.kernels().delta_step(from, to, nullptr,
                                                  operands.key[layer].data() + (i * key_heads + key_head) * dk,
                                                  operands.value[layer].data() + (i * value_heads + h) * dv,
                                                  operands.decay[layer][i * value_heads + h],
                                                  operands.beta[layer][i * value_heads + h], dk, dv, nullptr);
                    from = to;
                }
            });
            // New history: the last conv_rows of [old rows | retained rows].
            const state::StoredRows& old_rows = current.conv[layer];
            state::StoredRows& new_rows = idle.conv[layer];
            std::vector<float> row(channels);
            for (std::size_t i = 0; i < old_rows.rows(); ++i) {
                const std::size_t source = retained + i;  // index into [old rows | retained rows]
                if (source < old_rows.rows()) {
                    old_rows.read(source, row.data());
                    new_rows.write(i, row.data());
                } else {
                    new_rows.write(i, operands.conv[layer].data() + (source - old_rows.rows()) * channels);
                }
            }
        }
    }
    recurrent.idle().consumed = recurrent.current().consumed + static_cast<Position>(retained);
    recurrent.flip();
    state::append_source(lane.target_sources, lane.length, lane.length + static_cast<Position>(retained),
                         state::RowSource::computed);
    lane.length += static_cast<Position>(retained);
    lane.tokens.insert(lane.tokens.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(retained));
    lane.target_rows_written += retained;
}

}  // namespace draftprobe::decode
