#include "formats/checkpoint.h"
#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "base/test_directory.h"

namespace draftprobe {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kGolden = fs::path(DRAFTPROBE_SOURCE_DIR) / "tests/golden";

using Shape = std::vector<std::uint64_t>;

// A directory with config.json and one or more weight files, built tensor by tensor.
class Directory {
public:
    explicit Directory(const Json& config = Json::object()) { put("config.json", config.dump()); }

    void put(std::string_view name, std::string_view text) { EXPECT_TRUE(write_file(dir_ / name, text).ok()); }

    Directory& add(std::string_view name, DType dtype, Shape shape, std::vector<std::byte> bytes) {
        EXPECT_TRUE(writer_.add_owned(name, dtype, shape, std::move(bytes)).ok()) << name;
        return *this;
    }
    Directory& bf16(std::string_view name, Shape shape, std::uint16_t value = 0x3f80) {
        const std::size_t count = std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
        std::vector<std::uint16_t> values(count, value);
        const auto bytes = std::as_bytes(std::span(values));
        return add(name, DType::bf16, std::move(shape), {bytes.begin(), bytes.end()});
    }
    Directory& zeros(std::string_view name, DType dtype, Shape shape) {
        const std::size_t count = std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
        return add(name, dtype, std::move(shape), std::vector<std::byte>(count * dtype_bytes(dtype)));
    }
    // A quantised module of [out, in] at group 64.
    Directory& affine(const std::string& module, std::uint64_t out, std::uint64_t in, std::uint64_t bits) {
        zeros(module + ".weight", DType::u32, {out, in * bits / 32});
        bf16(module + ".scales", {out, in / 64});
        return bf16(module + ".biases", {out, in / 64});
    }
    Directory& metadata(std::string_view format) {
        writer_.set_metadata("format", format);
        return *this;
    }
    void write(std::string_view name = "model.safetensors") {
        EXPECT_TRUE(writer_.write(dir_ / name).ok());
        writer_ = SafetensorsWriter();
    }

