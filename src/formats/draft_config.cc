#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "formats/config_fields.h"
#include "formats/model_config.h"

namespace draftprobe {
namespace {

using namespace config_fields;

constexpr std::int64_t kMaxBlock = 64;
constexpr std::size_t kMaxTaps = 64;
constexpr std::int64_t kMaxConvTaps = 16;
constexpr std::int64_t kMaxSelectorRank = 4096;
constexpr std::int64_t kMaxSelectorWidth = 64;
constexpr double kMaxScale = 1e4;

Result<DraftVersion> draft_version(const Json& config, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const std::vector<std::string> names, architectures(config, subject));
    const auto listed = [&](std::string_view name) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    const bool second = listed("DFlash2DraftModel");
    const bool first = listed("DFlashDraftModel");
    if (first != second) return second ? DraftVersion::dflash2 : DraftVersion::dflash1;
    const std::string_view hint =
        std::any_of(names.begin(), names.end(), [](const std::string& n) { return n.rfind("Qwen3_5", 0) == 0; })
            ? "; this is a target, give it as --target"
            : "";
    return unsupported(fmt::format("{}: architecture {}, served are \"DFlash2DraftModel\" and \"DFlashDraftModel\"{}",
                                   subject, names.empty() ? "not stated" : quoted_excerpt(names.front()), hint));
}

// is_causal, else dflash_config.causal, holds for all layers; without either a sliding layer is causal and a full one
// not.
Result<std::optional<bool>> stated_causality(const Json& config, const Json& special, std::string_view subject,
                                             std::string_view place) {
    std::optional<bool> stated;
    if (json_find(config, "is_causal") != nullptr) {
        DP_ASSIGN_OR_RETURN(stated, json_get_bool(config, "is_causal", subject));
    } else if (json_find(special, "causal") != nullptr) {
        DP_ASSIGN_OR_RETURN(stated, json_get_bool(special, "causal", place));
    }
    return stated;
}

Result<std::vector<DraftLayer>> layer_attention(const Json& config, const Json& special, std::int64_t layers,
                                                std::string_view subject, std::string_view place) {
    DP_ASSIGN_OR_RETURN(const std::optional<bool> causal, stated_causality(config, special, subject, place));
    DP_ASSIGN_OR_RETURN(const Json* types, json_array_or_null(config, "layer_types", subject));
    if (types == nullptr) {
        DP_ASSIGN_OR_RETURN(const bool sliding, json_bool_or(config, "use_sliding_window", subject, false));
        DP_ASSIGN_OR_RETURN(const bool override_sliding, json_bool_or(special, "use_swa", place, false));
        if (sliding || override_sliding) {
            return unsupported(
                fmt::format("{}: a sliding window without \"layer_types\", served are windows stated per "
                            "layer; add \"layer_types\" with one entry per layer",
                            subject));
        }
        return std::vector<DraftLayer>(static_cast<std::size_t>(layers), DraftLayer{0, causal.value_or(false)});
    }
    if (types->size() != static_cast<std::size_t>(layers)) {
        return corrupt(fmt::format("{}: \"layer_types\" has {} entries, expected num_hidden_layers, {}", subject,
                                   types->size(), layers));
    }
    std::vector<DraftLayer> attention;
    for (const Json& type : *types) {
        DraftLayer layer;
        if (type == "sliding_attention") {
            DP_ASSIGN_OR_RETURN(layer.window, json_get_int(config, "sliding_window", subject, 1, kMaxPositions));
            layer.causal = causal.value_or(true);
        } else if (type == "full_attention") {
            layer.causal = causal.value_or(false);
        } else {
            return unsupported(
                fmt::format("{}: \"layer_types[{}]\" is {}, served are \"sliding_attention\" and "
                            "\"full_attention\"",
                            subject, attention.size(),
                            type.is_string() ? quoted_excerpt(type.get<std::string>()) : type.type_name()));
        }
        attention.push_back(layer);
    }
    return attention;
}

Status parse_backbone(DraftConfig& draft, const Json& config, std::string_view subject) {
    DP_RETURN_IF_ERROR(check_plain_block(config, subject));
    DP_ASSIGN_OR_RETURN(draft.hidden, json_get_int(config, "hidden_size", subject, 1, kMaxHidden));
    DP_ASSIGN_OR_RETURN(draft.layers, json_get_int(config, "num_hidden_layers", subject, 1, kMaxLayers));
    DP_ASSIGN_OR_RETURN(draft.intermediate, json_get_int(config, "intermediate_size", subject, 1, kMaxIntermediate));
    DP_ASSIGN_OR_RETURN(draft.vocab, json_get_int(config, "vocab_size", subject, 2, kMaxVocab));
    DP_ASSIGN_OR_RETURN(draft.q_heads, json_get_int(config, "num_attention_heads", subject, 1, kMaxHeads));
    DP_ASSIGN_OR_RETURN(draft.kv_heads, json_get_int(config, "num_key_value_heads", subject, 1, kMaxHeads));
    DP_RETURN_IF_ERROR(
        check_multiple(subject, "num_attention_heads", draft.q_heads, "num_key_value_heads", draft.kv_heads));
    DP_ASSIGN_OR_RETURN(draft.head_dim, json_get_int(config, "head_dim", subject, 2, kMaxHeadDim));
    if (draft.head_dim % 2 != 0) {
        return corrupt(
            fmt::format("{}: \"head_dim\" is {}, expected an even number: its halves rotate against each other",
                        subject, draft.head_dim));
    }
    DP_ASSIGN_OR_RETURN(draft.rope_theta, rope_theta(config, subject));
    DP_ASSIGN_OR_RETURN(draft.rms_norm_eps, rms_norm_eps(config, subject));
    DP_ASSIGN_OR_RETURN(draft.max_positions,
                        json_int_or(config, "max_position_embeddings", subject, 262144, 1, kMaxPositions));
    return {};
}

// The taps of a DFlash v1 draft that lists none (dflash2.md section 2): one per draft layer, evenly from the target's
// second layer to its third-to-last, halves to even; a draft of one layer reads the middle.
std::vector<std::int64_t> default_taps(std::int64_t target_layers, std::int64_t draft_layers) {
    if (draft_layers == 1) return {target_layers / 2};
    std::vector<std::int64_t> taps;
    const std::int64_t steps = draft_layers - 1;
    for (std::int64_t i = 0; i < draft_layers; ++i) {
        const std::int64_t above = i * (target_layers - 4);
        std::int64_t tap = 1 + above / steps;
        const std::int64_t twice_rest = 2 * (above % steps);
        if (twice_rest > steps || (twice_rest == steps && tap % 2 != 0)) ++tap;
        taps.push_back(tap);
    }
    return taps;
}

Status derive_taps(DraftConfig& draft, std::string_view subject, std::string_view place) {
    // From this depth on the evenly spread taps are distinct.
    const std::int64_t least = draft.layers == 1 ? 1 : draft.layers + 3;
    if (draft.target_layers < least) {
        return corrupt(fmt::format(
            "{}: no \"target_layer_ids\", and \"num_target_layers\" in {} is {}, expected the list or a depth of at "
            "least {} to spread the taps of {} draft layers over",
            place, subject, draft.target_layers == 0 ? "not stated" : std::to_string(draft.target_layers), least,
            draft.layers));
    }
    draft.taps = default_taps(draft.target_layers, draft.layers);
    return {};
}

// taps: strictly ascending, below the target's depth where that is stated.
Status parse_taps(DraftConfig& draft, const Json& config, const Json& special, std::string_view subject,
                  std::string_view place) {
    DP_ASSIGN_OR_RETURN(draft.target_layers, json_int_or(config, "num_target_layers", subject, 0, 0, kMaxLayers));
    const bool own = json_find(special, "target_layer_ids") != nullptr;
    const bool outer = !own && json_find(config, "target_layer_ids") != nullptr;
    if (draft.version == DraftVersion::dflash1 && !own && !outer) return derive_taps(draft, subject, place);
    const Json& holder = outer ? config : special;
    const std::string_view where = outer ? subject : place;
    const std::int64_t last = (draft.target_layers > 0 ? draft.target_layers : kMaxLayers) - 1;
    DP_ASSIGN_OR_RETURN(draft.taps, json_get_int_array(holder, "target_layer_ids", where, 0, last, kMaxTaps));
    const auto descent = std::adjacent_find(draft.taps.begin(), draft.taps.end(), std::greater_equal<>());
    if (draft.taps.empty() || descent != draft.taps.end()) {
        return corrupt(fmt::format("{}: \"target_layer_ids\" is {}, expected at least one layer, strictly ascending",
                                   where, json_find(holder, "target_layer_ids")->dump()));
    }
    return {};
}

Status parse_block(DraftConfig& draft, const Json& config, const Json& special, std::string_view subject,
                   std::string_view place) {
    const bool own = json_find(special, "block_size") != nullptr;
    DP_ASSIGN_OR_RETURN(draft.block,
                        json_int_or(own ? special : config, "block_size", own ? place : subject, 16, 2, kMaxBlock));
    DP_ASSIGN_OR_RETURN(const std::int64_t mask, json_get_int(special, "mask_token_id", place, 0, draft.vocab - 1));
    draft.mask_token = static_cast<TokenId>(mask);
    DP_ASSIGN_OR_RETURN(draft.output_multiplier,
                        json_float_or(special, "output_multiplier", place, 1.0, -kMaxScale, kMaxScale));
    DP_ASSIGN_OR_RETURN(draft.input_embedding_scale,
                        json_float_or(special, "input_embedding_scale", place, 1.0, -kMaxScale, kMaxScale));
    DP_ASSIGN_OR_RETURN(draft.logit_softcap,
                        json_float_or(special, "final_logit_softcapping", place, 0.0, 0.0, kMaxScale));
    return {};
}

Status parse_second_version(DraftConfig& draft, const Json& config, const Json& special, std::string_view subject,
                            std::string_view place) {
    DraftConv conv;
    DP_ASSIGN_OR_RETURN(conv.kernel, json_get_int(special, "conv_kernel_size", place, 1, kMaxConvTaps));
    DP_ASSIGN_OR_RETURN(conv.group_size, json_get_int(special, "conv_group_size", place, 1, draft.hidden));
    DP_RETURN_IF_ERROR(check_multiple(place, "hidden_size", draft.hidden, "conv_group_size", conv.group_size));
    draft.conv = conv;
    DraftSelector selector;
    DP_ASSIGN_OR_RETURN(selector.rank, json_get_int(special, "selector_rank", place, 1, kMaxSelectorRank));
    DP_ASSIGN_OR_RETURN(selector.top_k,
                        json_get_int(special, "selector_top_k", place, 1, std::min(kMaxSelectorWidth, draft.vocab)));
    draft.selector = selector;
    for (const auto& [object, name] : {std::pair(&config, subject), std::pair(&special, place)}) {
        DP_ASSIGN_OR_RETURN(const bool anchored, json_bool_or(*object, "sample_from_anchor", name, false));
        if (anchored) {
            return unsupported(fmt::format("{}: \"sample_from_anchor\" is true, served is false for DFlash2", name));
        }
    }
    return {};
}

}  // namespace

