#include "model/target_model.h"

#include <fmt/format.h>

#include "model/experts.h"
#include "model/weights.h"
#include "numerics/scalar_math.h"

namespace draftprobe::model {

namespace {

std::size_t size(std::int64_t dimension) { return static_cast<std::size_t>(dimension); }

std::size_t bytes_of(const DeltaMixer& m) {
    return m.in_proj_qkv.bytes() + m.in_proj_z.bytes() + m.in_proj_b.bytes() + m.in_proj_a.bytes() + m.out_proj.bytes();
}
std::size_t bytes_of(const AttentionMixer& m) {
    return m.q_proj.bytes() + m.k_proj.bytes() + m.v_proj.bytes() + m.o_proj.bytes();
}
std::size_t bytes_of(const DenseFfn& f) { return f.gate_proj.bytes() + f.up_proj.bytes() + f.down_proj.bytes(); }
std::size_t bytes_of(const MoeFfn& f) {
    std::size_t bytes = f.router.bytes() + f.shared_gate.bytes() + bytes_of(f.shared);
    for (const DenseFfn& expert : f.experts) bytes += bytes_of(expert);
    return bytes;
}

class Loader {
public:
    Loader(const Checkpoint& checkpoint, const TargetConfig& config) : checkpoint_(checkpoint), config_(config) {}

    Result<numerics::Matrix> matrix(const std::string& module, std::int64_t out, std::int64_t in) const {
        return load_matrix(checkpoint_, module, size(out), size(in));
    }

    Result<std::vector<float>> vector(const std::string& name, std::initializer_list<std::uint64_t> shape) const {
        return load_vector(checkpoint_, name, shape);
    }

    // A zero-centred norm as a factor: Hugging Face stores w and computes with 1 + float32(w); MLX stores the rounded 1
    // + w.
    Result<std::vector<float>> norm_factor(const std::string& name, std::int64_t width) const {
        DP_ASSIGN_OR_RETURN(std::vector<float> values, vector(name, {static_cast<std::uint64_t>(width)}));
        if (checkpoint_.layout() == CheckpointLayout::huggingface) {
            for (float& value : values) value += 1.0f;
        }
        return values;
    }

    Result<DeltaMixer> delta(const std::string& prefix) const {
        DeltaMixer mixer;
        const std::int64_t hidden = config_.hidden;
        const std::int64_t channels = config_.conv_channels();
        DP_ASSIGN_OR_RETURN(mixer.in_proj_qkv, matrix(prefix + "in_proj_qkv", channels, hidden));
        DP_ASSIGN_OR_RETURN(mixer.in_proj_z, matrix(prefix + "in_proj_z", config_.value_width(), hidden));
        DP_ASSIGN_OR_RETURN(mixer.in_proj_b, matrix(prefix + "in_proj_b", config_.linear_value_heads, hidden));
        DP_ASSIGN_OR_RETURN(mixer.in_proj_a, matrix(prefix + "in_proj_a", config_.linear_value_heads, hidden));
        DP_ASSIGN_OR_RETURN(mixer.out_proj, matrix(prefix + "out_proj", hidden, config_.value_width()));
        DP_RETURN_IF_ERROR(load_conv(prefix, mixer));
        const auto heads = static_cast<std::uint64_t>(config_.linear_value_heads);
        DP_ASSIGN_OR_RETURN(const std::vector<float> a_log, vector(prefix + "A_log", {heads}));
        for (const float value : a_log) mixer.decay_rate.push_back(static_cast<float>(numerics::exp_f64(value)));
        DP_ASSIGN_OR_RETURN(mixer.dt_bias, vector(prefix + "dt_bias", {heads}));
        DP_ASSIGN_OR_RETURN(mixer.norm,
                            vector(prefix + "norm.weight", {static_cast<std::uint64_t>(config_.linear_value_dim)}));
        return mixer;
    }

    Result<AttentionMixer> attention(const std::string& prefix) const {
        AttentionMixer mixer;
        const std::int64_t q_width = config_.q_heads * config_.head_dim;
        const std::int64_t kv_width = config_.kv_heads * config_.head_dim;
        DP_ASSIGN_OR_RETURN(mixer.q_proj, matrix(prefix + "q_proj", 2 * q_width, config_.hidden));
        DP_ASSIGN_OR_RETURN(mixer.k_proj, matrix(prefix + "k_proj", kv_width, config_.hidden));
        DP_ASSIGN_OR_RETURN(mixer.v_proj, matrix(prefix + "v_proj", kv_width, config_.hidden));
        DP_ASSIGN_OR_RETURN(mixer.o_proj, matrix(prefix + "o_proj", config_.hidden, q_width));
        DP_ASSIGN_OR_RETURN(mixer.q_norm, norm_factor(prefix + "q_norm.weight", config_.head_dim));
        DP_ASSIGN_OR_RETURN(mixer.k_norm, norm_factor(prefix + "k_norm.weight", config_.head_dim));
        return mixer;
    }

