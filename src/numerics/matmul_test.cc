// Matrix products: layout, bits against the scalar model for every kind, width, thread count and instruction set,
// values against double and exact integers.
#include <gtest/gtest.h>

#include <map>

#include "numerics/compute.h"
#include "numerics/test_support.h"

namespace draftprobe::numerics {
namespace {

using namespace testing_support;

const std::vector<WeightKind> kEveryKind = {WeightKind::f32, WeightKind::bf16, WeightKind::affine4,
                                            WeightKind::affine8};

bool affine(WeightKind kind) { return kind == WeightKind::affine4 || kind == WeightKind::affine8; }

// A matrix in source form: codes and group values, or dense values.
struct Source {
    WeightKind kind;
    std::size_t out, in;
    std::vector<std::uint32_t> codes;   // [out][in], affine
    std::vector<float> scales, biases;  // [out][in/64], affine
    std::vector<float> dense;           // [out][in]; for bf16 already rounded

    Matrix matrix() const {
        if (kind == WeightKind::f32) return Matrix::from_f32(dense, out, in);
        if (kind == WeightKind::bf16) {
            std::vector<Bf16> narrow;
            for (const float v : dense) narrow.push_back(f32_to_bf16(v));
            return Matrix::from_bf16(narrow, out, in);
        }
        const std::uint32_t bits = kind == WeightKind::affine4 ? 4 : 8;
        const std::size_t per_word = 32 / bits;
        std::vector<std::uint32_t> words(out * in / per_word, 0);
        for (std::size_t i = 0; i < codes.size(); ++i)
            words[i / per_word] |= codes[i] << (bits * static_cast<std::uint32_t>(i % per_word));
        auto m = Matrix::from_affine({words, scales, biases, static_cast<int>(bits)}, out, in);
        EXPECT_TRUE(m.ok()) << m.status().message();
        return std::move(m).value();
    }
};

Source make_source(WeightKind kind, std::size_t out, std::size_t in, Random& random) {
    Source s{kind, out, in, {}, {}, {}, {}};
    if (affine(kind)) {
        const std::uint64_t top = kind == WeightKind::affine4 ? 16 : 256;
        for (std::size_t i = 0; i < out * in; ++i)
            s.codes.push_back(static_cast<std::uint32_t>((random.next() >> 32) % top));
        s.scales = random.floats(out * in / 64, 0.25f);  // both signs
        s.biases = random.floats(out * in / 64);
        return s;
    }
    s.dense = random.floats(out * in);
    if (kind == WeightKind::bf16)
        for (float& v : s.dense) v = round_to_bf16(v);
    return s;
}

// Compute::matmul as its header comment states it, one output.
float model_output(const Source& w, NumericsClass cls, const float* x, std::size_t o) {
    float acc = 0;
    for (std::size_t first = 0; first < w.in; first += 64) {
        const std::size_t group = o * ((w.in + 63) / 64) + first / 64;
        if (affine(w.kind) && cls == NumericsClass::i8dot) {
            std::int8_t xq[64];
            float sx = 0;
            model_quantise(x + first, 64, xq, &sx);
            std::int64_t i = 0;
            std::int64_t n = 0;
            for (std::size_t c = 0; c < 64; ++c) {
                i += static_cast<std::int64_t>(w.codes[o * w.in + first + c]) * xq[c];
                n += xq[c];
            }
            acc = std::fma(w.scales[group], sx * static_cast<float>(i), acc);
            acc = std::fma(w.biases[group], sx * static_cast<float>(n), acc);
            continue;
        }
        float t[2] = {};
        float sum[2] = {};
        for (std::size_t c = 0; c < 64 && first + c < w.in; ++c) {
            const std::size_t at = o * w.in + first + c;
            const float weight = affine(w.kind) ? static_cast<float>(w.codes[at]) : w.dense[at];
            t[c / 32] = std::fma(weight, x[first + c], t[c / 32]);
            sum[c / 32] = sum[c / 32] + x[first + c];
        }
        if (affine(w.kind)) {
            acc = std::fma(w.scales[group], t[0], acc);
            acc = std::fma(w.scales[group], t[1], acc);
            acc = std::fma(w.biases[group], sum[0] + sum[1], acc);
        } else {
            acc = acc + t[0];
            acc = acc + t[1];
        }
    }
    return acc;
}

std::vector<float> model_product(const Source& w, NumericsClass cls, const std::vector<float>& x, std::size_t rows) {
    std::vector<float> y(rows * w.out);
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t o = 0; o < w.out; ++o) y[r * w.out + o] = model_output(w, cls, x.data() + r * w.in, o);
    return y;
}

std::unique_ptr<Compute> make_compute(Isa isa, NumericsClass cls, int threads) {
    auto compute = Compute::create({isa, cls, threads});
    EXPECT_TRUE(compute.ok()) << compute.status().message();
    return std::move(compute).value();
}

std::vector<float> product(const Compute& compute, const Matrix& w, const std::vector<float>& x, std::size_t rows) {
    // Row strides beyond the row, odd addresses, guarded margins.
    const std::size_t x_stride = w.in() + 3;
    const std::size_t y_stride = w.out() + 5;
    Guarded<float> source(rows * x_stride);
    Guarded<float> target(rows * y_stride);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = kNan;
    for (std::size_t i = 0; i < target.size(); ++i) target[i] = 77.0f;
    for (std::size_t r = 0; r < rows; ++r) std::copy_n(x.data() + r * w.in(), w.in(), source.data() + r * x_stride);
    compute.matmul(w, {source.data(), rows, w.in(), x_stride}, {target.data(), rows, w.out(), y_stride});
    std::vector<float> y;
    for (std::size_t r = 0; r < rows; ++r) {
        const float* row = target.data() + r * y_stride;
        y.insert(y.end(), row, row + w.out());
        for (std::size_t o = w.out(); o < y_stride; ++o) EXPECT_EQ(row[o], 77.0f) << "write past the row";
    }
    return y;
}

using MatmulTest = IsaTest;

TEST_P(MatmulTest, equals_the_model_at_every_width_and_thread_count) {
    constexpr std::size_t kOut = 200;  // ends in half a panel
    constexpr std::size_t kIn = 256;
    for (const WeightKind kind : kEveryKind)
        for (const NumericsClass cls : {NumericsClass::f32, NumericsClass::i8dot}) {
            if (cls == NumericsClass::i8dot && !affine(kind)) continue;
            Random random(31);
            const Source source = make_source(kind, kOut, kIn, random);
            const Matrix w = source.matrix();
            const std::vector<float> x = random.floats(64 * kIn, 4);
            const std::vector<float> model = model_product(source, cls, x, 64);
            for (const int threads : {1, 2, 3}) {
                const auto compute = make_compute(GetParam(), cls, threads);
                for (const std::size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 64}) {
                    const std::vector<float> some(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(rows * kIn));
                    const std::vector<float> y = product(*compute, w, some, rows);
                    ASSERT_TRUE(bits_equal(y.data(), model.data(), rows * kOut))
                        << "kind " << static_cast<int>(kind) << " class " << numerics_class_name(cls) << " rows "
                        << rows << " threads " << threads;
                }
            }
        }
}

