#include "numerics/scalar_math.h"

#include <bit>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <limits>

#include "numerics/exp_constants.h"

namespace draftprobe::numerics {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Rounds a double to an integer, as exp_constants::kRoundMagic does for floats.
constexpr double kRoundMagic = 0x1.8p52;
constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr double kLn2High = 0x1.62e42fefa39efp-1;
constexpr double kLn2Low = 0x1.abc9e3b39803fp-56;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kHalfPiHigh = 0x1.921fb54442d18p+0;
constexpr double kHalfPiLow = 0x1.1a62633145c07p-54;

// 2^exponent for a normal result.
double power_of_two(std::int64_t exponent) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// Taylor series with first dropped term below 1e-16 of the result for |r| <= pi/4. Coefficients are the correctly
// rounded quotients of two exact doubles (every factorial up to 18! is exact).
double sin_reduced(double r) {
    const double z = r * r;
    double p = -1.0 / 1307674368000.0;
    p = std::fma(p, z, 1.0 / 6227020800.0);
    p = std::fma(p, z, -1.0 / 39916800.0);
    p = std::fma(p, z, 1.0 / 362880.0);
    p = std::fma(p, z, -1.0 / 5040.0);
    p = std::fma(p, z, 1.0 / 120.0);
    p = std::fma(p, z, -1.0 / 6.0);
    return std::fma(r * z, p, r);
}

double cos_reduced(double r) {
    const double z = r * r;
    double p = 1.0 / 20922789888000.0;
    p = std::fma(p, z, -1.0 / 87178291200.0);
    p = std::fma(p, z, 1.0 / 479001600.0);
    p = std::fma(p, z, -1.0 / 3628800.0);
    p = std::fma(p, z, 1.0 / 40320.0);
    p = std::fma(p, z, -1.0 / 720.0);
    p = std::fma(p, z, 1.0 / 24.0);
    p = std::fma(p, z, -0.5);
    return std::fma(p, z, 1.0);
}

}  // namespace

float exp_f32(float x) {
    namespace k = exp_constants;
    if (x != x) return x;
    if (x > k::kOverflow) return std::numeric_limits<float>::infinity();
    if (x < k::kUnderflow) return 0.0f;
    const float t = std::fma(x, k::kLog2E, k::kRoundMagic);
    const float n = t - k::kRoundMagic;
    float r = std::fma(n, -k::kLn2High, x);
    r = std::fma(n, -k::kLn2Low, r);
    float p = k::kC6;
    p = std::fma(p, r, k::kC5);
    p = std::fma(p, r, k::kC4);
    p = std::fma(p, r, k::kC3);
    p = std::fma(p, r, k::kC2);
    p = std::fma(p, r, 1.0f);
    p = std::fma(p, r, 1.0f);
    const std::uint32_t steps = std::bit_cast<std::uint32_t>(t) - std::bit_cast<std::uint32_t>(k::kRoundMagic);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + (steps << 23));
}

float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

float silu_f32(float x) { return x / (1.0f + exp_f32(-x)); }

float softplus_f32(float x) {
    if (x > 20.0f) return x;
    return static_cast<float>(log1p_f64(exp_f64(static_cast<double>(x))));
}

double exp_f64(double x) {
    if (x != x) return x;
    if (x > 0x1.62e42fefa39efp+9) return kInfinity;
    if (x < -746.0) return 0.0;
    const double n = std::fma(x, kLog2E, kRoundMagic) - kRoundMagic;
    double r = std::fma(n, -kLn2High, x);
    r = std::fma(n, -kLn2Low, r);
    // Taylor to r^13: the first dropped term is below 5e-18.
    double p = 1.0 / 6227020800.0;
    p = std::fma(p, r, 1.0 / 479001600.0);
    p = std::fma(p, r, 1.0 / 39916800.0);
    p = std::fma(p, r, 1.0 / 3628800.0);
    p = std::fma(p, r, 1.0 / 362880.0);
    p = std::fma(p, r, 1.0 / 40320.0);
    p = std::fma(p, r, 1.0 / 5040.0);
    p = std::fma(p, r, 1.0 / 720.0);
    p = std::fma(p, r, 1.0 / 120.0);
    p = std::fma(p, r, 1.0 / 24.0);
    p = std::fma(p, r, 1.0 / 6.0);
    p = std::fma(p, r, 0.5);
    p = std::fma(p, r, 1.0);
    p = std::fma(p, r, 1.0);
    // Two factors keep each power normal when the result is subnormal or next to overflow.
    const std::int64_t steps = static_cast<std::int64_t>(n);
    const std::int64_t half = steps / 2;
    return p * power_of_two(half) * power_of_two(steps - half);
}

