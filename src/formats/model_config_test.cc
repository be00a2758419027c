#include "formats/model_config.h"
#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/test_directory.h"

namespace draftprobe {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kGolden = fs::path(DRAFTPROBE_SOURCE_DIR) / "tests/golden";

Json flat_target() {
    return Json::parse(R"({"architectures":["Qwen3_5ForCausalLM"],"model_type":"qwen3_5_text","vocab_size":320,
        "hidden_size":128,"intermediate_size":320,"num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,
        "head_dim":48,"linear_num_key_heads":2,"linear_num_value_heads":6,"linear_key_head_dim":32,
        "linear_value_head_dim":16,"rope_theta":1e6,"eos_token_id":248})");
}

Json nested_target() {
    Json text = flat_target();
    text.erase("architectures");
    return Json{
        {"architectures", {"Qwen3_5ForConditionalGeneration"}}, {"model_type", "qwen3_5"}, {"text_config", text}};
}

Json moe_target() {
    Json config = flat_target();
    config["architectures"] = Json::array({"Qwen3_5MoeForCausalLM"});
    config["model_type"] = "qwen3_5_moe_text";
    config.erase("intermediate_size");
    config["num_experts"] = 8;
    config["num_experts_per_tok"] = 2;
    config["moe_intermediate_size"] = 64;
    config["shared_expert_intermediate_size"] = 32;
    return config;
}

Json second_draft() {
    return Json::parse(R"({"architectures":["DFlash2DraftModel"],"model_type":"qwen3","hidden_size":64,
        "intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,
        "vocab_size":256,"num_target_layers":5,"layer_types":["sliding_attention","full_attention"],"sliding_window":64,
        "is_causal":false,"rms_norm_eps":1e-6,"rope_parameters":{"rope_theta":1e6,"rope_type":"default"},
        "dflash_config":{"block_size":8,"mask_token_id":250,"target_layer_ids":[0,2,3],"conv_kernel_size":2,
        "conv_group_size":16,"selector_rank":32,"selector_top_k":16}})");
}

Json first_draft() {
    Json config = second_draft();
    config["architectures"] = Json::array({"DFlashDraftModel"});
    config["dflash_config"] = {{"mask_token_id", 250}, {"target_layer_ids", {1, 3}}};
    config.erase("is_causal");
    return config;
}

TargetConfig target(const Json& config) {
    auto parsed = parse_target_config(config, nullptr, "config.json");
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    return parsed.ok() ? *parsed : TargetConfig();
}

DraftConfig draft(const Json& config) {
    auto parsed = parse_draft_config(config, "config.json");
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    return parsed.ok() ? *parsed : DraftConfig();
}

// The status after `key` of `config` (or of its member `inside`) is replaced.
template <typename Parse>
Status with(Json config, std::string_view inside, std::string_view key, const Json& value, Parse parse) {
    Json& place = inside.empty() ? config : config[std::string(inside)];
    if (value.is_discarded()) {
        place.erase(std::string(key));
    } else {
        place[std::string(key)] = value;
    }
    return parse(config);
}

Status target_with(std::string_view key, const Json& value, const Json& base = flat_target()) {
    return with(base, "", key, value,
                [](const Json& c) { return parse_target_config(c, nullptr, "config.json").status(); });
}

Status draft_with(std::string_view key, const Json& value, std::string_view inside = "",
                  const Json& base = second_draft()) {
    return with(base, inside, key, value, [](const Json& c) { return parse_draft_config(c, "config.json").status(); });
}

const Json kAbsent(Json::value_t::discarded);

TEST(TargetConfig, FlatWithDefaults) {
    const TargetConfig config = target(flat_target());
    EXPECT_EQ(config.family(), "qwen3_5");
    EXPECT_FALSE(config.moe);
    EXPECT_EQ(config.hidden, 128);
    EXPECT_EQ(config.intermediate, 320);
    EXPECT_EQ(config.rotary_dim, 12);
    EXPECT_EQ(config.conv_kernel, 4);
    EXPECT_EQ(config.rope_theta, 1e6);
    EXPECT_EQ(config.rms_norm_eps, 1e-6);
    EXPECT_EQ(config.key_width(), 64);
    EXPECT_EQ(config.value_width(), 96);
    EXPECT_EQ(config.conv_channels(), 224);
    EXPECT_THAT(config.layer_kinds, ElementsAre(LayerKind::linear_attention, LayerKind::linear_attention,
                                                LayerKind::linear_attention, LayerKind::full_attention));
    EXPECT_FALSE(config.tied_embeddings);
    EXPECT_THAT(config.eos_ids, ElementsAre(248u));
    EXPECT_FALSE(config.quantisation);

    Json bare = flat_target();
    for (const char* key : {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
                            "linear_value_head_dim", "head_dim", "eos_token_id", "architectures"}) {
        bare.erase(key);
    }
    const TargetConfig defaults = target(bare);
    EXPECT_EQ(defaults.head_dim, 256);
    EXPECT_EQ(defaults.rotary_dim, 64);
    EXPECT_EQ(defaults.conv_channels(), 2 * 16 * 128 + 32 * 128);
    EXPECT_TRUE(defaults.eos_ids.empty());
}

