#include "model/draft_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/weights.h"
#include "numerics/scalar_math.h"

namespace draftprobe::model {

namespace {

std::size_t size(std::int64_t dimension) { return static_cast<std::size_t>(dimension); }
std::uint64_t extent(std::int64_t dimension) { return static_cast<std::uint64_t>(dimension); }

Result<DynamicConv> load_dynamic_conv(const Checkpoint& checkpoint, const DraftConfig& config,
                                      const std::string& prefix) {
    DynamicConv conv;
    const std::int64_t taps = config.conv->kernel;
    DP_ASSIGN_OR_RETURN(conv.base,
                        load_vector(checkpoint, prefix + "base_kernel", {2, extent(taps), extent(config.hidden)}));
    DP_ASSIGN_OR_RETURN(conv.kernel_projection,
                        load_matrix(checkpoint, prefix + "kernel_projection", size(2 * taps * config.conv_groups()),
                                    size(config.hidden)));
    return conv;
}

Result<DraftLayerWeights> load_layer(const Checkpoint& checkpoint, const DraftConfig& config,
                                     const std::string& prefix) {
    DraftLayerWeights layer;
    const std::size_t hidden = size(config.hidden);
    const std::size_t q_width = size(config.q_heads * config.head_dim);
    const std::size_t kv_width = size(config.kv_heads * config.head_dim);
    const std::size_t ffn = size(config.intermediate);
    const std::uint64_t head = extent(config.head_dim);
    DP_ASSIGN_OR_RETURN(layer.input_norm, load_vector(checkpoint, prefix + "input_layernorm.weight", {hidden}));
    DP_ASSIGN_OR_RETURN(layer.post_attention_norm,
                        load_vector(checkpoint, prefix + "post_attention_layernorm.weight", {hidden}));
    DP_ASSIGN_OR_RETURN(layer.q_proj, load_matrix(checkpoint, prefix + "self_attn.q_proj", q_width, hidden));
    DP_ASSIGN_OR_RETURN(layer.k_proj, load_matrix(checkpoint, prefix + "self_attn.k_proj", kv_width, hidden));
    DP_ASSIGN_OR_RETURN(layer.v_proj, load_matrix(checkpoint, prefix + "self_attn.v_proj", kv_width, hidden));
    DP_ASSIGN_OR_RETURN(layer.o_proj, load_matrix(checkpoint, prefix + "self_attn.o_proj", hidden, q_width));
    DP_ASSIGN_OR_RETURN(layer.q_norm, load_vector(checkpoint, prefix + "self_attn.q_norm.weight", {head}));
    DP_ASSIGN_OR_RETURN(layer.k_norm, load_vector(checkpoint, prefix + "self_attn.k_norm.weight", {head}));
    DP_ASSIGN_OR_RETURN(layer.attention_conv, load_dynamic_conv(checkpoint, config, prefix + "attention_conv."));
    DP_ASSIGN_OR_RETURN(layer.mlp_conv, load_dynamic_conv(checkpoint, config, prefix + "mlp_conv."));
    DP_ASSIGN_OR_RETURN(layer.gate_proj, load_matrix(checkpoint, prefix + "mlp.gate_proj", ffn, hidden));
    DP_ASSIGN_OR_RETURN(layer.up_proj, load_matrix(checkpoint, prefix + "mlp.up_proj", ffn, hidden));
    DP_ASSIGN_OR_RETURN(layer.down_proj, load_matrix(checkpoint, prefix + "mlp.down_proj", hidden, ffn));
    return layer;
}

}  // namespace

Result<std::shared_ptr<const DraftModel>> DraftModel::load(const Checkpoint& checkpoint, const DraftConfig& config) {
    const std::string where = checkpoint.dir().string();
    if (config.version != DraftVersion::dflash2) {
        return unsupported(fmt::format("{}: DFlash v1 draft; served is DFlash2 (DFlash2DraftModel)", where));
    }
    if (config.head_dim % 16 != 0) {
        return unsupported(fmt::format("{}: head_dim {}; served are multiples of 16", where, config.head_dim));
    }
    for (std::size_t i = 0; i < config.layer_attention.size(); ++i) {
        if (config.layer_attention[i].causal) {
            return unsupported(
                fmt::format("{}: draft layer {} is causal; served are non-causal layers (is_causal false)", where, i));
        }
    }
    auto model = std::make_shared<DraftModel>();
    model->config_ = config;
    const std::size_t hidden = size(config.hidden);
    DP_ASSIGN_OR_RETURN(model->fc_, load_matrix(checkpoint, "fc", hidden, config.taps.size() * hidden));
    DP_ASSIGN_OR_RETURN(model->hidden_norm_, load_vector(checkpoint, "hidden_norm.weight", {hidden}));
    DP_ASSIGN_OR_RETURN(model->norm_, load_vector(checkpoint, "norm.weight", {hidden}));
    const std::uint64_t rank = extent(config.selector->rank);
    DP_ASSIGN_OR_RETURN(model->selector_hidden_,
                        load_matrix(checkpoint, "candidate_selector.hidden_projection", rank, hidden));
    for (const auto& [member, name] : {std::pair{&model->predecessor_, "predecessor_codebook"},
                                       std::pair{&model->successor_, "successor_codebook"}}) {
        // Some ports rename the bare codebooks to "...codebook.weight".
        std::string full = std::string("candidate_selector.") + name;
        if (!checkpoint.has(full) && checkpoint.has(full + ".weight")) full += ".weight";
        DP_ASSIGN_OR_RETURN(*member, load_vector(checkpoint, full, {extent(config.vocab), rank}));
    }
    for (std::int64_t i = 0; i < config.layers; ++i) {
        DP_ASSIGN_OR_RETURN(DraftLayerWeights layer, load_layer(checkpoint, config, fmt::format("layers.{}.", i)));
        model->layers_.push_back(std::move(layer));
        const std::size_t window = size(config.layer_attention[size(i)].window);
        if (window == 0) {
            model->window_ = 0;
        } else if (i == 0 || model->window_ != 0) {
            model->window_ = std::max(model->window_, window);
        }
    }
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
