#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/inspect.h"
#include "cli/inspect_parts.h"
#include "decode/engine_core.h"
#include "formats/model_config.h"
#include "state/shape.h"

namespace draftprobe::cli {

namespace {

std::uint64_t size(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// ---------------------------------------------------------------------------------------------------------------
// Targets

struct TargetView {
    std::filesystem::path path;
    TargetConfig config;
    Checkpoint checkpoint;
    model::TensorPlan plan;
    std::uint64_t tokens;

    state::StateShape shape(state::KvFormat kv) const {
        return decode::target_state_shape(config, kv, state::RowFormat::bf16);
    }
    bool mlx() const { return checkpoint.layout() == CheckpointLayout::mlx; }
};

std::uint64_t matrix_bytes(const state::StateShape& shape) {
    return shape.delta_layers * shape.matrix_floats() * sizeof(float);
}

std::uint64_t conv_bytes(const state::StateShape& shape) {
    return shape.delta_layers * shape.conv_rows * shape.conv_channels * state::row_element_bytes(shape.row_format);
}

// Recurrent state of a lane: two cells, by parity.
std::uint64_t recurrent_bytes(const state::StateShape& shape) { return 2 * (matrix_bytes(shape) + conv_bytes(shape)); }

// Whole pages, and the recurrent state.
std::uint64_t lane_bytes(const state::StateShape& shape, std::uint64_t tokens) {
    const auto page = static_cast<std::uint64_t>(kPageTokens);
    return (tokens + page - 1) / page * shape.kv_page_bytes() + recurrent_bytes(shape);
}

// Dtypes of A_log over the layers, "BF16" or "BF16, F32"; empty without delta layers.
std::string decay_dtypes(const model::TensorPlan& plan) {
    std::vector<std::string> found;
    for (const model::PlannedTensor& tensor : plan.tensors) {
        if (!tensor.name.ends_with(".A_log")) continue;
        const std::string name(dtype_name(tensor.dtype));
        if (std::find(found.begin(), found.end(), name) == found.end()) found.push_back(name);
    }
    return fmt::format("{}", fmt::join(found, ", "));
}

// 'd' for a delta layer, 'a' for attention: "dddadddadddaddda".
std::string layer_pattern(const TargetConfig& target) {
    std::string pattern;
    for (const LayerKind kind : target.layer_kinds) pattern += kind == LayerKind::full_attention ? 'a' : 'd';
    return pattern;
}

std::string memory_text(const TargetView& view) {
    const state::StateShape bf16 = view.shape(state::KvFormat::bf16);
    const state::StateShape int8 = view.shape(state::KvFormat::int8);
    return view_line("per token", fmt::format("{} of keys and values (bf16), {} (int8)",
                                              bytes_text(bf16.kv_token_bytes()), bytes_text(int8.kv_token_bytes()))) +
           view_line("recurrent", fmt::format("{} a lane whatever its length: two cells of {} matrices and {} "
                                              "convolution rows",
                                              bytes_text(recurrent_bytes(bf16)), bytes_text(matrix_bytes(bf16)),
                                              bytes_text(conv_bytes(bf16)))) +
           view_line("per lane",
                     fmt::format("{} (bf16), {} (int8) at {} tokens", bytes_text(lane_bytes(bf16, view.tokens)),
                                 bytes_text(lane_bytes(int8, view.tokens)), view.tokens));
}

std::string experts_text(const TargetView& view) {
    const MoeConfig& moe = *view.config.moe;
    return fmt::format("{} of width {}, {} a token, shared expert of width {}, stored {}", moe.experts,
                       moe.expert_intermediate, moe.experts_per_token, moe.shared_expert_intermediate,
                       expert_form_name(view.plan.experts));
}

std::string target_text(const TargetView& view) {
    const TargetConfig& target = view.config;
    const state::StateShape shape = view.shape(state::KvFormat::bf16);
    std::string out = view_line("target", view.path.string());
    out += view_line("architecture",
                     fmt::format("{} ({}), {} layout", target.model_type, target.moe ? "mixture of experts" : "dense",
                                 view.mlx() ? "MLX" : "Hugging Face"));
    out += view_line("shape", fmt::format("hidden {}, {} layers ({} attention, {} delta){}, vocabulary {}, {}",
                                          target.hidden, target.layers, shape.attention_layers, shape.delta_layers,
                                          target.moe ? "" : fmt::format(", feed-forward {}", target.intermediate),
                                          target.vocab, target.tied_embeddings ? "tied embeddings" : "own head"));
    out += view_line("layers", layer_pattern(target));
    if (target.moe) out += view_line("experts", experts_text(view));
    out += view_line("attention", fmt::format("{} query heads, {} KV heads, head dimension {}, rotating {}, theta {}",
                                              target.q_heads, target.kv_heads, target.head_dim, target.rotary_dim,
                                              target.rope_theta));
    out += view_line("delta net", fmt::format("{} key heads of {}, {} value heads of {}, {} convolution taps, A_log {}",
                                              target.linear_key_heads, target.linear_key_dim, target.linear_value_heads,
                                              target.linear_value_dim, target.conv_kernel, decay_dtypes(view.plan)));
    out += view_line("positions", fmt::format("{}", target.max_positions));
    out +=
        view_line("stop tokens", target.eos_ids.empty() ? "none" : fmt::format("{}", fmt::join(target.eos_ids, ", ")));
    out += view_line("quantisation", quantisation_text(target.quantisation, view.plan));
    out += view_line("parameters", parameters_text(view.plan));
    out += view_line("weights", weights_text(view.checkpoint));
    out += view_line("files", files_text(view.checkpoint));
    if (!view.plan.unused.empty()) out += view_line("not read", unused_text(view.plan));
    return out + memory_text(view);
}

void write_experts(JsonWriter& json, const TargetView& view) {
    json.key("experts");
    if (!view.config.moe) {
        json.null();
        return;
    }
    const MoeConfig& moe = *view.config.moe;
    json.begin_object()
        .member("count", moe.experts)
        .member("per_token", moe.experts_per_token)
        .member("width", moe.expert_intermediate)
        .member("shared_width", moe.shared_expert_intermediate)
        .member("form", expert_form_name(view.plan.experts))
        .end_object();
}

void write_target_memory(JsonWriter& json, const TargetView& view) {
    const state::StateShape bf16 = view.shape(state::KvFormat::bf16);
    const state::StateShape int8 = view.shape(state::KvFormat::int8);
    json.key("memory")
        .begin_object()
        .member("kv_token_bytes_bf16", bf16.kv_token_bytes())
        .member("kv_token_bytes_int8", int8.kv_token_bytes())
        .member("recurrent_matrix_bytes", matrix_bytes(bf16))
        .member("recurrent_conv_bytes", conv_bytes(bf16))
        .member("recurrent_lane_bytes", recurrent_bytes(bf16))
        .member("tokens", view.tokens)
        .member("lane_bytes_bf16", lane_bytes(bf16, view.tokens))
        .member("lane_bytes_int8", lane_bytes(int8, view.tokens))
        .end_object();
}

void write_target_shape(JsonWriter& json, const TargetView& view) {
    const TargetConfig& target = view.config;
    const state::StateShape shape = view.shape(state::KvFormat::bf16);
    json.member("model_type", target.model_type)
        .member("mixture_of_experts", target.moe.has_value())
        .member("layout", view.mlx() ? "mlx" : "huggingface")
        .member("hidden", target.hidden)
        .member("layers", target.layers)
        .member("attention_layers", shape.attention_layers)
        .member("delta_layers", shape.delta_layers);
    json.key("layer_kinds").begin_array();
    for (const LayerKind kind : target.layer_kinds) {
        json.value(kind == LayerKind::full_attention ? "full_attention" : "linear_attention");
    }
    json.end_array()
        .member("intermediate", target.intermediate)
        .member("vocab", target.vocab)
        .member("tied_embeddings", target.tied_embeddings)
        .member("q_heads", target.q_heads)
        .member("kv_heads", target.kv_heads)
        .member("head_dim", target.head_dim)
        .member("rotary_dim", target.rotary_dim)
        .member("rope_theta", target.rope_theta)
        .member("linear_key_heads", target.linear_key_heads)
        .member("linear_key_dim", target.linear_key_dim)
        .member("linear_value_heads", target.linear_value_heads)
        .member("linear_value_dim", target.linear_value_dim)
        .member("conv_kernel", target.conv_kernel)
        .member("a_log_dtype", decay_dtypes(view.plan))
        .member("max_positions", target.max_positions);
}

std::string target_json(const TargetView& view) {
    JsonWriter json;
    json.begin_object().member("kind", "target").member("path", view.path.string());
    write_target_shape(json, view);
    write_experts(json, view);
    json.key("stop_tokens").begin_array();
    for (const TokenId id : view.config.eos_ids) json.value(id);
    json.end_array();
    write_quantisation(json, view.config.quantisation);
    write_parameters(json, view.plan);
    write_weights(json, view.checkpoint);
    write_files(json, view.checkpoint);
    write_target_memory(json, view);
    return json.end_object().take() + "\n";
}

// ---------------------------------------------------------------------------------------------------------------
// Drafts

struct DraftView {
    std::filesystem::path path;
    DraftConfig config;
    Checkpoint checkpoint;
    model::TensorPlan plan;
    ManifestState manifest;
    std::uint64_t tokens;
};

// Widest window of a layer; 0 when some layer sees everything.
std::uint64_t widest_window(const DraftConfig& draft) {
    std::int64_t window = 0;
    for (const DraftLayer& layer : draft.layer_attention) {
        if (layer.window == 0) return 0;
        window = std::max(window, layer.window);
    }
    return size(window);
}

// One context row and the ring rows made from it, in BF16.
std::uint64_t draft_row_bytes(const DraftConfig& draft) {
    const std::int64_t ring = draft.layers * 2 * draft.kv_heads * draft.head_dim;
    return size(draft.hidden + ring) * sizeof(Bf16);
}

// Rows that a lane keeps at `tokens`: no query sees further back than the widest window.
std::uint64_t draft_lane_bytes(const DraftConfig& draft, std::uint64_t tokens) {
    const std::uint64_t window = widest_window(draft);
    return (window == 0 ? tokens : std::min(window - 1, tokens)) * draft_row_bytes(draft);
}

std::string attention_text(const DraftLayer& layer) {
    return fmt::format("{}, {}", layer.window == 0 ? "unlimited" : fmt::format("window {}", layer.window),
                       layer.causal ? "causal" : "not causal");
}

// Runs of equal layers: "0-4 window 4096, causal; 5 unlimited, not causal".
std::string layers_text(const DraftConfig& draft) {
    std::string text;
    const auto& layers = draft.layer_attention;
    for (std::size_t first = 0; first < layers.size();) {
        std::size_t last = first;
        while (last + 1 < layers.size() && layers[last + 1] == layers[first]) ++last;
        const std::string range = first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
        text += fmt::format("{}{} {}", text.empty() ? "" : "; ", range, attention_text(layers[first]));
        first = last + 1;
    }
    return text;
}

std::string draft_text(const DraftView& view) {
    const DraftConfig& draft = view.config;
    const std::uint64_t window = widest_window(draft);
    std::string out = view_line("draft", view.path.string());
    out += view_line("architecture", draft.version == DraftVersion::dflash2 ? "DFlash2" : "DFlash v1");
    out += view_line("shape", fmt::format("hidden {}, {} layers, feed-forward {}, vocabulary {}, the target's table "
                                          "and head",
                                          draft.hidden, draft.layers, draft.intermediate, draft.vocab));
    out += view_line("attention", fmt::format("{} query heads, {} KV heads, head dimension {}, theta {}", draft.q_heads,
                                              draft.kv_heads, draft.head_dim, draft.rope_theta));
    out += view_line("window", window == 0 ? "unlimited" : fmt::format("{} positions", window));
    out += view_line("layers", layers_text(draft));
    out += view_line("block", fmt::format("{} rows: the anchor and {} drafted; mask token {}", draft.block,
                                          draft.block - 1, draft.mask_token));
    out += view_line("taps", fmt::format("target layers {}{}", fmt::join(draft.taps, ", "),
                                         draft.target_layers == 0 ? "" : fmt::format(" of {}", draft.target_layers)));
    if (draft.selector) {
        out += view_line("selector",
                         fmt::format("top {} candidates, rank {}", draft.selector->top_k, draft.selector->rank));
    }
    if (draft.conv) {
        out +=
            view_line("convolution", fmt::format("{} taps, groups of {}", draft.conv->kernel, draft.conv->group_size));
    }
    out += view_line("quantisation", quantisation_text(draft.quantisation, view.plan));
    out += view_line("parameters", parameters_text(view.plan));
    out += view_line("weights", weights_text(view.checkpoint));
    out += view_line("files", files_text(view.checkpoint));
    if (!view.plan.unused.empty()) out += view_line("not read", unused_text(view.plan));
    out += view_line("manifest", manifest_text(view.manifest));
    out += view_line("per token", fmt::format("{} of context rows and rings{}", bytes_text(draft_row_bytes(draft)),
                                              window == 0 ? "" : ", within the window"));
    return out + view_line("per lane", fmt::format("{} at {} tokens", bytes_text(draft_lane_bytes(draft, view.tokens)),
                                                   view.tokens));
}

void write_draft_shape(JsonWriter& json, const DraftConfig& draft) {
    json.member("version", draft.version == DraftVersion::dflash2 ? "dflash2" : "dflash1")
        .member("hidden", draft.hidden)
        .member("layers", draft.layers)
        .member("intermediate", draft.intermediate)
        .member("vocab", draft.vocab)
        .member("q_heads", draft.q_heads)
        .member("kv_heads", draft.kv_heads)
        .member("head_dim", draft.head_dim)
        .member("rope_theta", draft.rope_theta)
        .member("window", widest_window(draft));
    json.key("layer_attention").begin_array();
    for (const DraftLayer& layer : draft.layer_attention) {
        json.begin_object().member("window", layer.window).member("causal", layer.causal).end_object();
    }
    json.end_array()
        .member("block", draft.block)
        .member("mask_token", draft.mask_token)
        .member("target_layers", draft.target_layers);
    json.key("taps").begin_array();
    for (const std::int64_t tap : draft.taps) json.value(tap);
    json.end_array();
}

void write_second_version(JsonWriter& json, const DraftConfig& draft) {
    json.key("selector");
    if (draft.selector) {
        json.begin_object().member("top_k", draft.selector->top_k).member("rank", draft.selector->rank).end_object();
    } else {
        json.null();
    }
    json.key("convolution");
    if (draft.conv) {
        json.begin_object()
            .member("kernel", draft.conv->kernel)
            .member("group_size", draft.conv->group_size)
            .end_object();
    } else {
        json.null();
    }
}

void write_draft_memory(JsonWriter& json, const DraftView& view) {
    json.key("memory").begin_object().member("context_row_bytes", draft_row_bytes(view.config));
    json.key("context_lane_bytes");
    if (widest_window(view.config) == 0) {
        json.null();  // it grows with the context
    } else {
        json.value((widest_window(view.config) - 1) * draft_row_bytes(view.config));
    }
    json.member("tokens", view.tokens).member("lane_bytes", draft_lane_bytes(view.config, view.tokens)).end_object();
}

std::string draft_json(const DraftView& view) {
    JsonWriter json;
    json.begin_object().member("kind", "draft").member("path", view.path.string());
    write_draft_shape(json, view.config);
    write_second_version(json, view.config);
    write_quantisation(json, view.config.quantisation);
    write_parameters(json, view.plan);
    write_weights(json, view.checkpoint);
    write_files(json, view.checkpoint);
    write_manifest(json, view.manifest);
    write_draft_memory(json, view);
    return json.end_object().take() + "\n";
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
    if (bytes < 1024) return fmt::format("{} bytes", bytes);
    const double value = static_cast<double>(bytes);
    if (bytes < 1024 * 1024) return fmt::format("{:.1f} KiB", value / 1024);
    if (bytes < 1024ull * 1024 * 1024) return fmt::format("{:.1f} MiB", value / (1024.0 * 1024));
    return fmt::format("{:.2f} GiB", value / (1024.0 * 1024 * 1024));
}

Result<std::string> inspect_target(const std::filesystem::path& path, InspectForm form, std::uint64_t tokens) {
    DP_ASSIGN_OR_RETURN(TargetConfig config, read_target_config(path));
    DP_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(path));
    DP_ASSIGN_OR_RETURN(model::TensorPlan plan, model::plan_target(checkpoint, config));
    const TargetView view{path, std::move(config), std::move(checkpoint), std::move(plan), tokens};
    return form == InspectForm::json ? target_json(view) : target_text(view);
}

Result<std::string> inspect_draft(const std::filesystem::path& path, InspectForm form, std::uint64_t tokens) {
    DP_ASSIGN_OR_RETURN(DraftConfig config, read_draft_config(path));
    DP_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(path));
    DP_ASSIGN_OR_RETURN(model::TensorPlan plan, model::plan_draft(checkpoint, config));
    ManifestState manifest = manifest_state(checkpoint);
    const DraftView view{path, std::move(config), std::move(checkpoint), std::move(plan), std::move(manifest), tokens};
    return form == InspectForm::json ? draft_json(view) : draft_text(view);
}

}  // namespace draftprobe::cli
