// Words shared by every folder; docs/glossary.md defines them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace draftprobe {

using TokenId = std::uint32_t;
using Position = std::int64_t;  // absolute position; the first prompt token is at 0
using Bf16 = std::uint16_t;     // bfloat16 bits

// Tokens per KV page and per attention step. Positions are grouped by absolute index (position / 32), so the
// grouping never depends on where a chunk, a window or a restore begins.
inline constexpr Position kPageTokens = 32;

}  // namespace draftprobe
