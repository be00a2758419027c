// Lockstep, factors, minimising, sweeps and plans on the command line; and 'git bisect run' on a real repository.
#include <sstream>

#include "program.h"
#include "report/recompute.h"
#include "report/report.h"

#include <tuple>

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
    EXPECT_EQ(report["factors"]["cells"][4]["capture"], "treated");
    for (const Json& cell : report["factors"]["cells"]) {
        if (!cell.contains("capture")) continue;  // a control
        const Json again = parsed(run("compare o/" + cell["control"].get<std::string>() + " o/" +
                                      cell["capture"].get<std::string>() + " --json")
                                      .out);
        EXPECT_EQ(again["verdict"], cell["verdict"]) << cell.dump();
    }
    EXPECT_EQ(report["factors"]["attribution"][0]["verdict"], "CHANGED");
    EXPECT_EQ(report["factors"]["attribution"].size(), 1u);
    EXPECT_EQ(report["factors"]["attribution"][0]["factors"], Json::array({"context-shift=8"}));
    EXPECT_EQ(report["factors"]["attribution"][0]["interaction"], false);
    EXPECT_EQ(parsed(slurp(path("o/factors.json"))), report["factors"]);
}

// The second process takes format, width, tokens and request from the first and not from the command line.
TEST_F(StudyProgram, studies_go_through_another_process_too) {
    const ProgramRun lockstep = run(request() + "--tier process --lockstep --json --out o");
    ASSERT_EQ(lockstep.exit, 0) << lockstep.err;
    EXPECT_EQ(parsed(lockstep.out)["pairs"]["forced"], 3);
    const ProgramRun faulty = run(request() + kFault + "--tier process --lockstep --json --out p");
    EXPECT_EQ(faulty.exit, 1) << faulty.err;
    EXPECT_EQ(parsed(faulty.out)["pairs"]["unmatched_treated"], 0);
    ASSERT_EQ(run(request() + kFault + "--tier disk --lockstep --out d").exit, 1);
    EXPECT_EQ(slurp(path("p/treated/steps.jsonl")), slurp(path("d/treated/steps.jsonl")));

    const ProgramRun width = run(request() + "--tier process --sweep verify-width=1..8:7 --json --out o --force");
    ASSERT_EQ(width.exit, 0) << width.err;
    EXPECT_EQ(parsed(width.out)["sweep"]["rules"][0]["rule"], "differs nowhere");
    const ProgramRun suffix = run(request() + "--tier process --sweep suffix=40..54:14 --json --out o --force");
    ASSERT_EQ(suffix.exit, 0) << suffix.err;

    const ProgramRun factors = run(request() + "--tier process --kv int8 --factors --json --out o --force");
    ASSERT_EQ(factors.exit, 0) << factors.err;
    const Json report = parsed(factors.out);
    EXPECT_EQ(report["factors"]["factors"][0]["name"], "kv-format");
    for (const Json& cell : report["factors"]["cells"]) EXPECT_EQ(cell["verdict"], "SAME") << cell.dump();
    EXPECT_EQ(report["factors"]["cells"][2]["control"], "factors/control-bf16");
    EXPECT_THAT(slurp(path("o/factors/snapshot+tier/capture.json")), HasSubstr("\"tier\": \"process\""));
    EXPECT_THAT(slurp(path("o/factors/snapshot+tier/capture.json")), HasSubstr("\"value\": \"bf16\""));
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
    // The window is full at no value, so the fault has no effect, in the pair that is reported neither.
    const ProgramRun idle = run("probe " + pair() +
                                "--prompt-ids ids.json --prefix-tokens 32 --cycles 2 --inject window-off-by-one=+1 "
                                "--sweep suffix=1..2 --out o --force");
    EXPECT_EQ(idle.exit, 0) << idle.err;
    EXPECT_THAT(idle.out, HasSubstr("verdict     differs nowhere (2 points)"));
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

// A smaller case in which the fault could not act is none: its command would be refused.
TEST_F(StudyProgram, minimising_ends_where_the_fault_still_acts) {
    for (const std::string fault : {"position-base=70", "rows-unwritten=63", "mislabelled-checkpoint=20"}) {
        const ProgramRun result = run(request() + "--inject " + fault + " --minimize --json --out o --force");
        ASSERT_EQ(result.exit, 1) << fault << result.err;
        std::string command = parsed(result.out)["minimized"]["command"];
        command = command.substr(std::string("draftprobe ").size());
        EXPECT_EQ(run(command + " --out again --force").exit, 1) << command;
    }
}

TEST_F(StudyProgram, what_has_no_finding_is_not_minimised) {
    const ProgramRun same = run(request() + "--minimize --json --out o");
    EXPECT_EQ(same.exit, 0) << same.err;
    EXPECT_THAT(same.err, HasSubstr("the verdict is SAME: nothing to minimise"));
    EXPECT_FALSE(parsed(same.out).contains("minimized"));
    EXPECT_FALSE(present("o/minimized.json"));
    EXPECT_TRUE(present("o/report.json"));
    write_ids(170);
    const ProgramRun blind = run(request() + "--minimize --out o --force");
    EXPECT_EQ(blind.exit, 6) << blind.err;
    EXPECT_THAT(blind.err, HasSubstr("the verdict is INSUFFICIENT: nothing to minimise"));
    EXPECT_THAT(blind.out, Not(HasSubstr("Minimised")));
}

// With a boundary of one page no row would be left that the shift could be read from.
TEST_F(StudyProgram, minimising_keeps_the_shift) {
    const ProgramRun result =
        run(request() + "--inject context-shift=40 --restore-draft rows --minimize --json --out o");
    ASSERT_EQ(result.exit, 1) << result.err;
    const Json report = parsed(result.out);
    ASSERT_EQ(report["shift_tokens"], 40);
    EXPECT_EQ(report["minimized"]["after"]["shift_tokens"], 40);
    EXPECT_GT(report["minimized"]["after"]["prefix_tokens"].get<int>(), 40);
    EXPECT_LT(report["minimized"]["after"]["prompt_tokens"].get<int>(), 150);
    EXPECT_THAT(report["minimized"]["command"].get<std::string>(), HasSubstr("context-shift=40"));
}

TEST_F(StudyProgram, an_adaptive_probe_says_what_is_the_matter_and_can_be_declared) {
    const ProgramRun refused = run(request() + "--budget adaptive --out o");
    EXPECT_EQ(refused.exit, 4) << refused.err;
    EXPECT_THAT(refused.out, HasSubstr("budget learned online, so measured times decided"));
    EXPECT_THAT(refused.out, HasSubstr("--treat timing_confounded"));
    EXPECT_THAT(refused.out, Not(HasSubstr("control yes, treated yes")));
    const ProgramRun declared = run(request() + "--budget adaptive --treat timing_confounded --json --out o --force");
    const Json report = parsed(declared.out);
    EXPECT_NE(report["verdict"], "NOT_COMPARABLE") << declared.out;
    EXPECT_EQ(report["declared"], Json::array({"capture.timing_confounded"}));
    EXPECT_EQ(run("compare o/control o/treated").exit, 4);
    EXPECT_NE(run("compare o/control o/treated --treat budget").exit, 4);
    // Costs are measured before the first cycle, and a fault of the draft is none of that.
    const ProgramRun silent =
        run(request() + "--budget adaptive --treat timing_confounded --inject draft-nothing=2 --out o --force");
    EXPECT_EQ(silent.exit, 1) << silent.err;
    std::vector<int> drafted;
    std::istringstream steps(slurp(path("o/treated/steps.jsonl")));
    for (std::string line; std::getline(steps, line);) drafted.push_back(parsed(line)["drafted"].get<int>());
    EXPECT_THAT(drafted, ElementsAre(0, 0, 7));
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
    EXPECT_EQ(report["captures"]["treated"]["path"], "o/runs/03-A");
    EXPECT_EQ(report["plan"]["verdict"], "SAME");
    EXPECT_EQ(report["plan"]["judged"][2]["tier"], "memory");
    EXPECT_EQ(report["plan"]["judged"][2]["faults"], Json::array());
    EXPECT_FALSE(report["plan"]["judged"][0].contains("tier"));
    EXPECT_EQ(report["plan"]["judged"][2]["arm"], "restored");
    EXPECT_EQ(report["plan"]["judged"][0]["control"], "controls/A");
    EXPECT_EQ(report["plan"]["judged"][2]["capture"], "runs/03-A");
    for (const char* name : {"o/runs/01-A/capture.json", "o/runs/02-B/capture.json", "o/runs/03-A/capture.json",
                             "o/controls/A/capture.json", "o/plan.json", "o/report.json"}) {
        EXPECT_TRUE(present(name)) << name;
    }
    EXPECT_EQ(run("compare o/controls/A o/runs/03-A").exit, 0);
    const ProgramRun text = run("probe " + pair() + "--plan plan.json --out o --force");
    EXPECT_EQ(text.exit, 0) << text.err;
    EXPECT_THAT(text.out,
                ::testing::StartsWith("Run 03-A of the plan, restored from memory, draft exact, target exact"));
    EXPECT_THAT(text.out, HasSubstr("Plan: SAME"));
    EXPECT_THAT(text.out, HasSubstr("3 runs judged"));
    EXPECT_THAT(text.out, HasSubstr("repeat")) << "arms are named as in the captures";
    EXPECT_THAT(text.out, Not(HasSubstr("computed  ")));
}

TEST_F(StudyProgram, a_plan_that_judged_no_restore_is_insufficient) {
    spill(path("plan.json"), R"({"format": "draftprobe-plan", "version": 1, "lanes": 1,
        "requests": [{"name": "A", "prompt": {"ids_file": "ids.json"}, "prefix_tokens": 96, "cycles": 3}],
        "steps": [{"do": "start", "request": "A", "lane": 0}, {"do": "materialise", "lane": 0},
                  {"do": "save", "lane": 0, "snapshot": "a"}, {"do": "run", "lanes": [0]},
                  {"do": "restore", "request": "A", "lane": 0, "snapshot": "a"},
                  {"do": "run", "lanes": [0], "cycles": 1}]})");
    const ProgramRun result = run("probe " + pair() + "--plan plan.json --out o");
    EXPECT_EQ(result.exit, 6) << result.err;
    EXPECT_THAT(result.out, ::testing::StartsWith("Run 01-A of the plan, which computed its prefix"));
    EXPECT_THAT(result.out, HasSubstr("Plan: INSUFFICIENT: no restored run was judged"));
    EXPECT_THAT(result.out, HasSubstr("1 run judged"));
    EXPECT_EQ(run("probe " + pair() + "--plan plan.json --out o --force --bisect").exit, 125);
    const Json json = parsed(run("probe " + pair() + "--plan plan.json --out o --force --json").out);
    EXPECT_EQ(json["verdict"], "INSUFFICIENT");
    EXPECT_EQ(json["exit"], 6);
    EXPECT_THAT(json["why"].get<std::string>(), HasSubstr("no restored run was judged"));
    EXPECT_EQ(parsed(slurp(path("o/report.json")))["verdict"], "SAME") << "of its two captures";
}

