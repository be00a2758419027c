// Studies on the golden toys: lockstep, factors, sweeps, minimising and plans with real runs.
#include <gmock/gmock.h>

#include <unistd.h>

#include <filesystem>

#include "base/hash.h"
#include "capture/reader.h"
#include "compare/compare.h"
#include "study/factors.h"
#include "study/minimise.h"
#include "study/plan_run.h"
#include "study/sweep.h"

namespace draftprobe::study {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::string golden(const std::string& name) { return std::string(DRAFTPROBE_SOURCE_DIR) + "/tests/golden/" + name; }

const probe::Assembly& toys() {
    static const probe::Assembly assembly = [] {
        auto loaded = probe::load_assembly(golden("target-r2"), golden("draft-w64"), true);
        EXPECT_TRUE(loaded.ok()) << loaded.status().message();
        return std::move(loaded).value();
    }();
    return assembly;
}

std::vector<TokenId> ids(std::size_t count, std::uint64_t seed) {
    std::vector<TokenId> result;
    for (std::size_t i = 0; i < count; ++i) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
        result.push_back(static_cast<TokenId>((seed >> 33) % 250));
    }
    return result;
}

class StudyTest : public ::testing::Test {
protected:
    void SetUp() override {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        dir_ = std::filesystem::temp_directory_path() /
               ("draftprobe-study-" + std::to_string(::getpid()) + "-" + info->name());
        std::filesystem::create_directories(dir_);
    }
    void TearDown() override { std::filesystem::remove_all(dir_); }

    static Case toy_case(std::size_t tokens, Position boundary, std::size_t cycles) {
        Case item;
        item.request.prompt = ids(tokens, 7);
        item.request.boundary = boundary;
        item.request.cycles = cycles;
        item.settings.engine.isa = numerics::best_isa();
        item.settings.engine.threads = 2;
        item.settings.engine.chunk_tokens = 64;
        item.settings.build_digest = sha256_hex(std::string_view("study"));
        return item;
    }
    static void inject(Case& item, const char* fault) {
        auto parsed = instrument::parse_fault(fault);
        ASSERT_TRUE(parsed.ok());
        item.settings.treatment.faults.push_back(*parsed);
    }
    Comparison pair(const Case& item, const std::string& name) {
        const auto control = dir_ / (name + "-control");
        EXPECT_TRUE(run_control(toys(), item, control).ok());
        auto comparison = run_treated(toys(), item, control, dir_ / (name + "-treated"));
        EXPECT_TRUE(comparison.ok()) << comparison.status().message();
        return std::move(comparison).value();
    }
    std::vector<StepRecord> steps(const std::string& name) const {
        auto reader = CaptureReader::open(dir_ / name);
        EXPECT_TRUE(reader.ok()) << reader.status().message();
        std::vector<StepRecord> result;
        StepRecord step;
        while (true) {
            auto more = reader->next(step);
            EXPECT_TRUE(more.ok()) << more.status().message();
            if (!more.ok() || !*more) return result;
            result.push_back(step);
        }
    }
    std::filesystem::path dir_;
};

TEST_F(StudyTest, LockstepOfAHealthyRestoreIsTheSameWithEveryCycleForced) {
    Case item = toy_case(150, 96, 6);
    item.lockstep = true;
    item.settings.digest_every = 1;
    const Comparison result = pair(item, "a");
    EXPECT_EQ(result.verdict, Verdict::same) << result.why;
    EXPECT_EQ(result.pairs.matched, 6);
    const auto control = steps("a-control");
    const auto treated = steps("a-treated");
    ASSERT_EQ(control.size(), treated.size());
    for (std::size_t i = 0; i < control.size(); ++i) {
        EXPECT_FALSE(control[i].forced);
        EXPECT_TRUE(treated[i].forced);
        EXPECT_EQ(treated[i].committed, control[i].committed);
        EXPECT_EQ(treated[i].accepted, control[i].accepted);
        for (std::size_t d = 0; d < control[i].state_digests.size(); ++d)
            EXPECT_EQ(treated[i].state_digests[d].digest, control[i].state_digests[d].digest);
    }
    EXPECT_TRUE(CaptureReader::open(dir_ / "a-treated")->header().treatment.lockstep);
}

