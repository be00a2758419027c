// inspect of published checkpoints, from sparse files: what it says, in text and JSON, and what it refuses.
#include <chrono>

#include "program.h"
#include "support/published.h"

namespace draftprobe {
namespace {

using namespace support;
using ::testing::HasSubstr;
using ::testing::Not;

class InspectProgram : public ProgramTest {
protected:
    void put(const std::string& name, const CheckpointFiles& files) const {
        const Status written = write_sparse(path(name), files);
        ASSERT_TRUE(written.ok()) << written.message();
    }
    Json json(const std::string& words) const {
        const ProgramRun result = run("inspect --json " + words);
        EXPECT_EQ(result.exit, 0) << result.err;
        return parsed(result.out);
    }
};

TEST_F(InspectProgram, says_what_the_27b_target_takes) {
    put("t", huggingface_target(kQwen35Large));
    const auto begun = std::chrono::steady_clock::now();
    const Json target = json("t --tokens 4096");
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20)) << "weights were read";
    EXPECT_EQ(target["model_type"], "qwen3_5_text");
    EXPECT_EQ(target["layer_kinds"].size(), 64u);
    EXPECT_EQ(target["layer_kinds"][3], "full_attention");
    EXPECT_EQ(target["layer_kinds"][4], "linear_attention");
    EXPECT_EQ(target["attention_layers"], 16);
    EXPECT_EQ(target["tied_embeddings"], false);
    EXPECT_EQ(target["experts"], Json());
    EXPECT_EQ(target["a_log_dtype"], "BF16");
    EXPECT_EQ(target["stop_tokens"], Json::parse("[248044, 248046]"));
    EXPECT_EQ(target["quantisation"], Json());
    EXPECT_EQ(target["weights"]["tensors"], 851);
    EXPECT_EQ(target["weights"]["bytes"].get<std::uint64_t>(), 2 * target["parameters"]["total"].get<std::uint64_t>());
    EXPECT_EQ(target["files"].size(), 14u);
    EXPECT_EQ(target["files"][0]["name"], "config.json");
    EXPECT_TRUE(target["unused_tensors"].empty());
    // 16 layers of 4 heads of 256, K and V: 64 KiB in BF16; one byte and a scale a head in INT8.
    const Json& memory = target["memory"];
    EXPECT_EQ(memory["kv_token_bytes_bf16"], 64 * 1024);
    EXPECT_EQ(memory["kv_token_bytes_int8"], 16 * 2 * 4 * (256 + 4));
    // 48 layers of 48 float32 matrices of 128 x 128; three BF16 rows of 10240 channels.
    EXPECT_EQ(memory["recurrent_matrix_bytes"], 144 * 1024 * 1024);
    EXPECT_EQ(memory["recurrent_conv_bytes"], 48 * 3 * 10240 * 2);
    EXPECT_EQ(memory["tokens"], 4096);
    EXPECT_EQ(memory["lane_bytes_bf16"], 4096 * 64 * 1024 + 2 * (144 * 1024 * 1024 + 48 * 3 * 10240 * 2));

    const ProgramRun text = run("inspect t");
    EXPECT_EQ(text.exit, 0);
    for (const char* part : {"qwen3_5_text (dense), Hugging Face layout", "64 layers (16 attention, 48 delta)",
                             "own head", "dddadddadddaddda", "A_log BF16", "248044, 248046", "in 851 tensors, 11 files",
                             "64.0 KiB of keys and values (bf16), 32.5 KiB (int8)", "two cells of 144.0 MiB matrices",
                             "at 32768 tokens", "model-00001-of-00011.safetensors"}) {
        EXPECT_THAT(text.out, HasSubstr(part));
    }
}

