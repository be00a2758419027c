// Expert tensors in their three storage forms: equal matrices, and one message per kind of bad input.
#include "model/experts.h"

#include <gmock/gmock.h>

#include "base/test_directory.h"
#include "model/test_checkpoint.h"

namespace draftprobe::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::filesystem::path kGolden = std::filesystem::path(DRAFTPROBE_SOURCE_DIR) / "tests/golden";
const std::string kHf = "model.language_model.layers.2.mlp.";
const std::string kMlx = "language_model.model.layers.2.mlp.";

enum class Form { stacked, switched, per_expert, affine_switched, affine_per_expert };

EditableCheckpoint source(Form form) {
    const bool affine = form == Form::affine_switched || form == Form::affine_per_expert;
    EditableCheckpoint checkpoint(kGolden / (affine ? "moe-mlx4" : "moe-hf"));
    if (form == Form::switched || form == Form::per_expert) stacked_to_switched(checkpoint);
    if (form == Form::per_expert || form == Form::affine_per_expert) switched_to_per_expert(checkpoint);
    return checkpoint;
}

Result<std::shared_ptr<const TargetModel>> load(const EditableCheckpoint& checkpoint) {
    const TestDirectory dir;
    checkpoint.write(dir.path());
    return load_from(dir.path());
}

// The message of a checkpoint that must not load.
template <typename Edit>
std::string refusal(Form form, StatusCode code, Edit edit) {
    EditableCheckpoint checkpoint = source(form);
    edit(checkpoint);
    const Status status = load(checkpoint).status();
    EXPECT_EQ(status.code(), code) << status.message();
    return status.message();
}

std::vector<float> values(const numerics::Matrix& matrix) {
    std::vector<float> all(matrix.out() * matrix.in());
    for (std::size_t row = 0; row < matrix.out(); ++row) matrix.dequantise_row(row, all.data() + row * matrix.in());
    return all;
}

const MoeFfn& mixture(const TargetModel& model, std::size_t layer) {
    return std::get<MoeFfn>(model.layers()[layer].ffn);
}

TEST(Experts, EveryFormOfTheSameWeightsGivesEqualMatrices) {
    for (const auto& [base, others] : {std::pair(Form::stacked, std::vector{Form::switched, Form::per_expert}),
                                       std::pair(Form::affine_switched, std::vector{Form::affine_per_expert})}) {
        const auto expected = load(source(base));
        ASSERT_TRUE(expected.ok()) << expected.status().message();
        for (const Form form : others) {
            const auto found = load(source(form));
            ASSERT_TRUE(found.ok()) << found.status().message();
            EXPECT_EQ((*found)->weight_bytes(), (*expected)->weight_bytes());
            for (std::size_t layer = 0; layer < (*expected)->layers().size(); ++layer) {
                const MoeFfn& ours = mixture(**found, layer);
                const MoeFfn& reference = mixture(**expected, layer);
                ASSERT_EQ(ours.experts.size(), reference.experts.size());
                for (std::size_t e = 0; e < ours.experts.size(); ++e) {
                    for (const auto part : {&DenseFfn::gate_proj, &DenseFfn::up_proj, &DenseFfn::down_proj}) {
                        const numerics::Matrix& matrix = ours.experts[e].*part;
                        EXPECT_EQ(matrix.kind(), (reference.experts[e].*part).kind());
                        EXPECT_EQ(values(matrix), values(reference.experts[e].*part)) << "expert " << e;
                    }
                }
            }
        }
    }
}

