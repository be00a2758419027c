// probe, capture, compare, inspect: exit statuses, the JSON contract, and what is on disk afterwards.
#include "program.h"

namespace draftprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ProbeProgram : public ProgramTest {
protected:
    void SetUp() override { write_ids(150); }
    std::string request(const std::string& target = golden("target-r2")) const {
        return pair(target) + "--prompt-ids ids.json --prefix-tokens 96 ";
    }
};

void expect_contract(const Json& json) {
    for (const char* key : {"verdict", "exit", "pairs", "changed", "first", "shift_tokens", "refusals", "armed",
                            "acceptance", "drift", "captures"}) {
        EXPECT_TRUE(json.contains(key)) << key;
    }
    for (const char* key : {"matched", "unmatched_control", "unmatched_treated"})
        EXPECT_TRUE(json["pairs"].contains(key)) << key;
    for (const char* key : {"control", "treated"}) {
        EXPECT_TRUE(json["captures"].contains(key)) << key;
        EXPECT_TRUE(json["acceptance"].contains(key)) << key;
    }
    EXPECT_TRUE(json["drift"].contains("max_relative_l2"));
    EXPECT_TRUE(json["armed"].contains("draft_exposure"));
}

TEST_F(ProbeProgram, is_same_and_leaves_captures_and_a_report) {
    const ProgramRun result =
        run("probe " + request() + "--cycles 4 --controls repeat,natural,uninterrupted --json --out o");
    ASSERT_EQ(result.exit, 0) << result.err << result.out;
    Json json = parsed(result.out);
    expect_contract(json);
    EXPECT_EQ(json["verdict"], "SAME");
    EXPECT_EQ(json["exit"], 0);
    EXPECT_EQ(json["pairs"]["matched"], 4);
    EXPECT_EQ(json["captures"]["control"]["path"], "o/control");
    ASSERT_EQ(json["controls"].size(), 3u);
    for (const Json& control : json["controls"]) {
        EXPECT_EQ(control["verdict"], "SAME") << control.dump();
        EXPECT_TRUE(present("o/" + control["capture"].get<std::string>() + "/capture.json")) << control.dump();
    }
    EXPECT_THAT(result.err, HasSubstr("numerics f32 (the target is not quantised)"));
    EXPECT_THAT(result.err, ::testing::Not(HasSubstr("\r")));

    EXPECT_THAT(names(), ElementsAre("ids.json", "o"));
    for (const char* name : {"control", "treated", "repeat", "natural", "uninterrupted"}) {
        EXPECT_TRUE(present(std::string("o/") + name + "/capture.json")) << name;
    }
    Json report = parsed(slurp(path("o/report.json")));
    EXPECT_EQ(report["verdict"], "SAME");
    EXPECT_FALSE(report["captures"]["control"].contains("path"));
    EXPECT_EQ(shell("cd o/treated && sha256sum --quiet -c SHA256SUMS").exit, 0);
}

TEST_F(ProbeProgram, uses_the_default_directory_once) {
    ASSERT_EQ(run("probe " + request() + "--cycles 2").exit, 0);
    EXPECT_TRUE(present("draftprobe-out/report.json"));
    const ProgramRun again = run("probe " + request() + "--cycles 2");
    EXPECT_EQ(again.exit, 2);
    expect_message(again, {"--out draftprobe-out: found something there already", "--force"});
    const std::string before = slurp(path("draftprobe-out/control/SHA256SUMS"));
    const ProgramRun forced = run("probe " + request() + "--cycles 3 --force");
    ASSERT_EQ(forced.exit, 0) << forced.err;
    EXPECT_NE(slurp(path("draftprobe-out/control/SHA256SUMS")), before);
    EXPECT_THAT(names(), ElementsAre("draftprobe-out", "ids.json"));
}

TEST_F(ProbeProgram, force_deletes_nothing_that_it_did_not_make) {
    const std::string words = "probe " + request() + "--cycles 2 --out o --report o/report.html --controls repeat ";
    ASSERT_EQ(run(words).exit, 0);
    ASSERT_EQ(run(words + "--force").exit, 0);  // its own pages and captures
    for (const std::string foreign : {"o/notes.html", "o/control/sub/p.txt", "o/natural/p", "o/notes.txt"}) {
        shell("mkdir -p o/natural o/control/sub && echo mine >" + foreign);
        expect_message(run(words + "--force"), {"holds '" + foreign.substr(2) + "'", "nothing is replaced"});
        EXPECT_EQ(slurp(path(foreign)), "mine\n");
        shell("rm " + foreign);
    }
}

