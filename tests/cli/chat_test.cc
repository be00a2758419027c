// --chat, --thinking and --effort: the rendered prompt, its identity, and what is refused. On the bundled pair, whose
// tokenizer has the template's tokens.
#include <set>

#include "program.h"

namespace draftprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string model(const std::string& name) { return std::string(DRAFTPROBE_SOURCE_DIR) + "/models/" + name; }

// SHA-256 of what transformers 5.24.0 renders for models/prompts/chat.json with the template published with Qwen3.5.
constexpr const char* kRenderedOn = "5109cafd24056512c8012813a03340453b15827c0986dd171445c5fc890dc61c";
constexpr const char* kRenderedOff = "dee1897d2f7548ee7eececf5782d0efe0bf866265d0ae5b3bd6da961723d50cb";

class ChatProgram : public ProgramTest {
protected:
    static std::string target() { return "--target '" + model("mini-dense-mlx4") + "' --threads 2 "; }
    static std::string pair() { return target() + "--draft '" + model("mini-dense-draft") + "' "; }
    static std::string chat() { return "--chat '" + model("prompts/chat.json") + "' "; }

    Json captured(const std::string& options, const std::string& out) const {
        const ProgramRun result = run(
            "capture " + pair() + "--prefix-tokens 224 --cycles 2 --level 1 --arm fresh --out " + out + " " + options);
        EXPECT_EQ(result.exit, 0) << result.err;
        return parsed(slurp(path(out + "/capture.json")));
    }
    void expect_refused(const std::string& words, const std::vector<std::string>& parts) const {
        const std::vector<std::string> before = names();
        const ProgramRun result = run(words);
        EXPECT_EQ(result.exit, 2) << words << "\n" << result.err;
        expect_message(result, parts);
        EXPECT_EQ(names(), before) << words;
    }
};

TEST_F(ChatProgram, probes_a_chat_and_says_which_template) {
    const ProgramRun result =
        run("probe " + pair() + chat() + "--thinking on --prefix-tokens 224 --cycles 3 --json --out o");
    ASSERT_EQ(result.exit, 0) << result.err << result.out;
    EXPECT_EQ(parsed(result.out)["verdict"], "SAME");
    EXPECT_THAT(result.err, HasSubstr("chat: built-in template qwen-chatml-1 ("));
    EXPECT_THAT(result.err,
                HasSubstr("thinking on, no effort; the chat_template of tokenizer_config.json of the target "
                          "is not executed"));
    EXPECT_THAT(result.err, HasSubstr("prompt 279 tokens"));
    // The bundled draft's manifest says that it was trained for raw text.
    EXPECT_THAT(result.err, HasSubstr("no effectiveness conclusion: the draft was trained for template none"));
    EXPECT_THAT(run("inspect o/treated").out, HasSubstr("thinking on, no effort"));
    EXPECT_EQ(parsed(run("inspect o/treated --json").out)["chat"]["thinking"], "on");
}

// The smaller requests are ids without a template; the command line that the second process reads has the chat.
TEST_F(ChatProgram, is_minimised_in_two_processes) {
    const ProgramRun result = run("probe " + pair() + chat() +
                                  "--thinking off --prefix-tokens 224 --cycles 2 --tier process --inject "
                                  "context-shift=5 --minimize --json --out o");
    ASSERT_EQ(result.exit, 1) << result.err;
    EXPECT_EQ(parsed(result.out)["minimized"]["after"]["shift_tokens"], 5);
    EXPECT_LT(parsed(result.out)["minimized"]["after"]["prompt_tokens"].get<int>(), 60);
}

TEST_F(ChatProgram, records_template_mode_effort_and_rendered_text) {
    const Json on = captured(chat() + "--thinking on", "on")["identity"]["template"];
    EXPECT_EQ(on["digest"].get<std::string>().size(), 64u);
    EXPECT_EQ(on["thinking"], "on");
    EXPECT_EQ(on["effort"], "");
    EXPECT_EQ(on["rendered"], kRenderedOn);
    const Json off = captured(chat() + "--thinking off", "off")["identity"]["template"];
    EXPECT_EQ(off["digest"], on["digest"]);
    EXPECT_EQ(off["thinking"], "off");
    EXPECT_EQ(off["rendered"], kRenderedOff);
    const Json low = captured(chat() + "--thinking on --effort low", "low")["identity"]["template"];
    EXPECT_EQ(low["effort"], "low");
    EXPECT_NE(low["rendered"], on["rendered"]);

    for (const char* other : {"off", "low"}) {
        const ProgramRun compared = run(std::string("compare on ") + other + " --json");
        EXPECT_EQ(compared.exit, 4);
        const Json json = parsed(compared.out);
        EXPECT_EQ(json["verdict"], "NOT_COMPARABLE");
        ASSERT_GE(json["refusals"].size(), 1u);
        EXPECT_EQ(json["refusals"][0]["field"], "identity.template");
        EXPECT_THAT(json["refusals"][0]["control"].get<std::string>(), HasSubstr("thinking=on effort=none"));
        EXPECT_THAT(compared.out, Not(HasSubstr(std::string(kRenderedOn).substr(0, 12))));
    }
    EXPECT_EQ(run("compare on on").exit, 0);
}

