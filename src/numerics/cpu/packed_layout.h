// How Matrix stores weights. Outputs sit in SIMD lanes: a panel is 16 outputs, and every 64-byte block below feeds one
// 512-bit register (or two 256-bit halves). Panels follow each other; outputs past `out` in the last panel are zero, in
// codes, scales and biases alike, so they compute to zero and are never stored.
//
//   affine4  per panel, per 8 columns, 64 bytes: dword o, byte j (0..3) = code[o][c+j] | code[o][c+4+j] << 4.
//            Masking the low or the high nibbles of a dword gives four consecutive columns of one output, which is the
//            operand of a u8 x s8 dot product; nibble 2j is column c+j and nibble 2j+1 column c+4+j for float decoding.
//   affine8  per panel, per 4 columns, 64 bytes: dword o, byte j = code[o][c+j].
//   bf16     per panel, per column, 32 bytes: u16 o = bits[o][c].
//   f32      per panel, per column, 64 bytes: float o = w[o][c].
//   scales, biases (affine): float [panel][group][16].
//
// The packed bytes start on a 64-byte boundary.
#pragma once

#include <cstddef>

#include "numerics/matrix.h"

namespace draftprobe::numerics {

// Columns stored by one block, and the bytes of that block.
constexpr std::size_t block_columns(WeightKind kind) {
    return kind == WeightKind::affine4 ? 8 : kind == WeightKind::affine8 ? 4 : 1;
}
constexpr std::size_t block_bytes(WeightKind kind) { return kind == WeightKind::bf16 ? 32 : 64; }

constexpr std::size_t panel_bytes(WeightKind kind, std::size_t in) {
    return in / block_columns(kind) * block_bytes(kind);
}
constexpr std::size_t panel_count(std::size_t out) { return (out + kPanelOutputs - 1) / kPanelOutputs; }
constexpr std::size_t group_count(std::size_t in) { return (in + kGroupColumns - 1) / kGroupColumns; }

}  // namespace draftprobe::numerics
