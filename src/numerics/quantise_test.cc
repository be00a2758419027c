// quantise_affine4: the specification's worked examples, MLX's own results, and the corners of the algorithm.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/float_bits.h"
#include "base/safetensors.h"
#include "numerics/matrix.h"

namespace draftprobe::numerics {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::size_t kGroup = kGroupColumns;

Affine4 quantised(const std::vector<float>& values, std::size_t out = 1) {
    auto result = quantise_affine4(values, out, values.size() / out);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return std::move(result).value();
}

template <typename F>
std::vector<float> group_of(F&& value) {
    std::vector<float> values;
    for (std::size_t i = 0; i < kGroup; ++i) values.push_back(round_to_bf16(static_cast<float>(value(i))));
    return values;
}

int code(const Affine4& matrix, std::size_t at) {
    return static_cast<int>(matrix.words[at / 8] >> (4 * (at % 8)) & 15u);
}

TEST(QuantiseAffine4, ExampleAIsExact) {
    const std::vector<float> values =
        group_of([](std::size_t i) { return -1.0 + 0.125 * static_cast<double>(i % 16); });
    const Affine4 matrix = quantised(values);
    EXPECT_THAT(matrix.scales, ElementsAre(0.125f));
    EXPECT_THAT(matrix.biases, ElementsAre(-1.0f));
    EXPECT_THAT(matrix.words, ElementsAre(0x76543210u, 0xfedcba98u, 0x76543210u, 0xfedcba98u, 0x76543210u, 0xfedcba98u,
                                          0x76543210u, 0xfedcba98u));
    std::vector<float> decoded(kGroup);
    Matrix::from_affine(matrix.parts(), 1, kGroup).value().dequantise_row(0, decoded.data());
    EXPECT_EQ(decoded, values);
}

TEST(QuantiseAffine4, ExampleBCodesAgainstTheUnroundedScale) {
    const Affine4 matrix = quantised(
        group_of([](std::size_t i) { return -0.6 + 0.01 * static_cast<double>(i) + (i % 3 == 0 ? 0.003 : 0.0); }));
    EXPECT_THAT(matrix.scales, ElementsAre(0.042724609375f));
    EXPECT_THAT(matrix.biases, ElementsAre(-0.59765625f));
    EXPECT_THAT(matrix.words, ElementsAre(0x21111000u, 0x43333222u, 0x55554444u, 0x77766666u, 0x99988887u, 0xbbbaaaa9u,
                                          0xddccccbbu, 0xfeeeeeddu));
}

TEST(QuantiseAffine4, ExampleCReachesUpToZero) {
    std::vector<float> values;
    for (int i = 0; i < kGroupColumns; ++i) values.push_back(static_cast<float>(-0.5 - 0.01 * i));
    const Affine4 matrix = quantised(values);
    EXPECT_THAT(matrix.scales, ElementsAre(round_to_bf16(0.0753333f)));
    EXPECT_THAT(matrix.biases, ElementsAre(round_to_bf16(-1.13f)));
    EXPECT_EQ(code(matrix, 63), 0);
    EXPECT_EQ(code(matrix, 0), 8);  // (-0.5 + 1.13) / 0.07533 = 8.4
}

TEST(QuantiseAffine4, HalvesRoundAwayFromZero) {
    // Range 0..15 with bias 15 and scale -1: 0.5 is 14.5 steps from the edge, 13.5 is 1.5.
    std::vector<float> values(kGroup, 15.0f);
    values[0] = 0.0f;
    values[1] = 0.5f;
    values[2] = 13.5f;
    values[3] = 12.5f;
    const Affine4 matrix = quantised(values);
    EXPECT_THAT(matrix.scales, ElementsAre(-1.0f));
    EXPECT_THAT(matrix.biases, ElementsAre(15.0f));
    EXPECT_EQ(code(matrix, 0), 15);
    EXPECT_EQ(code(matrix, 1), 15);
    EXPECT_EQ(code(matrix, 2), 2);
    EXPECT_EQ(code(matrix, 3), 3);
    EXPECT_EQ(code(matrix, 4), 0);
}

TEST(QuantiseAffine4, ConstantAndTinyGroups) {
    for (const float value : {0.0f, 0.375f, 3e4f, 1e-9f, -1e-9f}) {
        const Affine4 matrix = quantised(std::vector<float>(kGroup, value));
        EXPECT_THAT(matrix.words, Each(0u)) << value;
        // Below the smallest scale nothing is representable but 0; a constant is its own edge.
        EXPECT_EQ(matrix.biases[0], std::fabs(value) < 1e-8f ? 0.0f : round_to_bf16(value)) << value;
    }
    // Negative and constant: the range reaches up to 0, and the constant is its exact end.
    const Affine4 negative = quantised(std::vector<float>(kGroup, -0.375f));
    EXPECT_THAT(negative.words, Each(0u));
    EXPECT_THAT(negative.biases, ElementsAre(-0.375f));
    EXPECT_THAT(negative.scales, ElementsAre(round_to_bf16(0.375f / 15)));
}

TEST(QuantiseAffine4, Refusals) {
    const std::vector<float> odd(2 * 96);
    EXPECT_EQ(quantise_affine4(odd, 2, 96).status().code(), StatusCode::unsupported);
    std::vector<float> wide(2 * kGroup, 1.0f);
    wide[kGroup + 3] = 3e38f;
    wide[kGroup + 4] = -3e38f;
    const Status status = quantise_affine4(wide, 2, kGroup).status();
    EXPECT_EQ(status.code(), StatusCode::corrupt);
    EXPECT_THAT(status.message(), HasSubstr("row 1"));
}

// The specification's algorithm once more, as it is worded, in the variant of MLX's GPU kernels or of its CPU backend.
enum class Variant { gpu, cpu };

Affine4 as_worded(const std::vector<float>& values, Variant variant) {
    const auto rounded = [variant](float x) { return variant == Variant::gpu ? std::round(x) : std::nearbyint(x); };
    Affine4 result;
    for (std::size_t first = 0; first < values.size(); first += kGroup) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
        const float lowest = *std::min_element(begin, begin + kGroup);
        float highest = *std::max_element(begin, begin + kGroup);
        if (variant == Variant::gpu) highest = std::max(highest, 0.0f);
        float scale = std::max((highest - lowest) / 15.0f, 1e-7f);
        const bool side = std::fabs(lowest) > std::fabs(highest);
        if (!side) scale = -scale;
        const float edge = side ? lowest : highest;
        const float steps = rounded(edge / scale);
        if (steps != 0) scale = edge / steps;
        const float bias = steps != 0 ? edge : 0;
        for (std::size_t i = 0; i < kGroup; ++i) {
            const float code = std::clamp(rounded((begin[static_cast<std::ptrdiff_t>(i)] - bias) / scale), 0.0f, 15.0f);
            if (i % 8 == 0) result.words.push_back(0);
            result.words.back() |= static_cast<std::uint32_t>(code) << (4 * (i % 8));
        }
        result.scales.push_back(round_to_bf16(scale));
        result.biases.push_back(round_to_bf16(bias));
    }
    return result;
}