TEST_P(MatmulTest, equals_the_model_at_every_edge) {
    for (const WeightKind kind : kEveryKind)
        for (const NumericsClass cls : {NumericsClass::f32, NumericsClass::i8dot}) {
            if (cls == NumericsClass::i8dot && !affine(kind)) continue;
            const auto compute = make_compute(GetParam(), cls, 1);
            const std::vector<std::size_t> ins =
                affine(kind) ? std::vector<std::size_t>{64, 128, 192, 320}
                             : std::vector<std::size_t>{1, 2, 15, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 130};
            for (const std::size_t in : ins)
                for (const std::size_t out : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 100}) {
                    Random random(in * 1000 + out);
                    const Source source = make_source(kind, out, in, random);
                    const Matrix w = source.matrix();
                    for (const std::size_t rows : {1, 2, 3, 4, 5, 8, 16}) {
                        const std::vector<float> x = random.floats(rows * in, 4);
                        ASSERT_TRUE(bits_equal(product(*compute, w, x, rows), model_product(source, cls, x, rows)))
                            << "kind " << static_cast<int>(kind) << " [" << out << ", " << in << "] rows " << rows;
                    }
                }
        }
}

TEST_P(MatmulTest, a_row_does_not_depend_on_its_neighbours) {
    // Past 256 rows the product runs in passes.
    constexpr std::size_t kRows = 300;
    constexpr std::size_t kOut = 40;
    constexpr std::size_t kIn = 128;
    for (const WeightKind kind : kEveryKind)
        for (const NumericsClass cls : {NumericsClass::f32, NumericsClass::i8dot}) {
            if (cls == NumericsClass::i8dot && !affine(kind)) continue;
            Random random(33);
            const Source source = make_source(kind, kOut, kIn, random);
            const Matrix w = source.matrix();
            std::vector<float> x = random.floats(kRows * kIn);
            const auto compute = make_compute(GetParam(), cls, 2);
            std::vector<float> all = product(*compute, w, x, kRows);
            for (std::size_t r = 0; r < kRows; ++r) {
                const std::vector<float> row(x.begin() + static_cast<std::ptrdiff_t>(r * kIn),
                                             x.begin() + static_cast<std::ptrdiff_t>((r + 1) * kIn));
                const std::vector<float> y = product(*compute, w, row, 1);
                ASSERT_TRUE(bits_equal(y.data(), all.data() + r * kOut, kOut)) << "row " << r;
            }
            // A NaN in one row stays in that row, and reaches every output of it.
            x[7 * kIn + 100] = kNan;
            const std::vector<float> poisoned = product(*compute, w, x, kRows);
            for (std::size_t r = 0; r < kRows; ++r)
                for (std::size_t o = 0; o < kOut; ++o) {
                    if (r == 7)
                        ASSERT_TRUE(std::isnan(poisoned[r * kOut + o])) << o;
                    else
                        ASSERT_TRUE(bits_equal(&poisoned[r * kOut + o], &all[r * kOut + o], 1)) << r << " " << o;
                }
        }
}

