// Storage conversions between float32 and narrower floats. Exact or round-to-nearest-even; bits never depend on
// the instruction set. NaN stays NaN (quieted), infinities stay infinities.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/types.h"

namespace draftprobe {

inline float bf16_to_f32(Bf16 bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline Bf16 f32_to_bf16(float value) {
    std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Bf16>((bits >> 16) | 0x0040u);
    bits += 0x7fffu + ((bits >> 16) & 1u);
    return static_cast<Bf16>(bits >> 16);
}

inline float round_to_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)); }

// IEEE binary16, all values including subnormals.
inline float f16_to_f32(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fu;
    const std::uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace draftprobe