TEST_F(InspectProgram, says_how_small_and_mixture_targets_are_stored) {
    put("small", mlx_target(kQwen35Small));
    const Json small = json("small");
    EXPECT_EQ(small["layout"], "mlx");
    EXPECT_EQ(small["tied_embeddings"], true);
    EXPECT_EQ(small["a_log_dtype"], "F32");
    EXPECT_EQ(small["quantisation"]["bits"], 4);
    EXPECT_TRUE(small["quantisation"]["modules"].empty());
    EXPECT_EQ(small["parameters"]["total"], small["parameters"]["active"]);

    put("mixture", mlx_target(kQwen35Mixture));
    const Json mixture = json("mixture");
    EXPECT_EQ(mixture["experts"], Json::parse(R"({"count": 256, "per_token": 8, "width": 512, "shared_width": 512,
                                                  "form": "switch_mlp"})"));
    EXPECT_EQ(mixture["quantisation"]["overrides"], 80);
    EXPECT_EQ(mixture["quantisation"]["modules"][0],
              Json::parse(R"({"module": "language_model.model.layers.0.mlp.gate", "quantised": true, "bits": 8,
                              "group_size": 64})"));
    EXPECT_EQ(mixture["parameters"]["total"], 34'660'610'688u);
    EXPECT_EQ(mixture["memory"]["kv_token_bytes_bf16"], 20 * 1024);
    const ProgramRun text = run("inspect mixture");
    for (const char* part :
         {"(mixture of experts), MLX layout", "256 of width 512, 8 a token, shared expert of width 512",
          "affine 4 bits in groups of 64; 80 matrices of 8 bits in groups of 64, first "
          "layers.0.mlp.gate.weight",
          "34.66 billion"}) {
        EXPECT_THAT(text.out, HasSubstr(part));
    }
}

TEST_F(InspectProgram, says_how_a_draft_attends_and_what_it_was_trained_for) {
    put("d", draft_files(draft_27b_second()));
    const Json second = json("d --tokens 100000");
    EXPECT_EQ(second["version"], "dflash2");
    EXPECT_EQ(second["taps"], Json::parse("[5, 19, 33, 47, 61]"));
    EXPECT_EQ(second["window"], 2048);
    ASSERT_EQ(second["layer_attention"].size(), 5u);
    EXPECT_EQ(second["layer_attention"][4], Json::parse(R"({"window": 2048, "causal": false})"));
    EXPECT_EQ(second["selector"], Json::parse(R"({"top_k": 16, "rank": 256})"));
    EXPECT_EQ(second["convolution"], Json::parse(R"({"kernel": 2, "group_size": 16})"));
    EXPECT_EQ(second["parameters"]["total"], 1'924'404'480);
    EXPECT_EQ(second["manifest"], Json::parse(R"({"state": "none", "problem": null})"));
    // A row is 5120 of context, and K and V of 5 layers with 8 heads of 128.
    EXPECT_EQ(second["memory"]["context_row_bytes"], 2 * (5120 + 5 * 2 * 1024));
    EXPECT_EQ(second["memory"]["lane_bytes"], 2047 * 2 * (5120 + 5 * 2 * 1024));

    put("v1", draft_files(draft_35b_first()));
    const ProgramRun first = run("inspect v1");
    for (const char* part : {"DFlash v1", "0-4 window 4096, causal; 5 unlimited, not causal", "16 rows",
                             "mask token 248077", "manifest        none"}) {
        EXPECT_THAT(first.out, HasSubstr(part));
    }
    EXPECT_THAT(first.out, Not(HasSubstr("selector")));
    EXPECT_EQ(json("v1 --tokens 1000")["memory"]["context_lane_bytes"], Json());
    EXPECT_EQ(json("v1 --tokens 1000")["memory"]["lane_bytes"], 1000 * 2 * (2048 + 6 * 2 * 1024));
}

TEST_F(InspectProgram, says_whether_the_manifest_holds) {
    copy_golden("draft-w64", "draft");
    const std::size_t weights = slurp(path("draft/model.safetensors")).size();
    const std::string sums = std::string(64, '0');
    const auto manifest = [&](std::size_t bytes) {
        spill(path("draft/selection.json"),
              R"({"selection_version":1,"files":[{"name":"config.json","size":)" +
                  std::to_string(slurp(path("draft/config.json")).size()) + R"(,"sha256":")" + sums +
                  R"("},{"name":"model.safetensors","size":)" + std::to_string(bytes) + R"(,"sha256":")" + sums +
                  R"("}],"training":{"run":"run-9","seed":3,"steps":40,"objective":"o","data":"d"},)" +
                  R"("template":{"digest":"none","thinking":"on","effort":"none"},)" +
                  R"("target":{"precision":"bf16","name":"golden"}})");
    };
    manifest(weights);
    Json draft = json("draft");
    EXPECT_EQ(draft["manifest"]["state"], "sizes hold");
    EXPECT_EQ(draft["manifest"]["training"]["run"], "run-9");
    EXPECT_EQ(draft["manifest"]["template"]["thinking"], "on");
    EXPECT_EQ(draft["manifest"]["target"]["precision"], "bf16");
    EXPECT_THAT(run("inspect draft").out, HasSubstr("run run-9, seed 3, 40 steps"));
    manifest(weights + 1);
    draft = json("draft");
    EXPECT_EQ(draft["manifest"]["state"], "does not hold");
    EXPECT_THAT(draft["manifest"]["problem"].get<std::string>(), HasSubstr("model.safetensors"));
    EXPECT_THAT(run("inspect draft").out, HasSubstr("does not hold: draft/model.safetensors"));
}

TEST_F(InspectProgram, refuses_what_does_not_fit_its_configuration) {
    CheckpointFiles files = mlx_target(kQwen35Large);
    files.find("language_model.model.layers.8.linear_attn.A_log")->shape = {32};
    put("t", files);
    const ProgramRun result = run("inspect t");
    EXPECT_EQ(result.exit, 2);
    expect_message(result, {"layers.8.linear_attn.A_log", "[32]", "[48]"});
}

}  // namespace
}  // namespace draftprobe