    Result<Checkpoint> open() const { return Checkpoint::open(dir_.path()); }
    Status refusal(StatusCode code) const {
        const Status status = open().status();
        EXPECT_EQ(status.code(), code) << status.message();
        return status;
    }
    const fs::path& path() const { return dir_.path(); }

private:
    TestDirectory dir_;
    SafetensorsWriter writer_;
};

const Json kQuantised = {{"quantization", {{"group_size", 64}, {"bits", 4}}}};

TEST(Checkpoint, PrefixesGiveCanonicalNames) {
    struct Case {
        std::string prefix, head;
    };
    for (const auto& [prefix, head] :
         {Case{"model.language_model.", "lm_head.weight"}, Case{"model.", "lm_head.weight"},
          Case{"language_model.model.", "language_model.lm_head.weight"}, Case{"", "lm_head.weight"}}) {
        Directory dir;
        dir.bf16(prefix + "norm.weight", {4}).bf16(prefix + "layers.0.mlp.up_proj.weight", {2, 4}).bf16(head, {8, 4});
        dir.bf16("mtp.norm.weight", {4})
            .bf16("model.visual.blocks.0.norm.weight", {4})
            .bf16("vision_tower.norm.weight", {4});
        dir.write();
        const auto checkpoint = dir.open();
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
        EXPECT_EQ(checkpoint->prefix(), prefix);
        EXPECT_THAT(checkpoint->names(), ElementsAre("layers.0.mlp.up_proj.weight", "lm_head.weight", "norm.weight"));
        EXPECT_THAT(checkpoint->find("lm_head.weight")->shape, ElementsAre(8, 4));
        EXPECT_THAT(checkpoint->where("norm.weight"),
                    HasSubstr("model.safetensors: tensor \"" + prefix + "norm.weight\""));
        EXPECT_THAT(checkpoint->files(), ElementsAre("config.json", "model.safetensors"));
    }
}

TEST(Checkpoint, NamesUnderAPrefix) {
    Directory dir;
    dir.bf16("model.norm.weight", {4})
        .bf16("model.a.b.1", {1})
        .bf16("model.a.b.0", {1})
        .bf16("model.a.bc", {1})
        .write();
    const auto checkpoint = dir.open();
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_THAT(checkpoint->names_under("a.b."), ElementsAre("a.b.0", "a.b.1"));
    EXPECT_THAT(checkpoint->names_under("norm.weight"), ElementsAre("norm.weight"));
    EXPECT_TRUE(checkpoint->names_under("z").empty());
}

// Stacked experts have no ".weight"; config.json may name them all the same.
TEST(Checkpoint, AnOverrideOfABareTensorIsChecked) {
    Json config = kQuantised;
    config["quantization"]["model.experts.down_proj"] = true;
    Directory dir(config);
    dir.bf16("model.norm.weight", {4}).bf16("model.experts.down_proj", {2, 4, 64}).write();
    EXPECT_THAT(dir.refusal(StatusCode::mismatch).message(),
                AllOf(HasSubstr("model.experts.down_proj"), HasSubstr("config.json quantises it")));
}

TEST(Checkpoint, PrefixProblems) {
    Directory none;
    none.bf16("other.norm.weight", {4}).write();
    EXPECT_THAT(none.refusal(StatusCode::not_found).message(), HasSubstr("norm.weight"));
    Directory two;
    two.bf16("model.norm.weight", {4}).bf16("norm.weight", {4}).write();
    EXPECT_EQ(two.refusal(StatusCode::mismatch).code(), StatusCode::mismatch);
    Directory twice;
    twice.bf16("language_model.model.norm.weight", {4})
        .bf16("language_model.lm_head.weight", {4, 4})
        .bf16("lm_head.weight", {4, 4});
    twice.write();
    EXPECT_THAT(twice.refusal(StatusCode::mismatch).message(), HasSubstr("both are \"lm_head.weight\""));
}

TEST(Checkpoint, RequireNamesTensorFileFoundAndExpected) {
    Directory dir;
    dir.bf16("norm.weight", {4}).zeros("ids", DType::i64, {2}).bf16("bad", {3}, 0x7fc0).write();
    const auto checkpoint = dir.open();
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_TRUE(checkpoint->require("norm.weight", Shape{4}).ok());
    EXPECT_THAT(*checkpoint->require_f32("norm.weight", Shape{4}), ElementsAre(1, 1, 1, 1));
    const Status shape = checkpoint->require("norm.weight", Shape{2, 2}).status();
    EXPECT_EQ(shape.code(), StatusCode::mismatch);
    EXPECT_THAT(shape.message(), AllOf(HasSubstr("model.safetensors: tensor \"norm.weight\""), HasSubstr("[4]"),
                                       HasSubstr("expected [2, 2]")));
    const Status missing = checkpoint->require("fc.weight", Shape{2, 4}).status();
    EXPECT_EQ(missing.code(), StatusCode::not_found);
    EXPECT_THAT(missing.message(),
                AllOf(HasSubstr("\"fc.weight\""), HasSubstr("[2, 4]"), HasSubstr(dir.path().string())));
    EXPECT_EQ(checkpoint->require("ids", Shape{2}).status().code(), StatusCode::unsupported);
    EXPECT_THAT(checkpoint->require("bad", Shape{3}).status().message(), HasSubstr("element 0 is NaN"));
}

TEST(Checkpoint, LayoutByConvolutionAndMetadata) {
    const auto layout = [](Shape shape, std::string_view format) {
        Directory dir;
        dir.bf16("model.norm.weight", {4}).bf16("model.layers.0.linear_attn.conv1d.weight", std::move(shape));
        if (!format.empty()) dir.metadata(format);
        dir.write();
        const auto checkpoint = dir.open();
        return checkpoint.ok() ? std::optional(checkpoint->layout()) : std::nullopt;
    };
    EXPECT_EQ(layout({6, 1, 4}, ""), CheckpointLayout::huggingface);
    EXPECT_EQ(layout({6, 1, 4}, "pt"), CheckpointLayout::huggingface);
    EXPECT_EQ(layout({6, 1, 4}, "mlx"), std::nullopt);
    EXPECT_EQ(layout({6, 4, 1}, ""), CheckpointLayout::mlx);
    EXPECT_EQ(layout({6, 4, 1}, "mlx"), CheckpointLayout::mlx);
    EXPECT_EQ(layout({6, 4, 1}, "pt"), std::nullopt);
    EXPECT_EQ(layout({6, 4}, ""), std::nullopt);
    EXPECT_EQ(layout({6, 1, 1}, ""), std::nullopt);
    Directory mixed;
    mixed.bf16("norm.weight", {4}).bf16("layers.0.linear_attn.conv1d.weight", {6, 1, 4});
    mixed.bf16("layers.1.linear_attn.conv1d.weight", {6, 4, 1}).write();
    EXPECT_THAT(mixed.refusal(StatusCode::mismatch).message(), HasSubstr("one layout"));
    Directory draft;
    draft.bf16("norm.weight", {4}).metadata("mlx").write();
    EXPECT_EQ(draft.open()->layout(), CheckpointLayout::mlx);
}

TEST(Checkpoint, ShardsAndIndex) {
    const auto sharded = [](const Json& map, bool single = false) {
        auto dir = std::make_unique<Directory>();
        dir->bf16("model.norm.weight", {4}).write("model-00001-of-00002.safetensors");
        dir->bf16("lm_head.weight", {4, 4}).bf16("mtp.fc.weight", {2}).write("model-00002-of-00002.safetensors");
        if (single) dir->bf16("x", {1}).write();
        dir->put("model.safetensors.index.json", Json{{"weight_map", map}}.dump());
        dir->put("generation_config.json", "{}");
        return dir;
    };
    const Json good = {{"model.norm.weight", "model-00001-of-00002.safetensors"},
                       {"lm_head.weight", "model-00002-of-00002.safetensors"}};
    const auto dir = sharded(good);
    const auto checkpoint = dir->open();
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_THAT(checkpoint->files(),
                ElementsAre("config.json", "generation_config.json", "model-00001-of-00002.safetensors",
                            "model-00002-of-00002.safetensors", "model.safetensors.index.json"));
    EXPECT_TRUE(checkpoint->require("lm_head.weight", Shape{4, 4}).ok());
    EXPECT_THAT(checkpoint->where("lm_head.weight"), HasSubstr("00002-of-00002"));

    Json map = good;
    map["fc.weight"] = "model-00001-of-00002.safetensors";
    EXPECT_THAT(sharded(map)->refusal(StatusCode::corrupt).message(), HasSubstr("does not hold it"));
    map = good;
    map["lm_head.weight"] = "model-00001-of-00002.safetensors";
    EXPECT_EQ(sharded(map)->refusal(StatusCode::corrupt).code(), StatusCode::corrupt);
    for (const char* escape : {"../model.safetensors", "/etc/passwd.safetensors", "a/b.safetensors", ".safetensors", "",
                               "model.bin", "a\n.safetensors"}) {
        map = good;
        map["lm_head.weight"] = escape;
        EXPECT_THAT(sharded(map)->refusal(StatusCode::corrupt).message(), HasSubstr("plain file name")) << escape;
    }
    map["lm_head.weight"] = 3;
    EXPECT_EQ(sharded(map)->refusal(StatusCode::corrupt).code(), StatusCode::corrupt);
    map["lm_head.weight"] = "model-00003-of-00003.safetensors";
    EXPECT_EQ(sharded(map)->refusal(StatusCode::not_found).code(), StatusCode::not_found);
    EXPECT_EQ(sharded(Json::object())->refusal(StatusCode::corrupt).code(), StatusCode::corrupt);
    EXPECT_EQ(sharded(good, true)->refusal(StatusCode::mismatch).code(), StatusCode::mismatch);

    const auto unlisted = sharded(good);
    unlisted->bf16("model.norm.weight", {4}).bf16("model.extra", {1}).write("model-00001-of-00002.safetensors");
    EXPECT_THAT(unlisted->refusal(StatusCode::mismatch).message(), HasSubstr("model.extra"));
}

TEST(Checkpoint, SingleFileMayHaveAnIndex) {
    Directory dir;
    dir.bf16("norm.weight", {4}).write();
    dir.put("model.safetensors.index.json", R"({"weight_map":{"norm.weight":"model.safetensors"}})");
    EXPECT_TRUE(dir.open().ok());
}

TEST(Checkpoint, MissingFiles) {
    TestDirectory empty;
    EXPECT_EQ(Checkpoint::open(empty.path()).status().code(), StatusCode::not_found);
    EXPECT_THAT(Directory().refusal(StatusCode::not_found).message(), HasSubstr("model.safetensors"));
}

TEST(Checkpoint, AffineModule) {
    Json config = kQuantised;
    config["quantization"]["language_model.model.layers.0.mlp.down_proj"] = {{"group_size", 64}, {"bits", 8}};
    Directory dir(config);
    dir.bf16("language_model.model.norm.weight", {4})
        .bf16("odd", {1});  // two bytes, so that words are not aligned to 4
    dir.affine("language_model.model.layers.0.mlp.up_proj", 3, 128, 4);
    dir.affine("language_model.model.layers.0.mlp.down_proj", 2, 64, 8);
    dir.affine("language_model.lm_head", 5, 64, 4);
    dir.write();
    auto opened = dir.open();
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    const Checkpoint checkpoint = std::move(opened).value();
    EXPECT_TRUE(checkpoint.is_affine("layers.0.mlp.up_proj"));
    EXPECT_FALSE(checkpoint.is_affine("norm"));
    const auto up = checkpoint.affine("layers.0.mlp.up_proj", Shape{3, 128});
    ASSERT_TRUE(up.ok()) << up.status().message();
    EXPECT_EQ(up->scheme, (AffineScheme{64, 4}));
    EXPECT_EQ(up->words.size(), 3u * 16);
    EXPECT_EQ(up->rows(), 3u);
    EXPECT_EQ(up->in(), 128u);
    EXPECT_EQ(up->scales, std::vector<float>(6, 1.0f));
    EXPECT_EQ(checkpoint.affine("layers.0.mlp.down_proj", Shape{2, 64})->scheme.bits, 8);
    EXPECT_TRUE(checkpoint.affine("lm_head", Shape{5, 64}).ok());
    EXPECT_EQ(checkpoint.affine("lm_head", Shape{5, 128}).status().code(), StatusCode::mismatch);
    EXPECT_EQ(checkpoint.affine("none", Shape{5, 128}).status().code(), StatusCode::not_found);
    EXPECT_EQ(checkpoint.affine("norm", Shape{4}).status().code(), StatusCode::corrupt);
    EXPECT_THAT(checkpoint.require("lm_head.weight", Shape{5, 8}).status().message(), HasSubstr("is quantised"));
}

TEST(Checkpoint, AlignedWordsAreNotCopied) {
    for (const bool aligned : {true, false}) {
        Directory dir(kQuantised);
        dir.bf16("norm.weight", {4}).bf16("pad", {aligned ? 2u : 1u}).affine("m", 2, 64, 4).write();
        const auto checkpoint = dir.open();
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
        auto made = checkpoint->affine("m", Shape{2, 64});
        ASSERT_TRUE(made.ok());
        const AffineTensor tensor = std::move(made).value();
        EXPECT_EQ(tensor.copied_words.empty(), aligned);
        const bool in_map = static_cast<const void*>(tensor.words.data()) == checkpoint->find("m.weight")->bytes.data();
        EXPECT_EQ(in_map, aligned);
        EXPECT_EQ(tensor.words.size(), 16u);
    }
}

TEST(Checkpoint, AffineStacksAndOtherBits) {
    for (const std::uint64_t bits : {2, 3, 4, 5, 6, 8}) {
        Directory dir(Json{{"quantization", {{"bits", bits}}}});
        dir.bf16("norm.weight", {4}).zeros("m.weight", DType::u32, {2, 3, 2 * bits});
        dir.bf16("m.scales", {2, 3, 1}, 0xbf80).bf16("m.biases", {2, 3, 1}).write();
        const auto checkpoint = dir.open();
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
        const auto stack = checkpoint->affine("m", Shape{2, 3, 64});
        ASSERT_TRUE(stack.ok()) << stack.status().message();
        EXPECT_EQ(stack->rows(), 6u);
        EXPECT_EQ(stack->scales[5], -1.0f);  // negative scales are valid
    }
}

TEST(Checkpoint, AffineContradictions) {
    const auto refusal = [](StatusCode code, const Json& config, auto build) {
        Directory dir(config);
        dir.bf16("norm.weight", {4});
        build(dir);
        dir.write();
        return dir.refusal(code).message();
    };
    EXPECT_THAT(refusal(StatusCode::mismatch, kQuantised, [](Directory& d) { d.affine("m", 2, 64, 8); }),
                AllOf(HasSubstr("8 bits"), HasSubstr("expected 4 bits")));
    EXPECT_THAT(refusal(StatusCode::mismatch, Json::object(), [](Directory& d) { d.affine("m", 2, 64, 4); }),
                HasSubstr("no \"quantization\""));
    Json off = kQuantised;
    off["quantization"]["m"] = false;
    EXPECT_THAT(refusal(StatusCode::mismatch, off, [](Directory& d) { d.affine("m", 2, 64, 4); }),
                HasSubstr("says that it is not"));
    Json on = kQuantised;
    on["quantization"]["m"] = {{"bits", 8}, {"group_size", 64}};
    EXPECT_THAT(refusal(StatusCode::mismatch, on,
                        [](Directory& d) {
                            d.bf16("m.weight", {2, 64});
                        }),
                HasSubstr("config.json quantises it"));
    EXPECT_THAT(refusal(StatusCode::corrupt, kQuantised,
                        [](Directory& d) {
                            d.zeros("m.weight", DType::u32, {2, 8});
                        }),
                HasSubstr("m.scales"));
    EXPECT_THAT(refusal(StatusCode::corrupt, kQuantised,
                        [](Directory& d) {
                            d.zeros("m.weight", DType::u32, {2, 8}).bf16("m.scales", {2, 1});
                        }),
                HasSubstr("m.biases"));
    refusal(StatusCode::corrupt, kQuantised, [](Directory& d) { d.bf16("m.biases", {2, 1}); });
    refusal(StatusCode::corrupt, kQuantised, [](Directory& d) {
        d.zeros("m.weight", DType::u32, {2, 8}).bf16("m.scales", {2, 1}).bf16("m.biases", {2, 2});
    });
    refusal(StatusCode::corrupt, kQuantised, [](Directory& d) {
        d.zeros("m.weight", DType::u32, {2, 8}).bf16("m.scales", {2, 1}).zeros("m.biases", DType::f32, {2, 1});
    });
    refusal(StatusCode::corrupt, kQuantised, [](Directory& d) {
        d.zeros("m.weight", DType::u32, {2, 8}).bf16("m.scales", {3, 1}).bf16("m.biases", {3, 1});
    });
    refusal(StatusCode::corrupt, kQuantised, [](Directory& d) {
        d.zeros("m.weight", DType::i32, {2, 8}).bf16("m.scales", {2, 1}).bf16("m.biases", {2, 1});
    });
    refusal(StatusCode::corrupt, kQuantised,
            [](Directory& d) { d.zeros("m.weight", DType::u32, {8}).bf16("m.scales", {1}).bf16("m.biases", {1}); });
    EXPECT_THAT(refusal(StatusCode::mismatch, kQuantised,
                        [](Directory& d) {
                            d.zeros("m.weight", DType::u32, {2, 9}).bf16("m.scales", {2, 1}).bf16("m.biases", {2, 1});
                        }),
                HasSubstr("no whole number of bits"));

    Directory dir(kQuantised);
    dir.bf16("norm.weight", {4})
        .zeros("m.weight", DType::u32, {2, 8})
        .bf16("m.scales", {2, 1})
        .bf16("m.biases", {2, 1}, 0x7f80);
    dir.write();
    const auto checkpoint = dir.open();
    ASSERT_TRUE(checkpoint.ok());
    EXPECT_THAT(checkpoint->affine("m", Shape{2, 64}).status().message(),
                AllOf(HasSubstr("m.biases"), HasSubstr("NaN or inf")));
}

TEST(Checkpoint, CodebooksHaveOneName) {
    Directory dir(kQuantised);
    dir.bf16("norm.weight", {4}).bf16("candidate_selector.predecessor_codebook.weight", {8, 4});
    dir.affine("candidate_selector.successor_codebook", 8, 64, 4).write();
    const auto checkpoint = dir.open();
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_TRUE(checkpoint->has("candidate_selector.predecessor_codebook"));
    EXPECT_TRUE(checkpoint->is_affine("candidate_selector.successor_codebook"));
}

TEST(Checkpoint, TruncatedFileNamesTheTensor) {
    Directory dir;
    dir.bf16("norm.weight", {4}).bf16("fc.weight", {100, 10}).write();
    const auto size = fs::file_size(dir.path() / "model.safetensors");
    fs::resize_file(dir.path() / "model.safetensors", size - 1);
    EXPECT_THAT(dir.refusal(StatusCode::corrupt).message(),
                AllOf(HasSubstr("model.safetensors"), HasSubstr("\"fc.weight\""), HasSubstr("BF16 [100, 10]")));
}

TEST(Checkpoint, GoldenDirectories) {
    if (!fs::exists(kGolden / "target-r2/config.json")) FAIL() << "golden files are not here";
    const auto huggingface = Checkpoint::open(kGolden / "target-r2");
    ASSERT_TRUE(huggingface.ok()) << huggingface.status().message();
    EXPECT_EQ(huggingface->layout(), CheckpointLayout::huggingface);
    EXPECT_TRUE(huggingface->require("embed_tokens.weight", Shape{256, 64}).ok());
    EXPECT_TRUE(huggingface->require("layers.0.linear_attn.conv1d.weight", Shape{256, 1, 4}).ok());
    EXPECT_FALSE(huggingface->has("lm_head.weight"));
    const auto mlx = Checkpoint::open(kGolden / "target-r2-mlx4");
    ASSERT_TRUE(mlx.ok()) << mlx.status().message();
    EXPECT_EQ(mlx->layout(), CheckpointLayout::mlx);
    EXPECT_EQ(mlx->affine("layers.1.mlp.down_proj", Shape{64, 192})->scheme.bits, 8);
    EXPECT_EQ(mlx->affine("layers.0.mlp.down_proj", Shape{64, 192})->scheme.bits, 4);
    const auto sharded = Checkpoint::open(kGolden / "target-r3");
    ASSERT_TRUE(sharded.ok()) << sharded.status().message();
    EXPECT_EQ(sharded->prefix(), "model.");
    EXPECT_TRUE(sharded->require("lm_head.weight", Shape{320, 128}).ok());
    EXPECT_THAT(sharded->files(), Contains("model.safetensors.index.json"));
    const auto draft = Checkpoint::open(kGolden / "draft-w64");
    ASSERT_TRUE(draft.ok()) << draft.status().message();
    EXPECT_EQ(draft->prefix(), "");
    EXPECT_TRUE(draft->require("fc.weight", Shape{64, 192}).ok());
    EXPECT_TRUE(draft->require("candidate_selector.predecessor_codebook", Shape{256, 32}).ok());
}

}  // namespace
}  // namespace draftprobe