TEST(TargetConfig, NestedReadsTheTextPart) {
    Json config = nested_target();
    config["hidden_size"] = 7;  // of another part
    config["tie_word_embeddings"] = true;
    config["text_config"]["full_attention_interval"] = 2;
    config["text_config"]["partial_rotary_factor"] = 0.5;
    const TargetConfig parsed = target(config);
    EXPECT_EQ(parsed.hidden, 128);
    EXPECT_TRUE(parsed.tied_embeddings);
    EXPECT_EQ(parsed.rotary_dim, 24);
    EXPECT_EQ(parsed.layer_kinds[1], LayerKind::full_attention);
    EXPECT_EQ(parsed.layer_kinds[2], LayerKind::linear_attention);
    EXPECT_EQ(parsed.model_type, "qwen3_5_text");
}

TEST(TargetConfig, MoeIsRecognised) {
    const TargetConfig config = target(moe_target());
    EXPECT_EQ(config.family(), "qwen3_5_moe");
    ASSERT_TRUE(config.moe);
    EXPECT_EQ(config.moe->experts, 8);
    EXPECT_EQ(config.moe->experts_per_token, 2);
    EXPECT_EQ(config.moe->expert_intermediate, 64);
    EXPECT_EQ(config.moe->shared_expert_intermediate, 32);
    EXPECT_EQ(config.intermediate, 0);
    EXPECT_EQ(target_with("num_experts_per_tok", 9, moe_target()).code(), StatusCode::corrupt);
    EXPECT_EQ(target_with("num_experts", kAbsent, moe_target()).code(), StatusCode::corrupt);
}

TEST(TargetConfig, EosFromGenerationConfigFirst) {
    const Json list = {{"eos_token_id", {300, 248, 300}}};
    EXPECT_THAT(parse_target_config(flat_target(), &list, "c")->eos_ids, ElementsAre(248u, 300u));
    const Json one = {{"eos_token_id", 5}};
    EXPECT_THAT(parse_target_config(flat_target(), &one, "c")->eos_ids, ElementsAre(5u));
    const Json none = Json::object();
    EXPECT_THAT(parse_target_config(flat_target(), &none, "c")->eos_ids, ElementsAre(248u));
    const Json high = {{"eos_token_id", 320}};
    EXPECT_THAT(parse_target_config(flat_target(), &high, "c").status().message(), HasSubstr("from 0 to 319"));
    Json root = nested_target();
    root["text_config"].erase("eos_token_id");
    root["eos_token_id"] = 9;
    EXPECT_THAT(target(root).eos_ids, ElementsAre(9u));
    root["text_config"]["eos_token_id"] = 248;
    EXPECT_THAT(target(root).eos_ids, ElementsAre(248u));
    EXPECT_THAT(parse_target_config(root, &one, "c")->eos_ids, ElementsAre(5u));
    const Json empty = {{"eos_token_id", Json::array()}};
    EXPECT_THAT(parse_target_config(root, &empty, "c")->eos_ids, ElementsAre(248u));
}

