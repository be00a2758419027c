#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/files.h"
#include "formats/config_fields.h"
#include "formats/model_config.h"

namespace draftprobe {
namespace {

using namespace config_fields;

constexpr std::int64_t kMaxConvTaps = 64;
constexpr std::int64_t kMaxExperts = 65536;
constexpr std::size_t kMaxEosIds = 256;

constexpr std::string_view kServed =
    "served are \"qwen3_5\" and \"qwen3_5_moe\" text models (Qwen3.5, Qwen3.6 and Qwen3.8)";

bool starts_with_family(std::string_view name, std::string_view family) {
    return name == family || name == std::string(family) + "_text";
}

// "qwen3_5" or "qwen3_5_moe" by the model type, confirmed by the architectures where they are stated.
Result<bool> is_moe(const Json& root, const Json& text, std::string_view model_type, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const std::vector<std::string> names, architectures(root, subject));
    const auto listed = [&](std::string_view prefix) {
        return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
            return name == std::string(prefix) + "ForConditionalGeneration" ||
                   name == std::string(prefix) + "ForCausalLM" || name == std::string(prefix) + "TextModel" ||
                   name == std::string(prefix) + "Model";
        });
    };
    const std::string_view hint =
        std::any_of(names.begin(), names.end(),
                    [](const std::string& n) { return n.find("DFlash") != std::string::npos; })
            ? "; this is a draft, give it as --draft"
            : "";
    const std::string found = fmt::format("model_type {}{}", quoted_excerpt(model_type),
                                          names.empty() ? "" : ", architecture " + quoted_excerpt(names.front()));
    const bool dense = starts_with_family(model_type, "qwen3_5");
    const bool moe = starts_with_family(model_type, "qwen3_5_moe");
    if ((!dense && !moe) || (!names.empty() && !listed("Qwen3_5") && !listed("Qwen3_5Moe"))) {
        return unsupported(fmt::format("{}: {}, {}{}", subject, found, kServed, hint));
    }
    if (!names.empty() && !listed(moe ? "Qwen3_5Moe" : "Qwen3_5")) {
        return mismatch(fmt::format("{}: {} contradict each other", subject, found));
    }
    DP_ASSIGN_OR_RETURN(const std::string text_type, json_string_or(text, "model_type", subject, model_type));
    if (!starts_with_family(text_type, moe ? "qwen3_5_moe" : "qwen3_5")) {
        return mismatch(fmt::format("{}: model_type {} but text_config has {}", subject, quoted_excerpt(model_type),
                                    quoted_excerpt(text_type)));
    }
    return moe;
}

Result<std::vector<LayerKind>> layer_kinds(const Json& text, std::int64_t layers, std::string_view subject) {
    std::vector<LayerKind> kinds;
    DP_ASSIGN_OR_RETURN(const Json* types, json_array_or_null(text, "layer_types", subject));
    if (types == nullptr) {
        DP_ASSIGN_OR_RETURN(const std::int64_t interval,
                            json_int_or(text, "full_attention_interval", subject, 4, 1, kMaxLayers));
        for (std::int64_t i = 0; i < layers; ++i) {
            kinds.push_back((i + 1) % interval == 0 ? LayerKind::full_attention : LayerKind::linear_attention);
        }
        return kinds;
    }
    if (types->size() != static_cast<std::size_t>(layers)) {
        return corrupt(fmt::format("{}: \"layer_types\" has {} entries, expected num_hidden_layers, {}", subject,
                                   types->size(), layers));
    }
    for (const Json& type : *types) {
        if (type == "linear_attention") {
            kinds.push_back(LayerKind::linear_attention);
        } else if (type == "full_attention") {
            kinds.push_back(LayerKind::full_attention);
        } else {
            return unsupported(fmt::format(
                "{}: \"layer_types[{}]\" is {}, served are \"linear_attention\" and "
                "\"full_attention\"",
                subject, kinds.size(), type.is_string() ? quoted_excerpt(type.get<std::string>()) : type.type_name()));
        }
    }
    return kinds;
}

// Both places may hold the factor; the number of rotating dimensions must come out whole and even.
Result<std::int64_t> rotary_dim(const Json& text, std::int64_t head_dim, std::string_view subject) {
    double factor = 0.25;
    const Json* parameters = json_find(text, "rope_parameters");
    const bool inner = parameters != nullptr && json_find(*parameters, "partial_rotary_factor") != nullptr;
    const bool outer = json_find(text, "partial_rotary_factor") != nullptr;
    if (inner) {
        const std::string nested = fmt::format("{}: rope_parameters", subject);
        DP_ASSIGN_OR_RETURN(factor, json_get_float(*parameters, "partial_rotary_factor", nested, 0, 1));
    }
    if (outer) {
        DP_ASSIGN_OR_RETURN(const double other, json_get_float(text, "partial_rotary_factor", subject, 0, 1));
        if (inner && other != factor) {
            return mismatch(
                fmt::format("{}: \"partial_rotary_factor\" is {} in rope_parameters and {} outside, expected "
                            "one value",
                            subject, factor, other));
        }
        factor = other;
    }
    const auto dimensions = static_cast<std::int64_t>(static_cast<double>(head_dim) * factor);
    if (dimensions < 2 || dimensions % 2 != 0) {
        return corrupt(
            fmt::format("{}: \"partial_rotary_factor\" {} of head_dim {} gives {} rotating dimensions, expected "
                        "an even number of at least 2",
                        subject, factor, head_dim, dimensions));
    }
    return dimensions;
}

