#include "support/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace draftprobe::support {

namespace {

using Shape = std::vector<std::uint64_t>;
using Tensors = std::vector<StoredTensor>;

// Common to the family.
constexpr std::uint64_t kVocab = 248320;
constexpr std::uint64_t kHeadDim = 256;
constexpr std::uint64_t kDeltaHeadDim = 128;
constexpr std::uint64_t kKeyHeads = 16;
constexpr std::uint64_t kTaps = 4;
constexpr std::uint64_t kExperts = 256;
constexpr std::uint64_t kExpertWidth = 512;
constexpr std::uint64_t kGroup = 64;

bool full_attention(std::uint64_t layer) { return layer % 4 == 3; }

Json text_config(const PublishedTarget& target) {
    Json text = {{"hidden_size", target.hidden},
                 {"num_hidden_layers", target.layers},
                 {"num_attention_heads", target.q_heads},
                 {"num_key_value_heads", target.kv_heads},
                 {"head_dim", kHeadDim},
                 {"full_attention_interval", 4},
                 {"linear_num_key_heads", kKeyHeads},
                 {"linear_num_value_heads", target.value_heads},
                 {"linear_key_head_dim", kDeltaHeadDim},
                 {"linear_value_head_dim", kDeltaHeadDim},
                 {"linear_conv_kernel_dim", kTaps},
                 {"attn_output_gate", true},
                 {"rope_parameters",
                  {{"rope_type", "default"},
                   {"rope_theta", 10000000},
                   {"partial_rotary_factor", 0.25},
                   {"mrope_section", {11, 11, 10}},
                   {"mrope_interleaved", true}}},
                 {"rms_norm_eps", 1e-6},
                 {"hidden_act", "silu"},
                 {"vocab_size", kVocab},
                 {"max_position_embeddings", 262144},
                 {"tie_word_embeddings", target.tied},
                 {"mamba_ssm_dtype", "float32"},
                 {"attention_bias", false},
                 {"attention_dropout", 0.0},
                 {"mtp_num_hidden_layers", 1},
                 {"eos_token_id", 248044},
                 {"model_type", target.mixture() ? "qwen3_5_moe_text" : "qwen3_5_text"}};
    if (target.mixture()) {
        text.update({{"num_experts", kExperts},
                     {"num_experts_per_tok", 8},
                     {"moe_intermediate_size", kExpertWidth},
                     {"shared_expert_intermediate_size", kExpertWidth},
                     {"router_aux_loss_coef", 0.001},
                     {"output_router_logits", false}});
    } else {
        text["intermediate_size"] = target.intermediate;
    }
    if (target.state_layer_types) {
        Json types = Json::array();
        for (std::uint64_t i = 0; i < target.layers; ++i) {
            types.push_back(full_attention(i) ? "full_attention" : "linear_attention");
        }
        text["layer_types"] = std::move(types);
    }
    return text;
}

CheckpointFiles target_descriptions(const PublishedTarget& target) {
    CheckpointFiles files;
    files.config = {{"architectures",
                     {target.mixture() ? "Qwen3_5MoeForConditionalGeneration" : "Qwen3_5ForConditionalGeneration"}},
                    {"model_type", target.mixture() ? "qwen3_5_moe" : "qwen3_5"},
                    {"tie_word_embeddings", target.tied},
                    {"image_token_id", 248056},
                    {"text_config", text_config(target)}};
    files.generation = Json{{"eos_token_id", {248046, 248044}}, {"temperature", 1.0}};
    return files;
}

// A module is a linear map, a table or a stack of linear maps; a vector is everything else.
struct Sink {
    std::function<void(const std::string& module, const Shape& shape)> module;
    std::function<void(const std::string& name, const Shape& shape, DType dtype)> vector;
};

void delta_mixer(const PublishedTarget& target, const std::string& prefix, bool mlx, const Sink& sink) {
    const std::uint64_t hidden = target.hidden;
    const std::uint64_t keys = kKeyHeads * kDeltaHeadDim;
    const std::uint64_t values = target.value_heads * kDeltaHeadDim;
    const std::uint64_t channels = 2 * keys + values;
    const DType delta_dtype = target.f32_delta_vectors ? DType::f32 : DType::bf16;
    sink.vector(prefix + "A_log", {target.value_heads}, delta_dtype);
    sink.vector(prefix + "conv1d.weight", mlx ? Shape{channels, kTaps, 1} : Shape{channels, 1, kTaps}, DType::bf16);
    sink.vector(prefix + "dt_bias", {target.value_heads}, DType::bf16);
    sink.module(prefix + "in_proj_a", {target.value_heads, hidden});
    sink.module(prefix + "in_proj_b", {target.value_heads, hidden});
    sink.module(prefix + "in_proj_qkv", {channels, hidden});
    sink.module(prefix + "in_proj_z", {values, hidden});
    // MLX casts everything but A_log to the model's dtype.
    sink.vector(prefix + "norm.weight", {kDeltaHeadDim}, mlx ? DType::bf16 : delta_dtype);
    sink.module(prefix + "out_proj", {hidden, values});
}

void attention_mixer(const PublishedTarget& target, const std::string& prefix, const Sink& sink) {
    const std::uint64_t queries = target.q_heads * kHeadDim;
    const std::uint64_t kv = target.kv_heads * kHeadDim;
    sink.vector(prefix + "k_norm.weight", {kHeadDim}, DType::bf16);
    sink.module(prefix + "k_proj", {kv, target.hidden});
    sink.module(prefix + "o_proj", {target.hidden, queries});
    sink.vector(prefix + "q_norm.weight", {kHeadDim}, DType::bf16);
    sink.module(prefix + "q_proj", {2 * queries, target.hidden});
    sink.module(prefix + "v_proj", {kv, target.hidden});
}

void swiglu(std::uint64_t hidden, std::uint64_t width, const std::string& prefix, const Sink& sink) {
    sink.module(prefix + "down_proj", {hidden, width});
    sink.module(prefix + "gate_proj", {width, hidden});
    sink.module(prefix + "up_proj", {width, hidden});
}

void mixture(const PublishedTarget& target, const std::string& prefix, bool mlx, const Sink& sink) {
    const std::uint64_t hidden = target.hidden;
    if (mlx) {
        sink.module(prefix + "switch_mlp.down_proj", {kExperts, hidden, kExpertWidth});
        sink.module(prefix + "switch_mlp.gate_proj", {kExperts, kExpertWidth, hidden});
        sink.module(prefix + "switch_mlp.up_proj", {kExperts, kExpertWidth, hidden});
    } else if (target.experts == Experts::stacked) {
        sink.vector(prefix + "experts.down_proj", {kExperts, hidden, kExpertWidth}, DType::bf16);
        sink.vector(prefix + "experts.gate_up_proj", {kExperts, 2 * kExpertWidth, hidden}, DType::bf16);
    } else {
        for (std::uint64_t e = 0; e < kExperts; ++e) {
            swiglu(hidden, kExpertWidth, fmt::format("{}experts.{}.", prefix, e), sink);
        }
    }
    sink.module(prefix + "gate", {kExperts, hidden});
    swiglu(hidden, kExpertWidth, prefix + "shared_expert.", sink);
    sink.module(prefix + "shared_expert_gate", {1, hidden});
}

// Everything but the head, under `prefix`.
void text_model(const PublishedTarget& target, const std::string& prefix, bool mlx, const Sink& sink) {
    sink.module(prefix + "embed_tokens", {kVocab, target.hidden});
    for (std::uint64_t i = 0; i < target.layers; ++i) {
        const std::string layer = fmt::format("{}layers.{}.", prefix, i);
        sink.vector(layer + "input_layernorm.weight", {target.hidden}, DType::bf16);
        if (full_attention(i)) {
            attention_mixer(target, layer + "self_attn.", sink);
        } else {
            delta_mixer(target, layer + "linear_attn.", mlx, sink);
        }
        if (target.mixture()) {
            mixture(target, layer + "mlp.", mlx, sink);
        } else {
            swiglu(target.hidden, target.intermediate, layer + "mlp.", sink);
        }
        sink.vector(layer + "post_attention_layernorm.weight", {target.hidden}, DType::bf16);
    }
    sink.vector(prefix + "norm.weight", {target.hidden}, DType::bf16);
}

Sink plain_sink(Tensors& tensors) {
    return {[&tensors](const std::string& module, const Shape& shape) {
                tensors.push_back({module + ".weight", DType::bf16, shape});
            },
            [&tensors](const std::string& name, const Shape& shape, DType dtype) {
                tensors.push_back({name, dtype, shape});
            }};
}

void quantised(Tensors& tensors, const std::string& module, const Shape& shape, std::uint64_t bits) {
    Shape words = shape;
    Shape groups = shape;
    words.back() = shape.back() * bits / 32;
    groups.back() = shape.back() / kGroup;
    tensors.push_back({module + ".weight", DType::u32, words});
    tensors.push_back({module + ".scales", DType::bf16, groups});
    tensors.push_back({module + ".biases", DType::bf16, groups});
}

bool eight_bits(const std::string& module) {
    return module.ends_with("mlp.gate") || module.ends_with("shared_expert_gate");
}

void put_weights(CheckpointFiles& files, Tensors tensors, std::size_t shards) {
    if (shards == 1) {
        put_in_one_file(files, std::move(tensors));
    } else {
        put_in_shards(files, std::move(tensors), shards);
    }
}

}  // namespace

