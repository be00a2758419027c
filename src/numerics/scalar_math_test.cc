#include "numerics/scalar_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "numerics/test_support.h"

// References come from the C library in double or long double. The x87 long double has 64 bits of mantissa, so its
// error is far below every bound here.

namespace draftprobe::numerics {
namespace {

using namespace testing_support;

constexpr float kInf = std::numeric_limits<float>::infinity();

// Distance of `value` from `exact` in units of the last place of a float of that size.
double ulps(float value, long double exact) {
    if (std::isnan(value)) return std::numeric_limits<double>::infinity();
    int exponent = 0;
    std::frexp(static_cast<double>(exact), &exponent);
    const double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
    return static_cast<double>(std::fabs(static_cast<long double>(value) - exact)) / ulp;
}

// Calls f(x) for about `count` floats spread evenly over the bit patterns of [low, high], 0 < low < high, and their
// negatives.
template <typename F>
void sweep(float low, float high, std::uint32_t count, const F& f) {
    const std::uint32_t first = std::bit_cast<std::uint32_t>(low);
    const std::uint32_t last = std::bit_cast<std::uint32_t>(high);
    const std::uint32_t step = std::max(1u, (last - first) / count);
    for (std::uint64_t b = first; b <= last; b += step) {
        const float x = std::bit_cast<float>(static_cast<std::uint32_t>(b));
        f(x);
        f(-x);
    }
}

TEST(ExpF32, within_two_ulps_of_the_true_value) {
    double worst = 0;
    sweep(0x1p-40f, 87.0f, 400000, [&](float x) { worst = std::max(worst, ulps(exp_f32(x), std::exp(double{x}))); });
    for (float x = 85.0f; x <= 0x1.62e42ep+6f; x += 0x1p-14f) {
        worst = std::max(worst, ulps(exp_f32(x), std::exp(double{x})));
        if (x < 0x1.5d589ep+6f) worst = std::max(worst, ulps(exp_f32(-x), std::exp(-double{x})));
    }
    EXPECT_LE(worst, 2.0);
    RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(ExpF32, edges) {
    EXPECT_EQ(exp_f32(0.0f), 1.0f);
    EXPECT_EQ(exp_f32(-0.0f), 1.0f);
    EXPECT_EQ(exp_f32(kInf), kInf);
    EXPECT_EQ(exp_f32(-kInf), 0.0f);
    EXPECT_FALSE(std::signbit(exp_f32(-kInf)));
    EXPECT_TRUE(std::isnan(exp_f32(kNan)));
    // Both sides of overflow and of the smallest normal result.
    EXPECT_TRUE(std::isfinite(exp_f32(0x1.62e42ep+6f)));
    EXPECT_EQ(exp_f32(0x1.62e430p+6f), kInf);
    EXPECT_GE(exp_f32(-0x1.5d589ep+6f), std::numeric_limits<float>::min());
    EXPECT_EQ(exp_f32(-0x1.5d58a0p+6f), 0.0f);
    EXPECT_EQ(exp_f32(-std::numeric_limits<float>::max()), 0.0f);
    EXPECT_EQ(exp_f32(std::numeric_limits<float>::max()), kInf);
}

TEST(ExpF32, never_subnormal) {
    for (float x = -88.0f; x > -110.0f; x -= 0x1p-10f) ASSERT_EQ(exp_f32(x), 0.0f) << x;
}

TEST(Sigmoid, within_four_ulps) {
    double worst = 0;
    sweep(0x1p-30f, 80.0f, 200000, [&](float x) {
        worst = std::max(worst, ulps(sigmoid_f32(x), 1.0L / (1.0L + std::exp(-static_cast<long double>(x)))));
    });
    EXPECT_LE(worst, 4.0);
    EXPECT_EQ(sigmoid_f32(0.0f), 0.5f);
    EXPECT_EQ(sigmoid_f32(kInf), 1.0f);
    EXPECT_EQ(sigmoid_f32(-kInf), 0.0f);
}

TEST(Silu, within_four_ulps) {
    double worst = 0;
    sweep(0x1p-30f, 80.0f, 200000, [&](float x) {
        const long double wide = x;
        worst = std::max(worst, ulps(silu_f32(x), wide / (1.0L + std::exp(-wide))));
    });
    EXPECT_LE(worst, 4.0);
    EXPECT_EQ(silu_f32(0.0f), 0.0f);
    EXPECT_TRUE(std::isnan(silu_f32(kNan)));
}

TEST(Softplus, rounded_once) {
    double worst = 0;
    sweep(0x1p-30f, 20.0f, 200000, [&](float x) {
        worst = std::max(worst, ulps(softplus_f32(x), std::log1p(std::exp(static_cast<long double>(x)))));
    });
    for (float x = -20.0f; x > -100.0f; x -= 0x1p-6f)
        worst = std::max(worst, ulps(softplus_f32(x), std::log1p(std::exp(static_cast<long double>(x)))));
    EXPECT_LE(worst, 0.5001);
    EXPECT_EQ(softplus_f32(20.5f), 20.5f);
    EXPECT_EQ(softplus_f32(-200.0f), 0.0f);
    EXPECT_TRUE(std::isnan(softplus_f32(kNan)));
}

double relative_error(double value, long double exact) {
    if (std::isnan(value)) return std::numeric_limits<double>::infinity();
    if (exact == 0) return value == 0 ? 0 : std::numeric_limits<double>::infinity();
    return static_cast<double>(std::fabs((static_cast<long double>(value) - exact) / exact));
}

TEST(ExpF64, relative_error) {
    Random random(1);
    double worst = 0;
    for (int i = 0; i < 200000; ++i) {
        const double x = std::ldexp(static_cast<double>(random.next() >> 11), -53) * 1410.0 - 705.0;
        worst = std::max(worst, relative_error(exp_f64(x), std::exp(static_cast<long double>(x))));
        worst = std::max(worst, relative_error(exp_f64(x * 0x1p-9), std::exp(static_cast<long double>(x * 0x1p-9))));
    }
    EXPECT_LE(worst, 1e-15);
    EXPECT_EQ(exp_f64(0), 1.0);
    EXPECT_EQ(exp_f64(-1000), 0.0);
    EXPECT_EQ(exp_f64(1000), std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isnan(exp_f64(std::numeric_limits<double>::quiet_NaN())));
    EXPECT_GT(exp_f64(-740), 0.0);
    EXPECT_TRUE(std::isfinite(exp_f64(0x1.62e42fefa39efp+9)));
}

TEST(LogF64, relative_error) {
    Random random(2);
    double worst = 0;
    for (int i = 0; i < 200000; ++i) {
        const std::uint64_t mantissa = random.next() >> 12;
        const std::uint64_t exponent = 1 + random.next() % 2046;
        const double x = std::bit_cast<double>(exponent << 52 | mantissa);
        worst = std::max(worst, relative_error(log_f64(x), std::log(static_cast<long double>(x))));
        const double near = 1.0 + (std::ldexp(static_cast<double>(random.next() >> 11), -53) - 0.5) *
                                      std::ldexp(1.0, -static_cast<int>(random.next() % 50));
        worst = std::max(worst, relative_error(log_f64(near), std::log(static_cast<long double>(near))));
    }
    EXPECT_LE(worst, 1e-15);
    EXPECT_EQ(log_f64(1.0), 0.0);
}

TEST(Log1pF64, relative_error) {
    Random random(3);
    double worst = 0;
    for (int i = 0; i < 400000; ++i) {
        const double unit = std::ldexp(static_cast<double>(random.next() >> 11), -53) * 2.0 - 1.0;
        const double x = unit * std::ldexp(1.0, static_cast<int>(random.next() % 100) - 60);
        if (x <= -1.0) continue;
        worst = std::max(worst, relative_error(log1p_f64(x), std::log1p(static_cast<long double>(x))));
    }
    EXPECT_LE(worst, 1e-15);
    EXPECT_EQ(log1p_f64(0.0), 0.0);
    EXPECT_EQ(log1p_f64(1e-300), 1e-300);
}

TEST(SinCos, rounded_once) {
    double worst = 0;
    const auto check = [&](float angle) {
        float s = 0;
        float c = 0;
        sincos_f32(angle, &s, &c);
        worst = std::max(worst, ulps(s, std::sin(static_cast<long double>(angle))));
        worst = std::max(worst, ulps(c, std::cos(static_cast<long double>(angle))));
    };
    sweep(0x1p-20f, 0x1.fffffep+21f, 200000, check);
    for (int i = 0; i < 300000; ++i) check(static_cast<float>(i));  // rotary angles of pair 0
    // Floats nearest to multiples of pi/2, where the reduction cancels.
    for (int n = 1; n < 2000000; n += 7) check(static_cast<float>(n * 1.57079632679489661923));
    EXPECT_LE(worst, 0.5001);
    float s = 1;
    float c = 0;
    sincos_f32(0.0f, &s, &c);
    EXPECT_EQ(s, 0.0f);
    EXPECT_EQ(c, 1.0f);
}

TEST(RopeFrequency, rounded_once) {
    double worst = 0;
    for (const double theta : {1e4, 1e5, 1e6, 1e7})
        for (const int dims : {2, 32, 64, 80, 128, 256})
            for (int i = 0; i < dims / 2; ++i) {
                const long double exact = std::pow(static_cast<long double>(theta), -2.0L * i / dims);
                worst = std::max(worst, ulps(rope_inverse_frequency(theta, i, dims), exact));
            }
    EXPECT_LE(worst, 0.5001);
    EXPECT_EQ(rope_inverse_frequency(1e7, 0, 64), 1.0f);
    EXPECT_EQ(rope_inverse_frequency(1e4, 16, 64), 0.01f);
}

}  // namespace
}  // namespace draftprobe::numerics