TEST_F(ChatProgram, tells_stop_tokens_of_the_generation_configuration) {
    const Json header = captured(chat() + "--thinking off", "c");
    std::string stops;
    for (const Json& setting : header["settings"]) {
        if (setting["field"] == "stop_tokens") stops = setting["value"];
    }
    EXPECT_EQ(stops, "8160,8162");
}

std::vector<Json> steps_of(const std::filesystem::path& capture) {
    std::istringstream lines(slurp(capture / "steps.jsonl"));
    std::vector<Json> steps;
    for (std::string line; std::getline(lines, line);) steps.push_back(parsed(line));
    return steps;
}

// A stop token among the accepted proposals cuts what is retained and emitted, and says so.
TEST_F(ChatProgram, records_the_cut_of_a_stop_token) {
    std::filesystem::copy(model("mini-dense-mlx4"), path("target"));
    const std::string words = "capture --target target --threads 2 --draft '" + model("mini-dense-draft") + "' " +
                              chat() + "--thinking on --prefix-tokens 224 --cycles 12 --level 1 --arm fresh --out ";
    spill(path("target/generation_config.json"), "{\"eos_token_id\": [8160]}");
    ASSERT_EQ(run(words + "whole").exit, 0);
    // The first proposal of a cycle with several accepted ones, new in the text.
    std::set<int> seen;
    std::size_t cycle = 0;
    int stop = -1;
    for (const Json& step : steps_of(path("whole"))) {
        const auto committed = step["committed"].get<std::vector<int>>();
        seen.insert(committed[0]);
        if (step["accepted"] >= 2 && !seen.contains(committed[1])) {
            stop = committed[1];
            break;
        }
        seen.insert(committed.begin(), committed.end());
        ++cycle;
    }
    ASSERT_GE(stop, 0);
    spill(path("target/generation_config.json"), "{\"eos_token_id\": [8160, " + std::to_string(stop) + "]}");
    ASSERT_EQ(run(words + "cut").exit, 0);
    const std::vector<Json> steps = steps_of(path("cut"));
    ASSERT_EQ(steps.size(), cycle + 1);
    const Json& last = steps.back();
    EXPECT_GE(last["accepted"], 2);
    EXPECT_EQ(last["retained"], 1);
    EXPECT_EQ(last["emitted"], 1);
    EXPECT_EQ(last["committed"].size(), 1u);
    EXPECT_EQ(last["cuts"]["retained"], "stop");
    EXPECT_EQ(last["cuts"]["emitted"], "stop");
    EXPECT_EQ(last["next_anchor"], stop);
}

TEST_F(ChatProgram, generates_from_a_chat_with_and_without_a_draft) {
    const std::string words = "generate " + target() + chat() + "--max-tokens 6 --json --thinking ";
    const Json on = parsed(run(words + "on").out);
    const Json off = parsed(run(words + "off").out);
    EXPECT_EQ(on["prompt_tokens"], 279);
    EXPECT_EQ(off["prompt_tokens"], 281);
    EXPECT_EQ(parsed(run(words + "on --draft '" + model("mini-dense-draft") + "'").out)["ids"], on["ids"]);
    const ProgramRun unused = run(words + "off --effort low");
    EXPECT_EQ(unused.exit, 0);
    EXPECT_EQ(parsed(unused.out)["prompt_tokens"], 281);
    EXPECT_THAT(unused.err, HasSubstr("draftprobe: warning: --effort low with --thinking off"));
}

TEST_F(ChatProgram, measures_a_chat) {
    const ProgramRun result =
        run("bench probe " + pair() + chat() + "--thinking off --prefix-tokens 224 --cycles 1 --repeats 1 --json");
    EXPECT_EQ(result.exit, 0) << result.err;
    EXPECT_EQ(parsed(result.out)["prompt_tokens"], 281);
}