TEST(TargetConfig, OtherModelsAreUnsupportedByName) {
    const auto expect = [](const Status& status, std::string_view text) {
        EXPECT_EQ(status.code(), StatusCode::unsupported);
        EXPECT_THAT(status.message(), AllOf(HasSubstr(std::string(text)), HasSubstr("qwen3_5_moe")));
    };
    expect(target_with("model_type", "llama"), "\"llama\"");
    expect(target_with("model_type", "qwen4_exp"), "\"qwen4_exp\"");
    expect(target_with("architectures", Json::array({"LlamaForCausalLM"})), "\"LlamaForCausalLM\"");
    expect(parse_target_config(second_draft(), nullptr, "c").status(), "give it as --draft");
    EXPECT_EQ(target_with("architectures", Json::array({"Qwen3_5MoeForCausalLM"})).code(), StatusCode::mismatch);
    EXPECT_EQ(with(nested_target(), "text_config", "model_type", "qwen3_5_moe_text",
                   [](const Json& c) { return parse_target_config(c, nullptr, "c").status(); })
                  .code(),
              StatusCode::mismatch);
    EXPECT_EQ(target_with("model_type", kAbsent).code(), StatusCode::corrupt);
    EXPECT_EQ(parse_target_config(Json::array(), nullptr, "c").status().code(), StatusCode::corrupt);
}

TEST(TargetConfig, VariantsOfTheMathematicsAreUnsupported) {
    for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{
             {"hidden_act", "gelu"},
             {"attention_bias", true},
             {"attn_output_gate", false},
             {"output_gate_type", "sigmoid"},
             {"mamba_ssm_dtype", "bfloat16"},
             {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}},
             {"rope_parameters", {{"type", "linear"}}},
             {"layer_types", {"linear_attention", "linear_attention", "linear_attention", "sliding_attention"}}}) {
        const Status status = target_with(key, value);
        EXPECT_EQ(status.code(), StatusCode::unsupported) << key;
        EXPECT_THAT(status.message(), HasSubstr("served"));
    }
    EXPECT_TRUE(target_with("output_gate_type", "swish").ok());
    EXPECT_TRUE(target_with("rope_parameters", {{"type", "default"}}).ok());
}

TEST(TargetConfig, RequiredKeysAndRanges) {
    for (const char* key : {"hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size",
                            "num_attention_heads", "num_key_value_heads", "rope_theta"}) {
        for (const Json& value : {kAbsent, Json(nullptr), Json(0), Json(-1), Json("4"), Json(1e300),
                                  Json(std::int64_t{1} << 62), Json(Json::array())}) {
            const Status status = target_with(key, value);
            EXPECT_EQ(status.code(), StatusCode::corrupt) << key << " " << status.message();
            EXPECT_THAT(status.message(), AllOf(HasSubstr("config.json"), HasSubstr(key)));
        }
    }
    EXPECT_THAT(target_with("num_key_value_heads", 3).message(),
                HasSubstr("a multiple of \"num_key_value_heads\", which is 3"));
    EXPECT_EQ(target_with("linear_num_value_heads", 5).code(), StatusCode::corrupt);
    EXPECT_EQ(target_with("linear_conv_kernel_dim", 1).code(), StatusCode::corrupt);
    EXPECT_EQ(target_with("layer_types", Json::array({"full_attention"})).code(), StatusCode::corrupt);
    EXPECT_EQ(target_with("full_attention_interval", 0).code(), StatusCode::corrupt);
    EXPECT_EQ(target_with("partial_rotary_factor", 0.11).code(), StatusCode::corrupt);  // 5 dimensions
    EXPECT_EQ(target_with("partial_rotary_factor", 1.5).code(), StatusCode::corrupt);
    EXPECT_EQ(target_with("rms_norm_eps", 0).code(), StatusCode::corrupt);
}

TEST(TargetConfig, TwoPlacesMustAgree) {
    EXPECT_EQ(target_with("rope_parameters", {{"rope_theta", 2e6}}).code(), StatusCode::mismatch);
    EXPECT_TRUE(target_with("rope_parameters", {{"rope_theta", 1e6}}).ok());
    Json config = flat_target();
    config["partial_rotary_factor"] = 0.5;
    EXPECT_EQ(target_with("rope_parameters", {{"partial_rotary_factor", 0.25}}, config).code(), StatusCode::mismatch);
    config = nested_target();
    config["tie_word_embeddings"] = true;
    config["text_config"]["tie_word_embeddings"] = false;
    EXPECT_EQ(parse_target_config(config, nullptr, "c").status().code(), StatusCode::mismatch);
}

