#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/json_writer.h"
#include "cli/inspect.h"
#include "decode/engine_core.h"
#include "formats/checkpoint.h"
#include "formats/model_config.h"
#include "state/shape.h"

namespace draftprobe::cli {

namespace {

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

struct Weights {
    std::uint64_t bytes = 0;
    std::size_t tensors = 0;
    std::map<std::string, std::uint64_t> bytes_by_type;
    std::size_t files = 0;
};

Weights count_weights(const Checkpoint& checkpoint) {
    Weights weights;
    for (const std::string& name : checkpoint.names()) {
        const TensorView* view = checkpoint.find(name);
        weights.bytes += view->bytes.size();
        weights.bytes_by_type[std::string(dtype_name(view->dtype))] += view->bytes.size();
        ++weights.tensors;
    }
    weights.files =
        static_cast<std::size_t>(std::count_if(checkpoint.files().begin(), checkpoint.files().end(),
                                               [](const std::string& name) { return name.ends_with(".safetensors"); }));
    return weights;
}

std::string weights_text(const Weights& weights) {
    std::string types;
    for (const auto& [type, bytes] : weights.bytes_by_type) {
        types += fmt::format("{}{} {}", types.empty() ? "" : ", ", type, bytes_text(bytes));
    }
    return fmt::format("{} in {} tensors, {} file{} ({})", bytes_text(weights.bytes), weights.tensors, weights.files,
                       weights.files == 1 ? "" : "s", types);
}

void write_weights(JsonWriter& json, const Weights& weights) {
    json.key("weights").begin_object().member("bytes", weights.bytes).member("tensors", weights.tensors);
    json.member("files", weights.files).key("bytes_by_type").begin_object();
    for (const auto& [type, bytes] : weights.bytes_by_type) json.member(type, bytes);
    json.end_object().end_object();
}

std::string quantisation_text(const std::optional<QuantisationConfig>& quantisation) {
    if (!quantisation) return "none";
    std::string text =
        fmt::format("affine {} bits, groups of {}", quantisation->global.bits, quantisation->global.group_size);
    if (!quantisation->overrides.empty())
        text += fmt::format(", {} modules with their own", quantisation->overrides.size());
    return text;
}

void write_quantisation(JsonWriter& json, const std::optional<QuantisationConfig>& quantisation) {
    json.key("quantisation");
    if (!quantisation) {
        json.null();
        return;
    }
    json.begin_object()
        .member("mode", "affine")
        .member("bits", quantisation->global.bits)
        .member("group_size", quantisation->global.group_size)
        .member("overrides", quantisation->overrides.size())
        .end_object();
}

state::StateShape target_shape(const TargetConfig& target, state::KvFormat kv) {
    return decode::target_state_shape(target, kv, state::RowFormat::bf16);
}

// One recurrent cell of all delta layers; a lane has two.
std::uint64_t cell_bytes(const state::StateShape& shape) {
    const std::size_t conv = shape.conv_rows * shape.conv_channels * state::row_element_bytes(shape.row_format);
    return shape.delta_layers * (shape.matrix_floats() * sizeof(float) + conv);
}

std::string line(std::string_view label, std::string_view text) { return fmt::format("{:<16}{}\n", label, text); }

std::string target_text(const std::filesystem::path& path, const TargetConfig& target, const Checkpoint& checkpoint) {
    const state::StateShape bf16 = target_shape(target, state::KvFormat::bf16);
    const state::StateShape int8 = target_shape(target, state::KvFormat::int8);
    std::string out = line("target", path.string());
    out += line("architecture",
                fmt::format("{} ({}), {} layout", target.model_type, target.moe ? "mixture of experts" : "dense",
                            checkpoint.layout() == CheckpointLayout::mlx ? "MLX" : "Hugging Face"));
    if (target.moe) {
        out += line("experts", fmt::format("{}, {} per token, width {}, shared expert's width {}", target.moe->experts,
                                           target.moe->experts_per_token, target.moe->expert_intermediate,
                                           target.moe->shared_expert_intermediate));
    }
    out += line("shape",
                fmt::format("hidden {}, {} layers ({} attention, {} delta), feed-forward {}, vocabulary {}{}",
                            target.hidden, target.layers, bf16.attention_layers, bf16.delta_layers, target.intermediate,
                            target.vocab, target.tied_embeddings ? ", tied embeddings" : ""));
    out += line("attention", fmt::format("{} query heads, {} KV heads, head dimension {}, rotating {}", target.q_heads,
                                         target.kv_heads, target.head_dim, target.rotary_dim));
    out += line("delta net", fmt::format("{} key heads of {}, {} value heads of {}, {} convolution taps",
                                         target.linear_key_heads, target.linear_key_dim, target.linear_value_heads,
                                         target.linear_value_dim, target.conv_kernel));
    out += line("positions", fmt::format("{}", target.max_positions));
    out += line("stop tokens", target.eos_ids.empty() ? "none" : fmt::format("{}", fmt::join(target.eos_ids, ", ")));
    out += line("quantisation", quantisation_text(target.quantisation));
    out += line("weights", weights_text(count_weights(checkpoint)));
    out += line("per token", fmt::format("{} of keys and values (bf16), {} (int8)", bytes_text(bf16.kv_token_bytes()),
                                         bytes_text(int8.kv_token_bytes())));
    out += line("per lane", fmt::format("{} of recurrent state (two cells), whatever the length",
                                        bytes_text(2 * cell_bytes(bf16))));
    return out;
}

std::string target_json(const std::filesystem::path& path, const TargetConfig& target, const Checkpoint& checkpoint) {
    const state::StateShape bf16 = target_shape(target, state::KvFormat::bf16);
    const state::StateShape int8 = target_shape(target, state::KvFormat::int8);
    JsonWriter json;
    json.begin_object()
        .member("kind", "target")
        .member("path", path.string())
        .member("model_type", target.model_type)
        .member("mixture_of_experts", target.moe.has_value())
        .member("layout", checkpoint.layout() == CheckpointLayout::mlx ? "mlx" : "huggingface")
        .member("hidden", target.hidden)
        .member("layers", target.layers)
        .member("attention_layers", bf16.attention_layers)
        .member("delta_layers", bf16.delta_layers)
        .member("intermediate", target.intermediate)
        .member("vocab", target.vocab)
        .member("tied_embeddings", target.tied_embeddings)
        .member("q_heads", target.q_heads)
        .member("kv_heads", target.kv_heads)
        .member("head_dim", target.head_dim)
        .member("rotary_dim", target.rotary_dim)
        .member("linear_key_heads", target.linear_key_heads)
        .member("linear_key_dim", target.linear_key_dim)
        .member("linear_value_heads", target.linear_value_heads)
        .member("linear_value_dim", target.linear_value_dim)
        .member("conv_kernel", target.conv_kernel)
        .member("max_positions", target.max_positions);
    json.key("stop_tokens").begin_array();
    for (const TokenId id : target.eos_ids) json.value(id);
    json.end_array();
    write_quantisation(json, target.quantisation);
    write_weights(json, count_weights(checkpoint));
    json.key("memory")
        .begin_object()
        .member("kv_token_bytes_bf16", bf16.kv_token_bytes())
        .member("kv_token_bytes_int8", int8.kv_token_bytes())
        .member("recurrent_lane_bytes", 2 * cell_bytes(bf16))
        .end_object();
    return json.end_object().take() + "\n";
}

// Widest window of a layer; 0 when some layer sees everything.
std::int64_t draft_window(const DraftConfig& draft) {
    std::int64_t window = 0;
    for (const DraftLayer& layer : draft.layer_attention) {
        if (layer.window == 0) return 0;
        window = std::max(window, layer.window);
    }
    return window;
}

// One context row and the ring rows made from it, in BF16.
std::uint64_t draft_row_bytes(const DraftConfig& draft) {
    const std::int64_t ring = draft.layers * 2 * draft.kv_heads * draft.head_dim;
    return size(draft.hidden + ring) * sizeof(Bf16);
}

std::string draft_text(const std::filesystem::path& path, const DraftConfig& draft, const Checkpoint& checkpoint) {
    const std::int64_t window = draft_window(draft);
    std::string out = line("draft", path.string());
    out += line("architecture", draft.version == DraftVersion::dflash2 ? "DFlash2" : "DFlash v1");
    out += line("shape", fmt::format("hidden {}, {} layers, feed-forward {}, vocabulary {}", draft.hidden, draft.layers,
                                     draft.intermediate, draft.vocab));
    out += line("attention", fmt::format("{} query heads, {} KV heads, head dimension {}", draft.q_heads,
                                         draft.kv_heads, draft.head_dim));
    out += line("window", window == 0 ? "unlimited" : fmt::format("{} positions", window));
    out += line("block", fmt::format("{} rows: the anchor and {} drafted", draft.block, draft.block - 1));
    out += line("taps", fmt::format("target layers {}{}", fmt::join(draft.taps, ", "),
                                    draft.target_layers == 0 ? "" : fmt::format(" of {}", draft.target_layers)));
    if (draft.selector) {
        out += line("selector", fmt::format("top {} candidates, rank {}", draft.selector->top_k, draft.selector->rank));
    }
    if (draft.conv) {
        out += line("convolution", fmt::format("{} taps, groups of {}", draft.conv->kernel, draft.conv->group_size));
    }
    out += line("quantisation", quantisation_text(draft.quantisation));
    out += line("weights", weights_text(count_weights(checkpoint)));
    out += window == 0
               ? line("per token", fmt::format("{} of context rows and rings", bytes_text(draft_row_bytes(draft))))
               : line("per lane", fmt::format("{} of context rows and rings, whatever the length",
                                              bytes_text(size(window - 1) * draft_row_bytes(draft))));
    return out;
}

std::string draft_json(const std::filesystem::path& path, const DraftConfig& draft, const Checkpoint& checkpoint) {
    const std::int64_t window = draft_window(draft);
    JsonWriter json;
    json.begin_object()
        .member("kind", "draft")
        .member("path", path.string())
        .member("version", draft.version == DraftVersion::dflash2 ? "dflash2" : "dflash1")
        .member("hidden", draft.hidden)
        .member("layers", draft.layers)
        .member("intermediate", draft.intermediate)
        .member("vocab", draft.vocab)
        .member("q_heads", draft.q_heads)
        .member("kv_heads", draft.kv_heads)
        .member("head_dim", draft.head_dim)
        .member("window", window)
        .member("block", draft.block)
        .member("mask_token", draft.mask_token)
        .member("target_layers", draft.target_layers);
    json.key("taps").begin_array();
    for (const std::int64_t tap : draft.taps) json.value(tap);
    json.end_array().key("selector");
    if (draft.selector) {
        json.begin_object().member("top_k", draft.selector->top_k).member("rank", draft.selector->rank).end_object();
    } else {
        json.null();
    }
    write_quantisation(json, draft.quantisation);
    write_weights(json, count_weights(checkpoint));
    json.key("memory").begin_object().member("context_row_bytes", draft_row_bytes(draft));
    json.key("context_lane_bytes");
    if (window == 0) {
        json.null();
    } else {
        json.value(size(window - 1) * draft_row_bytes(draft));
    }
    return json.end_object().end_object().take() + "\n";
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
    if (bytes < 1024) return fmt::format("{} bytes", bytes);
    const double value = static_cast<double>(bytes);
    if (bytes < 1024 * 1024) return fmt::format("{:.1f} KiB", value / 1024);
    if (bytes < 1024ull * 1024 * 1024) return fmt::format("{:.1f} MiB", value / (1024.0 * 1024));
    return fmt::format("{:.2f} GiB", value / (1024.0 * 1024 * 1024));
}

Result<std::string> inspect_target(const std::filesystem::path& path, InspectForm form) {
    DP_ASSIGN_OR_RETURN(const TargetConfig target, read_target_config(path));
    DP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(path));
    return form == InspectForm::json ? target_json(path, target, checkpoint) : target_text(path, target, checkpoint);
}

Result<std::string> inspect_draft(const std::filesystem::path& path, InspectForm form) {
    DP_ASSIGN_OR_RETURN(const DraftConfig draft, read_draft_config(path));
    DP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(path));
    return form == InspectForm::json ? draft_json(path, draft, checkpoint) : draft_text(path, draft, checkpoint);
}

}  // namespace draftprobe::cli