TEST(Experts, StoredRowsReachTheNamedMatrix) {
    EditableCheckpoint checkpoint = source(Form::stacked);
    auto& gate_up = checkpoint.tensors.at(kHf + "experts.gate_up_proj");  // [6, 40, 64] BF16
    auto& down = checkpoint.tensors.at(kHf + "experts.down_proj");        // [6, 64, 20] BF16
    const auto mark = [](EditableCheckpoint::Tensor& tensor, std::size_t index, std::uint16_t bits) {
        std::memcpy(tensor.bytes.data() + index * 2, &bits, 2);
    };
    mark(gate_up, (4 * 40 + 3) * 64 + 5, 0x4100);       // 8: gate row 3
    mark(gate_up, (4 * 40 + 20 + 3) * 64 + 5, 0x4180);  // 16: up row 3
    mark(down, (4 * 64 + 7) * 20 + 9, 0x4200);          // 32
    const auto model = load(checkpoint);
    ASSERT_TRUE(model.ok()) << model.status().message();
    const DenseFfn& expert = mixture(**model, 2).experts[4];
    EXPECT_EQ(values(expert.gate_proj)[3 * 64 + 5], 8.0f);
    EXPECT_EQ(values(expert.up_proj)[3 * 64 + 5], 16.0f);
    EXPECT_EQ(values(expert.down_proj)[7 * 20 + 9], 32.0f);
}

TEST(Experts, OverridesOfRouterAndSharedGateAreHonouredAndChecked) {
    const auto model = load(source(Form::affine_switched));
    ASSERT_TRUE(model.ok()) << model.status().message();
    const MoeFfn& ffn = mixture(**model, 0);
    EXPECT_EQ(ffn.router.kind(), numerics::WeightKind::affine8);
    EXPECT_EQ(ffn.shared_gate.kind(), numerics::WeightKind::affine8);
    EXPECT_EQ(ffn.shared_gate.out(), 1u);
    EXPECT_EQ(ffn.shared.up_proj.kind(), numerics::WeightKind::affine4);
    EXPECT_EQ(ffn.experts[7].down_proj.kind(), numerics::WeightKind::affine4);
    EXPECT_THAT(refusal(Form::affine_switched, StatusCode::mismatch,
                        [](auto& c) { c.replace_in_config("layers.2.mlp.gate\"", "layers.2.mlp.gates\""); }),
                AllOf(HasSubstr(kMlx + "gate.weight"), HasSubstr("8 bits"), HasSubstr("expected 4 bits")));
    EXPECT_THAT(
        refusal(Form::affine_switched, StatusCode::mismatch,
                [](auto& c) {
                    c.replace_in_config("\"mode\": \"affine\",",
                                        "\"mode\": \"affine\", \"" + kMlx + "switch_mlp.up_proj\": {\"bits\": 8},");
                }),
        AllOf(HasSubstr(kMlx + "switch_mlp.up_proj.weight"), HasSubstr("4 bits"), HasSubstr("expected 8 bits")));
    EXPECT_THAT(refusal(Form::stacked, StatusCode::mismatch,
                        [](auto& c) {
                            c.replace_in_config("\"text_config\"", "\"quantization\": {\"bits\": 4, \"" + kHf +
                                                                       "experts.down_proj\": true}, \"text_config\"");
                        }),
                AllOf(HasSubstr(kHf + "experts.down_proj"), HasSubstr("BF16"), HasSubstr("quantises it to 4 bits")));
}

// A module may stay unquantised in an otherwise quantised layer (mlx-lm leaves widths that no group divides).
TEST(Experts, OneProjectionMayStayUnquantised) {
    EditableCheckpoint checkpoint = source(Form::affine_switched);
    auto& down = checkpoint.tensors.at(kMlx + "switch_mlp.down_proj.weight");
    down = {DType::bf16, {8, 64, 64}, std::vector<std::byte>(8 * 64 * 64 * 2)};
    checkpoint.tensors.erase(kMlx + "switch_mlp.down_proj.scales");
    checkpoint.tensors.erase(kMlx + "switch_mlp.down_proj.biases");
    const auto model = load(checkpoint);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(mixture(**model, 2).experts[3].down_proj.kind(), numerics::WeightKind::bf16);
    EXPECT_EQ(mixture(**model, 2).experts[3].up_proj.kind(), numerics::WeightKind::affine4);
}