// Every study is on the page: self-contained, and without an id of the prompt.
TEST_F(StudyProgram, pages_show_the_study) {
    const auto page = [&](const std::string& words, const std::vector<std::string>& parts) {
        const ProgramRun result = run(words + " --out o --force --report page.html");
        EXPECT_EQ(result.exit, 1) << words << result.err;
        const std::string html = slurp(path("page.html"));
        for (const std::string& part : parts) EXPECT_THAT(html, HasSubstr(part)) << words;
        for (const char* absent : {"http", "<script", "src="}) EXPECT_THAT(html, Not(HasSubstr(absent))) << words;
        // The prompt starts with these ids; the page holds no list of them.
        const std::string ids = slurp(path("ids.json"));
        EXPECT_THAT(html, Not(HasSubstr(ids.substr(1, 12)))) << words;
    };
    page(request() + "--inject stale-occupant=draft_context --factors",
         {"<h2>Factors</h2>", "move + stale-occupant=draft_context differ only together: an interaction.",
          "<caption>Main effects and interactions</caption>", "<td>main</td><td>snapshot</td>",
          "<td>interaction</td><td>move x stale-occupant=draft_context (with snapshot)</td>",
          "<td>snapshot + move</td><td class=\"same\">SAME</td>",
          "<td>snapshot + move + stale-occupant=draft_context</td><td class=\"changed\">CHANGED</td>"});
    page(request() + kFault + "--sweep suffix=40..54:7",
         {"<h2>Sweep of suffix</h2>", "<td>verdict</td><td>differs everywhere</td>",
          "The report above is that of suffix = 40", "<title>suffix 47: CHANGED", "<td class=\"n\">54</td>"});
    page(request() + kFault + "--minimize",
         {"<h2>Minimised case</h2>", "<td>as asked</td><td class=\"n\">150</td><td class=\"n\">96</td>",
          "and the same shift of context rows", "<pre>draftprobe probe", "--prompt-ids o/minimized.json",
          "--inject context-shift=8"});
    spill(path("plan.json"), R"({"format": "draftprobe-plan", "version": 1, "lanes": 2,
        "requests": [{"name": "A", "prompt": {"ids_file": "ids.json"}, "prefix_tokens": 96, "cycles": 3}],
        "steps": [{"do": "start", "request": "A", "lane": 0}, {"do": "materialise", "lane": 0},
                  {"do": "save", "lane": 0, "snapshot": "a"}, {"do": "run", "lanes": [0]},
                  {"do": "restore", "request": "A", "lane": 0, "snapshot": "a"}, {"do": "run", "lanes": [0]},
                  {"do": "spoil", "snapshot": "a"},
                  {"do": "restore", "request": "A", "lane": 1, "snapshot": "a", "refused": true},
                  {"do": "start", "request": "A", "lane": 1}, {"do": "materialise", "lane": 1},
                  {"do": "save", "lane": 1, "snapshot": "b"},
                  {"do": "restore", "request": "A", "lane": 0, "snapshot": "b", "inject": ["context-shift=8"]},
                  {"do": "run", "lanes": [0]}]})");
    page("probe " + pair() + "--plan plan.json",
         {"<h2>Plan</h2>", "<td>01-A</td><td>A</td><td class=\"n\">0</td><td>repeat</td><td class=\"same\">SAME</td>",
          "<td>restored</td><td class=\"changed\">CHANGED</td><td>restore/draft_context</td>",
          "<td>memory, draft exact, target exact, context-shift=8</td>", "blind spot: lane 0 held", "steps[7]",
          "left before their end"});
}