TEST(Quantisation, GlobalAndOverrides) {
    Json config = flat_target();
    config["quantization"] =
        Json::parse(R"({"group_size":32,"bits":8,"mode":"affine","a.b":{"bits":6},"c":{"group_size":128,
        "bits":2},"d":false,"e":true,"note":"x"})");
    config["quantization_config"] = config["quantization"];
    const auto quantisation = target(config).quantisation;
    ASSERT_TRUE(quantisation);
    EXPECT_EQ(quantisation->global, (AffineScheme{32, 8}));
    ASSERT_EQ(quantisation->overrides.size(), 4u);
    EXPECT_EQ(quantisation->overrides.at("a.b"), (AffineScheme{64, 6}));  // the format's default, not the global 32
    EXPECT_EQ(quantisation->overrides.at("c"), (AffineScheme{128, 2}));
    EXPECT_EQ(quantisation->overrides.at("d"), std::nullopt);
    EXPECT_EQ(quantisation->overrides.at("e"), (AffineScheme{32, 8}));
}

TEST(Quantisation, Refusals) {
    const auto code = [](const Json& value) { return target_with("quantization", value).code(); };
    EXPECT_EQ(code({{"mode", "mxfp4"}}), StatusCode::unsupported);
    EXPECT_EQ(code({{"x", {{"mode", "nvfp4"}}}}), StatusCode::unsupported);
    EXPECT_EQ(code({{"group_size", 16}}), StatusCode::unsupported);
    EXPECT_EQ(code({{"bits", 7}}), StatusCode::unsupported);
    EXPECT_EQ(code({{"bits", "4"}}), StatusCode::corrupt);
    EXPECT_EQ(code(Json::array()), StatusCode::corrupt);
    EXPECT_THAT(target_with("quantization_config", {{"quant_method", "fp8"}}).message(), HasSubstr("\"fp8\""));
    Json config = flat_target();
    config["quantization"] = {{"bits", 4}};
    EXPECT_EQ(target_with("quantization_config", {{"bits", 8}}, config).code(), StatusCode::mismatch);
}

TEST(DraftConfig, SecondVersion) {
    const DraftConfig config = draft(second_draft());
    EXPECT_EQ(config.version, DraftVersion::dflash2);
    EXPECT_EQ(config.block, 8);
    EXPECT_EQ(config.mask_token, 250u);
    EXPECT_THAT(config.taps, ElementsAre(0, 2, 3));
    EXPECT_EQ(config.target_layers, 5);
    EXPECT_EQ(config.conv->kernel, 2);
    EXPECT_EQ(config.conv_groups(), 4);
    EXPECT_EQ(config.selector->rank, 32);
    EXPECT_EQ(config.selector->top_k, 16);
    EXPECT_THAT(config.layer_attention, ElementsAre(DraftLayer{64, false}, DraftLayer{0, false}));
    EXPECT_EQ(config.output_multiplier, 1.0);
    EXPECT_EQ(config.logit_softcap, 0.0);
}

TEST(DraftConfig, FirstVersionAndBlockLookup) {
    const DraftConfig config = draft(first_draft());
    EXPECT_EQ(config.version, DraftVersion::dflash1);
    EXPECT_FALSE(config.conv);
    EXPECT_FALSE(config.selector);
    EXPECT_EQ(config.conv_groups(), 0);
    EXPECT_EQ(config.block, 16);
    Json outer = first_draft();
    outer["block_size"] = 10;
    EXPECT_EQ(draft(outer).block, 10);
    outer["dflash_config"]["block_size"] = 4;
    EXPECT_EQ(draft(outer).block, 4);
}

TEST(DraftConfig, FirstVersionWithoutTaps) {
    const auto taps = [](std::int64_t depth, std::int64_t layers) {
        Json config = first_draft();
        config["dflash_config"].erase("target_layer_ids");
        config["num_target_layers"] = depth;
        config["num_hidden_layers"] = layers;
        config.erase("layer_types");
        return draft(config).taps;
    };
    EXPECT_THAT(taps(36, 5), ElementsAre(1, 9, 17, 25, 33));
    EXPECT_THAT(taps(64, 5), ElementsAre(1, 16, 31, 46, 61));
    EXPECT_THAT(taps(9, 3), ElementsAre(1, 4, 6));  // 3.5 goes to the even 4
    EXPECT_THAT(taps(7, 3), ElementsAre(1, 2, 4));  // 2.5 goes to the even 2
    EXPECT_THAT(taps(10, 5), ElementsAre(1, 2, 4, 6, 7));
    EXPECT_THAT(taps(36, 1), ElementsAre(18));
    // The list may stand at the top level, as other keys of old configurations do.
    Json outer = first_draft();
    outer["dflash_config"].erase("target_layer_ids");
    outer["target_layer_ids"] = {0, 4};
    EXPECT_THAT(draft(outer).taps, ElementsAre(0, 4));
    // Without a list the depth is needed, and enough of it.
    Json neither = first_draft();
    neither["dflash_config"].erase("target_layer_ids");
    neither.erase("num_target_layers");
    EXPECT_THAT(parse_draft_config(neither, "c").status().message(), HasSubstr("\"num_target_layers\" in c is not"));
    neither["num_target_layers"] = 4;
    EXPECT_EQ(parse_draft_config(neither, "c").status().code(), StatusCode::corrupt);
    neither["num_target_layers"] = 5;
    EXPECT_THAT(draft(neither).taps, ElementsAre(1, 2));
}