    Result<std::variant<DenseFfn, MoeFfn>> feed_forward(const std::string& prefix) const {
        if (!config_.moe) {
            DP_ASSIGN_OR_RETURN(DenseFfn part, dense(prefix, config_.intermediate));
            return std::variant<DenseFfn, MoeFfn>(std::move(part));
        }
        const MoeConfig& moe = *config_.moe;
        MoeFfn part;
        part.experts_per_token = size(moe.experts_per_token);
        DP_ASSIGN_OR_RETURN(part.router, matrix(prefix + "gate", moe.experts, config_.hidden));
        DP_ASSIGN_OR_RETURN(part.shared_gate, matrix(prefix + "shared_expert_gate", 1, config_.hidden));
        DP_ASSIGN_OR_RETURN(part.shared, dense(prefix + "shared_expert.", moe.shared_expert_intermediate));
        DP_ASSIGN_OR_RETURN(part.experts, load_experts(checkpoint_, prefix, moe, config_.hidden));
        return std::variant<DenseFfn, MoeFfn>(std::move(part));
    }

private:
    Result<DenseFfn> dense(const std::string& prefix, std::int64_t width) const {
        DenseFfn part;
        DP_ASSIGN_OR_RETURN(part.gate_proj, matrix(prefix + "gate_proj", width, config_.hidden));
        DP_ASSIGN_OR_RETURN(part.up_proj, matrix(prefix + "up_proj", width, config_.hidden));
        DP_ASSIGN_OR_RETURN(part.down_proj, matrix(prefix + "down_proj", config_.hidden, width));
        return part;
    }

    // [C, 1, K] and [C, K, 1] have the same memory order; kernels want [K][C].
    Status load_conv(const std::string& prefix, DeltaMixer& mixer) const {
        const auto channels = static_cast<std::uint64_t>(config_.conv_channels());
        const auto taps = static_cast<std::uint64_t>(config_.conv_kernel);
        const bool mlx = checkpoint_.layout() == CheckpointLayout::mlx;
        auto loaded = mlx ? vector(prefix + "conv1d.weight", {channels, taps, 1})
                          : vector(prefix + "conv1d.weight", {channels, 1, taps});
        if (!loaded.ok()) return loaded.status();
        mixer.conv.resize(channels * taps);
        for (std::size_t c = 0; c < channels; ++c) {
            for (std::size_t tap = 0; tap < taps; ++tap)
                mixer.conv[tap * channels + c] = loaded.value()[c * taps + tap];
        }
        return {};
    }

    const Checkpoint& checkpoint_;
    const TargetConfig& config_;
};

}  // namespace

Result<std::shared_ptr<const TargetModel>> TargetModel::load(const Checkpoint& checkpoint, const TargetConfig& config) {
    const std::string where = checkpoint.dir().string();
    if (config.head_dim % 16 != 0) {
        return unsupported(fmt::format("{}: head_dim {}; served are multiples of 16", where, config.head_dim));
    }
    auto model = std::make_shared<TargetModel>();
    model->config_ = config;
    const Loader loader(checkpoint, model->config_);
    DP_ASSIGN_OR_RETURN(model->embedding_, loader.matrix("embed_tokens", config.vocab, config.hidden));
    if (!config.tied_embeddings) {
        DP_ASSIGN_OR_RETURN(model->head_, loader.matrix("lm_head", config.vocab, config.hidden));
    }
    DP_ASSIGN_OR_RETURN(model->final_norm_, loader.norm_factor("norm.weight", config.hidden));
    for (std::int64_t i = 0; i < config.rotary_dim / 2; ++i) {
        model->inverse_frequencies_.push_back(numerics::rope_inverse_frequency(config.rope_theta, static_cast<int>(i),
                                                                               static_cast<int>(config.rotary_dim)));
    }
    std::size_t delta_index = 0;
    std::size_t attention_index = 0;
    for (std::int64_t i = 0; i < config.layers; ++i) {
        const std::string prefix = fmt::format("layers.{}.", i);
        TargetLayer layer;
        DP_ASSIGN_OR_RETURN(layer.input_norm, loader.norm_factor(prefix + "input_layernorm.weight", config.hidden));
        DP_ASSIGN_OR_RETURN(layer.post_attention_norm,
                            loader.norm_factor(prefix + "post_attention_layernorm.weight", config.hidden));
        if (config.layer_kinds[size(i)] == LayerKind::linear_attention) {
            DP_ASSIGN_OR_RETURN(layer.mixer, loader.delta(prefix + "linear_attn."));
            layer.state_index = delta_index++;
        } else {
            DP_ASSIGN_OR_RETURN(layer.mixer, loader.attention(prefix + "self_attn."));
            layer.state_index = attention_index++;
        }
        DP_ASSIGN_OR_RETURN(layer.ffn, loader.feed_forward(prefix + "mlp."));
        model->layers_.push_back(std::move(layer));
    }
    model->weight_bytes_ = model->embedding_.bytes() + model->head_.bytes();
    for (const TargetLayer& layer : model->layers_) {
        model->weight_bytes_ += std::visit([](const auto& part) { return bytes_of(part); }, layer.mixer);
        model->weight_bytes_ += std::visit([](const auto& part) { return bytes_of(part); }, layer.ffn);
    }
    return std::shared_ptr<const TargetModel>(std::move(model));
}

}  // namespace draftprobe::model