const PublishedTarget kQwen35Small = {.hidden = 1024,
                                      .layers = 24,
                                      .intermediate = 3584,
                                      .q_heads = 8,
                                      .kv_heads = 2,
                                      .value_heads = 16,
                                      .tied = true,
                                      .f32_delta_vectors = true};
const PublishedTarget kQwen35Medium = {.hidden = 2560,
                                       .layers = 32,
                                       .intermediate = 9216,
                                       .q_heads = 16,
                                       .kv_heads = 4,
                                       .value_heads = 32,
                                       .tied = true,
                                       .shards = 2,
                                       .state_layer_types = false};
const PublishedTarget kQwen35Large = {.hidden = 5120,
                                      .layers = 64,
                                      .intermediate = 17408,
                                      .q_heads = 24,
                                      .kv_heads = 4,
                                      .value_heads = 48,
                                      .shards = 11,
                                      .mlx_shards = 3};
const PublishedTarget kQwen35Mixture = {
    .hidden = 2048, .layers = 40, .q_heads = 16, .kv_heads = 2, .value_heads = 32, .shards = 14, .mlx_shards = 4};

CheckpointFiles huggingface_target(const PublishedTarget& target) {
    CheckpointFiles files = target_descriptions(target);
    Tensors tensors;
    text_model(target, "model.language_model.", false, plain_sink(tensors));
    if (!target.tied) tensors.push_back({"lm_head.weight", DType::bf16, {kVocab, target.hidden}});
    tensors.push_back({"mtp.fc.weight", DType::bf16, {target.hidden, 2 * target.hidden}});
    tensors.push_back({"mtp.norm.weight", DType::bf16, {target.hidden}});
    tensors.push_back({"model.visual.patch_embed.proj.weight", DType::bf16, {1152, 3, 2, 16, 16}});
    put_weights(files, std::move(tensors), target.shards);
    return files;
}