// What an archive will do: every report.json is made again, byte for byte, from what lies beside it.
TEST_F(StudyProgram, every_report_is_made_again_from_its_captures) {
    spill(path("plan.json"), R"({"format": "draftprobe-plan", "version": 1, "lanes": 2,
        "requests": [{"name": "A", "prompt": {"ids_file": "ids.json"}, "prefix_tokens": 96, "cycles": 3}],
        "steps": [{"do": "start", "request": "A", "lane": 0}, {"do": "materialise", "lane": 0},
                  {"do": "save", "lane": 0, "snapshot": "a"}, {"do": "run", "lanes": [0]},
                  {"do": "restore", "request": "A", "lane": 1, "snapshot": "a", "inject": ["context-shift=8"]},
                  {"do": "run", "lanes": [1]}]})");
    for (const std::string& words :
         {request() + "--controls repeat,natural,uninterrupted", request() + kFault + "--lockstep --controls natural",
          request() + "--budget adaptive --treat timing_confounded", request() + "--sweep suffix=40..54:7",
          request() + kFault + "--factors --controls repeat", "probe " + pair() + "--plan plan.json"}) {
        const ProgramRun result = run(words + " --out o --force");
        ASSERT_LE(result.exit, 1) << words << result.err;
        const auto sources = report_sources(path("o"));
        ASSERT_TRUE(sources.ok()) << words << sources.status().message();
        const auto again = compare_with_controls(path("o"), *sources);
        ASSERT_TRUE(again.ok()) << words << again.status().message();
        EXPECT_EQ(report_json(*again), slurp(path("o/report.json"))) << words;
        EXPECT_EQ(again->controls.size(), sources->controls.size());
    }
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
        {"--sweep window-fill=40..64", {"value 64", "33 to 63", "the draft's window of 64 less one"}},
        {"--factors --inject context-shift=1 --inject context-shift=1", {"twice"}},
    };
    for (const auto& [words, parts] : cases) {
        const ProgramRun result = run(request() + words);
        EXPECT_EQ(result.exit, 2) << words;
        for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part)) << words;
    }
    const std::pair<const char*, const char*> beside_plans[] = {
        {"--lockstep", "plans have neither --controls nor --lockstep"},
        {"--controls repeat", "plans have neither --controls nor --lockstep"},
        {"--lanes 8", "its member lanes"}};
    for (const auto& [words, part] : beside_plans) {
        const ProgramRun refused = run("probe " + pair() + "--plan plan.json " + words);
        EXPECT_EQ(refused.exit, 2) << words;
        expect_message(refused, {part});
    }
    const ProgramRun plan = run("probe " + pair() + "--plan plan.json");
    EXPECT_EQ(plan.exit, 2);
    EXPECT_THAT(plan.err, HasSubstr("plan.json"));
    EXPECT_EQ(run("probe " + pair() + "--plan none.json").exit, 2);
    EXPECT_THAT(names(), ElementsAre("ids.json", "plan.json"));
}

