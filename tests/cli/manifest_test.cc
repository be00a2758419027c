// selection.json, the digest cache, and what a draft's own settings do to identity: through the real executable.
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "base/hash.h"
#include "program.h"

namespace draftprobe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ExportProgram : public ProgramTest {
protected:
    void SetUp() override {
        write_ids(150);
        copy_golden("draft-w64", "draft");
    }

    std::string models(const std::string& draft = "draft") const {
        return "--target '" + golden("target-r2") + "' --draft " + draft + " --threads 2 ";
    }
    std::string request(const std::string& draft = "draft") const {
        return models(draft) + "--prompt-ids ids.json --prefix-tokens 96 --cycles 2 ";
    }

    std::string listed(const std::string& name) const {
        const std::string content = slurp(path("draft") / name);
        return fmt::format(R"({{"name":"{}","size":{},"sha256":"{}"}})", name, content.size(), sha256_hex(content));
    }
    void write_manifest(const std::string& thinking, const std::string& precision) const {
        spill(path("draft") / "selection.json",
              fmt::format(R"({{"selection_version":1,"files":[{},{}],)"
                          R"("training":{{"run":"r","seed":1,"steps":2,"objective":"o","data":"d"}},)"
                          R"("template":{{"digest":"none","thinking":"{}","effort":"none"}},)"
                          R"("target":{{"precision":"{}","name":"golden"}}}})",
                          listed("config.json"), listed("model.safetensors"), thinking, precision));
    }
    Json capture_header(const std::string& name) const { return parsed(slurp(path(name) / "capture.json")); }
};

constexpr const char* kNote = "no effectiveness conclusion: the draft was trained for thinking off, this run has none";

TEST_F(ExportProgram, AManifestThatFitsSaysNothing) {
    write_manifest("none", "bf16");
    const ProgramRun result = run("probe " + request() + "--require-manifest --json --out o");
    ASSERT_EQ(result.exit, 0) << result.err;
    EXPECT_TRUE(parsed(result.out)["notes"].empty()) << result.out;
    EXPECT_THAT(result.err, Not(HasSubstr("no effectiveness")));
    // The manifest is not a file of the draft's identity.
    const std::string with = capture_header("o/control")["identity"]["draft"]["digest"];
    std::filesystem::remove(path("draft/selection.json"));
    ASSERT_EQ(run("capture " + request() + "--arm fresh --out plain").exit, 0);
    EXPECT_EQ(capture_header("plain")["identity"]["draft"]["digest"], with);
}

TEST_F(ExportProgram, AnotherModeIsANoteInEveryReport) {
    write_manifest("off", "affine4-g64");
    const ProgramRun result = run("probe " + request() + "--json --out o --report r.html");
    ASSERT_EQ(result.exit, 0) << result.err;
    const std::string precision = "target precision affine4-g64, this run has bf16";
    const Json json = parsed(result.out);
    ASSERT_EQ(json["notes"].size(), 1u) << result.out;
    EXPECT_THAT(json["notes"][0].get<std::string>(), AllOf(HasSubstr(kNote), HasSubstr(precision)));
    EXPECT_THAT(slurp(path("o/report.json")), HasSubstr(kNote));
    EXPECT_THAT(slurp(path("r.html")), HasSubstr(kNote));
    // Text is broken into lines.
    for (const char* command : {"compare o/control o/treated", "inspect o/treated"}) {
        EXPECT_THAT(run(command).out, HasSubstr("no effectiveness conclusion: the draft was trained for thinking off"));
    }
    const ProgramRun generated = run("generate " + models() + "--prompt-ids ids.json --max-tokens 3");
    EXPECT_EQ(generated.exit, 0);
    EXPECT_THAT(generated.err, HasSubstr(kNote));
}

TEST_F(ExportProgram, FilesThatAreNotTheListedOnesAreRefused) {
    write_manifest("none", "bf16");
    const std::string good = slurp(path("draft/config.json"));
    spill(path("draft/config.json"), good.substr(0, good.rfind("16")) + "15" + good.substr(good.rfind("16") + 2));
    const std::string found = sha256_hex(slurp(path("draft/config.json")));
    for (const std::string& command : {"probe " + request() + "--out o", "capture " + request() + "--arm fresh --out o",
                                       "bench probe " + request(), "generate " + models() + "--prompt-ids ids.json"}) {
        const ProgramRun result = run(command);
        EXPECT_EQ(result.exit, 5) << command;
        expect_message(result, {"draft/config.json", found, sha256_hex(good), "expected"});
        EXPECT_FALSE(present("o"));
    }
    EXPECT_EQ(run("probe " + request() + "--bisect --out o").exit, 125);
    spill(path("draft/config.json"), good);
    spill(path("draft/generation_config.json"), "{}");
    const ProgramRun more = run("probe " + request() + "--out o");
    EXPECT_EQ(more.exit, 5);
    expect_message(more, {"generation_config.json", "selection.json", "expected it among"});
}

