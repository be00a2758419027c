// The published checkpoints through the reader and the tensor plan, from headers over sparse zeros: every one fits, and
// every near miss is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/test_directory.h"
#include "model/draft_model.h"
#include "model/tensor_plan.h"
#include "support/published.h"

namespace draftprobe {
namespace {

using model::ExpertForm;
using model::PlannedTensor;
using model::TensorPlan;
using namespace support;
using testing::HasSubstr;
using testing::IsEmpty;

using Shape = std::vector<std::uint64_t>;

struct Opened {
    Checkpoint checkpoint;
    TensorPlan plan;
};

Result<Opened> open_target(const std::filesystem::path& dir) {
    DP_ASSIGN_OR_RETURN(const TargetConfig config, read_target_config(dir));
    DP_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(dir));
    DP_ASSIGN_OR_RETURN(TensorPlan plan, model::plan_target(checkpoint, config));
    return Opened{std::move(checkpoint), std::move(plan)};
}

Result<Opened> open_draft(const std::filesystem::path& dir) {
    DP_ASSIGN_OR_RETURN(const DraftConfig config, read_draft_config(dir));
    DP_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(dir));
    DP_ASSIGN_OR_RETURN(TensorPlan plan, model::plan_draft(checkpoint, config));
    return Opened{std::move(checkpoint), std::move(plan)};
}

class Published : public testing::Test {
protected:
    using Open = Result<Opened> (*)(const std::filesystem::path&);

    Result<Opened> opened(const CheckpointFiles& files, Open open) {
        const auto dir = directory_ / std::to_string(++directories_);
        const Status written = write_sparse(dir, files);
        EXPECT_TRUE(written.ok()) << written.message();
        return open(dir);
    }

    // A target of which every tensor is used.
    Opened fitting(const CheckpointFiles& files, Open open = open_target) {
        Result<Opened> result = opened(files, open);
        if (!result.ok()) {
            ADD_FAILURE() << result.status().message();
            std::abort();
        }
        EXPECT_THAT(result->plan.unused, IsEmpty());
        return std::move(result).value();
    }

    void expect_refused(const CheckpointFiles& files, StatusCode code, const std::vector<std::string>& parts,
                        Open open = open_target) {
        const Status status = opened(files, open).status();
        EXPECT_EQ(status.code(), code) << status.message();
        for (const std::string& part : parts) EXPECT_THAT(status.message(), HasSubstr(part));
    }

    TestDirectory directory_;
    int directories_ = 0;
};

