#include "formats/manifest.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/test_directory.h"

namespace draftprobe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kDigest(64, 'a');

std::string entry(const std::string& name, const std::string& content) {
    return fmt::format(R"({{"name":"{}","size":{},"sha256":"{}"}})", name, content.size(), sha256_hex(content));
}

std::string manifest_text(const std::string& files) {
    return fmt::format(R"({{"selection_version":1,"files":[{}],"training":{{"run":"run-3","seed":7,"steps":1200,)"
                       R"("objective":"block and selector cross-entropy","data":"code, 4 MB"}},)"
                       R"("template":{{"digest":"{}","thinking":"off","effort":"none"}},)"
                       R"("target":{{"precision":"affine4-g64","name":"mini-dense"}},"comment":"ignored"}})",
                       files, kDigest);
}

Result<Manifest> parsed(const std::string& text) {
    const Result<Json> json = parse_json(text, "selection.json");
    return json.ok() ? parse_manifest(*json, "selection.json") : Result<Manifest>(json.status());
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
}

TEST(Manifest, ReadsEveryMember) {
    const auto manifest = parsed(manifest_text(entry("model.safetensors", "weights")));
    ASSERT_TRUE(manifest.ok()) << manifest.status().message();
    ASSERT_EQ(manifest->files.size(), 1u);
    EXPECT_EQ(manifest->files[0].name, "model.safetensors");
    EXPECT_EQ(manifest->files[0].size, 7u);
    EXPECT_EQ(manifest->files[0].sha256, sha256_hex("weights"));
    EXPECT_EQ(manifest->training.run, "run-3");
    EXPECT_EQ(manifest->training.seed, 7);
    EXPECT_EQ(manifest->training.steps, 1200);
    EXPECT_EQ(manifest->training.objective, "block and selector cross-entropy");
    EXPECT_EQ(manifest->training.data, "code, 4 MB");
    EXPECT_EQ(manifest->conditions.template_digest, kDigest);
    EXPECT_EQ(manifest->conditions.thinking, "off");
    EXPECT_EQ(manifest->conditions.effort, "none");
    EXPECT_EQ(manifest->conditions.target_precision, "affine4-g64");
    EXPECT_EQ(manifest->target_name, "mini-dense");
}

// Each message names the member, what was found and what was expected.
TEST(Manifest, RefusesWhatBreaksItsRules) {
    const std::string file = entry("a", "x");
    const std::string good = manifest_text(file);
    struct Case {
        std::string text;
        std::string field;
        std::string found;
    };
    const std::vector<Case> cases = {
        {"[]", "selection.json", "array"},
        {replaced(good, "\"selection_version\":1,", ""), "selection_version", "missing"},
        {replaced(good, "\"selection_version\":1", "\"selection_version\":\"1\""), "selection_version", "is \"1\""},
        {replaced(good, file, ""), "files", "0"},
        {replaced(good, "[" + file + "]", "7"), "files", "7"},
        {replaced(good, file, file + "," + file), "files[1]", "a second time"},
        {replaced(good, file, "3"), "files[0]", "name"},
        {replaced(good, "\"name\":\"a\"", "\"name\":\"../a\""), "name", "../a"},
        {replaced(good, "\"name\":\"a\"", "\"name\":\"/etc/passwd\""), "name", "/etc/passwd"},
        {replaced(good, "\"name\":\"a\"", "\"name\":\"sub/a\""), "name", "sub/a"},
        {replaced(good, "\"name\":\"a\"", "\"name\":\"..\""), "name", ".."},
        {replaced(good, "\"name\":\"a\"", "\"name\":\"\""), "name", "\"\""},
        {replaced(good, "\"name\":\"a\"", "\"name\":\"a\\u0000b\""), "name", "plain file name"},
        {replaced(good, "\"name\":\"a\"", "\"name\":\"selection.json\""), "name", "selection.json"},
        {replaced(good, "\"size\":1", "\"size\":-1"), "size", "-1"},
        {replaced(good, "\"size\":1", "\"size\":\"1\""), "size", "is \"1\""},
        {replaced(good, "\"size\":1", "\"size\":1.5"), "size", "1.5"},
        {replaced(good, sha256_hex("x"), "abc"), "sha256", "abc"},
        {replaced(good, "\"seed\":7", "\"seed\":null"), "seed", "missing"},
        {replaced(good, "\"run\":\"run-3\"", "\"run\":\"a\\nb\""), "run", "a\\nb"},
        {replaced(good, "\"thinking\":\"off\"", "\"thinking\":\"no\""), "thinking", "no"},
        {replaced(good, "\"thinking\":\"off\"", "\"thinking\":false"), "thinking", "false"},
        {replaced(good, "\"effort\":\"none\"", "\"effort\":\"very high\""), "effort", "very high"},
        {replaced(good, "\"digest\":\"" + kDigest, "\"digest\":\"x"), "digest", "x"},
        {replaced(good, "affine4-g64", "affine7-g64"), "precision", "affine7-g64"},
        {replaced(good, "affine4-g64", "int4"), "precision", "int4"},
        {replaced(good, ",\"name\":\"mini-dense\"", ""), "name", "missing"},
    };
    for (const Case& c : cases) {
        const auto manifest = parsed(c.text);
        EXPECT_EQ(manifest.status().code(), StatusCode::corrupt) << c.text;
        EXPECT_THAT(manifest.status().message(), AllOf(HasSubstr(c.field), HasSubstr(c.found), HasSubstr("expected")));
    }
    const auto later = parsed(replaced(good, "\"selection_version\":1", "\"selection_version\":2"));
    EXPECT_EQ(later.status().code(), StatusCode::unsupported);
    EXPECT_THAT(later.status().message(), AllOf(HasSubstr("is 2"), HasSubstr("supported is 1")));
}

