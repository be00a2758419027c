#include "state/lossy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/float_bits.h"
#include "numerics/compute.h"

namespace draftprobe::state {

namespace {

// The finite float16 next below (towards minus infinity) or at `value`. Requires |value| <= 65504.
float f16_at_or_below(float value) {
    // Magnitudes of float16 ascend with their bits; the search is over 15 of them.
    const bool negative = std::signbit(value);
    const float magnitude = std::fabs(value);
    std::uint16_t low = 0;
    for (std::uint16_t bit = 0x4000; bit != 0; bit >>= 1) {
        const auto candidate = static_cast<std::uint16_t>(low | bit);
        if (candidate < 0x7c00 && f16_to_f32(candidate) <= magnitude) low = candidate;
    }
    if (!negative) return f16_to_f32(low);
    if (f16_to_f32(low) < magnitude) ++low;
    return -f16_to_f32(low);
}

float f16_at_or_above(float value) { return -f16_at_or_below(-value); }

constexpr float kLargestF16 = 65504.0f;

void group_through_q4(std::span<float> group) {
    const auto [lowest, highest] = std::minmax_element(group.begin(), group.end());
    const bool finite = std::all_of(group.begin(), group.end(), [](float x) { return std::isfinite(x); });
    const float minimum = finite ? *lowest : 0.0f;
    const float maximum = finite ? *highest : 0.0f;
    if (!finite || std::fabs(minimum) > kLargestF16 || std::fabs(maximum) > kLargestF16) {
        std::fill(group.begin(), group.end(), std::numeric_limits<float>::quiet_NaN());
        return;
    }
    const float base = f16_at_or_below(minimum);
    const float scale = f16_at_or_above((maximum - base) / 15.0f);
    for (float& value : group) {
        const float code = scale == 0.0f ? 0.0f : std::clamp(std::nearbyint((value - base) / scale), 0.0f, 15.0f);
        value = std::fma(code, scale, base);
    }
}

}  // namespace

void through_int8_rows(std::span<float> values, std::size_t row) {
    const numerics::Kernels& kernels = numerics::kernels(numerics::best_isa());
    std::vector<std::int8_t> codes(row);
    for (std::size_t at = 0; at < values.size(); at += row) {
        const std::size_t count = std::min(row, values.size() - at);
        float scale = 0;
        kernels.quantise_int8(values.data() + at, count, codes.data(), &scale);
        kernels.dequantise_int8(codes.data(), count, scale, values.data() + at);
    }
}

void through_q4(std::span<float> values) {
    for (std::size_t at = 0; at < values.size(); at += kQ4Group) {
        group_through_q4(values.subspan(at, std::min(kQ4Group, values.size() - at)));
    }
}

}  // namespace draftprobe::state