Result<bool> tied_embeddings(const Json& root, const Json& text, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const bool inner, json_bool_or(text, "tie_word_embeddings", subject, false));
    if (json_find(root, "tie_word_embeddings") == nullptr) return inner;
    DP_ASSIGN_OR_RETURN(const bool outer, json_bool_or(root, "tie_word_embeddings", subject, false));
    if (json_find(text, "tie_word_embeddings") != nullptr && inner != outer) {
        return mismatch(
            fmt::format("{}: \"tie_word_embeddings\" is {} at the top and {} in text_config, expected one value",
                        subject, outer, inner));
    }
    return outer;
}

Result<std::vector<TokenId>> eos_of(const Json& object, std::int64_t vocab, std::string_view subject) {
    std::vector<TokenId> ids;
    const Json* found = json_find(object, "eos_token_id");
    if (found == nullptr) return ids;
    if (found->is_array()) {
        DP_ASSIGN_OR_RETURN(const auto list,
                            json_get_int_array(object, "eos_token_id", subject, 0, vocab - 1, kMaxEosIds));
        ids.assign(list.begin(), list.end());
    } else {
        DP_ASSIGN_OR_RETURN(const std::int64_t id, json_get_int(object, "eos_token_id", subject, 0, vocab - 1));
        ids.push_back(static_cast<TokenId>(id));
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
}

Status parse_feed_forward(TargetConfig& config, const Json& text, bool moe, std::string_view subject) {
    if (!moe) {
        DP_ASSIGN_OR_RETURN(config.intermediate, json_get_int(text, "intermediate_size", subject, 1, kMaxIntermediate));
        return {};
    }
    MoeConfig experts;
    DP_ASSIGN_OR_RETURN(experts.experts, json_get_int(text, "num_experts", subject, 1, kMaxExperts));
    DP_ASSIGN_OR_RETURN(experts.experts_per_token,
                        json_get_int(text, "num_experts_per_tok", subject, 1, experts.experts));
    DP_ASSIGN_OR_RETURN(experts.expert_intermediate,
                        json_get_int(text, "moe_intermediate_size", subject, 1, kMaxIntermediate));
    DP_ASSIGN_OR_RETURN(experts.shared_expert_intermediate,
                        json_get_int(text, "shared_expert_intermediate_size", subject, 1, kMaxIntermediate));
    config.moe = experts;
    return {};
}

Status parse_mixers(TargetConfig& config, const Json& text, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(config.q_heads, json_get_int(text, "num_attention_heads", subject, 1, kMaxHeads));
    DP_ASSIGN_OR_RETURN(config.kv_heads, json_get_int(text, "num_key_value_heads", subject, 1, kMaxHeads));
    DP_RETURN_IF_ERROR(
        check_multiple(subject, "num_attention_heads", config.q_heads, "num_key_value_heads", config.kv_heads));
    DP_ASSIGN_OR_RETURN(config.head_dim, json_int_or(text, "head_dim", subject, 256, 2, kMaxHeadDim));
    DP_ASSIGN_OR_RETURN(config.rope_theta, rope_theta(text, subject));
    DP_ASSIGN_OR_RETURN(config.rotary_dim, rotary_dim(text, config.head_dim, subject));

    DP_ASSIGN_OR_RETURN(config.linear_key_heads, json_int_or(text, "linear_num_key_heads", subject, 16, 1, kMaxHeads));
    DP_ASSIGN_OR_RETURN(config.linear_value_heads,
                        json_int_or(text, "linear_num_value_heads", subject, 32, 1, kMaxHeads));
    DP_RETURN_IF_ERROR(check_multiple(subject, "linear_num_value_heads", config.linear_value_heads,
                                      "linear_num_key_heads", config.linear_key_heads));
    DP_ASSIGN_OR_RETURN(config.linear_key_dim, json_int_or(text, "linear_key_head_dim", subject, 128, 1, kMaxHeadDim));
    DP_ASSIGN_OR_RETURN(config.linear_value_dim,
                        json_int_or(text, "linear_value_head_dim", subject, 128, 1, kMaxHeadDim));
    DP_ASSIGN_OR_RETURN(config.conv_kernel, json_int_or(text, "linear_conv_kernel_dim", subject, 4, 2, kMaxConvTaps));
    return {};
}

// Keys whose other values would change the mathematics.
Status check_variants(const Json& text, std::string_view subject) {
    DP_RETURN_IF_ERROR(check_plain_block(text, subject));
    DP_ASSIGN_OR_RETURN(const bool gate, json_bool_or(text, "attn_output_gate", subject, true));
    if (!gate) return unsupported(fmt::format("{}: \"attn_output_gate\" is false, served is true", subject));
    DP_ASSIGN_OR_RETURN(const std::string activation, json_string_or(text, "output_gate_type", subject, "silu"));
    if (activation != "silu" && activation != "swish") {
        return unsupported(fmt::format("{}: \"output_gate_type\" is {}, served are \"silu\" and \"swish\"", subject,
                                       quoted_excerpt(activation)));
    }
    DP_ASSIGN_OR_RETURN(const std::string state, json_string_or(text, "mamba_ssm_dtype", subject, "float32"));
    if (state != "float32") {
        return unsupported(
            fmt::format("{}: \"mamba_ssm_dtype\" is {}, served is \"float32\"", subject, quoted_excerpt(state)));
    }
    return {};
}

}  // namespace