double log_f64(double x) {
    if (x != x || x == kInfinity) return x;
    assert(x >= std::numeric_limits<double>::min());
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
    std::int64_t exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
    double m = std::bit_cast<double>((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 0x1.6a09e667f3bcdp+0) {  // keep m in (sqrt(1/2), sqrt(2)] so that log(x) near x = 1 does not cancel
        m *= 0.5;
        ++exponent;
    }
    // log m = 2 atanh(s) with s = (m - 1) / (m + 1), |s| <= 0.1716; first dropped term below 1e-18 relative.
    const double s = (m - 1.0) / (m + 1.0);
    const double z = s * s;
    double p = 1.0 / 23.0;
    p = std::fma(p, z, 1.0 / 21.0);
    p = std::fma(p, z, 1.0 / 19.0);
    p = std::fma(p, z, 1.0 / 17.0);
    p = std::fma(p, z, 1.0 / 15.0);
    p = std::fma(p, z, 1.0 / 13.0);
    p = std::fma(p, z, 1.0 / 11.0);
    p = std::fma(p, z, 1.0 / 9.0);
    p = std::fma(p, z, 1.0 / 7.0);
    p = std::fma(p, z, 1.0 / 5.0);
    p = std::fma(p, z, 1.0 / 3.0);
    const double twice = s + s;
    const double log_m = std::fma(twice * z, p, twice);
    const double e = static_cast<double>(exponent);
    return std::fma(e, kLn2High, std::fma(e, kLn2Low, log_m));
}

double log1p_f64(double x) {
    if (x != x || x == kInfinity) return x;
    assert(x > -1.0);
    const double u = 1.0 + x;
    if (u == 1.0) return x;
    // 1 + x = u + lost exactly; log(u + lost) = log(u) + lost / u to first order, and lost is at most half an ulp of u.
    const double lost = x > 1.0 ? 1.0 - (u - x) : x - (u - 1.0);
    return log_f64(u) + lost / u;
}

void sincos_f32(float angle, float* sin_out, float* cos_out) {
    const double x = static_cast<double>(angle);
    assert(std::fabs(x) < 0x1p22);
    const double n = std::fma(x, kTwoOverPi, kRoundMagic) - kRoundMagic;
    double r = std::fma(n, -kHalfPiHigh, x);
    r = std::fma(n, -kHalfPiLow, r);
    const double s = sin_reduced(r);
    const double c = cos_reduced(r);
    switch (static_cast<std::int64_t>(n) & 3) {
        case 0:
            *sin_out = static_cast<float>(s);
            *cos_out = static_cast<float>(c);
            return;
        case 1:
            *sin_out = static_cast<float>(c);
            *cos_out = static_cast<float>(-s);
            return;
        case 2:
            *sin_out = static_cast<float>(-s);
            *cos_out = static_cast<float>(-c);
            return;
        default:
            *sin_out = static_cast<float>(-c);
            *cos_out = static_cast<float>(s);
            return;
    }
}

float rope_inverse_frequency(double theta, int i, int dims) {
    assert(theta > 0 && i >= 0 && dims > 0);
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(dims);
    return static_cast<float>(exp_f64(exponent * log_f64(theta)));
}

}  // namespace draftprobe::numerics
