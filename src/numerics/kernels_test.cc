// Every kernel of every instruction set: bits against the scalar model, values against double, edges of each vector.
#include <gtest/gtest.h>

#include <functional>

#include "numerics/compute.h"
#include "numerics/test_support.h"

namespace draftprobe::numerics {
namespace {

using namespace testing_support;
using KernelsTest = IsaTest;

constexpr float kInf = std::numeric_limits<float>::infinity();

float inverse_root(float x) { return 1.0f / std::sqrt(x); }

TEST_P(KernelsTest, rms_norm) {
    Random random(11);
    for (const std::size_t n : kLengths) {
        Guarded<float> x(random.floats(n, 4));
        Guarded<float> w(random.floats(n, 2));
        Guarded<float> y(n);
        k().rms_norm(x.data(), w.data(), n, 1e-6f, y.data());

        const float r = inverse_root(model_dot(x.data(), x.data(), n) / static_cast<float>(n) + 1e-6f);
        double sum = 0;
        for (std::size_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
        const double exact_r = 1 / std::sqrt(sum / static_cast<double>(n) + double{1e-6f});
        for (std::size_t i = 0; i < n; ++i) {
            const float model = (x[i] * r) * w[i];
            ASSERT_TRUE(bits_equal(&y[i], &model, 1)) << "n " << n << " i " << i;
            const double exact = x[i] * exact_r * w[i];
            ASSERT_TRUE(within(y[i], exact, (static_cast<double>(n) / 16 + 12) * kEps * std::fabs(exact))) << n;
        }
        k().rms_norm(x.data(), w.data(), n, 1e-6f, x.data());
        ASSERT_TRUE(bits_equal(x.data(), y.data(), n)) << "in place, n " << n;
    }
}

TEST_P(KernelsTest, l2_normalise) {
    Random random(12);
    for (const std::size_t n : kLengths) {
        Guarded<float> x(random.floats(n, 4));
        Guarded<float> y(n);
        k().l2_normalise(x.data(), n, 1e-6f, 0.25f, y.data());
        const float r = inverse_root(model_dot(x.data(), x.data(), n) + 1e-6f);
        double sum = 0;
        for (std::size_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
        const double exact_r = 1 / std::sqrt(sum + double{1e-6f});
        for (std::size_t i = 0; i < n; ++i) {
            const float model = (x[i] * r) * 0.25f;
            ASSERT_TRUE(bits_equal(&y[i], &model, 1)) << "n " << n << " i " << i;
            const double exact = x[i] * exact_r * 0.25;
            ASSERT_TRUE(within(y[i], exact, (static_cast<double>(n) / 16 + 12) * kEps * std::fabs(exact))) << n;
        }
        k().l2_normalise(x.data(), n, 1e-6f, 0.25f, x.data());
        ASSERT_TRUE(bits_equal(x.data(), y.data(), n)) << "in place, n " << n;
    }
}

TEST_P(KernelsTest, norms_of_zeros_are_zero) {
    std::vector<float> x(40, 0.0f);
    std::vector<float> y(40, 1.0f);
    const std::vector<float> w(40, 2.0f);
    k().rms_norm(x.data(), w.data(), 40, 1e-6f, y.data());
    EXPECT_TRUE(bits_equal(y, std::vector<float>(40, 0.0f)));
    k().l2_normalise(x.data(), 40, 1e-6f, 3.0f, y.data());
    EXPECT_TRUE(bits_equal(y, std::vector<float>(40, 0.0f)));
}

TEST_P(KernelsTest, gated_rms_norm) {
    Random random(13);
    for (const std::size_t n : kLengths) {
        Guarded<float> x(random.floats(n, 4));
        Guarded<float> w(random.floats(n, 2));
        Guarded<float> z(random.floats(n, 8));
        Guarded<float> y(n);
        k().gated_rms_norm(x.data(), w.data(), z.data(), n, 1e-6f, y.data());
        const float r = inverse_root(model_dot(x.data(), x.data(), n) / static_cast<float>(n) + 1e-6f);
        double sum = 0;
        for (std::size_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
        const double exact_r = 1 / std::sqrt(sum / static_cast<double>(n) + double{1e-6f});
        for (std::size_t i = 0; i < n; ++i) {
            const float model = ((x[i] * r) * w[i]) * silu_f32(z[i]);
            ASSERT_TRUE(bits_equal(&y[i], &model, 1)) << "n " << n << " i " << i;
            const double exact = x[i] * exact_r * w[i] * (z[i] / (1 + std::exp(-double{z[i]})));
            ASSERT_TRUE(within(y[i], exact, (static_cast<double>(n) / 16 + 20) * kEps * std::fabs(exact))) << n;
        }
        k().gated_rms_norm(x.data(), w.data(), z.data(), n, 1e-6f, x.data());
        ASSERT_TRUE(bits_equal(x.data(), y.data(), n)) << "in place, n " << n;
    }
}

TEST_P(KernelsTest, silu_mul_and_sigmoid_mul) {
    Random random(14);
    for (const std::size_t n : kLengths) {
        Guarded<float> a(random.floats(n, 16));
        Guarded<float> b(random.floats(n, 4));
        Guarded<float> y(n);
        k().silu_mul(a.data(), b.data(), n, y.data());
        for (std::size_t i = 0; i < n; ++i) {
            const float model = silu_f32(a[i]) * b[i];
            ASSERT_TRUE(bits_equal(&y[i], &model, 1)) << "n " << n << " i " << i;
            const double exact = a[i] / (1 + std::exp(-double{a[i]})) * b[i];
            ASSERT_TRUE(within(y[i], exact, 10 * kEps * std::fabs(exact)));
        }
        k().sigmoid_mul(b.data(), a.data(), n, y.data());
        for (std::size_t i = 0; i < n; ++i) {
            const float model = b[i] * sigmoid_f32(a[i]);
            ASSERT_TRUE(bits_equal(&y[i], &model, 1)) << "n " << n << " i " << i;
            const double exact = b[i] / (1 + std::exp(-double{a[i]}));
            ASSERT_TRUE(within(y[i], exact, 10 * kEps * std::fabs(exact)));
        }
        std::vector<float> alias = b.values();
        k().sigmoid_mul(alias.data(), a.data(), n, alias.data());
        ASSERT_TRUE(bits_equal(alias.data(), y.data(), n));
        k().silu_mul(a.data(), b.data(), n, y.data());
        alias = a.values();
        k().silu_mul(alias.data(), b.data(), n, alias.data());
        ASSERT_TRUE(bits_equal(alias.data(), y.data(), n));
    }
}

// The exponential inside the kernels is exp_f32, for every class of input: silu(x) * 1 exposes it.
TEST_P(KernelsTest, vector_exponential_equals_scalar) {
    std::vector<float> x = {0.0f,
                            -0.0f,
                            1e-40f,
                            -1e-40f,
                            87.3f,
                            -87.3f,
                            88.72f,
                            -88.72f,
                            0x1.62e42ep+6f,
                            0x1.62e430p+6f,
                            -0x1.5d589ep+6f,
                            -0x1.5d58a0p+6f,
                            0x1.5d589ep+6f,
                            0x1.5d58a0p+6f,
                            1e30f,
                            -1e30f,
                            kInf};
    for (std::uint64_t b = 0; b < 0x100000000ull; b += 0x3f11)
        if (const float v = std::bit_cast<float>(static_cast<std::uint32_t>(b)); v == v) x.push_back(v);
    // NaN with payloads: their low bits must not end up in the exponent.
    for (const std::uint32_t b : {0x7fc00000u, 0x7fc00001u, 0xffc00001u, 0x7f800001u, 0x7fffffffu, 0xff812345u})
        x.push_back(std::bit_cast<float>(b));
    // The last steps of the polynomial rarely move the result, so the range that matters is dense.
    Random random(23);
    for (int i = 0; i < 300000; ++i) {
        x.push_back(random.uniform(64));
        x.push_back(random.uniform(2));
    }
    const std::vector<float> one(x.size(), 1.0f);
    std::vector<float> y(x.size());
    k().sigmoid_mul(one.data(), x.data(), x.size(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
        const float model = sigmoid_f32(x[i]);
        if (std::isnan(x[i]))
            ASSERT_TRUE(std::isnan(y[i]) && std::isnan(model)) << std::hex << std::bit_cast<std::uint32_t>(x[i]);
        else
            ASSERT_TRUE(bits_equal(&y[i], &model, 1)) << x[i];
    }
    k().silu_mul(x.data(), one.data(), x.size(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
        const float model = silu_f32(x[i]);
        if (std::isnan(model))
            ASSERT_TRUE(std::isnan(y[i])) << x[i];
        else
            ASSERT_TRUE(bits_equal(&y[i], &model, 1)) << x[i];
    }
}

TEST_P(KernelsTest, add) {
    Random random(15);
    for (const std::size_t n : kLengths) {
        Guarded<float> x(random.floats(n));
        Guarded<float> y(random.floats(n, 8));
        std::vector<float> model(n);
        for (std::size_t i = 0; i < n; ++i) model[i] = x[i] + y[i];
        k().add(x.data(), y.data(), n);
        ASSERT_TRUE(bits_equal(x.data(), model.data(), n)) << n;
    }
}

TEST_P(KernelsTest, rope) {
    Random random(16);
    for (const std::size_t dims : {2u, 8u, 30u, 32u, 34u, 64u, 128u, 256u}) {
        const std::size_t half = dims / 2;
        Guarded<float> x(random.floats(dims, 4));
        Guarded<float> c(half);
        Guarded<float> s(half);
        for (std::size_t i = 0; i < half; ++i)
            sincos_f32(1234.0f * rope_inverse_frequency(1e7, static_cast<int>(i), static_cast<int>(dims)), &s[i],
                       &c[i]);
        const std::vector<float> before = x.values();
        k().rope(x.data(), c.data(), s.data(), dims);
        for (std::size_t i = 0; i < half; ++i) {
            const float a = before[i];
            const float b = before[i + half];
            const float first = std::fma(-b, s[i], a * c[i]);
            const float second = std::fma(a, s[i], b * c[i]);
            ASSERT_TRUE(bits_equal(&x[i], &first, 1)) << dims << " " << i;
            ASSERT_TRUE(bits_equal(&x[i + half], &second, 1)) << dims << " " << i;
            const double bound = 3 * kEps * (std::fabs(double{a}) + std::fabs(double{b}));
            ASSERT_TRUE(within(x[i], double{a} * c[i] - double{b} * s[i], bound));
            ASSERT_TRUE(within(x[i + half], double{b} * c[i] + double{a} * s[i], bound));
        }
    }
}

TEST_P(KernelsTest, bf16_conversions) {
    // Every bf16 value with the low halves that decide rounding, NaN and infinity included.
    std::vector<float> x;
    for (std::uint32_t high = 0; high < 0x10000; ++high)
        for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
            x.push_back(std::bit_cast<float>(high << 16 | low));
    std::vector<Bf16> narrow(x.size());
    k().to_bf16(x.data(), x.size(), narrow.data());
    for (std::size_t i = 0; i < x.size(); ++i)
        ASSERT_EQ(narrow[i], f32_to_bf16(x[i])) << std::hex << std::bit_cast<std::uint32_t>(x[i]);
    std::vector<float> wide(x.size());
    k().from_bf16(narrow.data(), narrow.size(), wide.data());
    for (std::size_t i = 0; i < x.size(); ++i)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), static_cast<std::uint32_t>(narrow[i]) << 16);
    std::vector<float> rounded = x;
    k().round_bf16(rounded.data(), rounded.size());
    ASSERT_EQ(std::memcmp(rounded.data(), wide.data(), wide.size() * sizeof(float)), 0);

    Random random(17);
    for (const std::size_t n : kLengths) {
        Guarded<float> a(random.floats(n));
        Guarded<Bf16> b(n);
        Guarded<float> c(n);
        k().to_bf16(a.data(), n, b.data());
        k().from_bf16(b.data(), n, c.data());
        k().round_bf16(a.data(), n);
        ASSERT_TRUE(bits_equal(a.data(), c.data(), n)) << n;
    }
}

TEST_P(KernelsTest, quantise_int8) {
    Random random(18);
    for (const std::size_t n : kLengths) {
        Guarded<float> x(random.floats(n, 8));
        Guarded<std::int8_t> q(n);
        std::vector<std::int8_t> model(n);
        float scale = 0;
        float model_scale = 0;
        k().quantise_int8(x.data(), n, q.data(), &scale);
        model_quantise(x.data(), n, model.data(), &model_scale);
        ASSERT_TRUE(bits_equal(&scale, &model_scale, 1)) << n;
        ASSERT_EQ(q.values(), model) << n;
        Guarded<float> y(n);
        k().dequantise_int8(q.data(), n, scale, y.data());
        for (std::size_t i = 0; i < n; ++i) {
            const float value = scale * static_cast<float>(q[i]);
            ASSERT_TRUE(bits_equal(&y[i], &value, 1)) << n;
            ASSERT_TRUE(within(y[i], x[i], 0.5001 * scale)) << n;
        }
    }
}

TEST_P(KernelsTest, quantise_int8_ties_go_to_even) {
    std::vector<float> x = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -126.5f, -127.0f, 3.5f, 0.49999997f};
    std::vector<std::int8_t> q(x.size());
    float scale = 0;
    k().quantise_int8(x.data(), x.size(), q.data(), &scale);
    EXPECT_EQ(scale, 1.0f);
    EXPECT_EQ(q, (std::vector<std::int8_t>{127, 0, 2, 2, 0, -2, -2, 126, -126, -127, 4, 0}));
}

TEST_P(KernelsTest, quantise_int8_edges) {
    std::vector<std::int8_t> q(20);
    float scale = 1;
    const auto run = [&](std::vector<float> x) {
        std::fill(q.begin(), q.end(), std::int8_t{99});
        k().quantise_int8(x.data(), x.size(), q.data(), &scale);
        q.resize(x.size());
    };
    run(std::vector<float>(20, 0.0f));
    EXPECT_EQ(scale, 0.0f);
    EXPECT_EQ(q, std::vector<std::int8_t>(20, 0));
    run(std::vector<float>(20, -0.0f));
    EXPECT_EQ(scale, 0.0f);
    // 127 / absmax overflows: too small to represent, treated as zero.
    run(std::vector<float>(20, 1e-37f));
    EXPECT_EQ(scale, 0.0f);
    EXPECT_EQ(q, std::vector<std::int8_t>(20, 0));
    run(std::vector<float>(20, -4e-37f));
    EXPECT_GT(scale, 0.0f);
    EXPECT_EQ(q, std::vector<std::int8_t>(20, -127));
    // The largest float still scales to 127; a non-finite input makes the scale NaN so that it cannot pass unseen.
    run(std::vector<float>(20, std::numeric_limits<float>::max()));
    EXPECT_EQ(q, std::vector<std::int8_t>(20, 127));
    EXPECT_TRUE(std::isfinite(scale));
    for (const float bad : {kNan, kInf, -kInf})
        for (const std::size_t at : {0u, 15u, 16u, 19u}) {
            std::vector<float> x(20, 1.0f);
            x[at] = bad;
            run(x);
            EXPECT_TRUE(std::isnan(scale)) << bad << " at " << at;
            EXPECT_EQ(q, std::vector<std::int8_t>(20, 0));
        }
}

TEST_P(KernelsTest, conv_silu) {
    Random random(19);
    for (const std::size_t n : kLengths)
        for (const std::size_t taps : {1u, 2u, 4u}) {
            std::vector<Guarded<float>> rows;
            rows.reserve(taps);
            std::vector<const float*> pointers;
            for (std::size_t j = 0; j < taps; ++j) rows.emplace_back(random.floats(n, 4));
            for (auto& row : rows) pointers.push_back(row.data());
            Guarded<float> w(random.floats(taps * n));
            Guarded<float> y(n);
            k().conv_silu(pointers.data(), w.data(), taps, n, y.data());
            for (std::size_t c = 0; c < n; ++c) {
                float acc = 0;
                double exact = 0;
                double terms = 0;
                for (std::size_t j = 0; j < taps; ++j) {
                    acc = std::fma(w[j * n + c], rows[j][c], acc);
                    exact += double{w[j * n + c]} * rows[j][c];
                    terms += std::fabs(double{w[j * n + c]} * rows[j][c]);
                }
                const float model = silu_f32(acc);
                ASSERT_TRUE(bits_equal(&y[c], &model, 1)) << n << " " << taps << " " << c;
                // |silu'| <= 1.1.
                const double value = exact / (1 + std::exp(-exact));
                ASSERT_TRUE(within(y[c], value,
                                   1.1 * (static_cast<double>(taps) + 1) * kEps * terms + 9 * kEps * std::fabs(value)));
            }
        }
}

TEST_P(KernelsTest, dynamic_conv) {
    Random random(20);
    struct Shape {
        std::size_t n, group, taps;
    };
    for (const Shape s : {Shape{64, 16, 2}, Shape{96, 32, 2}, Shape{48, 8, 3}, Shape{60, 5, 2}, Shape{4, 2, 2},
                          Shape{17, 17, 1}, Shape{120, 24, 4}, Shape{33, 1, 2}}) {
        std::vector<Guarded<float>> rows;
        rows.reserve(s.taps);
        for (std::size_t j = 0; j < s.taps; ++j) rows.emplace_back(random.floats(s.n, 4));
        Guarded<float> base(random.floats(s.taps * s.n));
        Guarded<float> delta(random.floats(s.taps * (s.n / s.group)));
        // Every subset of missing rows.
        for (std::size_t missing = 0; missing < (1u << s.taps); ++missing) {
            std::vector<const float*> pointers;
            for (std::size_t j = 0; j < s.taps; ++j)
                pointers.push_back((missing >> j & 1) != 0 ? nullptr : rows[j].data());
            Guarded<float> y(s.n);
            k().dynamic_conv(pointers.data(), base.data(), delta.data(), s.taps, s.group, s.n, y.data());
            for (std::size_t c = 0; c < s.n; ++c) {
                float acc = 0;
                double exact = 0;
                double terms = 0;
                for (std::size_t j = 0; j < s.taps; ++j) {
                    if (pointers[j] == nullptr) continue;
                    const float d = delta[j * (s.n / s.group) + c / s.group];
                    acc = std::fma(base[j * s.n + c] + d, rows[j][c], acc);
                    exact += (double{base[j * s.n + c]} + d) * rows[j][c];
                    terms += (std::fabs(double{base[j * s.n + c]}) + std::fabs(double{d})) * std::fabs(rows[j][c]);
                }
                ASSERT_TRUE(bits_equal(&y[c], &acc, 1)) << s.n << " " << s.group << " " << c;
                ASSERT_TRUE(within(y[c], exact, (static_cast<double>(s.taps) + 1) * kEps * terms));
            }
        }
    }
}

TEST_P(KernelsTest, dynamic_conv_worked_example) {
    const float x[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {-1, 0, 1, 2}};
    const float base[8] = {1, 1, 1, 1, 0.5f, 0, -0.5f, 0};
    const float delta[3][4] = {{.1f, .2f, 9, 9}, {0, 0, 1, -1}, {-.5f, .5f, 0, 2}};
    const float expected[3][4] = {{1.1f, 2.2f, 3.6f, 4.8f}, {6.5f, 8, 2.5f, 4}, {2, 0, 12, 19}};
    for (int t = 0; t < 3; ++t) {
        const float* rows[2] = {x[t], t > 0 ? x[t - 1] : nullptr};
        float y[4];
        k().dynamic_conv(rows, base, delta[t], 2, 2, 4, y);
        for (int c = 0; c < 4; ++c) EXPECT_FLOAT_EQ(y[c], expected[t][c]) << t << " " << c;
    }
}

TEST_P(KernelsTest, weighted_sum) {
    Random random(33);
    for (const std::size_t n : {1u, 16u, 33u, 64u, 100u}) {
        for (const std::size_t count : {0u, 1u, 3u, 9u}) {
            std::vector<Guarded<float>> rows;
            std::vector<const float*> pointers;
            rows.reserve(count);
            for (std::size_t j = 0; j < count; ++j) {
                rows.emplace_back(random.floats(n, 4));
                pointers.push_back(rows.back().data());
            }
            const std::vector<float> w = random.floats(count);
            Guarded<float> y(n);
            k().weighted_sum(pointers.data(), w.data(), count, n, y.data());
            for (std::size_t c = 0; c < n; ++c) {
                float acc = 0;
                double exact = 0;
                double terms = 0;
                for (std::size_t j = 0; j < count; ++j) {
                    acc = std::fma(w[j], rows[j][c], acc);
                    exact += double{w[j]} * rows[j][c];
                    terms += std::fabs(double{w[j]} * rows[j][c]);
                }
                ASSERT_TRUE(bits_equal(&y[c], &acc, 1)) << n << " " << count << " " << c;
                ASSERT_TRUE(within(y[c], exact, static_cast<double>(count) * kEps * terms));
            }
        }
    }
}

void model_delta(const float* in, float* state, const float* query, const float* key, const float* value, float decay,
                 float beta, std::size_t dk, std::size_t dv, float* out) {
    for (std::size_t v = 0; v < dv; ++v) {
        float m = 0;
        for (std::size_t i = 0; i < dk; ++i) m = std::fma(decay * in[i * dv + v], key[i], m);
        const float d = beta * (value[v] - m);
        float o = 0;
        for (std::size_t i = 0; i < dk; ++i) {
            state[i * dv + v] = std::fma(key[i], d, decay * in[i * dv + v]);
            o = std::fma(state[i * dv + v], query[i], o);
        }
        out[v] = o;
    }
}

TEST_P(KernelsTest, delta_step) {
    Random random(21);
    struct Shape {
        std::size_t dk, dv;
    };
    for (const Shape s : {Shape{2, 2}, Shape{16, 15}, Shape{32, 16}, Shape{128, 128}, Shape{64, 80}, Shape{3, 97},
                          Shape{128, 64}, Shape{1, 1}}) {
        Guarded<float> state(random.floats(s.dk * s.dv));
        Guarded<float> query(random.floats(s.dk));
        Guarded<float> key(random.floats(s.dk));
        Guarded<float> value(random.floats(s.dv, 2));
        Guarded<float> next(s.dk * s.dv);
        Guarded<float> out(s.dv);
        k().delta_step(state.data(), next.data(), query.data(), key.data(), value.data(), 0.875f, 0.3f, s.dk, s.dv,
                       out.data());
        std::vector<float> model_state(s.dk * s.dv);
        std::vector<float> model_out(s.dv);
        model_delta(state.data(), model_state.data(), query.data(), key.data(), value.data(), 0.875f, 0.3f, s.dk, s.dv,
                    model_out.data());
        ASSERT_TRUE(bits_equal(next.values(), model_state)) << s.dk << "x" << s.dv;
        ASSERT_TRUE(bits_equal(out.values(), model_out)) << s.dk << "x" << s.dv;

        // The update alone, and in place.
        Guarded<float> alone(s.dk * s.dv);
        k().delta_step(state.data(), alone.data(), nullptr, key.data(), value.data(), 0.875f, 0.3f, s.dk, s.dv,
                       nullptr);
        ASSERT_TRUE(bits_equal(alone.values(), model_state));
        Guarded<float> place(state.values());
        k().delta_step(place.data(), place.data(), query.data(), key.data(), value.data(), 0.875f, 0.3f, s.dk, s.dv,
                       out.data());
        ASSERT_TRUE(bits_equal(place.values(), model_state));
        ASSERT_TRUE(bits_equal(out.values(), model_out));

        for (std::size_t v = 0; v < s.dv; ++v) {
            const double decay = double{0.875f};
            double m = 0;
            double m_terms = 0;
            for (std::size_t i = 0; i < s.dk; ++i) {
                m += decay * state[i * s.dv + v] * key[i];
                m_terms += std::fabs(decay * state[i * s.dv + v] * key[i]);
            }
            const double d = double{0.3f} * (value[v] - m);
            const double d_bound = (static_cast<double>(s.dk) + 4) * kEps * 0.3 * (std::fabs(value[v]) + m_terms);
            double o = 0;
            double o_bound = 0;
            for (std::size_t i = 0; i < s.dk; ++i) {
                const double updated = decay * state[i * s.dv + v] + key[i] * d;
                const double bound = 2 * kEps * (std::fabs(decay * state[i * s.dv + v]) + std::fabs(key[i] * d)) +
                                     std::fabs(key[i]) * d_bound;
                ASSERT_TRUE(within(next[i * s.dv + v], updated, bound));
                o += updated * query[i];
                o_bound += std::fabs(query[i]) * (bound + static_cast<double>(s.dk) * kEps * std::fabs(updated));
            }
            ASSERT_TRUE(within(out[v], o, o_bound + 1e-30));
        }
    }
}

TEST_P(KernelsTest, delta_step_worked_example) {
    // Two steps of qwen35-hybrid.md section 5.3.
    std::vector<float> state(4, 0.0f);
    float out[2];
    const float r2 = 0.70710678f;
    const float q0[2] = {0.6f * r2, 0.8f * r2};
    const float k0[2] = {1, 0};
    const float v0[2] = {2, -1};
    k().delta_step(state.data(), state.data(), q0, k0, v0, .096116f, .689974f, 2, 2, out);
    EXPECT_NEAR(out[0], .585462, 2e-5);
    EXPECT_NEAR(out[1], -.292731, 2e-5);
    const float q1[2] = {r2 * r2, r2 * r2};
    const float k1[2] = {.6f, .8f};
    const float v1[2] = {1, 1};
    k().delta_step(state.data(), state.data(), q1, k1, v1, .225645f, .622459f, 2, 2, out);
    EXPECT_NEAR(out[0], .510006, 2e-5);
    EXPECT_NEAR(out[1], .398579, 2e-5);
    EXPECT_NEAR(state[0], .615078, 2e-5);
    EXPECT_NEAR(state[1], .252674, 2e-5);
    EXPECT_NEAR(state[2], .404934, 2e-5);
    EXPECT_NEAR(state[3], .544484, 2e-5);
}

TEST_P(KernelsTest, dot_and_dot3) {
    Random random(22);
    for (const std::size_t n : kLengths) {
        Guarded<float> a(random.floats(n, 2));
        Guarded<float> b(random.floats(n, 2));
        Guarded<float> c(random.floats(n, 2));
        const float d2 = k().dot(a.data(), b.data(), n);
        const float d3 = k().dot3(a.data(), b.data(), c.data(), n);
        const float model2 = model_dot(a.data(), b.data(), n);
        float lanes[16] = {};
        double exact2 = 0, terms2 = 0, exact3 = 0, terms3 = 0;
        for (std::size_t i = 0; i < n; ++i) {
            lanes[i % 16] = std::fma(a[i] * b[i], c[i], lanes[i % 16]);
            exact2 += double{a[i]} * b[i];
            terms2 += std::fabs(double{a[i]} * b[i]);
            exact3 += double{a[i]} * b[i] * c[i];
            terms3 += std::fabs(double{a[i]} * b[i] * c[i]);
        }
        const float model3 = model_tree(lanes);
        ASSERT_TRUE(bits_equal(&d2, &model2, 1)) << n;
        ASSERT_TRUE(bits_equal(&d3, &model3, 1)) << n;
        const double steps = static_cast<double>(n) / 16 + 6;
        ASSERT_TRUE(within(d2, exact2, steps * kEps * terms2)) << n;
        ASSERT_TRUE(within(d3, exact3, (steps + 1) * kEps * terms3)) << n;
    }
}

// A lane with no feature keeps its bits: underflow leaves -0 in every lane, and an fma with padding would
// turn it into +0.
TEST_P(KernelsTest, dot_keeps_negative_zero_lanes) {
    const std::vector<float> a(17, -0x1p-100f);
    const std::vector<float> b(17, 0x1p-100f);
    const float result = k().dot(a.data(), b.data(), 17);
    const float model = model_dot(a.data(), b.data(), 17);
    EXPECT_TRUE(std::signbit(model));
    EXPECT_TRUE(bits_equal(&result, &model, 1));
}

TEST_P(KernelsTest, subnormals_survive) {
    // FTZ or DAZ would give zero.
    std::vector<float> x(20, 0x1p-130f);
    const std::vector<float> y(20, 0x1p-131f);
    k().add(x.data(), y.data(), 20);
    EXPECT_TRUE(bits_equal(x, std::vector<float>(20, 0x1.8p-130f)));
    const std::vector<float> a(1, 0x1p-70f);
    const float d = k().dot(a.data(), a.data(), 1);
    EXPECT_EQ(d, 0x1p-140f);
}

TEST_P(KernelsTest, nan_inputs_reach_the_output) {
    for (const std::size_t n : {1u, 16u, 17u, 40u})
        for (std::size_t at = 0; at < n; ++at) {
            std::vector<float> x(n, 1.0f);
            x[at] = kNan;
            const std::vector<float> w(n, 1.0f);
            std::vector<float> y(n);
            k().rms_norm(x.data(), w.data(), n, 1e-6f, y.data());
            EXPECT_EQ(std::count_if(y.begin(), y.end(), [](float v) { return std::isnan(v); }), static_cast<int>(n));
            k().silu_mul(x.data(), w.data(), n, y.data());
            EXPECT_EQ(std::count_if(y.begin(), y.end(), [](float v) { return std::isnan(v); }), 1);
            EXPECT_TRUE(std::isnan(y[at]));
            k().sigmoid_mul(w.data(), x.data(), n, y.data());
            EXPECT_EQ(std::count_if(y.begin(), y.end(), [](float v) { return std::isnan(v); }), 1);
            EXPECT_TRUE(std::isnan(y[at]));
            EXPECT_TRUE(std::isnan(k().dot(x.data(), w.data(), n)));
        }
}

DP_EVERY_ISA(KernelsTest);

}  // namespace
}  // namespace draftprobe::numerics