// The control's capture says which tokens; here they are tokens that the arm would not have chosen.
TEST_F(StudyTest, LockstepJudgesByTheOwnTargetAndCommitsTheControlsTokens) {
    const Case item = toy_case(150, 96, 4);
    probe::ProbeSettings settings = item.settings;
    settings.digest_every = 1;
    auto control = std::make_shared<probe::ControlTokens>();
    TokenId anchor = 11;
    for (TokenId cycle = 0; cycle < 4; ++cycle) {
        control->cycles.push_back({{anchor, 20 + cycle, 30 + cycle}, 40 + cycle});
        anchor = 40 + cycle;
    }
    settings.lockstep = control;
    for (const Arm arm : {Arm::repeat, Arm::restored}) {
        const std::string name(arm_name(arm));
        auto done = probe::run_arm(toys(), item.request, settings, arm, dir_ / name, false);
        ASSERT_TRUE(done.ok()) << done.status().message();
        EXPECT_EQ(done->retained, 12u);
        const auto recorded = steps(name);
        ASSERT_EQ(recorded.size(), 4u);
        for (std::size_t i = 0; i < 4; ++i) {
            EXPECT_EQ(recorded[i].length, static_cast<Position>(150 + 3 * i));
            EXPECT_EQ(recorded[i].committed.size(), 3u);
            EXPECT_EQ(recorded[i].next_anchor, 40u + i);
            // Its own acceptance, by its own choices.
            std::int64_t accepted = 0;
            while (accepted < recorded[i].verified &&
                   recorded[i].proposals[static_cast<std::size_t>(accepted)] ==
                       recorded[i].target_choices[static_cast<std::size_t>(accepted)])
                ++accepted;
            EXPECT_EQ(recorded[i].accepted, accepted);
        }
    }
    auto same = compare_captures(dir_ / "repeat", dir_ / "restored", {});
    ASSERT_TRUE(same.ok());
    EXPECT_EQ(same->verdict, Verdict::same) << same->why;
    EXPECT_EQ(same->pairs.matched, 4);
}

TEST_F(StudyTest, LockstepPairsEveryCycleOfAFaultyArm) {
    Case item = toy_case(150, 96, 6);
    inject(item, "context-shift=8");
    item.lockstep = true;
    const Comparison result = pair(item, "faulty");
    EXPECT_EQ(result.verdict, Verdict::changed);
    EXPECT_EQ(result.pairs.matched, 6);
    EXPECT_EQ(result.pairs.unmatched_control + result.pairs.unmatched_treated, 0);
    EXPECT_FALSE(result.output_changed);
    item.settings.level = 1;
    EXPECT_EQ(run_treated(toys(), item, dir_ / "faulty-control", dir_ / "low").status().code(),
              StatusCode::invalid_argument);
}

TEST_F(StudyTest, FactorsNameTheFaultAndNothingElse) {
    Case item = toy_case(150, 96, 3);
    item.settings.treatment.draft = state::DraftRestore::rows;
    inject(item, "context-shift=8");
    const Comparison whole = pair(item, "whole");
    auto study = run_factors(toys(), item, dir_ / "whole-control", whole, dir_ / "cells", {});
    ASSERT_TRUE(study.ok()) << study.status().message();
    EXPECT_EQ(study->cells.size(), 9u);
    EXPECT_EQ(study->arms, 2u + 7u);
    ASSERT_EQ(study->sources.size(), 1u);
    EXPECT_EQ(cell_label(study->factors, study->sources[0]), "snapshot + context-shift=8");
    for (const FactorCell& cell : study->cells) {
        const bool faulty = cell_label(study->factors, cell.factors).find("context-shift") != std::string::npos;
        EXPECT_EQ(cell.summary.verdict, faulty ? Verdict::changed : Verdict::same) << cell.summary.why;
    }
}

TEST_F(StudyTest, EachKvFormatHasItsOwnControlAndItsDeclaredDifference) {
    Case item = toy_case(150, 96, 3);
    item.settings.engine.kv_format = state::KvFormat::int8;
    const Comparison whole = pair(item, "whole");
    auto study = run_factors(toys(), item, dir_ / "whole-control", whole, dir_ / "cells", {});
    ASSERT_TRUE(study.ok()) << study.status().message();
    EXPECT_EQ(study->cells.size(), 6u);
    for (const FactorCell& cell : study->cells) EXPECT_EQ(cell.summary.verdict, Verdict::same) << cell.summary.why;
    EXPECT_TRUE(study->sources.empty());
    ASSERT_TRUE(study->kv_format.has_value());
    EXPECT_NE(study->kv_format->verdict, Verdict::same);
    EXPECT_NE(study->kv_format->verdict, Verdict::not_comparable);
}

