// Lockstep, factors, minimising, sweeps and plans on the command line; and 'git bisect run' on a real repository.
#include "program.h"

namespace draftprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class StudyProgram : public ProgramTest {
protected:
    void SetUp() override { write_ids(150); }
    static std::string request() { return "probe " + pair() + "--prompt-ids ids.json --prefix-tokens 96 --cycles 3 "; }
    static constexpr const char* kFault = "--inject context-shift=8 ";
};

TEST_F(StudyProgram, lockstep_pairs_every_cycle_and_keeps_the_exit_statuses) {
    const ProgramRun same = run(request() + "--lockstep --controls natural,repeat --json --out o");
    ASSERT_EQ(same.exit, 0) << same.err << same.out;
    EXPECT_EQ(parsed(same.out)["pairs"]["matched"], 3);
    EXPECT_THAT(slurp(path("o/treated/capture.json")), HasSubstr("\"lockstep\": true"));
    EXPECT_THAT(slurp(path("o/control/capture.json")), HasSubstr("\"lockstep\": false"));
    EXPECT_THAT(slurp(path("o/treated/steps.jsonl")), HasSubstr("\"forced\":true"));
    const ProgramRun changed = run(request() + kFault + "--lockstep --bisect --json --out o --force");
    EXPECT_EQ(changed.exit, 1) << changed.err;
    EXPECT_EQ(parsed(changed.out)["pairs"]["unmatched_treated"], 0);
}

TEST_F(StudyProgram, factors_attribute_the_difference_in_text_json_and_file) {
    const ProgramRun text = run(request() + kFault + "--factors --out o");
    ASSERT_EQ(text.exit, 1) << text.err;
    EXPECT_THAT(text.out, HasSubstr("CHANGED"));
    EXPECT_THAT(text.out, HasSubstr("context-shift=8 alone makes it differ."));
    EXPECT_TRUE(present("o/factors/snapshot+move/capture.json"));
    const ProgramRun json = run(request() + kFault + "--factors --json --out o --force");
    const Json report = parsed(json.out);
    EXPECT_EQ(report["verdict"], "CHANGED");
    EXPECT_EQ(report["factors"]["cells"].size(), 5u);
    EXPECT_EQ(report["factors"]["attribution"].size(), 1u);
    EXPECT_EQ(report["factors"]["attribution"][0]["factors"], Json::array({"context-shift=8"}));
    EXPECT_EQ(report["factors"]["attribution"][0]["interaction"], false);
    EXPECT_EQ(parsed(slurp(path("o/factors.json"))), report["factors"]);
}

TEST_F(StudyProgram, a_sweep_reports_its_gravest_point) {
    const ProgramRun result = run(request() + kFault + "--sweep suffix=40..54:7 --json --out o");
    ASSERT_EQ(result.exit, 1) << result.err;
    const Json report = parsed(result.out);
    EXPECT_EQ(report["sweep"]["points"].size(), 3u);
    EXPECT_EQ(report["sweep"]["rules"][0]["rule"], "differs everywhere");
    EXPECT_EQ(report["sweep"]["representative"], 40);
    EXPECT_EQ(parsed(slurp(path("o/sweep.json"))), report["sweep"]);
    EXPECT_THAT(names(), ElementsAre("ids.json", "o"));
    EXPECT_FALSE(present("o/scratch"));
    const ProgramRun healthy = run(request() + "--sweep verify-width=1..8:7 --out o --force");
    EXPECT_EQ(healthy.exit, 0) << healthy.err;
    EXPECT_THAT(healthy.out, HasSubstr("verdict     differs nowhere (2 points)"));
}

TEST_F(StudyProgram, the_minimised_command_gives_the_same_finding) {
    const ProgramRun result = run(request() + kFault + "--minimize --json --out o");
    ASSERT_EQ(result.exit, 1) << result.err;
    const Json report = parsed(result.out);
    EXPECT_LT(report["minimized"]["after"]["prompt_tokens"].get<int>(), 60);
    EXPECT_EQ(report["minimized"]["after"]["prefix_tokens"], 32);
    EXPECT_EQ(report["minimized"]["after"]["cycles"], 1);
    EXPECT_TRUE(present("o/minimized.json"));
    std::string command = report["minimized"]["command"];
    EXPECT_THAT(command, HasSubstr("--inject context-shift=8"));
    EXPECT_THAT(command, Not(HasSubstr("--minimize")));
    command = command.substr(std::string("draftprobe ").size());
    const ProgramRun again = run(command + " --json --out again");
    ASSERT_EQ(again.exit, 1) << again.err;
    EXPECT_EQ(parsed(again.out)["verdict"], report["verdict"]);
    EXPECT_EQ(parsed(again.out)["first"]["stage"], report["first"]["stage"]);
    EXPECT_EQ(parsed(again.out)["first"]["component"], report["first"]["component"]);
}