const PlannedTensor& planned(const TensorPlan& plan, const std::string& name) {
    for (const PlannedTensor& tensor : plan.tensors) {
        if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << name << " is not planned";
    std::abort();
}

TEST_F(Published, DenseHuggingFaceTargets) {
    const Opened small = fitting(huggingface_target(kQwen35Small));
    EXPECT_EQ(small.checkpoint.prefix(), "model.language_model.");
    EXPECT_EQ(small.checkpoint.layout(), CheckpointLayout::huggingface);
    EXPECT_EQ(small.plan.stored_tensors, 320u);
    EXPECT_FALSE(small.checkpoint.has("lm_head.weight"));
    // A_log and the gated norm are F32 in the small model, BF16 in the large one.
    EXPECT_EQ(planned(small.plan, "layers.0.linear_attn.A_log").dtype, DType::f32);
    EXPECT_EQ(planned(small.plan, "layers.22.linear_attn.norm.weight").dtype, DType::f32);
    EXPECT_EQ(planned(small.plan, "layers.0.linear_attn.dt_bias").dtype, DType::bf16);
    EXPECT_EQ(planned(small.plan, "embed_tokens.weight").shape, (Shape{248320, 1024}));
    EXPECT_EQ(planned(small.plan, "layers.3.self_attn.q_proj.weight").shape, (Shape{4096, 1024}));
    std::size_t f32 = 0;
    for (const PlannedTensor& tensor : small.plan.tensors) f32 += tensor.dtype == DType::f32 ? 1 : 0;
    EXPECT_EQ(f32, 36u);
    // The tied table is the head, so a token multiplies with all of it.
    EXPECT_EQ(small.plan.active_parameters, small.plan.parameters);

    const Opened medium = fitting(huggingface_target(kQwen35Medium));
    EXPECT_EQ(planned(medium.plan, "layers.31.self_attn.o_proj.weight").shape, (Shape{2560, 4096}));
    EXPECT_EQ(planned(medium.plan, "layers.0.linear_attn.in_proj_z.weight").shape, (Shape{4096, 2560}));

    const Opened large = fitting(huggingface_target(kQwen35Large));
    EXPECT_EQ(large.checkpoint.files().size(), 11u + 3u);
    EXPECT_EQ(large.plan.stored_tensors, 851u);
    EXPECT_EQ(large.plan.stored_bytes, 2 * large.plan.parameters);
    EXPECT_EQ(planned(large.plan, "layers.0.linear_attn.A_log").dtype, DType::bf16);
    EXPECT_EQ(planned(large.plan, "layers.0.linear_attn.in_proj_qkv.weight").shape, (Shape{10240, 5120}));
    EXPECT_EQ(planned(large.plan, "layers.0.linear_attn.conv1d.weight").shape, (Shape{10240, 1, 4}));
    EXPECT_EQ(planned(large.plan, "layers.63.self_attn.q_proj.weight").shape, (Shape{12288, 5120}));
    EXPECT_EQ(planned(large.plan, "lm_head.weight").shape, (Shape{248320, 5120}));
    EXPECT_EQ(large.plan.parameters - large.plan.active_parameters, 248320u * 5120u);
}

TEST_F(Published, DenseMlxTargets) {
    const Opened small = fitting(mlx_target(kQwen35Small));
    EXPECT_EQ(small.checkpoint.layout(), CheckpointLayout::mlx);
    EXPECT_EQ(planned(small.plan, "layers.0.linear_attn.A_log").dtype, DType::f32);
    EXPECT_EQ(small.checkpoint.find("layers.0.linear_attn.in_proj_qkv.weight")->shape, (Shape{6144, 128}));
    EXPECT_EQ(small.checkpoint.find("layers.0.linear_attn.in_proj_qkv.scales")->shape, (Shape{6144, 16}));

    const Opened large = fitting(mlx_target(kQwen35Large));
    EXPECT_EQ(large.plan.tensors.size(), 851u);
    const PlannedTensor& query = planned(large.plan, "layers.3.self_attn.q_proj.weight");
    EXPECT_EQ(query.affine, (AffineScheme{64, 4}));
    EXPECT_EQ(query.shape, (Shape{12288, 5120}));
    EXPECT_EQ(query.stored_bytes, 12288u * (5120u / 2 + 5120u / 16));  // 4.5 bits a weight
    EXPECT_EQ(large.checkpoint.find("layers.0.linear_attn.in_proj_a.weight")->shape, (Shape{48, 640}));
    EXPECT_EQ(large.checkpoint.find("lm_head.scales")->shape, (Shape{248320, 80}));
    EXPECT_FALSE(planned(large.plan, "layers.0.linear_attn.conv1d.weight").affine);
    EXPECT_EQ(planned(large.plan, "layers.0.linear_attn.conv1d.weight").shape, (Shape{10240, 4, 1}));
}

TEST_F(Published, MixtureInEveryForm) {
    const Opened stacked = fitting(huggingface_target(kQwen35Mixture));
    EXPECT_EQ(stacked.plan.experts, ExpertForm::stacked);
    EXPECT_EQ(stacked.plan.stored_tensors, 693u);
    // The published count, part by part: table, blocks, final norm and head.
    EXPECT_EQ(stacked.plan.parameters, 508'559'360u + 33'643'489'920u + 508'561'408u);
    EXPECT_LT(stacked.plan.active_parameters, 4'000'000'000u);
    EXPECT_EQ(planned(stacked.plan, "layers.0.mlp.experts.gate_up_proj").shape, (Shape{256, 1024, 2048}));
    EXPECT_EQ(planned(stacked.plan, "layers.39.mlp.shared_expert_gate.weight").shape, (Shape{1, 2048}));

    PublishedTarget single = kQwen35Mixture;
    single.experts = Experts::per_expert;
    const Opened each = fitting(huggingface_target(single));
    EXPECT_EQ(each.plan.experts, ExpertForm::per_expert);
    EXPECT_EQ(each.plan.parameters, stacked.plan.parameters);
    EXPECT_EQ(each.plan.active_parameters, stacked.plan.active_parameters);
    EXPECT_EQ(planned(each.plan, "layers.7.mlp.experts.255.down_proj.weight").shape, (Shape{2048, 512}));

    const Opened mlx = fitting(mlx_target(kQwen35Mixture));
    EXPECT_EQ(mlx.plan.experts, ExpertForm::switch_mlp);
    EXPECT_EQ(mlx.plan.parameters, stacked.plan.parameters);
    EXPECT_EQ(mlx.checkpoint.find("layers.0.mlp.switch_mlp.gate_proj.weight")->shape, (Shape{256, 512, 256}));
    EXPECT_EQ(mlx.checkpoint.find("layers.0.mlp.switch_mlp.down_proj.scales")->shape, (Shape{256, 2048, 8}));
    EXPECT_EQ(planned(mlx.plan, "layers.0.mlp.gate.weight").affine, (AffineScheme{64, 8}));
    EXPECT_EQ(mlx.checkpoint.find("layers.0.mlp.gate.weight")->shape, (Shape{256, 512}));
    EXPECT_EQ(planned(mlx.plan, "layers.0.mlp.shared_expert_gate.weight").affine, (AffineScheme{64, 8}));
    EXPECT_EQ(planned(mlx.plan, "layers.0.mlp.switch_mlp.up_proj.weight").affine, (AffineScheme{64, 4}));
}

TEST_F(Published, Drafts) {
    const Opened large = fitting(draft_files(draft_27b_second()), open_draft);
    EXPECT_EQ(large.plan.stored_tensors, 81u);
    EXPECT_EQ(large.plan.parameters, 1'924'404'480u);
    EXPECT_EQ(planned(large.plan, "fc.weight").shape, (Shape{5120, 25600}));
    EXPECT_EQ(planned(large.plan, "layers.4.mlp_conv.base_kernel").shape, (Shape{2, 2, 5120}));
    EXPECT_EQ(planned(large.plan, "layers.0.attention_conv.kernel_projection.weight").shape, (Shape{1280, 5120}));
    EXPECT_EQ(planned(large.plan, "candidate_selector.successor_codebook").shape, (Shape{248320, 256}));

    const Opened mixture = fitting(draft_files(draft_35b_second()), open_draft);
    EXPECT_EQ(mixture.plan.stored_tensors, 96u);
    EXPECT_EQ(mixture.plan.parameters, 526'251'520u);
    EXPECT_EQ(planned(mixture.plan, "fc.weight").shape, (Shape{2048, 16384}));

    const Opened first = fitting(draft_files(draft_4b_first()), open_draft);
    EXPECT_EQ(first.plan.stored_tensors, 11u * 5 + 3);
    EXPECT_EQ(first.plan.parameters, 537'427'200u);
    const Opened hybrid = fitting(draft_files(draft_35b_first()), open_draft);
    EXPECT_EQ(hybrid.plan.parameters, 385'906'176u);
}

TEST_F(Published, DraftAttentionFollowsTheConfiguration) {
    const auto config = [](const PublishedDraft& draft) {
        const auto parsed = parse_draft_config(draft_files(draft).config, "config.json");
        EXPECT_TRUE(parsed.ok()) << parsed.status().message();
        return *parsed;
    };
    const DraftConfig second = config(draft_27b_second());
    EXPECT_EQ(second.layer_attention, std::vector<DraftLayer>(5, DraftLayer{2048, false}));
    EXPECT_EQ(second.block, 8);
    EXPECT_EQ(second.taps, (std::vector<std::int64_t>{5, 19, 33, 47, 61}));
    EXPECT_EQ(config(draft_35b_second()).mask_token, 248077u);  // the first padded row
    const DraftConfig first = config(draft_4b_first());
    EXPECT_EQ(first.layer_attention, std::vector<DraftLayer>(5, DraftLayer{0, false}));
    EXPECT_EQ(first.block, 16);
    // Without is_causal a sliding layer is causal and a full one is not.
    const DraftConfig hybrid = config(draft_35b_first());
    EXPECT_EQ(hybrid.layer_attention.front(), (DraftLayer{4096, true}));
    EXPECT_EQ(hybrid.layer_attention.back(), (DraftLayer{0, false}));

    const auto target = parse_target_config(huggingface_target(kQwen35Large).config, nullptr, "config.json");
    ASSERT_TRUE(target.ok());
    EXPECT_TRUE(model::check_pair(*target, second).ok());
    EXPECT_EQ(model::check_pair(*target, hybrid).code(), StatusCode::mismatch);
}

TEST_F(Published, ATensorThatIsMissingOrMisshapenIsNamed) {
    CheckpointFiles files = huggingface_target(kQwen35Large);
    files.remove("model.language_model.layers.17.linear_attn.dt_bias");
    expect_refused(files, StatusCode::not_found, {"layers.17.linear_attn.dt_bias", "is missing", "[48]"});

    files = huggingface_target(kQwen35Large);
    files.find("model.language_model.layers.3.self_attn.q_proj.weight")->shape = {6144, 5120};
    expect_refused(files, StatusCode::mismatch, {"layers.3.self_attn.q_proj", "[6144, 5120]", "[12288, 5120]"});

    files = mlx_target(kQwen35Large);
    files.find("language_model.model.layers.3.mlp.down_proj.weight")->shape = {5120, 2175};
    expect_refused(files, StatusCode::mismatch, {"layers.3.mlp.down_proj", "[5120, 2175]"});

    files = mlx_target(kQwen35Large);
    files.remove("language_model.model.layers.3.mlp.down_proj.biases");
    expect_refused(files, StatusCode::corrupt, {"layers.3.mlp.down_proj.biases", "is missing"});

    files = draft_files(draft_27b_second());
    files.remove("layers.2.mlp_conv.base_kernel");
    expect_refused(files, StatusCode::not_found, {"layers.2.mlp_conv.base_kernel", "[2, 2, 5120]"}, open_draft);
    files = draft_files(draft_27b_second());
    files.find("fc.weight")->shape = {5120, 20480};
    expect_refused(files, StatusCode::mismatch, {"fc.weight", "[5120, 20480]", "[5120, 25600]"}, open_draft);
    files = draft_files(draft_27b_second());
    files.find("candidate_selector.successor_codebook")->shape = {248077, 256};
    expect_refused(files, StatusCode::mismatch, {"successor_codebook", "[248077, 256]", "[248320, 256]"}, open_draft);
}

TEST_F(Published, WrongTypesAreNamed) {
    CheckpointFiles files = huggingface_target(kQwen35Small);
    files.find("model.language_model.layers.0.linear_attn.A_log")->dtype = DType::i32;
    expect_refused(files, StatusCode::unsupported, {"layers.0.linear_attn.A_log", "I32", "BF16, F16 and F32"});
    files = huggingface_target(kQwen35Small);
    files.find("model.language_model.layers.0.mlp.up_proj.weight")->dtype = DType::f8_e4m3;
    expect_refused(files, StatusCode::unsupported, {"layers.0.mlp.up_proj", "F8_E4M3"});
}

TEST_F(Published, ShardsAndIndexMustAgree) {
    CheckpointFiles files = huggingface_target(kQwen35Large);
    const std::string shard = files.weights[4].name;
    files.weights.erase(files.weights.begin() + 4);
    expect_refused(files, StatusCode::not_found, {shard});

    files = huggingface_target(kQwen35Large);
    const std::string listed = "model.language_model.layers.64.mlp.up_proj.weight";
    (*files.index)["weight_map"][listed] = files.weights[0].name;
    expect_refused(files, StatusCode::corrupt, {listed, files.weights[0].name, "does not hold it"});

    files = mlx_target(kQwen35Mixture);
    (*files.index)["weight_map"].erase("language_model.model.layers.39.mlp.gate.scales");
    expect_refused(files, StatusCode::mismatch, {"layers.39.mlp.gate.scales", "index"});
}

TEST_F(Published, HeadsFollowTheConfiguration) {
    CheckpointFiles files = huggingface_target(kQwen35Small);
    files.add({"lm_head.weight", DType::bf16, {248320, 1024}});
    expect_refused(files, StatusCode::mismatch, {"lm_head.weight", "tie_word_embeddings"});
    files = mlx_target(kQwen35Small);
    files.add({"language_model.lm_head.weight", DType::u32, {248320, 128}});
    files.add({"language_model.lm_head.scales", DType::bf16, {248320, 16}});
    files.add({"language_model.lm_head.biases", DType::bf16, {248320, 16}});
    expect_refused(files, StatusCode::mismatch, {"lm_head", "tie_word_embeddings"});
    files = huggingface_target(kQwen35Large);
    files.remove("lm_head.weight");
    expect_refused(files, StatusCode::not_found, {"lm_head.weight", "is missing"});
}

TEST_F(Published, OverridesMustMatchTheStoredBits) {
    const std::string gate = "language_model.model.layers.5.mlp.gate";
    const auto with_override = [&](const Json& value) {
        CheckpointFiles files = mlx_target(kQwen35Mixture);
        for (const char* key : {"quantization", "quantization_config"}) files.config[key][gate] = value;
        return files;
    };
    expect_refused(with_override({{"group_size", 64}, {"bits", 4}}), StatusCode::mismatch,
                   {"layers.5.mlp.gate", "8 bits", "4 bits"});
    expect_refused(with_override(false), StatusCode::mismatch, {"layers.5.mlp.gate", "says that it is not"});
    CheckpointFiles files = mlx_target(kQwen35Mixture);
    for (const char* key : {"quantization", "quantization_config"}) files.config[key].erase(gate);
    expect_refused(files, StatusCode::mismatch, {"layers.5.mlp.gate", "8 bits", "4 bits"});
    files = mlx_target(kQwen35Mixture);
    files.config["quantization"][gate] = {{"group_size", 64}, {"bits", 4}};
    expect_refused(files, StatusCode::mismatch, {"\"quantization\"", "\"quantization_config\""});
}

TEST_F(Published, ExpertsMustHaveOneKnownForm) {
    CheckpointFiles files = huggingface_target(kQwen35Mixture);
    files.remove("model.language_model.layers.9.mlp.experts.gate_up_proj");
    expect_refused(files, StatusCode::not_found, {"layers.9.mlp.", "no experts"});
    files = huggingface_target(kQwen35Mixture);
    files.find("model.language_model.layers.9.mlp.experts.down_proj")->shape = {255, 2048, 512};
    expect_refused(files, StatusCode::mismatch, {"layers.9.mlp.experts.down_proj", "[255, 2048, 512]"});
    files = huggingface_target(kQwen35Mixture);
    files.add({"model.language_model.layers.9.mlp.experts.0.gate_proj.weight", DType::bf16, {512, 2048}});
    expect_refused(files, StatusCode::mismatch, {"layers.9.mlp.experts", "expected one of them"});
}

TEST_F(Published, WhatNothingReadsIsListed) {
    CheckpointFiles files = draft_files(draft_27b_second());
    files.add({"mask_embedding", DType::bf16, {5120}});
    const auto draft = opened(files, open_draft);
    ASSERT_TRUE(draft.ok()) << draft.status().message();
    EXPECT_THAT(draft->plan.unused, testing::ElementsAre("mask_embedding"));
}

}  // namespace
}  // namespace draftprobe
