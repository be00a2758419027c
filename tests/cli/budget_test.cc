// budget calibrate: what it writes, what it prints, and what it refuses.
#include <filesystem>

#include "program.h"

namespace draftprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BudgetProgram : public ProgramTest {
protected:
    void SetUp() override {
        write_ids(150);
        spill(path("costs.json"), "[1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]\n");
        const std::string request = pair() + "--prompt-ids ids.json --prefix-tokens 96 --cycles 6 ";
        ASSERT_EQ(run("probe " + request + "--out o").exit, 0);
    }

    void expect_refused(const std::string& words, const std::vector<std::string>& parts, int exit = 2) const {
        const auto before = names();
        const ProgramRun result = run("budget calibrate " + words);
        EXPECT_EQ(result.exit, exit) << words << "\n" << result.err;
        expect_message(result, parts);
        EXPECT_EQ(names(), before) << words;
    }
};

TEST_F(BudgetProgram, writes_a_seed_and_says_what_is_in_it) {
    const ProgramRun result = run("budget calibrate o/control --costs costs.json --out seed.json --json");
    ASSERT_EQ(result.exit, 0) << result.err;
    EXPECT_EQ(result.err, "");
    Json json = parsed(result.out);
    EXPECT_EQ(json["seed"]["path"], "seed.json");
    EXPECT_EQ(json["seed"]["digest"].get<std::string>() + "  seed.json\n", shell("sha256sum seed.json").out);
    EXPECT_EQ(json["lane_cycles"], 6);
    EXPECT_EQ(json["captures"], 1);
    EXPECT_EQ(json["lanes"], 1);
    EXPECT_EQ(json["after_restore"], false);
    EXPECT_EQ(json["cost"].size(), 8u);

    Json seed = parsed(slurp(path("seed.json")));
    EXPECT_EQ(seed["format"], "draftprobe-budget-seed");
    EXPECT_EQ(seed["block"], 8);
    EXPECT_EQ(seed["cost"], json["cost"]);
    EXPECT_EQ(seed["provenance"]["captures"][0].get<std::string>() + "  o/control/SHA256SUMS\n",
              shell("sha256sum o/control/SHA256SUMS").out);
    double positions = 0;
    for (std::size_t i = 0; i < seed["successes"].size(); ++i) {
        EXPECT_EQ(json["buckets"][i]["successes"], seed["successes"][i]);
        positions += seed["successes"][i].get<double>() + seed["failures"][i].get<double>() - 2;
    }
    EXPECT_GE(positions, 6) << "each cycle reaches at least its first position";
    EXPECT_LE(positions, 42);

    const ProgramRun text = run("budget calibrate o/control --costs costs.json --out again.json");
    EXPECT_EQ(text.exit, 0);
    EXPECT_THAT(text.out, HasSubstr("6 taught"));
    EXPECT_THAT(text.out, HasSubstr(json["seed"]["digest"].get<std::string>()));
    EXPECT_EQ(slurp(path("again.json")), slurp(path("seed.json")));
}

// An exact restore changes nothing, so confidence means the same after it.
TEST_F(BudgetProgram, restored_arms_have_a_seed_of_their_own) {
    const std::string rest = " --costs costs.json --lanes 2 --out ";
    expect_refused("o/treated" + rest + "s.json", {"o/treated: arm: found restored", "--after-restore"});
    expect_refused("o/control --after-restore" + rest + "s.json", {"found fresh, expected restored"});
    ASSERT_EQ(run("budget calibrate o/treated --after-restore" + rest + "restored.json").exit, 0);
    ASSERT_EQ(run("budget calibrate o/control" + rest + "fresh.json").exit, 0);
    Json restored = parsed(slurp(path("restored.json")));
    Json fresh = parsed(slurp(path("fresh.json")));
    EXPECT_EQ(restored["provenance"]["after_restore"], true);
    EXPECT_EQ(restored["lanes"], 2);
    EXPECT_EQ(restored["successes"], fresh["successes"]);
    EXPECT_EQ(restored["failures"], fresh["failures"]);
}

TEST_F(BudgetProgram, replaces_a_seed_only_with_force_and_nothing_else) {
    const std::string words = "budget calibrate o/control --costs costs.json --out ";
    ASSERT_EQ(run(words + "seed.json").exit, 0);
    const std::string first = slurp(path("seed.json"));
    expect_refused("o/control --costs costs.json --out seed.json", {"seed.json: already exists", "--force"});
    ASSERT_EQ(run(words + "seed.json --force --lanes 4").exit, 0);
    EXPECT_NE(slurp(path("seed.json")), first);
    expect_refused("o/control --costs costs.json --force --out ids.json", {"ids.json", "not a seed file"});
    expect_refused("o/control --costs costs.json --force --out o", {"--out o", "not a seed file"});
    EXPECT_TRUE(present("o/report.json"));
    expect_refused("o/control --costs costs.json --out none/seed.json", {"none is not a directory"});
}

