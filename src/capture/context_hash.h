// The name of one decoding context. Lane-cycles of two arms are compared only when their contexts are equal, and this
// hash is how equality travels between captures. Target and draft belong to identity, not to the context.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/types.h"

namespace draftprobe {

inline constexpr std::string_view kContextHashTag = "draftprobe.context";
inline constexpr std::uint8_t kContextHashVersion = 1;

// Lower-case hex of SHA-256(kContextHashTag, kContextHashVersion as one byte, tokenizer_digest as its 64 hex digits, L
// as u64le, the L committed ids as u32le, the pending anchor as u32le), L being ids.size(). Requires a tokenizer_digest
// of 64 hex digits, or an empty one when ids were given without a tokenizer.
std::string context_hash(std::string_view tokenizer_digest, std::span<const TokenId> ids, TokenId anchor);

}  // namespace draftprobe