// matmul_outputs: the same bits on the calling thread, for every cut of the outputs, and nothing written beside it.
TEST_P(MatmulTest, some_outputs_equal_the_whole_product) {
    Random random(9);
    for (const WeightKind kind : kEveryKind) {
        const Source source = make_source(kind, 72, 192, random);
        const Matrix w = source.matrix();
        for (const NumericsClass cls : {NumericsClass::f32, NumericsClass::i8dot}) {
            const auto compute = make_compute(GetParam(), cls, 3);
            for (const std::size_t rows : {1u, 2u, 9u, 300u}) {
                const std::vector<float> x = random.floats(rows * w.in(), 4);
                const std::vector<float> whole = product(*compute, w, x, rows);
                for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>{0, 72}, {16, 32}, {64, 8}}) {
                    std::vector<float> y(rows * 72, -7.0f);
                    compute->matmul_outputs(w, {x.data(), rows, 192, 192}, first, count, {y.data(), rows, 72, 72});
                    for (std::size_t i = 0; i < y.size(); ++i) {
                        const bool inside = i % 72 >= first && i % 72 < first + count;
                        const float expected = inside ? whole[i] : -7.0f;
                        ASSERT_TRUE(bits_equal(&y[i], &expected, 1)) << rows << " " << first << " " << i;
                    }
                }
            }
        }
    }
}

TEST_P(MatmulTest, a_class_may_be_asked_for) {
    Random random(10);
    const Matrix w = make_source(WeightKind::affine8, 24, 128, random).matrix();
    const std::vector<float> x = random.floats(2 * 128, 4);
    const auto exact = make_compute(GetParam(), NumericsClass::f32, 1);
    const auto rounded = make_compute(GetParam(), NumericsClass::i8dot, 1);
    std::vector<float> y(2 * 24);
    rounded->matmul(w, {x.data(), 2, 128, 128}, {y.data(), 2, 24, 24}, NumericsClass::f32);
    EXPECT_EQ(y, product(*exact, w, x, 2));
    EXPECT_NE(y, product(*rounded, w, x, 2));
}

TEST_P(MatmulTest, f32_is_within_its_bound_of_double) {
    constexpr std::size_t kOut = 48;
    constexpr std::size_t kIn = 1024;
    constexpr std::size_t kRows = 9;
    for (const WeightKind kind : kEveryKind) {
        Random random(34);
        const Source s = make_source(kind, kOut, kIn, random);
        const Matrix w = s.matrix();
        const std::vector<float> x = random.floats(kRows * kIn, 2);
        const auto compute = make_compute(GetParam(), NumericsClass::f32, 1);
        const std::vector<float> y = product(*compute, w, x, kRows);
        for (std::size_t r = 0; r < kRows; ++r)
            for (std::size_t o = 0; o < kOut; ++o) {
                double exact = 0;
                double terms = 0;
                for (std::size_t c = 0; c < kIn; ++c) {
                    const double xc = x[r * kIn + c];
                    if (!affine(kind)) {
                        exact += s.dense[o * kIn + c] * xc;
                        terms += std::fabs(s.dense[o * kIn + c] * xc);
                        continue;
                    }
                    const double scale = s.scales[o * (kIn / 64) + c / 64];
                    const double bias = s.biases[o * (kIn / 64) + c / 64];
                    const double code = s.codes[o * kIn + c];
                    exact += (scale * code + bias) * xc;
                    terms += (std::fabs(scale * code) + std::fabs(bias)) * std::fabs(xc);
                }
                // A term passes at most 32 steps of its chain and three per group.
                ASSERT_TRUE(within(y[r * kOut + o], exact, (32 + 3.0 * kIn / 64) * kEps * terms)) << r << " " << o;
            }
    }
}