TEST(Experts, WrongShapesNameTensorFoundAndExpected) {
    // Another number of experts, another width: config.json against the stored stack.
    EXPECT_THAT(refusal(Form::stacked, StatusCode::mismatch,
                        [](auto& c) {
                            auto& router = c.tensors.at("model.language_model.layers.0.mlp.gate.weight");
                            router.shape[0] = 5;
                            router.bytes.resize(5 * 64 * 2);
                            c.replace_in_config("\"num_experts\": 6", "\"num_experts\": 5");
                        }),
                AllOf(HasSubstr("layers.0.mlp.experts.gate_up_proj"), HasSubstr("[6, 40, 64]"),
                      HasSubstr("expected [5, 40, 64]")));
    EXPECT_THAT(
        refusal(Form::stacked, StatusCode::mismatch,
                [](auto& c) {
                    c.tensors.at(kHf + "experts.down_proj").shape = {6, 20, 64};
                }),
        AllOf(HasSubstr(kHf + "experts.down_proj"), HasSubstr("[6, 20, 64]"), HasSubstr("expected [6, 64, 20]")));
    EXPECT_THAT(
        refusal(Form::per_expert, StatusCode::mismatch,
                [](auto& c) {
                    c.tensors.at(kHf + "experts.3.up_proj.weight").shape = {64, 20};
                }),
        AllOf(HasSubstr(kHf + "experts.3.up_proj.weight"), HasSubstr("[64, 20]"), HasSubstr("expected [20, 64]")));
    EXPECT_THAT(
        refusal(Form::switched, StatusCode::mismatch,
                [](auto& c) {
                    c.tensors.at(kHf + "switch_mlp.up_proj.weight").shape = {120, 64};
                }),
        AllOf(HasSubstr("switch_mlp.up_proj.weight"), HasSubstr("[120, 64]"), HasSubstr("expected [6, 20, 64]")));
    EXPECT_THAT(
        refusal(Form::affine_switched, StatusCode::mismatch,
                [](auto& c) {
                    for (const char* part : {".weight", ".scales", ".biases"}) {
                        auto& tensor = c.tensors.at(kMlx + "switch_mlp.up_proj" + part);
                        tensor.shape[0] = 16;
                        tensor.shape[1] = 32;
                    }
                }),
        AllOf(HasSubstr("switch_mlp.up_proj.weight"), HasSubstr("[16, 32, 64]"), HasSubstr("expected [8, 64, 64]")));
    EXPECT_THAT(refusal(Form::stacked, StatusCode::mismatch,
                        [](auto& c) { c.tensors.at(kHf + "shared_expert_gate.weight").shape = {64}; }),
                AllOf(HasSubstr("shared_expert_gate.weight"), HasSubstr("[64]"), HasSubstr("expected [1, 64]")));
    EXPECT_THAT(refusal(Form::stacked, StatusCode::mismatch,
                        [](auto& c) {
                            c.replace_in_config("\"shared_expert_intermediate_size\": 40",
                                                "\"shared_expert_intermediate_size\": 20");
                        }),
                AllOf(HasSubstr("shared_expert.gate_proj.weight"), HasSubstr("[40, 64]"), HasSubstr("[20, 64]")));
}

TEST(Experts, MissingExpertsAreNamed) {
    const auto without = [](const std::string& name) {
        return [name](auto& c) { EXPECT_EQ(c.tensors.erase(name), 1u); };
    };
    EXPECT_THAT(refusal(Form::per_expert, StatusCode::not_found, without(kHf + "experts.2.down_proj.weight")),
                AllOf(HasSubstr(kHf + "experts.2.down_proj.weight"), HasSubstr("missing"), HasSubstr("[64, 20]")));
    EXPECT_THAT(refusal(Form::stacked, StatusCode::not_found, without(kHf + "experts.down_proj")),
                AllOf(HasSubstr(kHf + "experts.down_proj"), HasSubstr("[6, 64, 20]")));
    EXPECT_THAT(refusal(Form::stacked, StatusCode::not_found, without(kHf + "gate.weight")),
                AllOf(HasSubstr(kHf + "gate.weight"), HasSubstr("[6, 64]")));
    EXPECT_THAT(refusal(Form::affine_per_expert, StatusCode::corrupt, without(kMlx + "experts.7.up_proj.biases")),
                HasSubstr(kMlx + "experts.7.up_proj.biases"));
    EXPECT_THAT(refusal(Form::affine_switched, StatusCode::not_found,
                        [](auto& c) {
                            for (const char* part : {".weight", ".scales", ".biases"})
                                c.tensors.erase(kMlx + "switch_mlp.gate_proj" + part);
                        }),
                AllOf(HasSubstr(kMlx + "switch_mlp.gate_proj.weight"), HasSubstr("[8, 64, 64]")));
    EXPECT_THAT(refusal(Form::stacked, StatusCode::not_found,
                        [](auto& c) {
                            c.tensors.erase(kHf + "experts.down_proj");
                            c.tensors.erase(kHf + "experts.gate_up_proj");
                        }),
                AllOf(HasSubstr(kHf + "experts.gate_up_proj"), HasSubstr("[6, 40, 64]"), HasSubstr("switch_mlp")));
}

