// Routing and the mixture of experts against a scalar model with the documented order, bit for bit.
#include "decode/feed_forward.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "base/test_directory.h"
#include "decode/golden_fixture.h"
#include "model/test_checkpoint.h"
#include "numerics/scalar_math.h"
#include "numerics/test_support.h"

namespace draftprobe::decode {
namespace {

using model::DenseFfn;
using model::MoeFfn;
using numerics::Compute;
using numerics::Isa;
using numerics::Matrix;
using numerics::NumericsClass;
using numerics::testing_support::Random;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Routed {
    std::vector<std::uint32_t> experts;
    std::vector<float> weights;
};

Routed routed(const std::vector<float>& logits, std::size_t k) {
    Routed result{std::vector<std::uint32_t>(k), std::vector<float>(k)};
    route(logits, result.experts, result.weights);
    return result;
}

TEST(Route, TakesTheLargestAndListsThemById) {
    EXPECT_THAT(routed({1, 5, 2, 4, 3}, 3).experts, ElementsAre(1, 3, 4));
    EXPECT_THAT(routed({5, 4, 3, 2, 1}, 2).experts, ElementsAre(0, 1));
    EXPECT_THAT(routed({1, 2, 3, 4, 5}, 2).experts, ElementsAre(3, 4));
    EXPECT_THAT(routed({1, 2, 3}, 3).experts, ElementsAre(0, 1, 2));
    EXPECT_THAT(routed({7}, 1).experts, ElementsAre(0));
    EXPECT_THAT(routed({-3, -1, -2}, 1).experts, ElementsAre(1));
}

TEST(Route, OfEqualLogitsTheLowestIdsAreTaken) {
    EXPECT_THAT(routed({1, 1, 1, 1}, 2).experts, ElementsAre(0, 1));
    EXPECT_THAT(routed({0, 2, 1, 2, 1, 1}, 3).experts, ElementsAre(1, 2, 3));
    EXPECT_THAT(routed({0.0f, -0.0f, 0.0f}, 2).experts, ElementsAre(0, 1));
    EXPECT_THAT(routed({1, 1, 2}, 2).experts, ElementsAre(0, 2));  // of the two that were kept, the second one goes
    EXPECT_THAT(routed({3, 1, 1, 1, 2, 3}, 4).experts, ElementsAre(0, 1, 4, 5));
}

TEST(Route, WeightsAreTheSoftmaxOverTheChosen) {
    const Routed two = routed({0, std::log(3.0f), -9, 0.5f * std::log(3.0f)}, 2);
    EXPECT_THAT(two.experts, ElementsAre(1, 3));
    EXPECT_NEAR(two.weights[0], std::sqrt(3.0) / (1 + std::sqrt(3.0)), 1e-6);
    EXPECT_NEAR(two.weights[0] + two.weights[1], 1, 1e-7);
    // Far apart: the small one is 0 and nothing overflows.
    EXPECT_THAT(routed({3e38f, -3e38f}, 2).weights, ElementsAre(1, 0));
}

TEST(Route, WeightsAreWithinTheirBoundOfDouble) {
    constexpr double kEps = 0x1p-24;
    Random random(40);
    for (const float spread : {0.25f, 4.0f, 32.0f}) {
        for (const std::size_t k : {1u, 2u, 8u, 32u}) {
            const std::vector<float> logits = random.floats(32, spread);
            const Routed result = routed(logits, k);
            double largest = -HUGE_VAL;
            double smallest = HUGE_VAL;
            for (const std::uint32_t e : result.experts) {
                largest = std::max(largest, double{logits[e]});
                smallest = std::min(smallest, double{logits[e]});
            }
            double sum = 0;
            for (const std::uint32_t e : result.experts) sum += std::exp(logits[e] - largest);
            for (std::size_t i = 0; i < k; ++i) {
                const double exact = std::exp(logits[result.experts[i]] - largest) / sum;
                const double bound = (2 * (largest - smallest) + static_cast<double>(k) + 10) * kEps * exact;
                EXPECT_TRUE(std::fabs(result.weights[i] - exact) <= bound) << spread << " " << k << " " << i;
            }
        }
    }
}

TEST(Route, LogitsThatAreNotFiniteMakeEveryWeightNan) {
    for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
        for (std::size_t at = 0; at < 6; ++at) {
            std::vector<float> logits = {1, 6, 2, 5, 3, 4};
            logits[at] = bad;
            const Routed result = routed(logits, 3);
            EXPECT_THAT(result.weights, Each(::testing::IsNan())) << bad << " at " << at;
            EXPECT_TRUE(result.experts[0] < result.experts[1] && result.experts[1] < result.experts[2]);
            EXPECT_LT(result.experts[2], 6u);
        }
    }
    EXPECT_THAT(routed(std::vector<float>(5, kNan), 2).experts, ElementsAre(0, 1));
}

// Affine matrices of 4 or 8 bits when `in` allows, else BF16.
Matrix random_matrix(std::size_t out, std::size_t in, int bits, Random& random) {
    if (bits == 16 || in % 64 != 0) {
        std::vector<Bf16> values;
        for (std::size_t i = 0; i < out * in; ++i) values.push_back(f32_to_bf16(random.uniform(0.125f)));
        return Matrix::from_bf16(values, out, in);
    }
    std::vector<std::uint32_t> words(out * in * static_cast<std::size_t>(bits) / 32);
    for (auto& word : words) word = static_cast<std::uint32_t>(random.next() >> 32);
    const std::vector<float> scales = random.floats(out * in / 64, 0x1p-7f);
    const std::vector<float> biases = random.floats(out * in / 64, 0x1p-7f);
    return std::move(Matrix::from_affine({words, scales, biases, bits}, out, in)).value();
}

DenseFfn random_ffn(std::size_t width, std::size_t hidden, int bits, Random& random) {
    return {random_matrix(width, hidden, bits, random), random_matrix(width, hidden, bits, random),
            random_matrix(hidden, width, bits, random)};
}

constexpr std::size_t kHidden = 128;

MoeFfn random_mixture(int bits) {
    Random random(41);
    MoeFfn ffn;
    ffn.experts_per_token = 4;
    ffn.router = random_matrix(11, kHidden, bits == 16 ? 16 : 8, random);
    for (int e = 0; e < 11; ++e) ffn.experts.push_back(random_ffn(64, kHidden, bits, random));
    ffn.shared = random_ffn(192, kHidden, bits, random);
    ffn.shared_gate = random_matrix(1, kHidden, bits == 16 ? 16 : 8, random);
    return ffn;
}

std::unique_ptr<Compute> make_compute(Isa isa, NumericsClass cls, int threads) {
    auto compute = Compute::create({isa, cls, threads});
    EXPECT_TRUE(compute.ok()) << compute.status().message();
    return std::move(compute).value();
}

std::vector<float> mixture(const Compute& compute, const MoeFfn& ffn, const std::vector<float>& x) {
    const std::size_t rows = x.size() / kHidden;
    std::vector<float> y(x.size(), kNan);
    feed_forward(compute, ffn, {x.data(), rows, kHidden, kHidden}, {y.data(), rows, kHidden, kHidden});
    return y;
}

// One row by single products of one thread, and the order that docs/numerics.md states.
std::vector<float> model_row(const MoeFfn& ffn, NumericsClass cls, const float* x) {
    const auto compute = make_compute(Isa::portable, cls, 1);
    const auto exact = make_compute(Isa::portable, NumericsClass::f32, 1);
    const auto product = [&](const Compute& c, const Matrix& w, const float* from) {
        std::vector<float> y(w.out());
        c.matmul(w, {from, 1, w.in(), w.in()}, {y.data(), 1, w.out(), w.out()});
        return y;
    };
    const auto expert = [&](const DenseFfn& f) {
        std::vector<float> gate = product(*compute, f.gate_proj, x);
        const std::vector<float> up = product(*compute, f.up_proj, x);
        compute->kernels().silu_mul(gate.data(), up.data(), gate.size(), gate.data());
        return product(*compute, f.down_proj, gate.data());
    };
    const std::vector<float> logits = product(*exact, ffn.router, x);
    std::vector<std::uint32_t> order(logits.size());
    for (std::uint32_t e = 0; e < order.size(); ++e) order[e] = e;
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
    order.resize(ffn.experts_per_token);
    const float largest = logits[order[0]];
    std::sort(order.begin(), order.end());
    std::vector<float> share;
    float sum = 0;
    for (const std::uint32_t e : order) {
        share.push_back(numerics::exp_f32(logits[e] - largest));
        sum += share.back();
    }
    std::vector<float> y(kHidden, 0.0f);
    for (std::size_t i = 0; i < order.size(); ++i) {
        const std::vector<float> term = expert(ffn.experts[order[i]]);
        for (std::size_t c = 0; c < kHidden; ++c) y[c] = std::fma(share[i] / sum, term[c], y[c]);
    }
    const float gate = numerics::sigmoid_f32(product(*exact, ffn.shared_gate, x)[0]);
    const std::vector<float> term = expert(ffn.shared);
    for (std::size_t c = 0; c < kHidden; ++c) y[c] = std::fma(gate, term[c], y[c]);
    return y;
}

struct MixtureCase {
    const char* name;
    int bits;
    NumericsClass cls;
};

class Mixture : public ::testing::TestWithParam<MixtureCase> {};

INSTANTIATE_TEST_SUITE_P(Cases, Mixture,
                         ::testing::Values(MixtureCase{"bf16_f32", 16, NumericsClass::f32},
                                           MixtureCase{"affine4_f32", 4, NumericsClass::f32},
                                           MixtureCase{"affine4_i8dot", 4, NumericsClass::i8dot}),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST_P(Mixture, EveryRowEqualsTheModelWhateverTheBatchThreadsAndInstructionSet) {
    const MoeFfn ffn = random_mixture(GetParam().bits);
    Random random(42);
    constexpr std::size_t kRows = 40;
    const std::vector<float> x = random.floats(kRows * kHidden, 2);
    std::vector<float> expected;
    for (std::size_t r = 0; r < kRows; ++r) {
        const std::vector<float> row = model_row(ffn, GetParam().cls, x.data() + r * kHidden);
        expected.insert(expected.end(), row.begin(), row.end());
    }
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (!numerics::isa_supported(isa)) continue;
        for (const int threads : {1, 2, 5}) {
            const auto compute = make_compute(isa, GetParam().cls, threads);
            for (const std::size_t batch : {1u, 3u, 8u, 32u, 40u}) {
                std::vector<float> found;
                for (std::size_t first = 0; first < kRows; first += batch) {
                    const std::size_t last = std::min(kRows, first + batch);
                    const std::vector<float> part(x.begin() + static_cast<std::ptrdiff_t>(first * kHidden),
                                                  x.begin() + static_cast<std::ptrdiff_t>(last * kHidden));
                    const std::vector<float> y = mixture(*compute, ffn, part);
                    found.insert(found.end(), y.begin(), y.end());
                }
                ASSERT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0)
                    << numerics::isa_name(isa) << ", " << threads << " threads, batch " << batch;
            }
        }
    }
}