TEST_F(ExportProgram, ARequiredManifestMustBeThere) {
    for (const std::string& command : {"probe " + request() + "--out o", "capture " + request() + "--arm fresh --out o",
                                       "bench probe " + request(), "generate " + models() + "--prompt-ids ids.json"}) {
        const ProgramRun result = run(command + " --require-manifest");
        EXPECT_EQ(result.exit, 2) << command;
        expect_message(result, {"draft: no selection.json", "--require-manifest"});
    }
    const ProgramRun alone =
        run("generate --target '" + golden("target-r2") + "' --prompt-ids ids.json --require-manifest");
    EXPECT_EQ(alone.exit, 2);
    expect_message(alone, {"--require-manifest", "no --draft"});
    spill(path("draft/selection.json"), "{\"selection_version\":2}");
    const ProgramRun later = run("probe " + request() + "--out o");
    EXPECT_EQ(later.exit, 2);
    expect_message(later, {"selection_version", "is 2", "supported is 1"});
}

// The same run with two drafts that see different windows has one non-draft input, and compares as a draft treatment.
TEST_F(ExportProgram, AnotherDraftIsOneTreatment) {
    std::filesystem::create_directory(path("other"));
    std::string config = slurp(path("draft/config.json"));
    const std::string window = "\"sliding_window\": 64";
    config.replace(config.find(window), window.size(), "\"sliding_window\": 80");
    spill(path("other/config.json"), config);
    std::filesystem::copy_file(path("draft/model.safetensors"), path("other/model.safetensors"));
    ASSERT_EQ(run("capture " + request() + "--arm fresh --out a").exit, 0);
    ASSERT_EQ(run("capture " + request("other") + "--arm fresh --out b").exit, 0);
    const Json a = capture_header("a")["identity"];
    const Json b = capture_header("b")["identity"];
    EXPECT_NE(a["draft"]["digest"], b["draft"]["digest"]);
    EXPECT_NE(a["settings"], b["settings"]);
    EXPECT_EQ(a["non_draft_input"], b["non_draft_input"]);

    const ProgramRun refused = run("compare a b --json");
    EXPECT_EQ(refused.exit, 4);
    std::vector<std::string> fields;
    const Json report = parsed(refused.out);
    for (const Json& refusal : report["refusals"]) fields.push_back(refusal["field"]);
    EXPECT_THAT(fields, ::testing::ElementsAre("identity.draft", "settings.draft.window", "request.window"));
    EXPECT_NE(run("compare a b --treat draft").exit, 4);
}

// A padded index makes a golden draft large enough for the cache.
TEST_F(ExportProgram, LargeFilesAreHashedOnce) {
    Json map = Json::object();
    const std::string weights = slurp(path("draft/model.safetensors"));
    std::uint64_t header = 0;
    std::memcpy(&header, weights.data(), sizeof header);
    const Json tensors = parsed(weights.substr(8, header));
    for (const auto& [name, tensor] : tensors.items()) {
        if (name != "__metadata__") map[name] = "model.safetensors";
    }
    const Json index = {{"weight_map", map}};
    spill(path("draft/model.safetensors.index.json"), index.dump() + std::string(64u << 20, ' '));
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));

    const auto cached = [&](const std::string& name, const std::string& options) {
        const std::string words = "capture " + request() + "--level 1 --arm fresh --out " + name + " " + options;
        const ProgramRun result =
            shell("DRAFTPROBE_CACHE=$PWD/cache '" + std::string(DRAFTPROBE_BINARY) + "' " + words);
        EXPECT_EQ(result.exit, 0) << result.err;
        return capture_header(name)["identity"]["draft"].value("cached", false);
    };
    EXPECT_FALSE(cached("first", ""));
    EXPECT_TRUE(present("cache/digests.json"));
    EXPECT_TRUE(cached("second", ""));
    EXPECT_FALSE(cached("third", "--no-digest-cache"));
    EXPECT_EQ(capture_header("first")["identity"]["draft"]["digest"],
              capture_header("second")["identity"]["draft"]["digest"]);
    spill(path("cache/digests.json"), "damaged");
    EXPECT_FALSE(cached("fourth", ""));
}

}  // namespace
}  // namespace draftprobe