TEST_F(ChatProgram, refuses_options_that_do_not_belong_together) {
    spill(path("ids.json"), "[1,2,3]");
    spill(path("text.txt"), "text");
    const std::string file = "'" + model("prompts/chat.json") + "'";
    for (const std::string& command : {"probe " + pair() + "--prefix-tokens 32 ", "generate " + target(),
                                       "bench probe " + pair() + "--prefix-tokens 32 ",
                                       "capture " + pair() + "--prefix-tokens 32 --arm fresh --out c "}) {
        expect_refused(command + "--chat " + file, {"--thinking on|off is missing, expected with --chat"});
        expect_refused(command + "--prompt-ids ids.json --thinking on",
                       {"found --thinking with --prompt-ids, expected it with --chat FILE.json only"});
        expect_refused(command + "--prompt text.txt --effort low",
                       {"found --effort with --prompt, expected it with --chat"});
        expect_refused(command + "--prompt text.txt --chat " + file + " --thinking on",
                       {"found --prompt and --chat of", "expected exactly one"});
        expect_refused(command + "--thinking on", {"found none of --prompt FILE", "expected exactly one"});
        expect_refused(command + "--chat " + file + " --thinking maybe",
                       {"--thinking: found \"maybe\", expected one of on, off"});
        expect_refused(command + "--chat " + file + " --thinking on --effort 'very high'",
                       {"effort: found \"very high\", expected 1 to 32 characters"});
        expect_refused(command + "--chat " + file + " --thinking on --effort ''", {"--effort: found"});
    }
}

TEST_F(ChatProgram, refuses_bad_chat_files_with_place_and_name) {
    const std::string words = "probe " + pair() + "--prefix-tokens 32 --thinking on --chat ";
    expect_refused(words + "none.json", {"prompt: ", "none.json"});
    spill(path("bad.json"), "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"robot\",\"content\":\"b\"}]");
    expect_refused(words + "bad.json", {"prompt: bad.json: message 1: role is \"robot\", expected system"});
    spill(path("bad.json"), "[{\"role\":\"user\"");
    expect_refused(words + "bad.json", {"prompt: bad.json: byte"});
    std::ofstream(path("huge.json")).close();
    std::filesystem::resize_file(path("huge.json"), (8u << 20) + 1);
    expect_refused(words + "huge.json", {"huge.json"});
}

TEST_F(ChatProgram, needs_a_tokenizer_with_the_template_tokens) {
    spill(path("chat.json"), "[{\"role\":\"user\",\"content\":\"hello\"}]");
    const std::string words = " --chat chat.json --thinking on";
    expect_refused("generate --target '" + golden("target-r2") + "'" + words,
                   {"chat.json is text", "no tokenizer.json"});

    const auto copy = copy_golden("target-r2", "target");
    Json tokenizer = parsed(slurp(model("mini-dense-mlx4/tokenizer.json")));
    for (Json& token : tokenizer["added_tokens"]) {
        if (token["content"] == "<think>") token["content"] = "<thinking>";
    }
    // The golden model's vocabulary is smaller than this tokenizer's.
    tokenizer["model"]["merges"] = Json::array();
    Json vocabulary = Json::object();
    for (const auto& [piece, id] : tokenizer["model"]["vocab"].items()) {
        if (id < 240) vocabulary[piece] = id;
    }
    tokenizer["model"]["vocab"] = vocabulary;
    int next = 240;
    for (Json& token : tokenizer["added_tokens"]) token["id"] = next++;
    spill(copy / "tokenizer.json", tokenizer.dump());
    expect_refused("generate --target target" + words,
                   {"prompt: chat.json: chat template qwen-chatml-1", "the tokenizer has no token <think>"});
}

TEST_F(ChatProgram, names_a_template_file_and_a_missing_stop_token) {
    std::filesystem::copy(model("mini-dense-mlx4"), path("target"));
    spill(path("target/chat_template.jinja"), "{{ 1/0 }}");
    spill(path("target/generation_config.json"), "{\"eos_token_id\": 8160}");
    const std::string words = "generate --target target --threads 2 --max-tokens 1 --thinking on " + chat();
    const ProgramRun result = run(words);
    EXPECT_EQ(result.exit, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("chat_template.jinja of the target is not executed"));
    EXPECT_THAT(result.err, HasSubstr("draftprobe: warning: <|im_end|> (8162) ends the template's turns and is no stop "
                                      "token of the target"));
    std::filesystem::remove(path("target/chat_template.jinja"));
    spill(path("target/tokenizer_config.json"), "{\"eos_token\": \"<|im_end|>\"}");
    const ProgramRun without = run(words);
    EXPECT_THAT(without.err, Not(HasSubstr("not executed")));
    EXPECT_THAT(without.err, HasSubstr("is no stop token"));  // eos_token of tokenizer_config.json has no say
}

}  // namespace
}  // namespace draftprobe
