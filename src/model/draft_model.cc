#include "model/draft_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/float_bits.h"
#include "model/weights.h"
#include "numerics/scalar_math.h"

namespace draftprobe::model {

namespace {

std::size_t size(std::int64_t dimension) { return static_cast<std::size_t>(dimension); }
std::uint64_t extent(std::int64_t dimension) { return static_cast<std::uint64_t>(dimension); }

// Loads linear maps at one precision and notes which of them it could not quantise.
class LinearLoader {
public:
    LinearLoader(const Checkpoint& checkpoint, DraftPrecision precision)
        : checkpoint_(checkpoint), precision_(precision) {}

    Result<numerics::Matrix> load(const std::string& module, std::size_t out, std::size_t in) {
        if (precision_ == DraftPrecision::stored) return load_matrix(checkpoint_, module, out, in);
        if (in % numerics::kGroupColumns != 0) kept_stored_.push_back(module);
        return load_matrix_affine4(checkpoint_, module, out, in);
    }
    const Checkpoint& checkpoint() const { return checkpoint_; }
    std::vector<std::string> take_kept_stored() { return std::move(kept_stored_); }

private:
    const Checkpoint& checkpoint_;
    DraftPrecision precision_;
    std::vector<std::string> kept_stored_;
};

Result<DynamicConv> load_dynamic_conv(LinearLoader& linear, const DraftConfig& config, const std::string& prefix) {
    DynamicConv conv;
    const std::int64_t taps = config.conv->kernel;
    DP_ASSIGN_OR_RETURN(
        conv.base, load_vector(linear.checkpoint(), prefix + "base_kernel", {2, extent(taps), extent(config.hidden)}));
    DP_ASSIGN_OR_RETURN(
        conv.kernel_projection,
        linear.load(prefix + "kernel_projection", size(2 * taps * config.conv_groups()), size(config.hidden)));
    return conv;
}

Result<DraftLayerWeights> load_layer(LinearLoader& linear, const DraftConfig& config, const std::string& prefix) {
    DraftLayerWeights layer;
    const std::size_t hidden = size(config.hidden);
    const std::size_t q_width = size(config.q_heads * config.head_dim);
    const std::size_t kv_width = size(config.kv_heads * config.head_dim);
    const std::size_t ffn = size(config.intermediate);
    const std::uint64_t head = extent(config.head_dim);
    const auto vector = [&](const char* name, std::uint64_t length) {
        return load_vector(linear.checkpoint(), prefix + name, {length});
    };
    DP_ASSIGN_OR_RETURN(layer.input_norm, vector("input_layernorm.weight", hidden));
    DP_ASSIGN_OR_RETURN(layer.post_attention_norm, vector("post_attention_layernorm.weight", hidden));
    DP_ASSIGN_OR_RETURN(layer.q_proj, linear.load(prefix + "self_attn.q_proj", q_width, hidden));
    DP_ASSIGN_OR_RETURN(layer.k_proj, linear.load(prefix + "self_attn.k_proj", kv_width, hidden));
    DP_ASSIGN_OR_RETURN(layer.v_proj, linear.load(prefix + "self_attn.v_proj", kv_width, hidden));
    DP_ASSIGN_OR_RETURN(layer.o_proj, linear.load(prefix + "self_attn.o_proj", hidden, q_width));
    DP_ASSIGN_OR_RETURN(layer.q_norm, vector("self_attn.q_norm.weight", head));
    DP_ASSIGN_OR_RETURN(layer.k_norm, vector("self_attn.k_norm.weight", head));
    if (config.conv) {
        DP_ASSIGN_OR_RETURN(layer.attention_conv, load_dynamic_conv(linear, config, prefix + "attention_conv."));
        DP_ASSIGN_OR_RETURN(layer.mlp_conv, load_dynamic_conv(linear, config, prefix + "mlp_conv."));
    }
    DP_ASSIGN_OR_RETURN(layer.gate_proj, linear.load(prefix + "mlp.gate_proj", ffn, hidden));
    DP_ASSIGN_OR_RETURN(layer.up_proj, linear.load(prefix + "mlp.up_proj", ffn, hidden));
    DP_ASSIGN_OR_RETURN(layer.down_proj, linear.load(prefix + "mlp.down_proj", hidden, ffn));
    return layer;
}

Result<Selector> load_selector(LinearLoader& linear, const DraftConfig& config) {
    const std::string prefix = "candidate_selector.";
    const std::size_t rank = size(config.selector->rank);
    const std::size_t vocab = size(config.vocab);
    Selector selector;
    DP_ASSIGN_OR_RETURN(selector.hidden_projection,
                        linear.load(prefix + "hidden_projection", rank, size(config.hidden)));
    DP_ASSIGN_OR_RETURN(selector.predecessor,
                        Codebook::load(linear.checkpoint(), prefix + "predecessor_codebook", vocab, rank));
    DP_ASSIGN_OR_RETURN(selector.successor,
                        Codebook::load(linear.checkpoint(), prefix + "successor_codebook", vocab, rank));
    return selector;
}

// Largest window of any layer; 0 when some layer is unlimited.
std::size_t widest_window(const std::vector<DraftLayer>& layers) {
    std::int64_t widest = 0;
    for (const DraftLayer& layer : layers) {
        if (layer.window == 0) return 0;
        widest = std::max(widest, layer.window);
    }
    return size(widest);
}

}  // namespace

Result<Codebook> Codebook::load(const Checkpoint& checkpoint, std::string_view name, std::size_t rows,
                                std::size_t cols) {
    Codebook book;
    book.cols_ = cols;
    if (checkpoint.is_affine(name)) {
        DP_ASSIGN_OR_RETURN(const numerics::Matrix matrix, load_matrix(checkpoint, name, rows, cols));
        std::vector<float> row(cols);
        book.narrow_.reserve(rows * cols);
        for (std::size_t r = 0; r < rows; ++r) {
            matrix.dequantise_row(r, row.data());
            for (const float value : row) book.narrow_.push_back(f32_to_bf16(value));
        }
        return book;
    }
    const std::uint64_t shape[] = {rows, cols};
    DP_ASSIGN_OR_RETURN(const TensorView* view, checkpoint.require(name, shape));
    if (view->dtype == DType::bf16) {
        book.narrow_.resize(rows * cols);
        std::memcpy(book.narrow_.data(), view->bytes.data(), view->bytes.size());
        return book;
    }
    DP_ASSIGN_OR_RETURN(book.wide_, checkpoint.require_f32(name, shape));
    return book;
}

void Codebook::read(TokenId token, float* values) const {
    const std::size_t first = token * cols_;
    for (std::size_t i = 0; i < cols_; ++i) {
        values[i] = wide_.empty() ? bf16_to_f32(narrow_[first + i]) : wide_[first + i];
    }
}

Result<std::shared_ptr<const DraftModel>> DraftModel::load(const Checkpoint& checkpoint, const DraftConfig& config,
                                                           DraftPrecision precision) {
    if (config.head_dim % 16 != 0) {
        return unsupported(
            fmt::format("{}: head_dim {}; served are multiples of 16", checkpoint.dir().string(), config.head_dim));
    }
    auto model = std::make_shared<DraftModel>();
    model->config_ = config;
    model->precision_ = precision;
    LinearLoader linear(checkpoint, precision);
    const std::size_t hidden = size(config.hidden);
    DP_ASSIGN_OR_RETURN(model->fc_, linear.load("fc", hidden, config.taps.size() * hidden));
    DP_ASSIGN_OR_RETURN(model->hidden_norm_, load_vector(checkpoint, "hidden_norm.weight", {hidden}));
    DP_ASSIGN_OR_RETURN(model->norm_, load_vector(checkpoint, "norm.weight", {hidden}));
    if (config.selector) {
        DP_ASSIGN_OR_RETURN(model->selector_, load_selector(linear, config));
    }
    for (std::int64_t i = 0; i < config.layers; ++i) {
        DP_ASSIGN_OR_RETURN(DraftLayerWeights layer, load_layer(linear, config, fmt::format("layers.{}.", i)));
        model->layers_.push_back(std::move(layer));
    }
    model->kept_stored_ = linear.take_kept_stored();
    model->window_ = widest_window(config.layer_attention);
    for (std::int64_t i = 0; i < config.head_dim / 2; ++i) {
        model->inverse_frequencies_.push_back(numerics::rope_inverse_frequency(config.rope_theta, static_cast<int>(i),
                                                                               static_cast<int>(config.head_dim)));
    }
    return std::shared_ptr<const DraftModel>(std::move(model));
}

Status check_pair(const TargetConfig& target, const DraftConfig& draft) {
    const auto differ = [](std::string_view field, std::int64_t draft_value, std::int64_t target_value) {
        return mismatch(fmt::format(
            "draft and target do not belong together: {} is {} in the draft, {} in the target; use the draft "
            "that was trained for this target",
            field, draft_value, target_value));
    };
    if (draft.hidden != target.hidden) return differ("hidden_size", draft.hidden, target.hidden);
    if (draft.vocab != target.vocab) return differ("vocab_size", draft.vocab, target.vocab);
    if (draft.target_layers != 0 && draft.target_layers != target.layers) {
        return differ("num_target_layers (num_hidden_layers of the target)", draft.target_layers, target.layers);
    }
    for (const std::int64_t tap : draft.taps) {
        if (tap >= target.layers)
            return differ("target_layer_ids entry (must be below the target's depth)", tap, target.layers);
    }
    return {};
}

}  // namespace draftprobe::model