Result<DraftConfig> parse_draft_config(const Json& config, std::string_view subject) {
    if (!config.is_object()) return corrupt(fmt::format("{}: {}, expected an object", subject, config.type_name()));
    DraftConfig draft;
    DP_ASSIGN_OR_RETURN(draft.version, draft_version(config, subject));
    DP_ASSIGN_OR_RETURN(const std::string model_type, json_string_or(config, "model_type", subject, "qwen3"));
    if (model_type != "qwen3") {
        return unsupported(fmt::format("{}: backbone {}, served is \"qwen3\"", subject, quoted_excerpt(model_type)));
    }
    DP_ASSIGN_OR_RETURN(const Json* special, json_get_object(config, "dflash_config", subject));
    const std::string place = fmt::format("{}: dflash_config", subject);
    DP_RETURN_IF_ERROR(parse_backbone(draft, config, subject));
    DP_ASSIGN_OR_RETURN(draft.layer_attention, layer_attention(config, *special, draft.layers, subject, place));
    DP_RETURN_IF_ERROR(parse_taps(draft, config, *special, subject, place));
    DP_RETURN_IF_ERROR(parse_block(draft, config, *special, subject, place));
    if (draft.version == DraftVersion::dflash2) {
        DP_RETURN_IF_ERROR(parse_second_version(draft, config, *special, subject, place));
    }
    DP_ASSIGN_OR_RETURN(draft.quantisation, parse_quantisation(config, subject));
    return draft;
}

Result<DraftConfig> read_draft_config(const std::filesystem::path& dir) {
    const std::filesystem::path path = dir / "config.json";
    DP_ASSIGN_OR_RETURN(const Json config, parse_json_file(path, kMaxConfigBytes));
    return parse_draft_config(config, path.string());
}

}  // namespace draftprobe