// A repository of one file of probe options and one build script; every commit is judged by the exit status of
// --bisect.
class BisectProgram : public StudyProgram {
protected:
    struct Commit {
        std::string options;
        std::string build = "true";
    };
    // The subject of the commit that git calls the first bad one, or "".
    std::string first_bad(const std::vector<Commit>& commits, const std::string& bisect) const {
        const std::string git =
            "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b "
            "GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; ";
        std::string make = git + "rm -rf repo && git init -q repo && cd repo";
        for (std::size_t i = 0; i < commits.size(); ++i) {
            make += " && printf '%s' '" + commits[i].options + "' >options && echo '" + commits[i].build +
                    "' >build && echo " + std::to_string(i + 1) +
                    " >number && git add -A && git commit -q -m 'commit " + std::to_string(i + 1) + "'";
        }
        const ProgramRun made = shell(make);
        EXPECT_EQ(made.exit, 0) << made.err;
        spill(path("judge.sh"),
              "sh ./build || exit 125\n'" DRAFTPROBE_BINARY
              "' probe --target \"$T\" --draft \"$D\" --threads 2 --prompt-ids ../ids.json --cycles 2 "
              "--level 2 --force --out ../o " +
                  bisect + " $(grep -q prefix-tokens options || echo --prefix-tokens 96) $(cat options)\n");
        const ProgramRun result = shell(
            git + "export T='" + golden("target-r2") + "' D='" + golden("draft-w64") +
            "'; cd repo && git bisect start HEAD HEAD~" + std::to_string(commits.size() - 1) +
            " >/dev/null && git bisect run sh ../judge.sh >../log 2>&1; grep -q 'is the first bad commit' ../log && "
            "git show -s --format=%s refs/bisect/bad");
        return result.out.substr(0, result.out.find('\n'));
    }
    std::string log() const { return slurp(path("log")); }
};

