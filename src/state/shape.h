// Dimensions of a lane's composite state. Every byte count of the state folder comes from here.
//
// Nothing has a default that is secretly one model: decode fills a StateShape from the loaded checkpoints.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/status.h"
#include "base/types.h"

namespace draftprobe::state {

// How keys and values are stored. int8: symmetric, one float32 scale per token, head and K/V.
// f32 exists for parity with reference implementations only.
enum class KvFormat { f32, bf16, int8 };
std::string_view kv_format_name(KvFormat format);

// How every other row of composite state is stored (convolution history, taps, context rows, draft rings).
enum class RowFormat { f32, bf16 };
std::string_view row_format_name(RowFormat format);
std::size_t row_element_bytes(RowFormat format);

struct StateShape {
    // Target, gated attention layers.
    std::size_t attention_layers = 0;
    std::size_t kv_heads = 0;
    std::size_t head_dim = 0;
    KvFormat kv_format = KvFormat::bf16;

    // Target, gated delta layers. conv_rows = kernel - 1, conv_channels = 2 * key_heads * key_dim + value_heads *
    // value_dim.
    std::size_t delta_layers = 0;
    std::size_t key_heads = 0;
    std::size_t value_heads = 0;
    std::size_t key_dim = 0;
    std::size_t value_dim = 0;
    std::size_t conv_rows = 0;
    std::size_t conv_channels = 0;

    // Draft context. context_capacity = window - 1 rows for sliding drafts (a row further back is never visible again).
    // draft_layers = 0: no draft.
    std::size_t draft_layers = 0;
    std::size_t draft_kv_heads = 0;
    std::size_t draft_head_dim = 0;
    std::size_t hidden = 0;
    std::size_t context_capacity = 0;
    RowFormat row_format = RowFormat::bf16;

    std::size_t max_tokens = 0;  // positions a lane can hold

    std::size_t matrix_floats() const { return value_heads * key_dim * value_dim; }  // per delta layer
    std::size_t kv_row_floats() const { return kv_heads * head_dim; }                // per attention layer, K or V
    std::size_t draft_kv_floats() const { return draft_kv_heads * draft_head_dim; }  // per draft layer, K or V
    std::size_t kv_page_bytes() const;                                               // one page, all attention layers
    std::size_t kv_token_bytes() const;                                              // one token, all attention layers

    bool operator==(const StateShape&) const = default;
};

}  // namespace draftprobe::state