TEST_F(StudyTest, ASweepSaysHowFarTheWindowReaches) {
    Case item = toy_case(176, 96, 1);
    inject(item, "context-shift=8");
    auto sweep = run_sweep(toys(), item, *parse_sweep("suffix=48..76:4"), dir_ / "scratch", {});
    ASSERT_TRUE(sweep.ok()) << sweep.status().message();
    // The draft sees 63 positions behind it: from 63 tokens behind the prefix on, no restored row is visible.
    EXPECT_EQ(sweep->untested, 4u);
    EXPECT_EQ(sweep->rules[0].observable, "verdict");
    EXPECT_EQ(rule_text(sweep->rules[0].rule, "suffix"), "differs everywhere");
    EXPECT_EQ(sweep->rules[0].points, 4u);
    EXPECT_EQ(sweep->points[sweep->representative].value, 48);
    EXPECT_FALSE(std::filesystem::exists(dir_ / "scratch"));

    const Case healthy = toy_case(176, 128, 2);
    for (const char* range : {"boundary=96..160", "window-fill=33..63:10", "verify-width=1..8:3"}) {
        auto same = run_sweep(toys(), healthy, *parse_sweep(range), dir_ / "scratch", {});
        ASSERT_TRUE(same.ok()) << range << ": " << same.status().message();
        EXPECT_EQ(rule_text(same->rules[0].rule, "x"), "differs nowhere") << range;
        EXPECT_GT(same->rules[0].points, 1u) << range;
    }
}

TEST_F(StudyTest, SweepsRefuseValuesThatTheRequestCannotHave) {
    const Case item = toy_case(150, 96, 2);
    for (const char* range : {"boundary=33..64", "boundary=96..160", "suffix=1..55", "window-fill=32..40",
                              "window-fill=60..64", "verify-width=1..9"}) {
        EXPECT_EQ(run_sweep(toys(), item, *parse_sweep(range), dir_ / "scratch", {}).status().code(),
                  StatusCode::invalid_argument)
            << range;
    }
    for (const char* text : {"suffix", "suffix=", "suffix=1", "suffix=1..", "suffix=5..4", "suffix=0..4", "x=1..2",
                             "suffix=1..4:0", "suffix=1..4x", "suffix=1..2000", "suffix=-1..3"}) {
        EXPECT_EQ(parse_sweep(text).status().code(), StatusCode::invalid_argument) << text;
    }
}

TEST_F(StudyTest, MinimisingKeepsTheFindingAndShrinksTheRequest) {
    Case item = toy_case(180, 128, 6);
    inject(item, "context-shift=8");
    const CaseSummary finding = summarise(pair(item, "whole"));
    auto small = minimise(toys(), item, finding, dir_ / "scratch", {});
    ASSERT_TRUE(small.ok()) << small.status().message();
    EXPECT_LT(small->item.request.prompt.size(), 60u);
    EXPECT_EQ(small->item.request.boundary, 32);
    EXPECT_EQ(small->item.request.cycles, 1u);
    const Comparison again = pair(small->item, "small");
    EXPECT_EQ(again.verdict, Verdict::changed);
    EXPECT_EQ(again.first->stage, "restore");
    EXPECT_EQ(again.first->component, "draft_context");
    EXPECT_EQ(again.shift_tokens, 8);
}

