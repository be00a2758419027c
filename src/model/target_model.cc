#include "model/target_model.h"

#include <fmt/format.h>

#include "model/weights.h"
#include "numerics/scalar_math.h"

namespace draftprobe::model {

namespace {

std::size_t size(std::int64_t dimension) { return static_cast<std::size_t>(dimension); }

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

    Result<DenseFfn> ffn(const std::string& prefix) const {
        DenseFfn part;
        DP_ASSIGN_OR_RETURN(part.gate_proj, matrix(prefix + "gate_proj", config_.intermediate, config_.hidden));
        DP_ASSIGN_OR_RETURN(part.up_proj, matrix(prefix + "up_proj", config_.intermediate, config_.hidden));
        DP_ASSIGN_OR_RETURN(part.down_proj, matrix(prefix + "down_proj", config_.hidden, config_.intermediate));
        return part;
    }

private:
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
    if (config.moe) {
        return unsupported(fmt::format("{}: architecture {} (mixture of experts); served is the dense qwen3_5 family",
                                       where, config.family()));
    }
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
        DP_ASSIGN_OR_RETURN(layer.ffn, loader.ffn(prefix + "mlp."));
        model->layers_.push_back(std::move(layer));
    }
    const auto count = [&model](const numerics::Matrix& matrix) { model->weight_bytes_ += matrix.bytes(); };
    count(model->embedding_);
    if (!config.tied_embeddings) count(model->head_);
    for (const TargetLayer& layer : model->layers_) {
        for (const auto* matrix : {&layer.ffn.gate_proj, &layer.ffn.up_proj, &layer.ffn.down_proj}) count(*matrix);
        if (const auto* mixer = std::get_if<DeltaMixer>(&layer.mixer)) {
            for (const auto* matrix :
                 {&mixer->in_proj_qkv, &mixer->in_proj_z, &mixer->in_proj_b, &mixer->in_proj_a, &mixer->out_proj}) {
                count(*matrix);
            }
        } else {
            const auto& attention = std::get<AttentionMixer>(layer.mixer);
            for (const auto* matrix : {&attention.q_proj, &attention.k_proj, &attention.v_proj, &attention.o_proj})
                count(*matrix);
        }
    }
    return std::shared_ptr<const TargetModel>(std::move(model));
}

}  // namespace draftprobe::model
