// Shared by the numerics tests: inputs, buffers with guarded margins, bit comparison, and scalar models of the
// contract.
//
// A model is the operator spelled out in plain loops with std::fma, in exactly the order the header comment states.
// Every instruction set must equal its model bit for bit; separately, results must lie within c * eps * sum|terms| of
// double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/float_bits.h"
#include "numerics/compute.h"
#include "numerics/scalar_math.h"

namespace draftprobe::numerics::testing_support {

inline constexpr double kEps = 0x1p-24;  // half an ulp of 1: the relative error of one rounding
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Lengths around every vector and group edge.
inline const std::vector<std::size_t> kLengths = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256, 1000};

// splitmix64: fixed for ever, because golden bits depend on it.
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
        state_ += 0x9e3779b97f4a7c15ull;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    // Multiples of 2^-24 in [-limit, limit); limit a power of two keeps them exact.
    float uniform(float limit = 1.0f) { return (static_cast<float>(next() >> 40) * 0x1p-23f - 1.0f) * limit; }
    std::vector<float> floats(std::size_t n, float limit = 1.0f) {
        std::vector<float> v(n);
        for (float& x : v) x = uniform(limit);
        return v;
    }

private:
    std::uint64_t state_;
};

// n values at an odd offset, surrounded by a pattern that a stray write changes and a stray read turns into NaN.
template <typename T>
class Guarded {
public:
    explicit Guarded(std::size_t n) : n_(n), bytes_((n + 2 * kMargin) * sizeof(T), kPattern) {}
    explicit Guarded(const std::vector<T>& values) : Guarded(values.size()) {
        std::memcpy(data(), values.data(), n_ * sizeof(T));
    }
    T* data() { return reinterpret_cast<T*>(bytes_.data()) + kMargin; }
    std::size_t size() const { return n_; }
    T& operator[](std::size_t i) { return data()[i]; }
    std::vector<T> values() { return std::vector<T>(data(), data() + n_); }
    ~Guarded() {
        const std::size_t edge = kMargin * sizeof(T);
        for (std::size_t i = 0; i < edge; ++i) {
            EXPECT_EQ(bytes_[i], kPattern) << "write before the buffer";
            EXPECT_EQ(bytes_[bytes_.size() - 1 - i], kPattern) << "write past the buffer";
        }
    }

private:
    static constexpr std::size_t kMargin = 19;
    static constexpr unsigned char kPattern = 0xff;  // a NaN as float
    std::size_t n_;
    std::vector<unsigned char> bytes_;
};

inline ::testing::AssertionResult bits_equal(const float* a, const float* b, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
        if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i]))
            return ::testing::AssertionFailure()
                   << "element " << i << " of " << n << ": " << std::hexfloat << a[i] << " against " << b[i];
    return ::testing::AssertionSuccess();
}
inline ::testing::AssertionResult bits_equal(const std::vector<float>& a, const std::vector<float>& b) {
    if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes " << a.size() << " and " << b.size();
    return bits_equal(a.data(), b.data(), a.size());
}

// Passes only when the difference is a number that is at most the bound: NaN fails.
inline ::testing::AssertionResult within(double value, double reference, double bound) {
    const double difference = std::fabs(value - reference);
    if (!(difference <= bound))
        return ::testing::AssertionFailure()
               << value << " against " << reference << ", difference " << difference << " exceeds " << bound;
    return ::testing::AssertionSuccess();
}

// FNV-1a over the bytes: the golden hash.
class Hash {
public:
    void bytes(const void* data, std::size_t n) {
        const auto* p = static_cast<const unsigned char*>(data);
        for (std::size_t i = 0; i < n; ++i) value_ = (value_ ^ p[i]) * 0x100000001b3ull;
    }
    template <typename T>
    void values(const std::vector<T>& v) {
        bytes(v.data(), v.size() * sizeof(T));
    }
    void value(float x) { bytes(&x, sizeof x); }
    std::uint64_t get() const { return value_; }

private:
    std::uint64_t value_ = 0xcbf29ce484222325ull;
};

inline const std::vector<Isa> kEveryIsa = {Isa::portable, Isa::avx2, Isa::avx512};

// Base of suites that run once per instruction set. isa_report_test.cc counts them by the prefix EveryIsa.
class IsaTest : public ::testing::TestWithParam<Isa> {
protected:
    void SetUp() override {
        if (!isa_supported(GetParam())) GTEST_SKIP() << "CPU lacks " << isa_name(GetParam());
    }
    const Kernels& k() const { return kernels(GetParam()); }
};
inline std::string isa_test_name(const ::testing::TestParamInfo<Isa>& tested) {
    return std::string(isa_name(tested.param));
}
#define DP_EVERY_ISA(suite) INSTANTIATE_TEST_SUITE_P(EveryIsa, suite, ::testing::ValuesIn(kEveryIsa), isa_test_name)

// ---- scalar models ----

inline float model_tree(const float (&lanes)[16]) {
    float v[16];
    std::copy(lanes, lanes + 16, v);
    for (int w = 8; w > 0; w /= 2)
        for (int l = 0; l < w; ++l) v[l] = v[l] + v[l + w];
    return v[0];
}

inline float model_dot(const float* a, const float* b, std::size_t n) {
    float lanes[16] = {};
    for (std::size_t i = 0; i < n; ++i) lanes[i % 16] = std::fma(a[i], b[i], lanes[i % 16]);
    return model_tree(lanes);
}

inline void model_quantise(const float* x, std::size_t n, std::int8_t* q, float* scale) {
    float absmax = 0;
    for (std::size_t i = 0; i < n; ++i) absmax = std::max(absmax, std::fabs(x[i]));
    const float inverse = 127.0f / absmax;
    if (!std::isfinite(inverse)) {
        *scale = 0;
        std::fill(q, q + n, std::int8_t{0});
        return;
    }
    *scale = absmax / 127.0f;
    for (std::size_t i = 0; i < n; ++i) q[i] = static_cast<std::int8_t>(std::nearbyint(x[i] * inverse));
}

}  // namespace draftprobe::numerics::testing_support