TEST_F(BudgetProgram, refuses_bad_costs) {
    const struct {
        const char* text;
        std::vector<std::string> parts;
    } rows[] = {
        {"[1, 1.1]", {"found 2 costs, expected 8"}},
        {"[1, 1.1, 1.2, 0, 1.4, 1.5, 1.6, 1.7]", {"--costs: costs.json", "found 0 as the cost of 4 rows"}},
        {"[1, 1.1, 1.2, -1, 1.4, 1.5, 1.6, 1.7]", {"found -1 as the cost of 4 rows"}},
        {"[1, 1.1, 1.2, \"NaN\", 1.4, 1.5, 1.6, 1.7]", {"found nan as the cost of 4 rows"}},
        {"[1, 1.1, 1.2, null, 1.4, 1.5, 1.6, 1.7]", {"--costs: costs.json"}},
        {"{\"cost\": [1]}", {"found object, expected an array"}},
        {"[1, 1.1", {"--costs: costs.json"}},
        {"", {"--costs: costs.json"}},
    };
    for (const auto& row : rows) {
        spill(path("costs.json"), row.text);
        expect_refused("o/control --costs costs.json --out s.json", row.parts);
    }
    spill(path("costs.json"), std::string((64 << 10) + 1, ' '));
    expect_refused("o/control --costs costs.json --out s.json", {"expected at most 65536"});
    expect_refused("o/control --costs nowhere.json --out s.json", {"--costs: nowhere.json"});
}

TEST_F(BudgetProgram, measures_costs_on_the_models_of_the_captures) {
    const ProgramRun made =
        run("budget calibrate o/control " + pair() + "--lanes 3 --context 70 --out measured.json --json");
    ASSERT_EQ(made.exit, 0) << made.err;
    EXPECT_THAT(made.err, ::testing::HasSubstr("costs measured with 3 lanes of 70 tokens"));
    const Json costs = parsed(made.out)["cost"];
    ASSERT_EQ(costs.size(), 8u);
    for (const Json& cost : costs) EXPECT_GT(cost.get<double>(), 0);
    // The seed serves: verify rows are its own, and tokens are those of any budget.
    const std::string words = pair() + "--prompt-ids ids.json --prefix-tokens 96 --cycles 6 --out ";
    const ProgramRun frozen = run("probe " + words + "f --budget measured.json --json");
    ASSERT_EQ(frozen.exit, 0) << frozen.err;
    EXPECT_EQ(parsed(frozen.out)["verdict"], "SAME");
    EXPECT_EQ(run("compare o/control f/control").exit, 4);

    expect_refused(
        "o/control --target '" + golden("target-r2-mlx4") + "' --draft '" + golden("draft-w64") + "' --out s.json",
        {"--target: costs were measured on files with digest", "the models of the captures"});
}

TEST_F(BudgetProgram, refuses_captures_that_do_not_serve) {
    const std::string rest = " --costs costs.json --out s.json";
    expect_refused(rest, {"found 0 names, expected CAPTURE..."});
    expect_refused("nowhere" + rest, {"nowhere", "no such capture directory"});
    expect_refused("o" + rest, {"o: found the output of a probe", "calibrate from its control/"});
    expect_refused("o/control --out s.json", {"found neither or a mixture of --costs and of --target with --draft"});
    expect_refused("o/control --target t" + rest, {"found neither or a mixture"});
    expect_refused("o/control --costs costs.json", {"--out SEED.json is missing"});
    expect_refused("o/control --lanes 0" + rest, {"--lanes"});

    const std::string request = "capture " + pair() + "--prompt-ids ids.json --prefix-tokens 96 --cycles 2 ";
    ASSERT_EQ(run(request + "--arm fresh --kv int8 --out int8").exit, 0);
    expect_refused("o/control int8" + rest, {"int8: does not belong with o/control", "settings.kv_format: found int8"});

    std::filesystem::resize_file(path("int8/steps.jsonl"), 100);
    expect_refused("int8" + rest, {"int8/steps.jsonl", "SHA-256"}, 5);
}

}  // namespace
}  // namespace draftprobe