TEST(Experts, TensorsOfNoExpertAreRefused) {
    const auto with_copy = [](const std::string& from, const std::string& to) {
        return [from, to](auto& c) { c.tensors[to] = c.tensors.at(from); };
    };
    const std::string expert = kHf + "experts.5.up_proj.weight";
    for (const char* name : {"experts.6.up_proj.weight", "experts.05.up_proj.weight", "experts.5.up_proj.bias",
                             "experts.5.upper_proj.weight", "experts.5", "experts.5.", "experts.5up_proj.weight",
                             "experts.99999999999999999999999.up_proj.weight"}) {
        EXPECT_THAT(refusal(Form::per_expert, StatusCode::mismatch, with_copy(expert, kHf + name)),
                    AllOf(HasSubstr(kHf + name), HasSubstr("6 experts"), HasSubstr("experts.<id>")));
    }
    EXPECT_THAT(refusal(Form::stacked, StatusCode::mismatch,
                        with_copy(kHf + "experts.down_proj", kHf + "experts.down_proj_scale_inv")),
                AllOf(HasSubstr("down_proj_scale_inv"), HasSubstr("experts.gate_up_proj")));
    EXPECT_THAT(refusal(Form::switched, StatusCode::mismatch,
                        with_copy(kHf + "switch_mlp.down_proj.weight", kHf + "switch_mlp.down_proj.bias")),
                HasSubstr("switch_mlp.down_proj.bias"));
    EXPECT_THAT(
        refusal(Form::stacked, StatusCode::mismatch,
                with_copy(kHf + "experts.down_proj", kHf + "switch_mlp.down_proj.weight")),
        AllOf(HasSubstr("experts.down_proj"), HasSubstr("switch_mlp.down_proj.weight"), HasSubstr("two forms")));
    EXPECT_THAT(refusal(Form::stacked, StatusCode::mismatch,
                        with_copy(kHf + "experts.down_proj", kHf + "experts.0.down_proj.weight")),
                HasSubstr("two forms"));
}

TEST(Experts, DamagedStacksAreRefused) {
    EXPECT_THAT(refusal(Form::stacked, StatusCode::corrupt,
                        [](auto& c) {
                            auto& bytes = c.tensors.at(kHf + "experts.gate_up_proj").bytes;
                            bytes.back() = std::byte{0x7f};  // BF16 0x7f..: with the mantissa below, NaN or infinity
                            bytes[bytes.size() - 2] = std::byte{0xc0};
                        }),
                AllOf(HasSubstr(kHf + "experts.gate_up_proj"), HasSubstr("element 15359")));
    EXPECT_THAT(refusal(Form::stacked, StatusCode::unsupported,
                        [](auto& c) {
                            auto& tensor = c.tensors.at(kHf + "experts.gate_up_proj");
                            tensor.dtype = DType::f8_e4m3;
                            tensor.bytes.resize(tensor.bytes.size() / 2);
                        }),
                AllOf(HasSubstr("experts.gate_up_proj"), HasSubstr("F8_E4M3")));
    EXPECT_THAT(refusal(Form::stacked, StatusCode::mismatch,
                        [](auto& c) {
                            auto& tensor = c.tensors.at(kHf + "experts.gate_up_proj");
                            tensor.dtype = DType::u32;
                            tensor.shape[2] /= 2;
                        }),
                AllOf(HasSubstr("experts.gate_up_proj"), HasSubstr("is quantised")));
}

}  // namespace
}  // namespace draftprobe::model