TEST_F(ProbeProgram, rounds_the_prefix_down_with_a_warning) {
    const ProgramRun result = run("probe " + pair() + "--prompt-ids ids.json --prefix-tokens 100 --cycles 2 --out o");
    EXPECT_EQ(result.exit, 0);
    EXPECT_THAT(result.err, HasSubstr("draftprobe: warning: --prefix-tokens 100 is not a multiple"));
    EXPECT_THAT(result.err, HasSubstr("rounded down to 96"));
    EXPECT_THAT(run("inspect o/control").out, HasSubstr("boundary 96"));
}

TEST_F(ProbeProgram, says_what_a_shift_changed) {
    const std::string words =
        "probe " + request(golden("target-r2-mlx4")) + "--cycles 4 --inject context-shift=8 --force --out o ";
    const ProgramRun result = run(words + "--json --report o/page.html");
    ASSERT_EQ(result.exit, 1) << result.err << result.out;
    Json json = parsed(result.out);
    expect_contract(json);
    EXPECT_EQ(json["verdict"], "CHANGED");
    EXPECT_EQ(json["first"]["stage"], "restore");
    EXPECT_EQ(json["first"]["component"], "draft_context");
    EXPECT_EQ(json["shift_tokens"], 8);
    EXPECT_THAT(result.err, HasSubstr("numerics i8dot (the target is quantised)"));
    EXPECT_THAT(slurp(path("o/page.html")), HasSubstr("<html"));
    EXPECT_THAT(names(), ElementsAre("ids.json", "o"));

    EXPECT_EQ(run(words + "--bisect").exit, 1);
    EXPECT_EQ(run("compare o/control o/treated").exit, 1);
    EXPECT_EQ(run("compare o/control o/treated --bisect=drift-ok").exit, 1);
    EXPECT_EQ(run("compare o/control o/control --bisect").exit == 1, false);
}

TEST_F(ProbeProgram, is_insufficient_when_the_restore_is_out_of_sight) {
    write_ids(170);
    const ProgramRun result = run("probe " + request() + "--cycles 2 --out o --json");
    EXPECT_EQ(result.exit, 6) << result.err;
    Json json = parsed(result.out);
    EXPECT_EQ(json["verdict"], "INSUFFICIENT");
    EXPECT_EQ(json["armed"]["draft_exposure"], 0);
    EXPECT_EQ(run("compare o/control o/treated --bisect").exit, 125);
}

// A control with another schedule cannot be SAME in that class, and says nothing against the engine.
TEST_F(ProbeProgram, lets_a_control_drift_with_its_schedule) {
    const ProgramRun result =
        run("probe " + request() + "--cycles 2 --numerics schedule-sensitive --controls natural,repeat --json --out o");
    EXPECT_EQ(result.exit, 0) << result.err;
    const Json json = parsed(result.out);
    EXPECT_EQ(json["verdict"], "SAME");
    ASSERT_EQ(json["controls"].size(), 2u);
    EXPECT_EQ(json["controls"][0]["verdict"], "DRIFT");
    EXPECT_THAT(json["controls"][0]["why"].get<std::string>(), HasSubstr("as expected in the numerics class"));
    EXPECT_EQ(json["controls"][1]["verdict"], "SAME");
    EXPECT_THAT(result.err, HasSubstr("8 to 32 rotations of the prompt"));
}

TEST_F(ProbeProgram, refuses_a_fault_that_cannot_act) {
    const ProgramRun result =
        run("probe " + request() + "--cycles 2 --restore-draft masked --inject stale-occupant=draft_ring --out o");
    EXPECT_EQ(result.exit, 2);
    EXPECT_THAT(result.err, HasSubstr("stale-occupant=draft_ring: it could not act"));
    EXPECT_THAT(result.err, HasSubstr("expected a form that does, such as exact"));
}

TEST_F(ProbeProgram, capture_refuses_what_its_arm_does_not_read) {
    for (const char* fault : {"cached-control=all", "unreset-row=all"}) {
        const ProgramRun idle =
            run("capture " + request() + "--cycles 2 --arm restored --out o --inject " + std::string(fault));
        EXPECT_EQ(idle.exit, 2) << fault;
        expect_message(idle, {fault, "it could not act", "whose control takes it"});
    }
    const std::pair<const char*, const char*> cases[] = {{"natural", "--restore-draft rows"},
                                                         {"fresh", "--tier disk"},
                                                         {"uninterrupted", "--restore-target exact"},
                                                         {"fresh", "--inject cached-control=all"}};
    for (const auto& [arm, words] : cases) {
        const ProgramRun idle = run("capture " + request() + "--cycles 2 --out o --arm " + arm + " " + words);
        EXPECT_EQ(idle.exit, 2) << words;
        const std::string option(words, std::string_view(words).find(' '));
        expect_message(idle, {option + " with --arm " + arm, "expected --arm restored"});
    }
    EXPECT_FALSE(present("o"));
}