CheckpointFiles mlx_target(const PublishedTarget& target) {
    CheckpointFiles files = target_descriptions(target);
    files.format = "mlx";
    Json quantization = {{"group_size", kGroup}, {"bits", 4}, {"mode", "affine"}};
    Tensors tensors;
    Sink sink = plain_sink(tensors);
    sink.module = [&](const std::string& module, const Shape& shape) {
        if (eight_bits(module)) quantization[module] = {{"group_size", kGroup}, {"bits", 8}};
        quantised(tensors, module, shape, eight_bits(module) ? 8 : 4);
    };
    text_model(target, "language_model.model.", true, sink);
    if (!target.tied) sink.module("language_model.lm_head", {kVocab, target.hidden});
    files.config["quantization"] = quantization;
    files.config["quantization_config"] = quantization;
    put_weights(files, std::move(tensors), target.mlx_shards);
    return files;
}

PublishedDraft draft_27b_second() {
    return {.hidden = 5120,
            .intermediate = 17408,
            .layers = 5,
            .target_layers = 64,
            .taps = {5, 19, 33, 47, 61},
            .mask_token = 248070,
            .windows = Shape(5, 2048),
            .is_causal = false};
}

PublishedDraft draft_35b_second() {
    return {.hidden = 2048,
            .intermediate = 6144,
            .layers = 6,
            .target_layers = 40,
            .taps = {1, 6, 11, 16, 22, 27, 32, 37},
            .mask_token = 248077,
            .windows = Shape(6, 2048),
            .is_causal = false};
}

PublishedDraft draft_4b_first() {
    return {.second_version = false,
            .hidden = 2560,
            .intermediate = 9728,
            .layers = 5,
            .vocab = 151936,
            .block = 16,
            .target_layers = 36,
            .taps = {1, 9, 17, 25, 33},
            .mask_token = 151669,
            .windows = Shape(5, 0),
            .rope_theta = 1e6,
            .block_at_top = true};
}

PublishedDraft draft_35b_first() {
    return {.second_version = false,
            .hidden = 2048,
            .intermediate = 6144,
            .layers = 6,
            .block = 16,
            .target_layers = 40,
            .taps = {1, 6, 11, 16, 22, 27, 32, 37},
            .mask_token = 248077,
            .windows = {4096, 4096, 4096, 4096, 4096, 0}};
}

PublishedDraft draft_for_small() {
    return {.hidden = 1024,
            .intermediate = 3072,
            .layers = 5,
            .q_heads = 16,
            .target_layers = 24,
            .taps = {1, 6, 11, 16, 21},
            .mask_token = 248070,
            .windows = Shape(5, 2048),
            .is_causal = false};
}