TEST(DraftConfig, FirstVersionWithPositionScalingIsRefused) {
    Json config = first_draft();
    config.erase("rope_parameters");
    config["rope_theta"] = 1e6;
    config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
    const Status status = parse_draft_config(config, "c").status();
    EXPECT_EQ(status.code(), StatusCode::unsupported);
    EXPECT_THAT(status.message(), HasSubstr("\"yarn\""));
    config["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};
    EXPECT_EQ(parse_draft_config(config, "c").status().code(), StatusCode::unsupported);
    config["rope_scaling"] = nullptr;
    EXPECT_EQ(draft(config).rope_theta, 1e6);
}

TEST(DraftConfig, Candidates) {
    EXPECT_EQ(draft(second_draft()).candidates(), 16);
    EXPECT_EQ(draft(first_draft()).candidates(), kUnaryCandidates);
    Json small = first_draft();
    small["vocab_size"] = 5;
    small["dflash_config"]["mask_token_id"] = 4;
    EXPECT_EQ(draft(small).candidates(), 5);
}

TEST(DraftConfig, CausalityPerLayer) {
    Json config = first_draft();
    EXPECT_THAT(draft(config).layer_attention, ElementsAre(DraftLayer{64, true}, DraftLayer{0, false}));
    config["dflash_config"]["causal"] = true;
    EXPECT_THAT(draft(config).layer_attention, ElementsAre(DraftLayer{64, true}, DraftLayer{0, true}));
    config["is_causal"] = false;
    EXPECT_THAT(draft(config).layer_attention, ElementsAre(DraftLayer{64, false}, DraftLayer{0, false}));
    config.erase("layer_types");
    EXPECT_THAT(draft(config).layer_attention, ElementsAre(DraftLayer{0, false}, DraftLayer{0, false}));
    config["use_sliding_window"] = true;
    EXPECT_EQ(parse_draft_config(config, "c").status().code(), StatusCode::unsupported);
}

TEST(DraftConfig, Transforms) {
    Json config = second_draft();
    config["dflash_config"]["output_multiplier"] = 0.25;
    config["dflash_config"]["final_logit_softcapping"] = 20;
    config["dflash_config"]["input_embedding_scale"] = 2.0;
    const DraftConfig parsed = draft(config);
    EXPECT_EQ(parsed.output_multiplier, 0.25);
    EXPECT_EQ(parsed.logit_softcap, 20.0);
    EXPECT_EQ(parsed.input_embedding_scale, 2.0);
    EXPECT_EQ(draft_with("final_logit_softcapping", -1, "dflash_config").code(), StatusCode::corrupt);
    EXPECT_TRUE(draft_with("final_logit_softcapping", nullptr, "dflash_config").ok());
}

TEST(DraftConfig, Refusals) {
    EXPECT_THAT(parse_draft_config(nested_target(), "c").status().message(), HasSubstr("give it as --target"));
    EXPECT_EQ(draft_with("architectures", kAbsent).code(), StatusCode::unsupported);
    EXPECT_EQ(draft_with("model_type", "llama").code(), StatusCode::unsupported);
    EXPECT_EQ(draft_with("sample_from_anchor", true, "dflash_config").code(), StatusCode::unsupported);
    EXPECT_EQ(draft_with("sample_from_anchor", true).code(), StatusCode::unsupported);
    EXPECT_EQ(draft_with("rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "yarn"}}).code(),
              StatusCode::unsupported);
    for (const char* key :
         {"dflash_config", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "head_dim", "vocab_size", "rope_parameters", "sliding_window"}) {
        EXPECT_EQ(draft_with(key, kAbsent).code(), StatusCode::corrupt) << key;
        EXPECT_EQ(draft_with(key, -3).code(), StatusCode::corrupt) << key;
    }
    for (const char* key : {"mask_token_id", "target_layer_ids", "conv_kernel_size", "conv_group_size", "selector_rank",
                            "selector_top_k"}) {
        EXPECT_EQ(draft_with(key, kAbsent, "dflash_config").code(), StatusCode::corrupt) << key;
        EXPECT_EQ(draft_with(key, "x", "dflash_config").code(), StatusCode::corrupt) << key;
    }
    EXPECT_EQ(draft_with("mask_token_id", 256, "dflash_config").code(), StatusCode::corrupt);
    EXPECT_TRUE(draft_with("mask_token_id", 255, "dflash_config").ok());
    EXPECT_EQ(draft_with("conv_group_size", 24, "dflash_config").code(), StatusCode::corrupt);
    EXPECT_EQ(draft_with("block_size", 1, "dflash_config").code(), StatusCode::corrupt);
    EXPECT_EQ(draft_with("head_dim", 33).code(), StatusCode::corrupt);
    for (const Json& taps : {Json::array(), Json{0, 0}, Json{2, 1}, Json{0, 5}, Json::array({-1})}) {
        EXPECT_EQ(draft_with("target_layer_ids", taps, "dflash_config").code(), StatusCode::corrupt) << taps;
    }
}

TEST(ReadConfig, GoldenDirectories) {
    if (!fs::exists(kGolden / "target-r2/config.json")) FAIL() << "golden files are not here";
    const auto nested = read_target_config(kGolden / "target-r2");
    ASSERT_TRUE(nested.ok()) << nested.status().message();
    EXPECT_TRUE(nested->tied_embeddings);
    EXPECT_EQ(nested->rotary_dim, 16);
    EXPECT_EQ(nested->layer_kinds.at(3), LayerKind::full_attention);
    const auto quantised = read_target_config(kGolden / "target-r2-mlx4");
    ASSERT_TRUE(quantised.ok()) << quantised.status().message();
    EXPECT_EQ(quantised->quantisation->overrides.at("language_model.model.layers.1.mlp.down_proj"),
              (AffineScheme{64, 8}));
    const auto flat = read_target_config(kGolden / "target-r3");
    ASSERT_TRUE(flat.ok()) << flat.status().message();
    EXPECT_EQ(flat->layer_kinds.at(1), LayerKind::full_attention);
    EXPECT_EQ(flat->rotary_dim, 12);
    const auto golden_draft = read_draft_config(kGolden / "draft-w64");
    ASSERT_TRUE(golden_draft.ok()) << golden_draft.status().message();
    EXPECT_EQ(golden_draft->layer_attention.at(0), (DraftLayer{64, false}));
}

TEST(ReadConfig, FilesAreNamed) {
    TestDirectory dir;
    EXPECT_EQ(read_target_config(dir.path()).status().code(), StatusCode::not_found);
    ASSERT_TRUE(write_file(dir / "config.json", std::string_view(flat_target().dump())).ok());
    EXPECT_TRUE(read_target_config(dir.path()).ok());
    ASSERT_TRUE(write_file(dir / "generation_config.json", std::string_view("{\"eos_token_id\":[1,2],}")).ok());
    EXPECT_THAT(read_target_config(dir.path()).status().message(), HasSubstr("generation_config.json: byte 22"));
    ASSERT_TRUE(write_file(dir / "generation_config.json", std::string_view("{\"eos_token_id\":[1,2]}")).ok());
    EXPECT_THAT(read_target_config(dir.path())->eos_ids, ElementsAre(1u, 2u));
}

TEST(ReadConfig, EveryCutAndFlippedBitIsHandled) {
    for (const Json& config : {nested_target(), moe_target(), second_draft()}) {
        const std::string good = config.dump();
        const auto both = [](std::string_view text) {
            const auto json = parse_json(text, "c");
            if (!json.ok()) return;
            const auto as_target = parse_target_config(*json, nullptr, "c");
            const auto as_draft = parse_draft_config(*json, "c");
            EXPECT_FALSE(as_target.ok() && as_draft.ok());
        };
        for (std::size_t length = 0; length < good.size(); ++length) both(std::string_view(good).substr(0, length));
        for (std::size_t at = 0; at < good.size(); ++at) {
            for (int bit = 0; bit < 8; ++bit) {
                std::string bad = good;
                bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
                both(bad);
            }
        }
    }
}

}  // namespace
}  // namespace draftprobe