TEST_P(MatmulTest, i8dot_is_within_its_bound_of_double) {
    constexpr std::size_t kOut = 48;
    constexpr std::size_t kIn = 512;
    for (const WeightKind kind : {WeightKind::affine4, WeightKind::affine8}) {
        Random random(35);
        const Source s = make_source(kind, kOut, kIn, random);
        const Matrix w = s.matrix();
        const std::vector<float> x = random.floats(kIn, 2);
        const auto compute = make_compute(GetParam(), NumericsClass::i8dot, 1);
        const std::vector<float> y = product(*compute, w, x, 1);
        for (std::size_t o = 0; o < kOut; ++o) {
            double exact = 0;
            double bound = 0;
            for (std::size_t g = 0; g < kIn / 64; ++g) {
                double absmax = 0;
                for (std::size_t c = 0; c < 64; ++c) absmax = std::max(absmax, std::fabs(double{x[g * 64 + c]}));
                const double scale = s.scales[o * (kIn / 64) + g];
                const double bias = s.biases[o * (kIn / 64) + g];
                for (std::size_t c = 0; c < 64; ++c) {
                    const double weight = scale * s.codes[o * kIn + g * 64 + c] + bias;
                    exact += weight * x[g * 64 + c];
                    bound += std::fabs(weight) * (0.5 + 1e-4) * absmax / 127;
                    bound += 40 * kEps * (std::fabs(scale * s.codes[o * kIn + g * 64 + c]) + std::fabs(bias)) * absmax;
                }
            }
            ASSERT_TRUE(within(y[o], exact, bound)) << o;
        }
    }
}

// Extremes of the integer path: nothing may saturate. scale 1 and bias 0 expose the integer sum itself.
TEST_P(MatmulTest, i8dot_integer_sums_are_exact) {
    const auto compute = make_compute(GetParam(), NumericsClass::i8dot, 1);
    for (const WeightKind kind : {WeightKind::affine4, WeightKind::affine8}) {
        const std::uint32_t top = kind == WeightKind::affine4 ? 15 : 255;
        for (const std::size_t rows : {1, 3, 5, 8, 16})
            for (int pattern = 0; pattern < 4; ++pattern) {
                Source s{kind, 16, 64, {}, std::vector<float>(16, 1.0f), std::vector<float>(16, 0.0f), {}};
                Random random(static_cast<std::uint64_t>(pattern));
                for (std::size_t i = 0; i < 16 * 64; ++i)
                    s.codes.push_back(pattern < 3 ? top
                                                  : static_cast<std::uint32_t>((random.next() >> 32) % (top + 1)));
                std::vector<float> x(rows * 64);
                for (std::size_t i = 0; i < x.size(); ++i) {
                    const float sign = i % 2 == 0 ? 1.0f : -1.0f;
                    x[i] = pattern == 0   ? 127.0f
                           : pattern == 1 ? -127.0f
                           : pattern == 2 ? 127.0f * sign
                           : i % 64 == 0  ? 127.0f
                                          : static_cast<float>(static_cast<int>((random.next() >> 32) % 255) - 127);
                }
                const std::vector<float> y = product(*compute, s.matrix(), x, rows);
                for (std::size_t r = 0; r < rows; ++r)
                    for (std::size_t o = 0; o < 16; ++o) {
                        std::int64_t exact = 0;
                        for (std::size_t c = 0; c < 64; ++c)
                            exact += static_cast<std::int64_t>(s.codes[o * 64 + c]) *
                                     static_cast<std::int64_t>(x[r * 64 + c]);
                        ASSERT_EQ(y[r * 16 + o], static_cast<float>(exact)) << pattern << " " << r << " " << o;
                    }
            }
    }
}

TEST_P(MatmulTest, all_zero_groups) {
    for (const NumericsClass cls : {NumericsClass::f32, NumericsClass::i8dot})
        for (const WeightKind kind : {WeightKind::affine4, WeightKind::affine8}) {
            Random random(36);
            const Source s = make_source(kind, 20, 192, random);
            std::vector<float> x = random.floats(2 * 192);
            std::fill(x.begin() + 64, x.begin() + 128, 0.0f);
            std::fill(x.begin() + 192, x.end(), 0.0f);
            const auto compute = make_compute(GetParam(), cls, 1);
            const std::vector<float> y = product(*compute, s.matrix(), x, 2);
            ASSERT_TRUE(bits_equal(y, model_product(s, cls, x, 2)));
            for (std::size_t o = 0; o < 20; ++o) ASSERT_EQ(y[20 + o], 0.0f);
        }
}