class PlanTest : public StudyTest {
protected:
    Result<PlanResult> run(const std::string& steps, std::vector<std::vector<TokenId>> prompts,
                           const std::string& names = "ABX") {
        std::string requests;
        for (std::size_t i = 0; i < prompts.size(); ++i) {
            requests += std::string(i == 0 ? "" : ",") + R"({"name": ")" + names[i] +
                        R"(", "prompt": {"ids": [0]}, "prefix_tokens": 96, "cycles": 4})";
        }
        auto plan = parse_plan(R"({"format": "draftprobe-plan", "version": 1, "lanes": 2, )" + store_ +
                                   R"("requests": [)" + requests + R"(], "steps": [)" + steps + "]}",
                               "plan");
        EXPECT_TRUE(plan.ok()) << plan.status().message();
        if (!plan.ok()) return plan.status();
        return run_plan(toys(), *plan, prompts, toy_case(150, 96, 4).settings, dir_, {});
    }
    std::string store_;  // the plan's store_bytes, with a comma
    static std::vector<Verdict> verdicts(const PlanResult& result) {
        std::vector<Verdict> list;
        for (const JudgedRun& run : result.judged) list.push_back(run.comparison.verdict);
        return list;
    }
    static constexpr const char* kSaveA =
        R"({"do": "start", "request": "A", "lane": 0}, {"do": "materialise", "lane": 0},
           {"do": "save", "lane": 0, "snapshot": "a", "tier": "disk"}, )";
};

TEST_F(PlanTest, ABAOnOneLaneAndADirtyOneIsTheSame) {
    auto result = run(std::string(kSaveA) + R"({"do": "run", "lanes": [0]},
        {"do": "start", "request": "B", "lane": 0}, {"do": "run", "lanes": [0]},
        {"do": "restore", "request": "A", "lane": 0, "snapshot": "a"}, {"do": "run", "lanes": [0]},
        {"do": "start", "request": "X", "lane": 1}, {"do": "run", "lanes": [1], "cycles": 2},
        {"do": "restore", "request": "A", "lane": 1, "snapshot": "a", "draft": "rows"}, {"do": "run", "lanes": [1]})",
                      {ids(150, 1), ids(140, 2), ids(160, 3)});
    ASSERT_TRUE(result.ok()) << result.status().message();
    ASSERT_EQ(result->judged.size(), 4u);
    for (const JudgedRun& run : result->judged) {
        EXPECT_EQ(run.comparison.verdict, Verdict::same) << run.name << ": " << run.comparison.why;
        EXPECT_EQ(run.comparison.pairs.matched, 4) << run.name;
        EXPECT_TRUE(run.warnings.empty()) << run.name << ": " << run.warnings[0];
    }
    EXPECT_EQ(result->judged[2].arm, Arm::restored);
    EXPECT_EQ(result->verdict, Verdict::same) << result->why;
    EXPECT_EQ(result->representative, 2u) << "the first restored run, not a fresh start";
    EXPECT_EQ(restored_how(result->judged[3]), "memory, draft rows, target exact");
    EXPECT_EQ(restored_how(result->judged[0]), "");
    ASSERT_EQ(result->left.size(), 1u);
    EXPECT_EQ(result->left[0].request, "X");
    EXPECT_EQ(result->left[0].cycles, 2u);
    EXPECT_TRUE(std::filesystem::exists(dir_ / "runs/05-A/capture.json"));
    EXPECT_FALSE(std::filesystem::exists(dir_ / "runs/04-X"));
    EXPECT_FALSE(std::filesystem::exists(dir_ / "a.snapshot"));
}

TEST_F(PlanTest, LanesInOneStepWithAdmissionWhileOthersDecodeAreTheSameInEitherOrder) {
    for (const char* order : {"[0, 1]", "[1, 0]"}) {
        std::filesystem::remove_all(dir_);
        std::filesystem::create_directories(dir_);
        auto result = run(R"({"do": "start", "request": "A", "lane": 0}, {"do": "run", "lanes": [0], "cycles": 1},
            {"do": "start", "request": "B", "lane": 1}, {"do": "run", "lanes": )" +
                              std::string(order) + "}",
                          {ids(150, 1), ids(170, 2)});
        ASSERT_TRUE(result.ok()) << result.status().message();
        EXPECT_EQ(result->judged.size(), 2u);
        EXPECT_THAT(verdicts(*result), Each(Verdict::same)) << order;
    }
}