// More rows than one packing pass, all for the same experts.
TEST_P(Mixture, ManyRowsOfOneExpertEqualSingleRows) {
    const MoeFfn ffn = random_mixture(GetParam().bits);
    Random random(43);
    const std::vector<float> row = random.floats(kHidden, 2);
    constexpr std::size_t kRows = 300;
    std::vector<float> x;
    for (std::size_t r = 0; r < kRows; ++r) x.insert(x.end(), row.begin(), row.end());
    const auto compute = make_compute(numerics::best_isa(), GetParam().cls, 3);
    const std::vector<float> expected = mixture(*compute, ffn, row);
    const std::vector<float> found = mixture(*compute, ffn, x);
    for (std::size_t r = 0; r < kRows; ++r) {
        ASSERT_EQ(std::memcmp(found.data() + r * kHidden, expected.data(), kHidden * sizeof(float)), 0) << r;
    }
}

TEST_P(Mixture, ARowThatIsNotFiniteStaysAlone) {
    const MoeFfn ffn = random_mixture(GetParam().bits);
    Random random(44);
    std::vector<float> x = random.floats(3 * kHidden, 2);
    const auto compute = make_compute(numerics::best_isa(), GetParam().cls, 2);
    const std::vector<float> expected = mixture(*compute, ffn, x);
    x[kHidden + 5] = kNan;
    const std::vector<float> found = mixture(*compute, ffn, x);
    EXPECT_THAT(std::vector<float>(found.begin() + kHidden, found.begin() + 2 * kHidden), Each(::testing::IsNan()));
    for (const std::size_t r : {0u, 2u}) {
        EXPECT_EQ(std::memcmp(found.data() + r * kHidden, expected.data() + r * kHidden, kHidden * sizeof(float)), 0);
    }
}