// The oracle at hand is MLX's CPU backend: the wording in its CPU variant gives MLX's bits on every group, and in its
// GPU variant ours.
class AgainstMlx : public ::testing::Test {
protected:
    static SafetensorsFile open(const std::string& name) {
        auto file = SafetensorsFile::open(std::string(DRAFTPROBE_SOURCE_DIR) + "/tests/golden/" + name);
        EXPECT_TRUE(file.ok()) << file.status().message();
        return std::move(file).value();
    }
    static std::vector<float> floats(const SafetensorsFile& file, const std::string& name) {
        const TensorView* view = file.find(name);
        EXPECT_NE(view, nullptr) << name;
        std::vector<float> values(view->elements());
        EXPECT_TRUE(load_f32(*view, values).ok());
        return values;
    }
    static std::vector<std::uint32_t> words(const SafetensorsFile& file, const std::string& name) {
        const TensorView* view = file.find(name);
        EXPECT_NE(view, nullptr) << name;
        std::vector<std::uint32_t> values(view->elements());
        std::memcpy(values.data(), view->bytes.data(), view->bytes.size());
        return values;
    }
    // Returns the number of words in which the two variants differ.
    static std::size_t compare(const std::vector<float>& source, std::size_t out, const SafetensorsFile& file,
                               const std::string& name) {
        const Affine4 cpu = as_worded(source, Variant::cpu);
        EXPECT_EQ(cpu.words, words(file, name + ".weight")) << name;
        EXPECT_EQ(cpu.scales, floats(file, name + ".scales")) << name;
        EXPECT_EQ(cpu.biases, floats(file, name + ".biases")) << name;
        const Affine4 gpu = as_worded(source, Variant::gpu);
        const Affine4 ours = quantised(source, out);
        EXPECT_EQ(ours.words, gpu.words) << name;
        EXPECT_EQ(ours.scales, gpu.scales) << name;
        EXPECT_EQ(ours.biases, gpu.biases) << name;
        std::size_t differing = 0;
        for (std::size_t i = 0; i < gpu.words.size(); ++i) differing += gpu.words[i] != cpu.words[i];
        return differing;
    }
};

TEST_F(AgainstMlx, PackedVectors) {
    const SafetensorsFile file = open("target-r2-mlx4/unpack.safetensors");
    for (const char* name : {"example_a", "example_b", "example_c", "constant", "zeros", "one_sided", "random"}) {
        const std::string vector = std::string(name) + ".b4";
        const std::vector<float> source = floats(file, vector + ".source");
        const std::size_t differing = compare(source, file.find(vector + ".source")->shape[0], file, vector);
        if (vector == "example_c.b4") {
            EXPECT_EQ(differing, 8u);
        }
    }
}

TEST_F(AgainstMlx, WholeCheckpoint) {
    const SafetensorsFile plain = open("target-r2/model.safetensors");
    const SafetensorsFile packed = open("target-r2-mlx4/model.safetensors");
    std::size_t matrices = 0;
    std::size_t differing = 0;
    for (const auto& [name, view] : plain.tensors()) {
        const std::string prefix = "model.language_model.";
        if (name.rfind(prefix, 0) != 0 || view.shape.size() != 2) continue;
        const std::string module =
            "language_model.model." + name.substr(prefix.size(), name.size() - prefix.size() - std::strlen(".weight"));
        const TensorView* codes = packed.find(module + ".weight");
        if (codes == nullptr || codes->shape[1] * 8 != view.shape[1]) continue;  // one module has 8 bits
        differing += compare(floats(plain, name), view.shape[0], packed, module);
        ++matrices;
    }
    EXPECT_GE(matrices, 30u);
    EXPECT_GT(differing, 100u);  // halves occur: the set tells the variants apart
}

}  // namespace
}  // namespace draftprobe::numerics