TEST_F(ProbeProgram, restores_rows_and_int8_as_well) {
    const char* variants[] = {"--restore-draft rows", "--kv int8 --chunk-tokens 40 --isa portable --lanes 4",
                              "--level 1", "--level 2 --digest-every 1"};
    for (const char* variant : variants) {
        const ProgramRun result = run("probe " + request() + "--cycles 3 --force " + variant);
        EXPECT_EQ(result.exit, 0) << variant << "\n" << result.err << result.out;
    }
    EXPECT_FALSE(present("draftprobe-out/control/tensors.safetensors"));
}

TEST_F(ProbeProgram, prints_text_to_stdout_and_everything_else_to_stderr) {
    const ProgramRun result = run("probe " + request() + "--cycles 2 --controls repeat --report page.html");
    ASSERT_EQ(result.exit, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("SAME"));
    EXPECT_THAT(result.out, HasSubstr("control       repeat: SAME"));
    EXPECT_THAT(result.out, HasSubstr("draftprobe-out/control"));
    EXPECT_THAT(result.out, ::testing::Not(HasSubstr("draftprobe: ")));
    EXPECT_THAT(slurp(path("page.html")), HasSubstr("SAME"));
}

TEST_F(ProbeProgram, lists_faults_without_models) {
    for (const char* command : {"probe", "capture"}) {
        const ProgramRun result = run(std::string(command) + " --list-faults");
        EXPECT_EQ(result.exit, 0);
        EXPECT_THAT(result.out, HasSubstr("context-shift=N\n"));
        EXPECT_EQ(result.err, "");
        const Json json = parsed(run(std::string(command) + " --list-faults --json").out);
        ASSERT_GE(json["faults"].size(), 10u);
        for (const Json& fault : json["faults"]) {
            EXPECT_THAT(result.out,
                        HasSubstr(fault["name"].get<std::string>() + "=" + fault["argument"].get<std::string>() +
                                  "\n    " + fault["text"].get<std::string>() + "\n"));
        }
    }
}

TEST_F(ProbeProgram, captures_one_arm_at_a_time) {
    for (const char* arm : {"fresh", "restored", "natural", "uninterrupted"}) {
        const ProgramRun result = run("capture " + request() + "--cycles 3 --arm " + arm + " --out " + arm + " --json");
        ASSERT_EQ(result.exit, 0) << result.err;
        Json json = parsed(result.out);
        EXPECT_EQ(json["arm"], arm);
        EXPECT_EQ(json["cycles"], 3);
        EXPECT_EQ(json["digest"].get<std::string>().size(), 64u);
    }
    EXPECT_EQ(run("compare fresh restored").exit, 0);
    EXPECT_EQ(run("compare fresh natural").exit, 0);
    EXPECT_EQ(run("compare fresh uninterrupted").exit, 0);
    EXPECT_EQ(run("capture " + request() + "--arm fresh --out fresh").exit, 2);
    EXPECT_EQ(run("capture " + request() + "--cycles 3 --arm fresh --out fresh --force").exit, 0);
}

TEST_F(ProbeProgram, refuses_to_compare_what_was_not_declared) {
    ASSERT_EQ(run("capture " + request() + "--cycles 2 --arm fresh --out a").exit, 0);
    ASSERT_EQ(run("capture " + request() + "--cycles 2 --arm fresh --kv int8 --out b").exit, 0);
    const ProgramRun refused = run("compare a b --json");
    EXPECT_EQ(refused.exit, 4);
    Json json = parsed(refused.out);
    expect_contract(json);
    EXPECT_EQ(json["verdict"], "NOT_COMPARABLE");
    ASSERT_EQ(json["refusals"].size(), 1u);
    EXPECT_EQ(json["refusals"][0]["field"], "settings.kv_format");
    EXPECT_EQ(json["refusals"][0]["control"], "bf16");
    EXPECT_EQ(json["refusals"][0]["treated"], "int8");
    EXPECT_EQ(run("compare a b --bisect").exit, 125);
    const ProgramRun declared = run("compare a b --treat kv_format --json");
    EXPECT_NE(parsed(declared.out)["verdict"], "NOT_COMPARABLE");
}

