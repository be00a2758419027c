// generate: the same tokens with and without a draft, text with a tokenizer, limits and stops.
#include "program.h"

namespace draftprobe {
namespace {

using ::testing::HasSubstr;

// The smallest tokenizer of the served kind: one token per byte, id = byte.
std::string byte_tokenizer() {
    Json vocabulary = Json::object();
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
        const bool own = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        const int code = own ? byte : next++;
        std::string character;
        if (code < 0x80) {
            character += static_cast<char>(code);
        } else {
            character += static_cast<char>(0xc0 | code >> 6);
            character += static_cast<char>(0x80 | (code & 0x3f));
        }
        vocabulary[character] = byte;
    }
    Json split = {
        {"type", "Split"}, {"pattern", {{"Regex", "\\s+|\\S+"}}}, {"behavior", "Isolated"}, {"invert", false}};
    Json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
    Json document = {{"version", "1.0"}, {"added_tokens", Json::array()}, {"normalizer", {{"type", "NFC"}}}};
    document["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, level})}};
    document["decoder"] = {{"type", "ByteLevel"}};
    document["model"] = {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}};
    return document.dump();
}

class GenerateProgram : public ProgramTest {
protected:
    void SetUp() override { write_ids(50); }
};

TEST_F(GenerateProgram, gives_the_same_tokens_with_and_without_a_draft) {
    for (const char* target : {"target-r2", "target-r2-mlx4"}) {
        const std::string plain =
            "generate --target '" + golden(target) + "' --prompt-ids ids.json --max-tokens 20 --threads 2 ";
        const ProgramRun without = run(plain);
        const ProgramRun with = run(plain + "--draft '" + golden("draft-w64") + "'");
        ASSERT_EQ(without.exit, 0) << without.err;
        ASSERT_EQ(with.exit, 0) << with.err;
        EXPECT_EQ(without.out, with.out);
        EXPECT_THAT(without.err, HasSubstr("plain steps"));
        EXPECT_THAT(with.err, HasSubstr("20 new tokens"));
        EXPECT_THAT(with.err, HasSubstr("tokens retained a cycle"));
        Json json = parsed(run(plain + "--json").out);
        EXPECT_EQ(json["tokens"], 20);
        EXPECT_EQ(json["ids"].size(), 20u);
        EXPECT_EQ(json["cycles"], 19);
        EXPECT_EQ(json["speculative"], false);
        EXPECT_FALSE(json.contains("text"));
    }
}

TEST_F(GenerateProgram, gives_every_prompt_what_it_gets_alone) {
    spill(path("short.json"), "[5, 9, 14]");
    spill(path("other.json"), "[200, 3, 77, 41, 8, 8, 19]");
    const std::string models =
        "generate --target '" + golden("target-r2-mlx4") + "' --draft '" + golden("draft-w64") + "' --threads 2 ";
    for (const std::string& mode : {std::string(), std::string("--temperature 0.7 --top-k 30 --seed 5 ")}) {
        const std::string words = models + mode + "--max-tokens 15 --json ";
        std::vector<Json> alone;
        for (const char* file : {"ids.json", "short.json", "other.json"})
            alone.push_back(parsed(run(words + "--prompt-ids " + file).out));
        for (const char* lanes : {"1", "2", "4"}) {
            const ProgramRun together = run(words + "--lanes " + lanes +
                                            " --prompt-ids ids.json --prompt-ids short.json --prompt-ids other.json");
            ASSERT_EQ(together.exit, 0) << together.err;
            const Json results = parsed(together.out)["results"];
            ASSERT_EQ(results.size(), 3u);
            EXPECT_EQ(results[1]["prompt"], "short.json");
            EXPECT_EQ(results[0]["ids"], alone[0]["ids"]);
            // A prompt's place in the list numbers its random draws; greedy ones draw nothing.
            if (!mode.empty()) continue;
            EXPECT_EQ(results[1]["ids"], alone[1]["ids"]);
            EXPECT_EQ(results[2]["ids"], alone[2]["ids"]);
        }
    }
    const ProgramRun text = run(models + "--max-tokens 3 --prompt-ids short.json --prompt-ids other.json");
    EXPECT_THAT(text.out, ::testing::ContainsRegex("^== short.json\n.*\n== other.json\n"));
}

TEST_F(GenerateProgram, samples_the_same_tokens_for_the_same_seed) {
    const std::string words = "generate --target '" + golden("target-r2") + "' --draft '" + golden("draft-w64") +
                              "' --prompt-ids ids.json --max-tokens 24 --json ";
    const Json greedy = parsed(run(words).out);
    const Json a = parsed(run(words + "--temperature 1 --seed 1").out);
    const Json again = parsed(run(words + "--temperature 1 --seed 1 --threads 1 --isa portable --chunk-tokens 7").out);
    const Json b = parsed(run(words + "--temperature 1 --seed 2").out);
    EXPECT_EQ(a["ids"], again["ids"]);
    EXPECT_NE(a["ids"], b["ids"]);
    EXPECT_NE(a["ids"], greedy["ids"]);
    // One token of top-k leaves nothing to draw.
    EXPECT_EQ(parsed(run(words + "--temperature 1 --top-k 1").out)["ids"], greedy["ids"]);
}

TEST_F(GenerateProgram, prints_text_and_stops_at_a_stop_token) {
    const auto target = copy_golden("target-r2", "target");
    spill(target / "tokenizer.json", byte_tokenizer());
    spill(path("text.txt"), "int main() { return 0; }\n");
    const std::string words = "generate --target target --prompt text.txt --threads 2 --max-tokens 12 ";
    const ProgramRun text = run(words);
    ASSERT_EQ(text.exit, 0) << text.err;
    Json all = parsed(run(words + "--json").out);
    ASSERT_EQ(all["tokens"], 12);
    EXPECT_EQ(all["prompt_tokens"], 25);

    // The fifth token becomes the stop token.
    const auto ids = all["ids"].get<std::vector<int>>();
    const int stop = ids[4];
    const auto first = static_cast<std::size_t>(std::find(ids.begin(), ids.end(), stop) - ids.begin());
    spill(target / "generation_config.json", "{\"eos_token_id\": " + std::to_string(stop) + "}");
    for (const std::string& draft : {std::string(), "--draft '" + golden("draft-w64") + "'"}) {
        Json stopped = parsed(run(words + "--json " + draft).out);
        EXPECT_EQ(stopped["stopped"], true);
        EXPECT_EQ(stopped["tokens"], first + 1);
        EXPECT_EQ(stopped["ids"].back(), stop);
    }
    EXPECT_THAT(run(words).err, HasSubstr("ended by a stop token"));

    spill(path("bad.txt"), "a\xff");
    const ProgramRun bad = run("generate --target target --prompt bad.txt");
    EXPECT_EQ(bad.exit, 2);
    expect_message(bad, {"bad.txt"});
}

TEST_F(GenerateProgram, warns_about_a_class_without_effect) {
    const ProgramRun result =
        run("generate --target '" + golden("target-r2") + "' --prompt-ids ids.json --numerics i8dot --max-tokens 1");
    EXPECT_EQ(result.exit, 0);
    EXPECT_THAT(result.err, HasSubstr("draftprobe: warning: --numerics i8dot"));
}

}  // namespace
}  // namespace draftprobe
