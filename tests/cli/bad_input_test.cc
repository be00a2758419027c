// Every bad input: exit 2, one paragraph with found and expected, and nothing written.
#include <algorithm>
#include <tuple>

#include "program.h"

namespace draftprobe {
namespace {

class BadInput : public ProgramTest {
protected:
    void SetUp() override {
        write_ids(150);
        before_ = names();
    }
    // Nothing is left in the working directory that was not there before the run.
    void expect_refused(const std::string& words, const std::vector<std::string>& parts, int exit = 2) {
        before_ = names();
        const ProgramRun result = run(words);
        EXPECT_EQ(result.exit, exit) << words << "\n" << result.err;
        expect_message(result, parts);
        EXPECT_EQ(names(), before_) << words;
    }
    std::vector<std::string> before_;
};

std::string edited(std::string text, const std::string& from, const std::string& to) {
    std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    for (; at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
    return text;
}

TEST_F(BadInput, no_command_and_unknown_commands) {
    expect_refused("", {"no command", "draftprobe help"});
    expect_refused("prob", {"unknown command", "did you mean 'probe'?"});
    expect_refused("bench", {"expected 'probe'"});
    expect_refused("bench decode", {"found \"decode\"", "expected 'probe'"});
    expect_refused("budget", {"budget: found nothing", "expected 'calibrate'", "draftprobe budget calibrate --help"});
}

TEST_F(BadInput, commands_of_the_contract_that_are_not_served) {
    for (const char* command : {"replay x", "archive verify x", "archive create"}) {
        expect_refused(command, {"not available in this version; available: probe, capture, compare"});
    }
}

TEST_F(BadInput, unknown_misplaced_repeated_and_missing_options) {
    const std::string request = "probe " + pair() + "--prompt-ids ids.json --prefix-tokens 96 ";
    expect_refused(request + "--cycels 3", {"unknown option \"--cycels\"", "did you mean --cycles?"});
    expect_refused(request + "-x", {"unknown option \"-x\""});
    expect_refused(request + "--after-restore", {"--after-restore", "option of budget calibrate only"});
    expect_refused(request + "--treat kv_format", {"--treat: found \"kv_format\"", "expected timing_confounded"});
    expect_refused(request + "--kv int8 --kv bf16", {"--kv is given twice"});
    expect_refused(request + "extra", {"found \"extra\", expected options only"});
    expect_refused(request + "--json=yes", {"--json: found a value, expected none"});
    expect_refused("probe " + pair() + "--prompt-ids ids.json", {"--prefix-tokens N is missing"});
    expect_refused("probe --draft x --prompt-ids ids.json --prefix-tokens 96", {"--target DIR is missing"});
    expect_refused("probe --target x --prompt-ids ids.json --prefix-tokens 96", {"--draft DIR is missing"});
    expect_refused("capture " + pair() + "--prompt-ids ids.json --prefix-tokens 96 --out c",
                   {"--arm fresh|restored|natural|uninterrupted is missing"});
    expect_refused("capture " + pair() + "--prompt-ids ids.json --prefix-tokens 96 --arm fresh",
                   {"--out DIR is missing"});
    expect_refused("probe --target --draft x", {"--target: found no value, expected DIR"});
    expect_refused("compare one", {"found 1 name, expected CONTROL TREATED"});
    expect_refused("compare one two three", {"found 3 names"});
}

TEST_F(BadInput, values_outside_their_range) {
    const std::string request = "probe " + pair() + "--prompt-ids ids.json ";
    for (const char* value : {"0", "-32", "x", "96x", "1e3", "99999999999999999999", "' 96'"}) {
        expect_refused(request + "--prefix-tokens " + value, {"--prefix-tokens: found", "expected an integer from 1"});
    }
    expect_refused(request + "--prefix-tokens ''", {"--prefix-tokens: found \"\""});
    expect_refused(request + "--prefix-tokens 96 --cycles 0", {"--cycles: found \"0\", expected an integer from 1"});
    expect_refused(request + "--prefix-tokens 96 --kv f32", {"--kv: found \"f32\", expected one of bf16, int8"});
    expect_refused(request + "--prefix-tokens 96 --threads 0", {"--threads: found \"0\""});
    expect_refused(request + "--prefix-tokens 96 --restore-draft q4", {"--restore-draft: found \"q4\"", "rows-q4"});
    expect_refused(request + "--prefix-tokens 96 --restore-target int4", {"--restore-target: found \"int4\""});
    expect_refused(request + "--prefix-tokens 96 --tier tape", {"--tier: found \"tape\"", "memory, disk, process"});
    expect_refused(request + "--prefix-tokens 96 --level 4", {"--level: found \"4\", expected one of 1, 2, 3"});
    expect_refused(request + "--prefix-tokens 96 --device gpu", {"--device: found \"gpu\", expected cpu"});
    expect_refused(request + "--prefix-tokens 96 --bisect=drift", {"--bisect: found \"drift\"", "drift-ok, drift-bad"},
                   125);
    expect_refused(request + "--prefix-tokens 96 --controls fresh", {"--controls: found \"fresh\"", "repeat, natural"});
    expect_refused(request + "--prefix-tokens 96 --controls repeat,repeat", {"found 'repeat' twice"});
    expect_refused(request + "--prefix-tokens 96 --inject context-shift=0", {"--inject context-shift=0"});
    expect_refused(request + "--prefix-tokens 96 --inject nonsense", {"unknown fault 'nonsense'", "context-shift=N"});
}

TEST_F(BadInput, spellings_of_the_contract_that_are_not_served) {
    const std::string request = "probe " + pair() + "--prompt-ids ids.json --prefix-tokens 96 ";
    const std::pair<const char*, const char*> cases[] = {
        {"--device cuda:0", "--device cpu"},
        {"--level 0", "--level 1, 2, 3"},
    };
    for (const auto& [words, available] : cases) {
        expect_refused(request + words, {"is not available in this version; available: ", available});
    }
}

TEST_F(BadInput, a_file_in_place_of_a_capture_is_a_mistyped_name) {
    expect_refused("compare ids.json ids.json",
                   {"ids.json: found something that is not a directory", "name the directory itself"});
}

TEST_F(BadInput, sampling_and_budget) {
    const std::string request = "probe " + pair() + "--prompt-ids ids.json --prefix-tokens 96 ";
    expect_refused(request + "--temperature hot", {"--temperature: found \"hot\"", "expected a number from 0 to 100"});
    expect_refused(request + "--temperature nan", {"--temperature: found \"nan\""});
    expect_refused(request + "--temperature 1 --top-p 0", {"top-p is 0", "expected above 0"});
    expect_refused(request + "--temperature 1 --min-p 1", {"min-p is 1"});
    expect_refused(request + "--top-k 5", {"--top-k: found without --temperature"});
    expect_refused(request + "--budget nothing.json", {"--budget", "nothing.json"});
    spill(path("seed.json"), "{\"budget_seed_version\": 99}");
    expect_refused(request + "--budget seed.json", {"--budget", "seed.json"});
    expect_refused(request + "--draft-bits 8", {"--draft-bits: found \"8\"", "expected one of 16, 4"});
    expect_refused(request + "--lanes 0", {"--lanes: found \"0\""});
}

TEST_F(BadInput, prompts) {
    const std::string request = "probe " + pair() + "--prefix-tokens 96 ";
    expect_refused(request,
                   {"found none of --prompt FILE, --prompt-ids FILE.json and --chat FILE.json, expected exactly "
                    "one"});
    expect_refused(request + "--prompt a --prompt-ids ids.json", {"found --prompt and --prompt-ids of --prompt FILE"});
    expect_refused(request + "--prompt-ids none.json", {"prompt: ", "none.json"});
    expect_refused(request + "--prompt-ids .", {"prompt: "});

    spill(path("empty.txt"), "");
    spill(path("empty.json"), "[]");
    expect_refused(request + "--prompt empty.txt", {"empty.txt: found 0 tokens, expected at least 1"});
    expect_refused(request + "--prompt-ids empty.json", {"empty.json: found 0 tokens, expected at least 1"});
    expect_refused(request + "--prompt-ids empty.txt", {"prompt: empty.txt"});

    spill(path("text.txt"), "some text");
    expect_refused(request + "--prompt text.txt", {"text.txt is text", "no tokenizer.json", "--prompt-ids"});

    const std::pair<const char*, const char*> documents[] = {
        {"{\"id\": [1]}", "an object without an array \"ids\""},
        {"{\"ids\": 3}", "an object without an array \"ids\""},
        {"3", "found number"},
        {"[1, 2.5]", "entry 1 is \"2.5\", expected a token id"},
        {"[1, -2]", "entry 1 is \"-2\""},
        {"[1, \"2\"]", "entry 1 is"},
        {"[1, [2]]", "entry 1 is"},
        {"[4294967296]", "entry 0 is"},
        {"[1, 2", "bad.json"},
        {"[1] [2]", "bad.json"},
        {"{\"ids\": [1], \"ids\": [2]}", "bad.json"},
        {"[1, 256, 3]", "token id 256 at index 1, expected ids below the target's vocabulary of 256 rows"},
    };
    for (const auto& [document, message] : documents) {
        spill(path("bad.json"), document);
        expect_refused(request + "--prompt-ids bad.json", {message});
    }

    std::ofstream(path("huge.json")).close();
    std::filesystem::resize_file(path("huge.json"), (64u << 20) + 1);
    expect_refused(request + "--prompt-ids huge.json", {"huge.json"});
    expect_refused(request + "--prompt huge.json", {"huge.json"});
}

TEST_F(BadInput, prompts_that_do_not_fit_the_model_or_the_boundary) {
    const std::string request = "probe " + pair() + "--prompt-ids ids.json --prefix-tokens ";
    expect_refused(request + "150", {"--prefix-tokens: found 150, expected fewer than the prompt's 150 tokens"});
    expect_refused(request + "151", {"--prefix-tokens: found 151"});
    expect_refused(request + "31", {"--prefix-tokens: found 31, expected at least 32"});
    write_ids(4090);
    expect_refused(request + "96", {"prompt: 4090 tokens, expected at most 3960"});
    expect_refused("generate --target '" + golden("target-r2") + "' --prompt-ids ids.json",
                   {"ids.json: 4090 tokens and --max-tokens 64", "at most 4096 positions"});
}

TEST_F(BadInput, directories_that_are_not_checkpoints) {
    const std::string rest = " --prompt-ids ids.json --prefix-tokens 96";
    const std::string target = "--target '" + golden("target-r2") + "'";
    const std::string draft = "--draft '" + golden("draft-w64") + "'";
    expect_refused("probe --target nowhere " + draft + rest,
                   {"--target 'nowhere'", "found nothing", "expected a checkpoint"});
    expect_refused("probe --target ids.json " + draft + rest, {"--target 'ids.json'", "not a directory"});
    expect_refused("probe " + target + " --draft nowhere" + rest, {"--draft 'nowhere'", "found nothing"});
    std::filesystem::create_directory(path("hollow"));
    expect_refused("probe --target hollow " + draft + rest, {"hollow", "config.json"});
    expect_refused("probe " + target + " --draft hollow" + rest, {"hollow", "config.json"});
    // The two exchanged.
    expect_refused("probe --target '" + golden("draft-w64") + "' --draft '" + golden("target-r2") + "'" + rest,
                   {"config.json"});
    expect_refused("probe " + target + " --draft '" + golden("target-r2") + "'" + rest, {"this is a target"});
}

TEST_F(BadInput, architectures_and_pairs_that_are_not_served) {
    const std::string rest = " --prompt-ids ids.json --prefix-tokens 96";
    const std::string draft = " --draft '" + golden("draft-w64") + "'";
    const auto target = copy_golden("target-r2", "target");
    const std::string config = slurp(target / "config.json");
    spill(target / "config.json", edited(edited(config, "\"qwen3_5\"", "\"llama\""), "\"qwen3_5_text\"", "\"llama\""));
    expect_refused("probe --target target" + draft + rest, {"config.json", "llama"});

    const std::string moe =
        edited(edited(edited(config, "\"qwen3_5\"", "\"qwen3_5_moe\""), "\"qwen3_5_text\"", "\"qwen3_5_moe_text\""),
               "\"intermediate_size\": 192",
               "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, "
               "\"shared_expert_intermediate_size\": 32");
    spill(target / "config.json", edited(moe, "Qwen3_5For", "Qwen3_5MoeFor"));
    expect_refused("probe --target target" + draft + rest, {"mlp.gate.weight", "missing", "[8, 64]"});
    spill(target / "config.json", "{\"model_type\": \"qwen3_5\"");
    expect_refused("probe --target target" + draft + rest, {"config.json"});

    const auto copied = copy_golden("draft-w64", "draft");
    const std::string draft_config = slurp(copied / "config.json");
    const std::string with = "probe --target '" + golden("target-r2") + "' --draft draft" + rest;
    spill(copied / "config.json", edited(draft_config, "\"hidden_size\": 64", "\"hidden_size\": 128"));
    expect_refused(with,
                   {"draft and target do not belong together: hidden_size is 128 in the draft, 64 in the target"});
    spill(copied / "config.json", edited(draft_config, "\"vocab_size\": 256", "\"vocab_size\": 512"));
    expect_refused(with, {"vocab_size is 512 in the draft, 256 in the target"});
    spill(copied / "config.json", edited(draft_config, "\"num_target_layers\": 5", "\"num_target_layers\": 9"));
    expect_refused(with, {"num_target_layers", "is 9 in the draft, 5 in the target"});
    std::string taps = edited(draft_config, "\"num_target_layers\": 5,", "");
    taps = edited(taps, "      3\n    ]", "      7\n    ]");
    spill(copied / "config.json", taps);
    expect_refused(with, {"target_layer_ids"});
}

TEST_F(BadInput, damaged_weights) {
    const std::string rest = " --draft '" + golden("draft-w64") + "' --prompt-ids ids.json --prefix-tokens 96";
    const auto target = copy_golden("target-r2", "target");
    const auto size = std::filesystem::file_size(target / "model.safetensors");
    std::filesystem::resize_file(target / "model.safetensors", size - 1000);
    expect_refused("probe --target target" + rest, {"model.safetensors"});
    expect_refused("generate --target target --prompt-ids ids.json", {"model.safetensors"});
    expect_refused("inspect target", {"model.safetensors"});
    std::filesystem::resize_file(target / "model.safetensors", 5);
    expect_refused("probe --target target" + rest, {"model.safetensors"});
    std::filesystem::remove(target / "model.safetensors");
    expect_refused("probe --target target" + rest, {"neither model.safetensors nor"});
}

TEST_F(BadInput, output_places) {
    const std::string request = "probe " + pair() + "--prompt-ids ids.json --prefix-tokens 96 ";
    spill(path("file"), "mine");
    std::filesystem::create_directory(path("mine"));
    spill(path("mine/notes.txt"), "keep");
    expect_refused(request + "--out mine", {"--out mine: found something there already", "--force"});
    expect_refused(request + "--out mine --force", {"mine"});
    expect_refused(request + "--out file --force", {"file"});
    expect_refused(request + "--out no/where", {"no"});
    expect_refused(request + "--report page.txt", {"--report page.txt", "expected one that ends in .html"});
    expect_refused(request + "--report no/page.html", {"--report no/page.html", "no is not a directory"});
    EXPECT_EQ(slurp(path("mine/notes.txt")), "keep");
    EXPECT_EQ(slurp(path("file")), "mine");
    expect_refused("capture " + pair() + "--prompt-ids ids.json --prefix-tokens 96 --arm fresh --out mine --force",
                   {"mine"});
    expect_refused(
        "capture " + pair() + "--prompt-ids ids.json --prefix-tokens 96 --arm fresh --out c --inject context-shift=32",
        {"--inject with --arm fresh", "expected --arm restored"});
}

TEST_F(BadInput, captures_that_are_not_there) {
    expect_refused("compare nowhere elsewhere", {"nowhere"});
    expect_refused("compare --bisect nowhere elsewhere", {"nowhere"}, 125);
    expect_refused("inspect nowhere", {"nowhere: found nothing", "expected a target or draft checkpoint"});
    expect_refused("inspect ids.json", {"ids.json: found something that is not a directory"});
    std::filesystem::create_directory(path("hollow"));
    expect_refused("inspect hollow", {"hollow: found a directory without config.json and capture.json"});
}

// With --json a failure is an object as well: whoever parses stdout finds one whatever happened.
TEST_F(BadInput, is_an_object_with_json) {
    const std::string request = "--prompt-ids ids.json --prefix-tokens 96 ";
    spill(path("torn"), std::string("DPSNAPSH\1\0\0\0", 12) + std::string(88, '\0'));
    before_ = names();
    const std::tuple<std::string, int, const char*, const char*> cases[] = {
        {"probe " + pair() + "--prompt-ids none.json --prefix-tokens 96 --json", 2, "not_found", "none.json"},
        {"probe --json", 2, "invalid_argument", "--target DIR is missing"},
        {"probe --json --bisect", 125, "invalid_argument", "--target DIR is missing"},
        {"capture " + pair() + request + "--json --out c", 2, "invalid_argument", "--arm"},
        {"compare nowhere elsewhere --json", 2, "not_found", "nowhere"},
        {"inspect nowhere --json", 2, "not_found", "nowhere"},
        {"generate --json " + pair() + "--prompt-ids none.json", 2, "not_found", "none.json"},
        {"bench probe --json " + pair() + "--prompt-ids none.json --prefix-tokens 96", 2, "not_found", "none.json"},
        {"bench snapshot --json --draft x", 2, "", ""},
        {"budget calibrate nowhere --json --out s.json", 2, "invalid_argument", "found neither costs nor models"},
        {"version --json --nonsense", 2, "invalid_argument", "--nonsense"},
        {"archive --json", 2, "unsupported", "archive is not available"},
        {"nonsense --json", 2, "invalid_argument", "unknown command"},
        {"inspect torn --json", 5, "corrupt", "torn"},
    };
    for (const auto& [words, exit, code, message] : cases) {
        const ProgramRun result = run(words);
        EXPECT_EQ(result.exit, exit) << words;
        const Json json = parsed(result.out);
        ASSERT_TRUE(json.contains("error")) << words << "\n" << result.out << result.err;
        EXPECT_EQ(json["exit"], exit) << words;
        if (*code != 0) {
            EXPECT_EQ(json["error"]["code"], code) << words << result.err;
        }
        EXPECT_THAT(json["error"]["message"].get<std::string>(), ::testing::HasSubstr(message));
        EXPECT_THAT(result.err, ::testing::HasSubstr(message));
        EXPECT_EQ(names(), before_) << words;
    }
    spill(path("c"), "");
    EXPECT_EQ(run("inspect c -- --json").out, "") << "a name behind -- is no option";
}

// The class for studying drift has nothing to measure there.
TEST_F(BadInput, schedule_sensitive_belongs_to_probe_and_capture) {
    for (const std::string& command : {"generate " + pair() + "--prompt-ids ids.json ",
                                       "bench probe " + pair() + "--prompt-ids ids.json --prefix-tokens 96 ",
                                       "bench snapshot --size-mib 1 --repeats 1 " + pair()}) {
        expect_refused(command + "--numerics schedule-sensitive",
                       {"--numerics schedule-sensitive", "use f32 or i8dot"});
    }
}

// For 'git bisect run', which takes exit 2 for a bad commit.
TEST_F(BadInput, decides_nothing_under_bisect) {
    expect_refused("probe " + pair() + "--prompt-ids none.json --prefix-tokens 96 --bisect", {"none.json"}, 125);
    expect_refused("probe --bisect=drift-bad", {"--target DIR is missing"}, 125);
}

}  // namespace
}  // namespace draftprobe