TEST_P(MatmulTest, i8dot_leaves_dense_products_alone) {
    Random random(37);
    for (const WeightKind kind : {WeightKind::f32, WeightKind::bf16}) {
        const Source s = make_source(kind, 33, 130, random);
        const std::vector<float> x = random.floats(5 * 130);
        const auto f32 = make_compute(GetParam(), NumericsClass::f32, 1);
        const auto i8 = make_compute(GetParam(), NumericsClass::i8dot, 1);
        ASSERT_TRUE(bits_equal(product(*f32, s.matrix(), x, 5), product(*i8, s.matrix(), x, 5)));
    }
}

DP_EVERY_ISA(MatmulTest);

TEST(Matrix, dequantises_every_row_exactly) {
    for (const WeightKind kind : kEveryKind)
        for (const std::size_t out : {1, 16, 17, 40}) {
            Random random(38);
            const std::size_t in = affine(kind) ? 128 : 77;
            const Source s = make_source(kind, out, in, random);
            const Matrix w = s.matrix();
            EXPECT_EQ(w.kind(), kind);
            EXPECT_EQ(w.out(), out);
            EXPECT_EQ(w.in(), in);
            EXPECT_EQ(w.quantised(), affine(kind));
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(w.packed()) % 64, 0u);
            std::vector<float> row(in);
            for (std::size_t o = 0; o < out; ++o) {
                w.dequantise_row(o, row.data());
                for (std::size_t c = 0; c < in; ++c) {
                    const std::size_t at = o * in + c;
                    const float expected =
                        affine(kind) ? std::fma(s.scales[at / 64], static_cast<float>(s.codes[at]), s.biases[at / 64])
                                     : s.dense[at];
                    ASSERT_TRUE(bits_equal(&row[c], &expected, 1)) << o << " " << c;
                }
            }
        }
}

TEST(Matrix, affine_example_of_the_format) {
    // mlx-affine-quant.md, example A: -1.0, -0.875 ... 0.875 repeated.
    std::vector<std::uint32_t> words;
    for (int i = 0; i < 4; ++i) {
        words.push_back(0x76543210u);
        words.push_back(0xfedcba98u);
    }
    const std::vector<float> scale = {0.125f};
    const std::vector<float> bias = {-1.0f};
    auto m = Matrix::from_affine({words, scale, bias, 4}, 1, 64);
    ASSERT_TRUE(m.ok());
    float row[64];
    m->dequantise_row(0, row);
    for (int c = 0; c < 64; ++c) EXPECT_EQ(row[c], -1.0f + 0.125f * static_cast<float>(c % 16));
}

TEST(Matrix, refuses_wrong_parts) {
    const std::vector<std::uint32_t> words(64);
    const std::vector<float> values(8);
    const auto span = [](const std::vector<float>& v, std::size_t n) { return std::span(v).first(n); };
    // 8 x 64 at 4 bits needs 64 words and 8 group values.
    EXPECT_TRUE(Matrix::from_affine({words, values, values, 4}, 8, 64).ok());
    EXPECT_EQ(Matrix::from_affine({words, values, values, 3}, 8, 64).status().code(), StatusCode::unsupported);
    EXPECT_EQ(Matrix::from_affine({words, values, values, 4}, 8, 60).status().code(), StatusCode::unsupported);
    EXPECT_EQ(Matrix::from_affine({words, values, values, 4}, 8, 0).status().code(), StatusCode::unsupported);
    EXPECT_EQ(Matrix::from_affine({words, values, values, 8}, 8, 64).status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(Matrix::from_affine({words, span(values, 7), values, 4}, 8, 64).status().code(),
              StatusCode::invalid_argument);
    // Too much is as wrong as too little.
    EXPECT_EQ(Matrix::from_affine({words, values, values, 4}, 7, 64).status().code(), StatusCode::invalid_argument);
    const std::vector<float> nine(9);
    EXPECT_EQ(Matrix::from_affine({words, nine, values, 4}, 8, 64).status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(Matrix::from_affine({words, values, nine, 4}, 8, 64).status().code(), StatusCode::invalid_argument);
    const Status status = Matrix::from_affine({words, values, span(values, 7), 4}, 8, 64).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(status.message(), "affine matrix [8, 64]: biases has 7 elements, expected 8");
}

}  // namespace
}  // namespace draftprobe::numerics