Result<TargetConfig> parse_target_config(const Json& config, const Json* generation, std::string_view subject) {
    if (!config.is_object()) return corrupt(fmt::format("{}: {}, expected an object", subject, config.type_name()));
    DP_ASSIGN_OR_RETURN(const Json* nested, json_object_or_null(config, "text_config", subject));
    const Json& text = nested != nullptr ? *nested : config;
    const std::string place = nested != nullptr ? fmt::format("{}: text_config", subject) : std::string(subject);

    TargetConfig target;
    DP_ASSIGN_OR_RETURN(const std::string root_type, json_get_string(config, "model_type", subject));
    DP_ASSIGN_OR_RETURN(const bool moe, is_moe(config, text, root_type, subject));
    DP_ASSIGN_OR_RETURN(target.model_type, json_string_or(text, "model_type", place, root_type));
    DP_RETURN_IF_ERROR(check_variants(text, place));

    DP_ASSIGN_OR_RETURN(target.hidden, json_get_int(text, "hidden_size", place, 1, kMaxHidden));
    DP_ASSIGN_OR_RETURN(target.layers, json_get_int(text, "num_hidden_layers", place, 1, kMaxLayers));
    DP_ASSIGN_OR_RETURN(target.vocab, json_get_int(text, "vocab_size", place, 2, kMaxVocab));
    DP_RETURN_IF_ERROR(parse_feed_forward(target, text, moe, place));
    DP_RETURN_IF_ERROR(parse_mixers(target, text, place));
    DP_ASSIGN_OR_RETURN(target.layer_kinds, layer_kinds(text, target.layers, place));
    DP_ASSIGN_OR_RETURN(target.rms_norm_eps, rms_norm_eps(text, place));
    DP_ASSIGN_OR_RETURN(target.max_positions,
                        json_int_or(text, "max_position_embeddings", place, 262144, 1, kMaxPositions));
    DP_ASSIGN_OR_RETURN(target.tied_embeddings, tied_embeddings(config, text, subject));

    if (generation != nullptr) {
        DP_ASSIGN_OR_RETURN(target.eos_ids, eos_of(*generation, target.vocab,
                                                   fmt::format("{}: generation_config.json beside it", subject)));
    }
    if (target.eos_ids.empty()) {
        DP_ASSIGN_OR_RETURN(target.eos_ids, eos_of(text, target.vocab, place));
    }
    if (target.eos_ids.empty()) {
        DP_ASSIGN_OR_RETURN(target.eos_ids, eos_of(config, target.vocab, subject));
    }
    DP_ASSIGN_OR_RETURN(target.quantisation, parse_quantisation(config, subject));
    return target;
}

Result<TargetConfig> read_target_config(const std::filesystem::path& dir) {
    const std::filesystem::path path = dir / "config.json";
    DP_ASSIGN_OR_RETURN(const Json config, parse_json_file(path, kMaxConfigBytes));
    const std::filesystem::path generation_path = dir / "generation_config.json";
    std::error_code error;
    // A link to nothing is not absence: its stop tokens would silently be others.
    const bool absent = !std::filesystem::exists(std::filesystem::symlink_status(generation_path, error));
    const Result<Json> generation = parse_json_file(generation_path, kMaxConfigBytes);
    if (!generation.ok() && !(absent && generation.status().code() == StatusCode::not_found))
        return generation.status();
    if (generation.ok() && !generation.value().is_object()) {
        return corrupt(fmt::format("{}: found {}, expected a JSON object", (dir / "generation_config.json").string(),
                                   generation.value().type_name()));
    }
    return parse_target_config(config, generation.ok() ? &generation.value() : nullptr, path.string());
}

}  // namespace draftprobe
