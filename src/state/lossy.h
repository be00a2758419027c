// What lossy restore forms do to bytes: the values that come back from a snapshot whose rows were stored in fewer bits.
// Deterministic, and equal on every instruction set. docs/restores.md states the formats and their error bounds.
#pragma once

#include <cstddef>
#include <span>

namespace draftprobe::state {

// int8-state: symmetric int8 with one float32 scale per `row` values (a row of one head's matrix), quantised and
// dequantised as int8 KV is (docs/numerics.md), in place.
void through_int8_rows(std::span<float> values, std::size_t row);

inline constexpr std::size_t kQ4Group = 64;

// rows-q4: per group of 64 columns (the last one may be shorter) a float16 minimum m and scale s = (max - m) / 15, and
// 4-bit codes q = round((x - m) / s) in 0..15, ties to even; comes back as m + q * s, in place. Before quantising m is
// rounded down and s up in float16, so that the range is always covered. A group with a value that is not finite, or
// whose range float16 cannot hold, comes back as NaN: it cannot look right.
void through_q4(std::span<float> values);

}  // namespace draftprobe::state