class ManifestFiles : public testing::Test {
protected:
    void SetUp() override {
        put("config.json", "{}");
        put("model.safetensors", "weights");
        put(std::string(kManifestFileName),
            manifest_text(entry("config.json", "{}") + "," + entry("model.safetensors", "weights")));
    }

    void put(const std::string& name, const std::string& text) const {
        ASSERT_TRUE(write_file(directory_ / name, text).ok());
    }

    Result<std::vector<FileDigest>> check(const std::vector<std::string>& declared) const {
        const auto manifest = read_manifest(directory_.path());
        EXPECT_TRUE(manifest.ok()) << manifest.status().message();
        return check_manifest_files(**manifest, directory_.path(), declared);
    }

    void expect_refused(const std::vector<std::string>& declared, const std::vector<std::string>& parts) const {
        const Status status = check(declared).status();
        EXPECT_EQ(status.code(), StatusCode::corrupt);
        for (const std::string& part : parts) EXPECT_THAT(status.message(), HasSubstr(part));
    }

    const std::vector<std::string> declared_ = {"config.json", "model.safetensors"};
    TestDirectory directory_;
};

TEST_F(ManifestFiles, GivesTheDigestsOfTheDeclaredFiles) {
    const auto digests = check({"model.safetensors", "config.json"});
    ASSERT_TRUE(digests.ok()) << digests.status().message();
    EXPECT_EQ(*digests, (std::vector<FileDigest>{{"model.safetensors", sha256_hex("weights")},
                                                 {"config.json", sha256_hex("{}")}}));
}

TEST_F(ManifestFiles, NoManifestIsNone) {
    std::filesystem::remove(directory_ / kManifestFileName);
    const auto none = read_manifest(directory_.path());
    ASSERT_TRUE(none.ok());
    EXPECT_FALSE(none->has_value());
    put(std::string(kManifestFileName), "{");
    EXPECT_EQ(read_manifest(directory_.path()).status().code(), StatusCode::corrupt);
}

TEST_F(ManifestFiles, EveryDifferenceNamesFileFoundAndExpected) {
    expect_refused({"config.json", "model.safetensors", "generation_config.json"},
                   {"generation_config.json", "expected it among"});
    put("model.safetensors", "weightz");
    expect_refused(declared_, {"model.safetensors", sha256_hex("weightz"), sha256_hex("weights")});
    // Sizes of all files come before the content of any.
    put("config.json", "{ }");
    expect_refused(declared_, {"config.json", "3 bytes", "expected 2"});
    put("config.json", "{}");
    put("model.safetensors", "longer weights");
    expect_refused(declared_, {"model.safetensors", "14 bytes", "expected 7"});
    std::filesystem::remove(directory_ / "model.safetensors");
    expect_refused({"config.json"}, {"model.safetensors", "no such file", "7 bytes"});
}

TEST(EffectivenessNote, IsOneSentenceOverAllDifferences) {
    const DraftConditions trained{kDigest, "off", "none", "affine4-g64"};
    EXPECT_EQ(effectiveness_note(trained, trained), "");
    EXPECT_EQ(effectiveness_note(trained, {kDigest, "on", "none", "bf16"}),
              "no effectiveness conclusion: the draft was trained for thinking off, this run has on; target precision "
              "affine4-g64, this run has bf16");
    EXPECT_EQ(effectiveness_note(trained, {"none", "off", "high", "affine4-g64"}),
              "no effectiveness conclusion: the draft was trained for template aaaaaaaaaaaaaaaa, this run has none; "
              "effort none, this run has high");
}

TEST(Manifest, ALinkToNothingIsNotAbsence) {
    const TestDirectory dir;
    ASSERT_TRUE(read_manifest(dir.path()).ok());
    EXPECT_FALSE(read_manifest(dir.path()).value().has_value());
    std::filesystem::create_symlink("/nowhere/selection.json", dir.path() / kManifestFileName);
    EXPECT_EQ(read_manifest(dir.path()).status().code(), StatusCode::not_found);
}

}  // namespace
}  // namespace draftprobe