TEST_F(StudyProgram, a_plan_judges_every_request) {
    spill(
        path("plan.json"), R"({"format": "draftprobe-plan", "version": 1, "lanes": 2,
        "requests": [{"name": "A", "prompt": {"ids_file": "ids.json"}, "prefix_tokens": 96, "cycles": 3},
                     {"name": "B", "prompt": {"ids": [)" +
                               [] {
                                   std::string list = "5";
                                   for (int i = 1; i < 120; ++i) list += "," + std::to_string(i * 7 % 240);
                                   return list;
                               }() +
                               R"(]}, "prefix_tokens": 64, "cycles": 2}],
        "steps": [{"do": "start", "request": "A", "lane": 0}, {"do": "materialise", "lane": 0},
                  {"do": "save", "lane": 0, "snapshot": "a"},
                  {"do": "start", "request": "B", "lane": 1}, {"do": "run", "lanes": [0, 1]},
                  {"do": "restore", "request": "A", "lane": 1, "snapshot": "a"}, {"do": "run", "lanes": [1]}]})");
    const ProgramRun result = run("probe " + pair() + "--plan plan.json --json --out o");
    ASSERT_EQ(result.exit, 0) << result.err;
    const Json report = parsed(result.out);
    ASSERT_EQ(report["plan"]["judged"].size(), 3u);
    EXPECT_EQ(report["captures"]["control"]["path"], "o/controls/A");
    for (const char* name : {"o/runs/01-A/capture.json", "o/runs/02-B/capture.json", "o/runs/03-A/capture.json",
                             "o/controls/A/capture.json", "o/plan.json", "o/report.json"}) {
        EXPECT_TRUE(present(name)) << name;
    }
    EXPECT_EQ(run("compare o/controls/A o/runs/03-A").exit, 0);
    const ProgramRun text = run("probe " + pair() + "--plan plan.json --out o --force");
    EXPECT_EQ(text.exit, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("Plan: 3 runs judged"));
}

TEST_F(StudyProgram, refuses_what_makes_no_sense_before_anything_runs) {
    spill(path("plan.json"), "{}");
    const std::pair<const char*, std::vector<std::string>> cases[] = {
        {"--factors --minimize", {"found --factors with --minimize", "leave one out"}},
        {"--plan plan.json", {"found --plan with --prompt-ids"}},
        {"--sweep suffix=1..9 --controls repeat", {"found --sweep with --controls"}},
        {"--lockstep --level 1", {"found --lockstep with --level 1"}},
        {"--sweep B=32..96:32", {"found the name 'B'", "boundary, suffix, window-fill, verify-width"}},
        {"--sweep suffix=1..55", {"value 55, expected at most the 54 tokens behind the prefix"}},
        {"--factors --inject context-shift=1 --inject context-shift=1", {"twice"}},
    };
    for (const auto& [words, parts] : cases) {
        const ProgramRun result = run(request() + words);
        EXPECT_EQ(result.exit, 2) << words;
        for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part)) << words;
    }
    const ProgramRun plan = run("probe " + pair() + "--plan plan.json");
    EXPECT_EQ(plan.exit, 2);
    EXPECT_THAT(plan.err, HasSubstr("plan.json"));
    EXPECT_EQ(run("probe " + pair() + "--plan none.json").exit, 2);
    EXPECT_THAT(names(), ElementsAre("ids.json", "plan.json"));
}

// The commit that broke the restore is found by git itself, through the exit status of --bisect.
TEST_F(StudyProgram, git_bisect_run_finds_the_commit_that_broke_the_restore) {
    constexpr int kCommits = 11;
    constexpr int kBroken = 7;
    const std::string git =
        "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b "
        "GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; ";
    std::string make = git + "git init -q repo && cd repo";
    for (int commit = 1; commit <= kCommits; ++commit) {
        // Commit 4 cannot be judged: its probe does not even start.
        const char* options = commit == 4 ? "--prefix-tokens 9999" : commit >= kBroken ? kFault : "";
        make += " && printf '%s' '" + std::string(options) + "' >options && echo " + std::to_string(commit) +
                " >number && git add -A && git commit -q -m 'commit " + std::to_string(commit) + "'";
    }
    const ProgramRun made = shell(make);
    ASSERT_EQ(made.exit, 0) << made.err;
    const std::string probe = "'" DRAFTPROBE_BINARY "' probe --target \"$T\" --draft \"$D\" --threads 2 " +
                              std::string(
                                  "--prompt-ids ../ids.json --cycles 2 --level 2 --bisect --force --out ../o "
                                  "$(grep -q prefix-tokens options || echo --prefix-tokens 96) $(cat options)");
    spill(path("judge.sh"), probe + "\n");
    const ProgramRun result =
        shell(git + "export T='" + golden("target-r2") + "' D='" + golden("draft-w64") +
              "'; cd repo && git bisect start HEAD HEAD~" + std::to_string(kCommits - 1) +
              " >/dev/null && git bisect run sh ../judge.sh >../log 2>&1; git show -s --format=%s refs/bisect/bad");
    EXPECT_EQ(result.exit, 0) << result.err << slurp(path("log"));
    EXPECT_EQ(result.out, "commit " + std::to_string(kBroken) + "\n") << slurp(path("log"));
    EXPECT_THAT(slurp(path("log")), HasSubstr("is the first bad commit"));
}

}  // namespace
}  // namespace draftprobe