// A commit that does not build and one whose probe does not even start are skipped.
TEST_F(BisectProgram, git_finds_the_commit_that_broke_the_restore) {
    std::vector<Commit> commits(11);
    commits[3].options = "--prefix-tokens 9999";
    commits[5].build = "exit 1";
    for (std::size_t i = 6; i < commits.size(); ++i) commits[i].options = kFault;
    EXPECT_EQ(first_bad(commits, "--bisect"), "") << "commit 6, next to the bad one, cannot be judged";
    EXPECT_THAT(log(), HasSubstr("There are only 'skip'ped commits left to test."));
    commits[5].build = "true";
    commits[8].build = "exit 1";
    EXPECT_EQ(first_bad(commits, "--bisect"), "commit 7") << log();
}

TEST_F(BisectProgram, the_decision_and_its_reason_are_said) {
    const std::tuple<std::string, int, const char*> cases[] = {
        {"--bisect", 0, "--bisect: good (exit 0): the verdict is SAME"},
        {std::string(kFault) + "--bisect", 1, "--bisect: bad (exit 1): the verdict is CHANGED"},
        {"--restore-target int8-state --bisect", 125, "--bisect: skip (exit 125): the verdict is DRIFT, which decides"},
        {"--restore-target int8-state --bisect=drift-ok", 0, "--bisect: good (exit 0): the verdict is DRIFT"},
        {"--sweep suffix=1..55 --bisect", 125, "--bisect: skip (exit 125): it could not run"}};
    for (const auto& [words, exit, text] : cases) {
        const ProgramRun result = run(request() + words + " --out o --force");
        EXPECT_EQ(result.exit, exit) << words;
        EXPECT_THAT(result.err, HasSubstr(text)) << words;
    }
    const ProgramRun compared = run("compare o/control o/treated --bisect");
    EXPECT_THAT(compared.err, HasSubstr("--bisect: ")) << compared.err;
}

TEST_F(BisectProgram, drift_is_good_bad_or_skipped_as_asked) {
    std::vector<Commit> commits(9);
    for (std::size_t i = 3; i < 6; ++i) commits[i].options = "--restore-target int8-state";
    for (std::size_t i = 6; i < commits.size(); ++i) commits[i].options = kFault;
    EXPECT_EQ(run(request() + commits[3].options + " --out drift").exit, 3) << "DRIFT";
    EXPECT_EQ(first_bad(commits, "--bisect=drift-ok"), "commit 7") << log();
    EXPECT_EQ(first_bad(commits, "--bisect=drift-bad"), "commit 4") << log();
    EXPECT_EQ(first_bad(commits, "--bisect"), "") << log();
    EXPECT_THAT(log(), HasSubstr("There are only 'skip'ped commits left to test."));
}

}  // namespace
}  // namespace draftprobe
