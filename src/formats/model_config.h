// config.json of targets and drafts, validated: what a checkpoint says about itself before any tensor is read.
//
// Values are plain data and immutable by convention. Every number is in a range that later arithmetic cannot overflow
// (dimensions below 2^24, products of two below 2^48). Keys that are not named here are ignored.
// Sources: the published configurations and the readers of transformers, mlx-lm and vLLM.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/status.h"
#include "base/types.h"

namespace draftprobe {

// MLX affine quantisation: groups of group_size consecutive inputs share scale and bias; codes have `bits` bits.
struct AffineScheme {
    int group_size = 64;  // 32, 64 or 128
    int bits = 4;         // 2, 3, 4, 5, 6 or 8
    bool operator==(const AffineScheme&) const = default;
};

// "quantization" of config.json. A module listed in `overrides` has that scheme, or is plain when it holds nullopt; any
// other module is quantised with `global` exactly if its ".scales" tensor exists. Keys are module paths as stored.
struct QuantisationConfig {
    AffineScheme global;
    std::map<std::string, std::optional<AffineScheme>, std::less<>> overrides;
};

enum class LayerKind { linear_attention, full_attention };

struct MoeConfig {
    std::int64_t experts = 0;
    std::int64_t experts_per_token = 0;
    std::int64_t expert_intermediate = 0;
    std::int64_t shared_expert_intermediate = 0;
};

// A Qwen3.5-family text model. Dimensions in elements.
struct TargetConfig {
    std::string
        model_type;  // of the text part: "qwen3_5_text", "qwen3_5_moe_text" (root spelling when flat and unsuffixed)
    std::optional<MoeConfig> moe;  // set: mixture of experts, and `intermediate` is 0

    std::int64_t hidden = 0;
    std::int64_t layers = 0;
    std::int64_t intermediate = 0;
    std::int64_t vocab = 0;

    std::int64_t q_heads = 0;  // a multiple of kv_heads
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t rotary_dim = 0;  // even, 2..head_dim: the leading dimensions of a head that rotate
    double rope_theta = 0;

    std::int64_t linear_key_heads = 0;
    std::int64_t linear_value_heads = 0;  // a multiple of linear_key_heads
    std::int64_t linear_key_dim = 0;      // per head
    std::int64_t linear_value_dim = 0;    // per head
    std::int64_t conv_kernel = 0;         // taps, at least 2

    std::vector<LayerKind> layer_kinds;  // one per layer
    double rms_norm_eps = 0;
    std::int64_t max_positions = 0;
    bool tied_embeddings = false;  // then there is no lm_head tensor
    // Stop tokens, ascending; may be empty. An id or a list, of the first that names any: generation_config.json,
    // text_config, config.json. Never a union, and never tokenizer_config.json's eos_token, which names what the
    // tokenizer may put behind a text.
    std::vector<TokenId> eos_ids;

    std::optional<QuantisationConfig> quantisation;

    std::int64_t key_width() const { return linear_key_heads * linear_key_dim; }
    std::int64_t value_width() const { return linear_value_heads * linear_value_dim; }
    std::int64_t conv_channels() const { return 2 * key_width() + value_width(); }
    std::string_view family() const { return moe ? "qwen3_5_moe" : "qwen3_5"; }
};

enum class DraftVersion { dflash1, dflash2 };

// Attention of one draft layer. A query at p sees a key at s iff |p - s| < window (when not causal), or s <= p and
// p - s < window (when causal).
struct DraftLayer {
    std::int64_t window = 0;  // 0: unlimited (full_attention)
    bool causal = false;
    bool operator==(const DraftLayer&) const = default;
};

struct DraftConv {
    std::int64_t kernel = 0;      // taps K
    std::int64_t group_size = 0;  // channels per group; divides hidden
};

struct DraftSelector {
    std::int64_t rank = 0;
    std::int64_t top_k = 0;
};

// Candidates that are recorded per position for a draft without a selector: as many as released selectors have, so that
// captures of both kinds have one shape.
inline constexpr std::int64_t kUnaryCandidates = 16;

struct DraftConfig {
    DraftVersion version = DraftVersion::dflash2;
    std::int64_t hidden = 0;
    std::int64_t layers = 0;
    std::int64_t intermediate = 0;
    std::int64_t vocab = 0;
    std::int64_t q_heads = 0;  // a multiple of kv_heads
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;  // even; all of it rotates
    double rope_theta = 0;
    double rms_norm_eps = 0;
    std::int64_t max_positions = 0;
    std::vector<DraftLayer> layer_attention;  // one per layer

    std::int64_t block = 0;          // rows of a block, anchor included; at least 2
    TokenId mask_token = 0;          // below vocab
    std::vector<std::int64_t> taps;  // 0-based target layers whose outputs feed fc; strictly ascending, not empty
    std::int64_t target_layers = 0;  // 0: not stated; otherwise every tap is below it

    std::optional<DraftConv> conv;          // set exactly for dflash2
    std::optional<DraftSelector> selector;  // set exactly for dflash2

    double output_multiplier = 1.0;
    double input_embedding_scale = 1.0;
    double logit_softcap = 0.0;  // 0: none

    std::optional<QuantisationConfig> quantisation;

    std::int64_t conv_groups() const { return conv ? hidden / conv->group_size : 0; }
    // Candidates per drafted position; at most vocab.
    std::int64_t candidates() const { return selector ? selector->top_k : std::min(kUnaryCandidates, vocab); }
};

// Read `dir`/config.json, and for a target `dir`/generation_config.json when it exists.
// Errors: not_found, io; corrupt (bytes or a value that breaks its rule); unsupported (another architecture,
// activation, rope type or quantisation mode, with what was found and what is served); mismatch (two parts that
// disagree).
Result<TargetConfig> read_target_config(const std::filesystem::path& dir);
Result<DraftConfig> read_draft_config(const std::filesystem::path& dir);

// The same from parsed documents; `subject` names config.json in messages. `generation` may be null.
Result<TargetConfig> parse_target_config(const Json& config, const Json* generation, std::string_view subject);
Result<DraftConfig> parse_draft_config(const Json& config, std::string_view subject);

// The "quantization" part alone (or its duplicate "quantization_config"); nullopt when there is none.
Result<std::optional<QuantisationConfig>> parse_quantisation(const Json& config, std::string_view subject);

}  // namespace draftprobe