namespace {

constexpr std::uint64_t kConvTaps = 2;
constexpr std::uint64_t kConvGroup = 16;
constexpr std::uint64_t kSelectorRank = 256;

Json draft_config(const PublishedDraft& draft) {
    Json special = {{"mask_token_id", draft.mask_token}, {"target_layer_ids", draft.taps}};
    if (!draft.block_at_top) special["block_size"] = draft.block;
    if (draft.second_version) {
        special.update({{"conv_kernel_size", kConvTaps},
                        {"conv_group_size", kConvGroup},
                        {"selector_rank", kSelectorRank},
                        {"selector_top_k", 16}});
    }
    Json config = {{"architectures", {draft.second_version ? "DFlash2DraftModel" : "DFlashDraftModel"}},
                   {"model_type", "qwen3"},
                   {"dtype", "bfloat16"},
                   {"hidden_size", draft.hidden},
                   {"intermediate_size", draft.intermediate},
                   {"num_hidden_layers", draft.layers},
                   {"num_attention_heads", draft.q_heads},
                   {"num_key_value_heads", draft.kv_heads},
                   {"head_dim", draft.head_dim},
                   {"vocab_size", draft.vocab},
                   {"num_target_layers", draft.target_layers},
                   {"rms_norm_eps", 1e-6},
                   {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", draft.rope_theta}}},
                   {"attention_bias", false},
                   {"hidden_act", "silu"},
                   {"tie_word_embeddings", false},
                   {"max_position_embeddings", 262144},
                   {"dflash_config", special}};
    if (draft.block_at_top) config["block_size"] = draft.block;
    if (draft.is_causal) config["is_causal"] = *draft.is_causal;
    const std::uint64_t window = *std::max_element(draft.windows.begin(), draft.windows.end());
    if (window == 0) return config;
    config["use_sliding_window"] = true;
    config["sliding_window"] = window;
    Json types = Json::array();
    for (const std::uint64_t layer : draft.windows)
        types.push_back(layer == 0 ? "full_attention" : "sliding_attention");
    config["layer_types"] = std::move(types);
    return config;
}

void draft_conv(const PublishedDraft& draft, const std::string& prefix, const Sink& sink) {
    sink.vector(prefix + "base_kernel", {2, kConvTaps, draft.hidden}, DType::bf16);
    sink.module(prefix + "kernel_projection", {2 * kConvTaps * draft.hidden / kConvGroup, draft.hidden});
}

void draft_layer(const PublishedDraft& draft, const std::string& prefix, const Sink& sink) {
    const std::uint64_t queries = draft.q_heads * draft.head_dim;
    const std::uint64_t kv = draft.kv_heads * draft.head_dim;
    const std::string attention = prefix + "self_attn.";
    if (draft.second_version) {
        draft_conv(draft, prefix + "attention_conv.", sink);
        draft_conv(draft, prefix + "mlp_conv.", sink);
    }
    sink.vector(prefix + "input_layernorm.weight", {draft.hidden}, DType::bf16);
    swiglu(draft.hidden, draft.intermediate, prefix + "mlp.", sink);
    sink.vector(prefix + "post_attention_layernorm.weight", {draft.hidden}, DType::bf16);
    sink.vector(attention + "k_norm.weight", {draft.head_dim}, DType::bf16);
    sink.module(attention + "k_proj", {kv, draft.hidden});
    sink.module(attention + "o_proj", {draft.hidden, queries});
    sink.vector(attention + "q_norm.weight", {draft.head_dim}, DType::bf16);
    sink.module(attention + "q_proj", {queries, draft.hidden});
    sink.module(attention + "v_proj", {kv, draft.hidden});
}

}  // namespace

CheckpointFiles draft_files(const PublishedDraft& draft) {
    CheckpointFiles files;
    files.config = draft_config(draft);
    Tensors tensors;
    const Sink sink = plain_sink(tensors);
    sink.module("fc", {draft.hidden, draft.taps.size() * draft.hidden});
    sink.vector("hidden_norm.weight", {draft.hidden}, DType::bf16);
    sink.vector("norm.weight", {draft.hidden}, DType::bf16);
    for (std::uint64_t i = 0; i < draft.layers; ++i) draft_layer(draft, fmt::format("layers.{}.", i), sink);
    if (draft.second_version) {
        sink.module("candidate_selector.hidden_projection", {kSelectorRank, draft.hidden});
        sink.vector("candidate_selector.predecessor_codebook", {draft.vocab, kSelectorRank}, DType::bf16);
        sink.vector("candidate_selector.successor_codebook", {draft.vocab, kSelectorRank}, DType::bf16);
    }
    put_in_one_file(files, std::move(tensors));
    return files;
}

}  // namespace draftprobe::support