// The same weights stored in another form: bit-equal logits.
TEST(ExpertForms, GiveBitEqualLogits) {
    const std::vector<TokenId> ids = Stages("target-r2").ids("input_ids");
    const auto logits = [&](const model::EditableCheckpoint& checkpoint) {
        const TestDirectory dir;
        checkpoint.write(dir.path());
        const auto core = make_core({load_target(dir.path()), nullptr},
                                    golden_settings(state::RowFormat::bf16, state::KvFormat::bf16));
        const Segment segment{&core->lane(0), ids, LogitRows::all, false};
        ForwardOutput out;
        EXPECT_TRUE(core->target_forward().run({&segment, 1}, out).ok());
        return out.logits;
    };
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    model::EditableCheckpoint plain(golden_dir("moe-hf"));
    const std::vector<float> stacked = logits(plain);
    ASSERT_EQ(stacked.size(), ids.size() * 256);
    model::stacked_to_switched(plain);
    EXPECT_TRUE(same(logits(plain), stacked));
    model::switched_to_per_expert(plain);
    EXPECT_TRUE(same(logits(plain), stacked));

    model::EditableCheckpoint affine(golden_dir("moe-mlx4"));
    const std::vector<float> switched = logits(affine);
    model::switched_to_per_expert(affine);
    EXPECT_TRUE(same(logits(affine), switched));
}

}  // namespace
}  // namespace draftprobe::decode
