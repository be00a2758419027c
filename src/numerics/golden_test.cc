// Golden bits: one hash per operator over fixed inputs. Every compiler and every forced instruction set must reproduce
// the same constants. A changed constant means changed arithmetic: archives and captures made before it stop being
// reproducible, and docs/numerics.md has to say so.
#include <gtest/gtest.h>

#include <functional>

#include "numerics/attention.h"
#include "numerics/compute.h"
#include "numerics/test_support.h"

namespace draftprobe::numerics {
namespace {

using namespace testing_support;

struct Golden {
    const char* name;
    std::uint64_t hash;
    std::function<void(const Compute& f32, const Compute& i8dot, Hash& hash)> compute;
};

const std::vector<std::size_t> kSizes = {1, 16, 33, 128, 1000};

Matrix affine_matrix(int bits, std::size_t out, std::size_t in, Random& random) {
    std::vector<std::uint32_t> words(out * in * static_cast<std::size_t>(bits) / 32);
    for (auto& w : words) w = static_cast<std::uint32_t>(random.next() >> 32);
    const std::vector<float> scales = random.floats(out * in / 64, 0.125f);
    const std::vector<float> biases = random.floats(out * in / 64);
    return std::move(Matrix::from_affine({words, scales, biases, bits}, out, in)).value();
}

Matrix dense_matrix(WeightKind kind, std::size_t out, std::size_t in, Random& random) {
    const std::vector<float> values = random.floats(out * in);
    if (kind == WeightKind::f32) return Matrix::from_f32(values, out, in);
    std::vector<Bf16> narrow;
    for (const float v : values) narrow.push_back(f32_to_bf16(v));
    return Matrix::from_bf16(narrow, out, in);
}

// Widths 1 to 9 and 64 of one matrix.
void hash_products(const Compute& compute, const Matrix& w, Random& random, Hash& hash) {
    for (const std::size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 64}) {
        const std::vector<float> x = random.floats(rows * w.in(), 4);
        std::vector<float> y(rows * w.out());
        compute.matmul(w, {x.data(), rows, w.in(), w.in()}, {y.data(), rows, w.out(), w.out()});
        hash.values(y);
    }
}

class RandomSource : public KeySource {
public:
    RandomSource(std::size_t d, std::uint64_t seed) : d_(d), seed_(seed) {}
    void load_page(Position page, int kv_head, float* keys_t, float* values) const override {
        Random random(seed_ + static_cast<std::uint64_t>(page) * 64 + static_cast<std::uint64_t>(kv_head));
        for (std::size_t i = 0; i < d_ * 32; ++i) keys_t[i] = random.uniform();
        for (std::size_t i = 0; i < d_ * 32; ++i) values[i] = random.uniform();
    }

private:
    std::size_t d_;
    std::uint64_t seed_;
};

const std::vector<Golden>& golden() {
    static const std::vector<Golden> table = {
        {"rms_norm", 0x5c7e47b1fba8b8ec,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(101);
             for (const std::size_t n : kSizes) {
                 std::vector<float> x = random.floats(n, 4);
                 const std::vector<float> w = random.floats(n, 2);
                 c.kernels().rms_norm(x.data(), w.data(), n, 1e-6f, x.data());
                 hash.values(x);
             }
         }},
        {"l2_normalise", 0xadb4535a652dd602,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(102);
             for (const std::size_t n : kSizes) {
                 std::vector<float> x = random.floats(n, 4);
                 c.kernels().l2_normalise(x.data(), n, 1e-6f, 0.0883883461f, x.data());
                 hash.values(x);
             }
         }},
        {"gated_rms_norm", 0x254256d75d022da2,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(103);
             for (const std::size_t n : kSizes) {
                 std::vector<float> x = random.floats(n, 4);
                 const std::vector<float> w = random.floats(n, 2);
                 const std::vector<float> z = random.floats(n, 16);
                 c.kernels().gated_rms_norm(x.data(), w.data(), z.data(), n, 1e-6f, x.data());
                 hash.values(x);
             }
         }},
        {"silu_mul", 0xda029a4aa30924c2,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(104);
             for (const std::size_t n : kSizes) {
                 std::vector<float> x = random.floats(n, 32);
                 const std::vector<float> up = random.floats(n, 2);
                 c.kernels().silu_mul(x.data(), up.data(), n, x.data());
                 hash.values(x);
             }
         }},
        {"sigmoid_mul", 0x9770cc6f9af05446,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(105);
             for (const std::size_t n : kSizes) {
                 std::vector<float> x = random.floats(n, 2);
                 const std::vector<float> gate = random.floats(n, 128);
                 c.kernels().sigmoid_mul(x.data(), gate.data(), n, x.data());
                 hash.values(x);
             }
         }},
        {"rope", 0x3874e07fc30b0297,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(106);
             for (const int dims : {32, 64, 128, 20}) {
                 const std::size_t half = static_cast<std::size_t>(dims) / 2;
                 std::vector<float> x = random.floats(2 * half, 4);
                 std::vector<float> cosines(half);
                 std::vector<float> sines(half);
                 for (int i = 0; i < dims / 2; ++i)
                     sincos_f32(54321.0f * rope_inverse_frequency(1e7, i, dims), &sines[static_cast<std::size_t>(i)],
                                &cosines[static_cast<std::size_t>(i)]);
                 c.kernels().rope(x.data(), cosines.data(), sines.data(), 2 * half);
                 hash.values(x);
             }
         }},
        {"bf16", 0x9f7dd48de166ad8d,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(107);
             for (const std::size_t n : kSizes) {
                 std::vector<float> x = random.floats(n, 4);
                 std::vector<Bf16> narrow(n);
                 c.kernels().to_bf16(x.data(), n, narrow.data());
                 hash.values(narrow);
                 c.kernels().round_bf16(x.data(), n);
                 hash.values(x);
             }
         }},
        {"int8", 0x060cec2533dc348a,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(108);
             for (const std::size_t n : kSizes) {
                 std::vector<float> x = random.floats(n, 4);
                 std::vector<std::int8_t> q(n);
                 float scale = 0;
                 c.kernels().quantise_int8(x.data(), n, q.data(), &scale);
                 hash.values(q);
                 hash.value(scale);
                 c.kernels().dequantise_int8(q.data(), n, scale, x.data());
                 hash.values(x);
             }
         }},
        {"conv_silu", 0xdb29c048f6fad569,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(109);
             for (const std::size_t n : kSizes) {
                 const std::vector<float> x = random.floats(4 * n, 4);
                 const std::vector<float> w = random.floats(4 * n);
                 const float* rows[4] = {x.data(), x.data() + n, x.data() + 2 * n, x.data() + 3 * n};
                 std::vector<float> y(n);
                 c.kernels().conv_silu(rows, w.data(), 4, n, y.data());
                 hash.values(y);
             }
         }},
        {"delta_step", 0x5aa547d2580ce51a,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(110);
             for (const std::size_t d : {16, 31, 128}) {
                 std::vector<float> state = random.floats(d * d);
                 std::vector<float> out(d);
                 for (int step = 0; step < 3; ++step) {
                     const std::vector<float> q = random.floats(d, 0.125f);
                     const std::vector<float> k = random.floats(d, 0.125f);
                     const std::vector<float> v = random.floats(d, 2);
                     c.kernels().delta_step(state.data(), state.data(), q.data(), k.data(), v.data(), 0.9f, 0.4f, d, d,
                                            out.data());
                     hash.values(out);
                 }
                 hash.values(state);
             }
         }},
        {"attend", 0xf0a43630ae5a22f1,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(111);
             for (const int d : {16, 128, 40}) {
                 const std::size_t width = 4 * static_cast<std::size_t>(d);
                 const std::vector<Position> first = {0, 0, 17, 64, 90};
                 const std::vector<Position> last = {0, 100, 48, 64, 255};
                 const std::vector<float> q = random.floats(5 * width, 4);
                 std::vector<float> y(5 * width);
                 attend(c, RandomSource(static_cast<std::size_t>(d), 5),
                        {{q.data(), 5, width, width}, {y.data(), 5, width, width}, 4, 2, d, 0.125f, first, last});
                 hash.values(y);
             }
         }},
        {"dot", 0x4a9304ad0f546424,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(112);
             for (const std::size_t n : kSizes) {
                 const std::vector<float> a = random.floats(n);
                 const std::vector<float> b = random.floats(n);
                 const std::vector<float> d = random.floats(n);
                 hash.value(c.kernels().dot(a.data(), b.data(), n));
                 hash.value(c.kernels().dot3(a.data(), b.data(), d.data(), n));
             }
         }},
        {"dynamic_conv", 0xc99a31a49cfcb0a3,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(113);
             for (const std::size_t n : {96, 160}) {
                 const std::vector<float> x = random.floats(2 * n);
                 const std::vector<float> base = random.floats(2 * n);
                 const std::vector<float> delta = random.floats(2 * n / 16);
                 const float* rows[2] = {x.data(), x.data() + n};
                 std::vector<float> y(n);
                 c.kernels().dynamic_conv(rows, base.data(), delta.data(), 2, 16, n, y.data());
                 hash.values(y);
             }
         }},
        {"weighted_sum", 0x76e8a9049a4ac965,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(123);
             for (const std::size_t n : kSizes) {
                 const std::vector<float> x = random.floats(9 * n, 4);
                 const std::vector<float> w = random.floats(9);
                 const float* rows[9];
                 for (std::size_t j = 0; j < 9; ++j) rows[j] = x.data() + j * n;
                 std::vector<float> y(n);
                 c.kernels().weighted_sum(rows, w.data(), 9, n, y.data());
                 hash.values(y);
             }
         }},
        {"matmul f32", 0xe8e035be12405427,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(114);
             hash_products(c, dense_matrix(WeightKind::f32, 72, 130, random), random, hash);
         }},
        {"matmul bf16", 0x28ecf8d871e2e78c,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(115);
             hash_products(c, dense_matrix(WeightKind::bf16, 72, 200, random), random, hash);
         }},
        {"matmul affine4", 0x32f676e980e07f3b,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(116);
             hash_products(c, affine_matrix(4, 72, 256, random), random, hash);
         }},
        {"matmul affine8", 0x972e16ab8b133eef,
         [](const Compute& c, const Compute&, Hash& hash) {
             Random random(117);
             hash_products(c, affine_matrix(8, 72, 256, random), random, hash);
         }},
        {"matmul affine4 i8dot", 0x34043a139366548f,
         [](const Compute&, const Compute& c, Hash& hash) {
             Random random(118);
             hash_products(c, affine_matrix(4, 72, 256, random), random, hash);
         }},
        {"matmul affine8 i8dot", 0x3ee8064bf55c907e,
         [](const Compute&, const Compute& c, Hash& hash) {
             Random random(119);
             hash_products(c, affine_matrix(8, 72, 256, random), random, hash);
         }},
        {"exp, sigmoid, silu, softplus", 0x0d7df426eae58cee,
         [](const Compute&, const Compute&, Hash& hash) {
             Random random(120);
             for (int i = 0; i < 20000; ++i) {
                 const float x = random.uniform(128);
                 hash.value(exp_f32(x));
                 hash.value(sigmoid_f32(x));
                 hash.value(silu_f32(x));
                 hash.value(softplus_f32(x * 0.25f));
             }
         }},
        {"exp, log, log1p in double", 0x97fb47aa18df2a58,
         [](const Compute&, const Compute&, Hash& hash) {
             Random random(121);
             for (int i = 0; i < 20000; ++i) {
                 double x = double{random.uniform(512)};
                 x += double{random.uniform()} * 0x1p-30;
                 const double values[3] = {exp_f64(x), log_f64(std::fabs(x) + 0x1p-60), log1p_f64(x * 0x1p-10)};
                 hash.bytes(values, sizeof values);
             }
         }},
        {"sincos, rope_inverse_frequency", 0xd99c988f9d6d3c27,
         [](const Compute&, const Compute&, Hash& hash) {
             Random random(122);
             for (int i = 0; i < 20000; ++i) {
                 float s = 0;
                 float c = 0;
                 sincos_f32(random.uniform(1 << 21), &s, &c);
                 hash.value(s);
                 hash.value(c);
             }
             for (const double theta : {1e4, 1e6, 1e7})
                 for (int i = 0; i < 64; ++i) hash.value(rope_inverse_frequency(theta, i, 128));
         }},
    };
    return table;
}

using GoldenTest = IsaTest;

TEST_P(GoldenTest, bits) {
    auto f32 = Compute::create({GetParam(), NumericsClass::f32, 2});
    auto i8dot = Compute::create({GetParam(), NumericsClass::i8dot, 2});
    ASSERT_TRUE(f32.ok() && i8dot.ok());
    for (const Golden& g : golden()) {
        Hash hash;
        g.compute(**f32, **i8dot, hash);
        EXPECT_EQ(hash.get(), g.hash) << g.name << ": found 0x" << std::hex << hash.get() << ", expected 0x" << g.hash;
    }
}

DP_EVERY_ISA(GoldenTest);

}  // namespace
}  // namespace draftprobe::numerics
