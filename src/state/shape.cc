#include "state/shape.h"

namespace draftprobe::state {

std::string_view kv_format_name(KvFormat format) {
    switch (format) {
        case KvFormat::f32: return "f32";
        case KvFormat::bf16: return "bf16";
        case KvFormat::int8: return "int8";
    }
    return "unknown";
}

std::string_view row_format_name(RowFormat format) { return format == RowFormat::f32 ? "f32" : "bf16"; }

std::size_t row_element_bytes(RowFormat format) { return format == RowFormat::f32 ? sizeof(float) : sizeof(Bf16); }

namespace {
std::size_t kv_element_bytes(KvFormat format) {
    switch (format) {
        case KvFormat::f32: return 4;
        case KvFormat::bf16: return 2;
        case KvFormat::int8: return 1;
    }
    return 0;
}
}  // namespace

std::size_t StateShape::kv_token_bytes() const {
    const std::size_t per_head =
        head_dim * kv_element_bytes(kv_format) + (kv_format == KvFormat::int8 ? sizeof(float) : 0);
    return attention_layers * 2 * kv_heads * per_head;
}

std::size_t StateShape::kv_page_bytes() const { return kv_token_bytes() * static_cast<std::size_t>(kPageTokens); }

}  // namespace draftprobe::state