TEST_F(PlanTest, AnEvictedSnapshotIsReadAgainAndASpoiledOneIsRefused) {
    auto result = run(std::string(kSaveA) + R"({"do": "evict", "snapshot": "a"},
        {"do": "start", "request": "B", "lane": 1}, {"do": "run", "lanes": [1], "cycles": 1},
        {"do": "restore", "request": "A", "lane": 1, "snapshot": "a"}, {"do": "run", "lanes": [1]},
        {"do": "spoil", "snapshot": "a"},
        {"do": "restore", "request": "A", "lane": 0, "snapshot": "a", "refused": true},
        {"do": "run", "lanes": [0]})",
                      {ids(150, 1), ids(170, 2)});
    ASSERT_TRUE(result.ok()) << result.status().message();
    ASSERT_EQ(result->judged.size(), 2u);
    EXPECT_THAT(verdicts(*result), Each(Verdict::same));
    EXPECT_EQ(result->judged[0].comparison.treated_capture.tier, "disk");
    ASSERT_EQ(result->refused.size(), 1u);
    EXPECT_EQ(result->refused[0].step, 9u);
}

TEST_F(PlanTest, SnapshotsWithoutRoomAreReadFromDiskOrMissed) {
    const std::string steps = std::string(kSaveA) + R"({"do": "start", "request": "B", "lane": 1},
        {"do": "materialise", "lane": 1}, {"do": "save", "lane": 1, "snapshot": "b"},
        {"do": "restore", "request": "A", "lane": 0, "snapshot": "a"}, {"do": "run", "lanes": [0, 1]})";
    const std::vector<std::vector<TokenId>> prompts = {ids(150, 1), ids(170, 2)};
    auto roomy = run(steps, prompts);
    ASSERT_TRUE(roomy.ok()) << roomy.status().message();
    EXPECT_EQ(roomy->judged[0].comparison.treated_capture.tier, "memory");
    EXPECT_EQ(roomy->store.entries, 2u);
    EXPECT_EQ(roomy->store.hits, 1u);
    EXPECT_EQ(roomy->store.evictions, 0u);
    EXPECT_THAT(plan_json(*roomy), HasSubstr(R"("store":{"budget":null,"bytes":)"));

    // Room for one of the two.
    store_ = "\"store_bytes\": " + std::to_string(roomy->store.bytes * 3 / 4) + ", ";
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    auto tight = run(steps, prompts);
    ASSERT_TRUE(tight.ok()) << tight.status().message();
    EXPECT_THAT(verdicts(*tight), Each(Verdict::same));
    EXPECT_EQ(tight->judged[0].comparison.treated_capture.tier, "disk");
    EXPECT_EQ(tight->store.entries, 1u);
    EXPECT_EQ(tight->store.misses, 1u);
    EXPECT_EQ(tight->store.evictions, 2u) << "a for b, and b for a when it was read again";
    EXPECT_LE(tight->store.bytes, tight->store.budget);

    // A refusal that was expected is none of a snapshot that is nowhere.
    for (const char* refused : {"", R"(, "refused": true)"}) {
        std::filesystem::remove_all(dir_);
        std::filesystem::create_directories(dir_);
        const Status missed = run(steps + R"(, {"do": "restore", "request": "B", "lane": 1, "snapshot": "b")" +
                                      refused + R"(}, {"do": "run", "lanes": [1]})",
                                  prompts)
                                  .status();
        EXPECT_EQ(missed.code(), StatusCode::not_found) << refused;
        EXPECT_THAT(missed.message(), HasSubstr("plan.steps["));
        EXPECT_THAT(missed.message(), HasSubstr("snapshot 'b': not in memory (evicted for lack of room"));
        EXPECT_THAT(missed.message(), HasSubstr("not on disk"));
        EXPECT_THAT(missed.message(), HasSubstr("raise store_bytes"));
    }
}

TEST_F(PlanTest, AFaultyRestoreIsFoundInItsRunAlone) {
    auto result = run(std::string(kSaveA) + R"({"do": "run", "lanes": [0]},
        {"do": "start", "request": "B", "lane": 1}, {"do": "run", "lanes": [1]},
        {"do": "restore", "request": "A", "lane": 1, "snapshot": "a", "inject": ["context-shift=8"]},
        {"do": "run", "lanes": [1]})",
                      {ids(150, 1), ids(170, 2)});
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_THAT(verdicts(*result), ::testing::ElementsAre(Verdict::same, Verdict::same, Verdict::changed));
    EXPECT_EQ(result->representative, 2u);
    EXPECT_EQ(result->verdict, Verdict::changed);
    EXPECT_EQ(restored_how(result->judged[2]), "memory, draft exact, target exact, context-shift=8");
    EXPECT_THAT(plan_text(*result), HasSubstr("the report above is of run 03-A"));
    EXPECT_EQ(result->judged[2].comparison.shift_tokens, 8);
}