TEST_F(ProbeProgram, calls_a_damaged_capture_corrupt) {
    ASSERT_EQ(run("probe " + request() + "--cycles 2 --out o").exit, 0);
    {
        std::fstream file(path("o/treated/steps.jsonl"), std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(40);
        file.put('~');
    }
    const ProgramRun compared = run("compare o/control o/treated --json");
    EXPECT_EQ(compared.exit, 5);
    EXPECT_EQ(parsed(compared.out)["verdict"], "CORRUPT");
    EXPECT_EQ(parsed(compared.out)["exit"], 5);
    EXPECT_THAT(compared.err, HasSubstr("steps.jsonl"));
    const ProgramRun inspected = run("inspect o/treated");
    EXPECT_EQ(inspected.exit, 5);
    expect_message(inspected, {"steps.jsonl", "SHA-256"});
    EXPECT_EQ(run("compare o/control o/treated --bisect").exit, 125);
    std::filesystem::remove(path("o/control/SHA256SUMS"));
    EXPECT_EQ(run("inspect o/control").exit, 5);
}

// Its checksums hold: what is wrong is a number.
TEST_F(ProbeProgram, says_in_which_line_a_capture_breaks_a_rule) {
    ASSERT_EQ(run("probe " + request() + "--cycles 3 --level 1 --out o").exit, 0);
    ASSERT_EQ(shell("cd o/treated && sed -i '2s/\"accepted\":[0-9]*/\"accepted\":900/' steps.jsonl && "
                    "sha256sum capture.json steps.jsonl >sums && mv sums SHA256SUMS")
                  .exit,
              0);
    const ProgramRun inspected = run("inspect o/treated");
    EXPECT_EQ(inspected.exit, 5);
    expect_message(inspected, {"steps.jsonl: line 2: accepted"});
    EXPECT_THAT(inspected.err, Not(HasSubstr(": :")));
}

TEST_F(ProbeProgram, inspects_captures_and_checkpoints) {
    ASSERT_EQ(run("probe " + request() + "--cycles 2 --out o").exit, 0);
    Json capture = parsed(run("inspect o/treated --json").out);
    EXPECT_EQ(capture["kind"], "capture");
    EXPECT_EQ(capture["arm"], "restored");
    EXPECT_EQ(capture["level"], 3);
    EXPECT_EQ(capture["checksums"], "hold");
    EXPECT_EQ(capture["settings"]["kv_format"], "bf16");
    EXPECT_EQ(capture["totals"]["lane_cycles"], 2);
    EXPECT_EQ(capture["identity"]["target"].get<std::string>().size(), 64u);
    EXPECT_EQ(capture["ledger"].size(), 5u);
    const ProgramRun text = run("inspect o/treated");
    EXPECT_THAT(text.out, HasSubstr("checksums       hold"));
    EXPECT_THAT(text.out, HasSubstr("restore of r0 in lane 1 at position 96"));

    Json target = parsed(run("inspect --json '" + golden("target-r2-mlx4") + "'").out);
    EXPECT_EQ(target["kind"], "target");
    EXPECT_EQ(target["hidden"], 64);
    EXPECT_EQ(target["attention_layers"], 1);
    EXPECT_EQ(target["quantisation"]["bits"], 4);
    EXPECT_EQ(target["memory"]["kv_token_bytes_bf16"], 256);
    EXPECT_EQ(target["memory"]["kv_token_bytes_int8"], 144);
    Json draft = parsed(run("inspect --json '" + golden("draft-w64") + "'").out);
    EXPECT_EQ(draft["kind"], "draft");
    EXPECT_EQ(draft["window"], 64);
    EXPECT_EQ(draft["taps"], Json::parse("[0, 2, 3]"));
    EXPECT_EQ(draft["memory"]["context_row_bytes"], 640);
    EXPECT_EQ(run("inspect '" + golden("target-r3") + "'").exit, 0);

    const ProgramRun output = run("inspect o");
    EXPECT_EQ(output.exit, 2);
    expect_message(output, {"found the output of a probe", "inspect o/control or o/treated"});
}

TEST_F(ProbeProgram, measures_only_what_is_same) {
    const ProgramRun result = run("bench probe " + request() + "--cycles 2 --repeats 2 --json");
    ASSERT_EQ(result.exit, 0) << result.err;
    Json json = parsed(result.out);
    EXPECT_EQ(json["verdict"], "SAME");
    EXPECT_EQ(json["repeats"], 2);
    EXPECT_GT(json["seconds"]["median"].get<double>(), 0);
    EXPECT_GT(json["peak_rss_bytes"].get<double>(), 0);
    EXPECT_EQ(json["threads"], 2);
    EXPECT_TRUE(json["cpu"].is_string());
    EXPECT_THAT(names(), ElementsAre("ids.json"));

    write_ids(170);
    const ProgramRun insufficient = run("bench probe " + request() + "--cycles 2");
    EXPECT_EQ(insufficient.exit, 6);
    EXPECT_THAT(insufficient.err, HasSubstr("the verdict is INSUFFICIENT, expected SAME"));
}

}  // namespace
}  // namespace draftprobe