TEST_F(PlanTest, IsInsufficientWhenNoRestoredRunWasJudged) {
    auto result = run(std::string(kSaveA) + R"({"do": "run", "lanes": [0]},
        {"do": "start", "request": "B", "lane": 1}, {"do": "run", "lanes": [1], "cycles": 1},
        {"do": "restore", "request": "A", "lane": 1, "snapshot": "a"}, {"do": "run", "lanes": [1], "cycles": 1})",
                      {ids(150, 1), ids(170, 2)});
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_THAT(verdicts(*result), ::testing::ElementsAre(Verdict::same));
    EXPECT_EQ(result->verdict, Verdict::insufficient);
    EXPECT_THAT(result->why, HasSubstr("no restored run was judged"));
    ASSERT_EQ(result->left.size(), 2u);
    EXPECT_EQ(result->left[1].arm, Arm::restored);
}

TEST_F(PlanTest, AFaultOfAnotherTierIsSaidToBeLeftOut) {
    auto result = run(std::string(kSaveA) + R"({"do": "start", "request": "B", "lane": 1},
        {"do": "run", "lanes": [1], "cycles": 1},
        {"do": "restore", "request": "A", "lane": 1, "snapshot": "a", "inject": ["context-shift=8"],
         "inject_tier": "disk"}, {"do": "run", "lanes": [1]})",
                      {ids(150, 1), ids(170, 2)});
    ASSERT_TRUE(result.ok()) << result.status().message();
    const JudgedRun& restored = result->judged.at(0);
    EXPECT_EQ(restored.comparison.verdict, Verdict::same);
    EXPECT_THAT(restored.faults_dropped, ::testing::ElementsAre("context-shift=8"));
    EXPECT_THAT(plan_text(*result),
                HasSubstr("not injected: context-shift=8: inject_tier names another tier than memory"));
}

TEST_F(PlanTest, AnOccupantThatEqualsThePromptIsABlindSpot) {
    auto result = run(std::string(kSaveA) + R"({"do": "run", "lanes": [0]},
        {"do": "restore", "request": "A", "lane": 0, "snapshot": "a"}, {"do": "run", "lanes": [0]},
        {"do": "start", "request": "A", "lane": 0}, {"do": "run", "lanes": [0]})",
                      {ids(150, 1)});
    ASSERT_TRUE(result.ok()) << result.status().message();
    ASSERT_EQ(result->judged.size(), 3u);
    EXPECT_EQ(result->verdict, Verdict::insufficient) << "the only restored run sits in a blind spot";
    EXPECT_THAT(result->why, HasSubstr("blind spot"));
    EXPECT_THAT(plan_json(*result), HasSubstr(R"("verdict":"INSUFFICIENT")"));
    EXPECT_TRUE(result->judged[0].warnings.empty());
    for (const std::size_t i : {1u, 2u}) {
        ASSERT_FALSE(result->judged[i].warnings.empty()) << i;
        EXPECT_THAT(result->judged[i].warnings.front(), HasSubstr("blind spot"));
        EXPECT_THAT(result->judged[i].warnings.front(), HasSubstr("right rows"));
    }
}

TEST_F(PlanTest, ASnapshotServesOnlyRequestsThatStartWithIt) {
    const std::string restore =
        std::string(kSaveA) +
        R"({"do": "restore", "request": "B", "lane": 1, "snapshot": "a"}, {"do": "run", "lanes": [1]})";
    const Status refused = run(restore, {ids(150, 1), ids(150, 2)}).status();
    EXPECT_EQ(refused.code(), StatusCode::invalid_argument);
    EXPECT_THAT(refused.message(), HasSubstr("plan.steps[3] (restore)"));
    EXPECT_TRUE(std::filesystem::is_empty(dir_));
    std::vector<TokenId> other = ids(150, 1);
    other.back() += 1;
    auto served = run(restore, {ids(150, 1), other});
    ASSERT_TRUE(served.ok()) << served.status().message();
    EXPECT_THAT(verdicts(*served), Each(Verdict::same));
}

}  // namespace
}  // namespace draftprobe::study
