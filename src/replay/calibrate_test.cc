// Calibration over constructed captures: planted hazards come out, and what is no evidence does not go in.
#include "replay/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "base/test_directory.h"
#include "budget/controller.h"
#include "capture/reader.h"
#include "capture/test_capture.h"

namespace draftprobe::replay {
namespace {

using testing::HasSubstr;

constexpr std::size_t kBlock = fixture::kBlock;
const budget::CostTable kCosts = {1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7};

// One confidence in each of the buckets 6, 5, .., 0: every position teaches a bucket of its own.
const std::vector<float> kApart = {0.4f, 0.2f, 0.05f, 0.02f, 0.005f, 0.002f, 0.0005f};
constexpr std::size_t kApartBucket[] = {6, 5, 4, 3, 2, 1, 0};

fixture::ArmData small_arm(Arm arm, std::vector<std::int64_t> accepted, std::uint64_t seed = 1) {
    fixture::Options options;
    options.level = 1;
    options.accepted = std::move(accepted);
    options.seed = seed;
    fixture::ArmData data = fixture::make_arm(arm, options);
    data.header.ledger.clear();
    for (StepRecord& step : data.steps) step.prefix_confidence = kApart;
    return data;
}

// The sequence ends here: only `retained` rows were committed.
void cut_by_limit(StepRecord& step, std::int64_t retained) {
    step.retained = step.emitted = retained;
    step.retained_cut = step.emitted_cut = CutReason::limit;
    step.censored = true;
    step.committed.resize(static_cast<std::size_t>(retained));
}

class Calibrate : public testing::Test {
protected:
    std::filesystem::path write(const fixture::ArmData& data) {
        const auto path = directory_ / ("capture" + std::to_string(++captures_));
        const Result<std::string> digest = fixture::write_arm(path, data);
        EXPECT_TRUE(digest.ok()) << digest.status().message();
        return path;
    }

    static CalibrateOptions options(bool after_restore = false) {
        CalibrateOptions options;
        options.costs = kCosts;
        options.after_restore = after_restore;
        return options;
    }

    Result<Calibration> calibrate_all(const std::vector<fixture::ArmData>& arms, bool after_restore = false) {
        std::vector<std::filesystem::path> paths;
        for (const fixture::ArmData& arm : arms) paths.push_back(write(arm));
        return calibrate(paths, options(after_restore));
    }

    Calibration must(const std::vector<fixture::ArmData>& arms) {
        Result<Calibration> made = calibrate_all(arms);
        EXPECT_TRUE(made.ok()) << made.status().message();
        return made.ok() ? *made : Calibration();
    }

    void expect_refused(const std::vector<fixture::ArmData>& arms, StatusCode code,
                        const std::vector<std::string>& parts, bool after_restore = false) {
        const Result<Calibration> made = calibrate_all(arms, after_restore);
        ASSERT_FALSE(made.ok());
        EXPECT_EQ(made.status().code(), code) << made.status().message();
        EXPECT_THAT(made.status().message(), HasSubstr("capture" + std::to_string(captures_)));
        for (const std::string& part : parts) EXPECT_THAT(made.status().message(), HasSubstr(part));
    }

    TestDirectory directory_;
    int captures_ = 0;
};

// Counts of positions, by position of kApart.
budget::State counted(const std::vector<int>& successes, const std::vector<int>& failures) {
    budget::State state = budget::initial_state(budget::kUpperEdges.size(), kCosts, {});
    for (std::size_t p = 0; p < successes.size(); ++p) state.successes[kApartBucket[p]] += successes[p];
    for (std::size_t p = 0; p < failures.size(); ++p) state.failures[kApartBucket[p]] += failures[p];
    return state;
}

// Hazards that a draft of this kind might have: low where the prefix is already unlikely.
double planted_hazard(std::size_t bucket) { return 0.15 + 0.07 * static_cast<double>(bucket); }

// A capture whose confidences wander over decades and whose acceptances are drawn with the planted hazards.
fixture::ArmData planted_arm(std::uint64_t seed, std::size_t cycles) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> uniform(0, 1);
    std::vector<std::vector<float>> confidences;
    std::vector<std::int64_t> accepted;
    for (std::size_t i = 0; i < cycles; ++i) {
        std::vector<float> confidence;
        float product = 1;
        for (std::size_t p = 0; p + 1 < kBlock; ++p) {
            product *= static_cast<float>(std::pow(10.0, -1.3 * std::pow(uniform(random), 3)));
            confidence.push_back(product);
        }
        std::int64_t matches = 0;
        for (const float c : confidence) {
            if (uniform(random) >= planted_hazard(budget::bucket_of(budget::kUpperEdges, c))) break;
            ++matches;
        }
        confidences.push_back(std::move(confidence));
        accepted.push_back(matches);
    }
    fixture::ArmData data = small_arm(Arm::fresh, accepted, seed);
    for (std::size_t i = 0; i < cycles; ++i) data.steps[i].prefix_confidence = confidences[i];
    return data;
}

TEST_F(Calibrate, estimates_converge_to_planted_hazards) {
    std::vector<fixture::ArmData> arms;
    for (std::uint64_t seed = 1; seed <= 4; ++seed) arms.push_back(planted_arm(seed, 900));
    const Calibration made = must(arms);
    EXPECT_EQ(made.seed.provenance.lane_cycles, 3600);
    int judged = 0;
    for (std::size_t bucket = 0; bucket < budget::kUpperEdges.size(); ++bucket) {
        const double successes = made.seed.state.successes[bucket];
        const double all = successes + made.seed.state.failures[bucket];
        if (all < 100) continue;
        ++judged;
        const double planted = planted_hazard(bucket);
        // Four standard errors; the prior pulls by at most 2 / all.
        EXPECT_NEAR(successes / all, planted, 4 * std::sqrt(planted * (1 - planted) / all) + 2 / all)
            << "bucket " << bucket << ", " << all << " positions";
    }
    EXPECT_GE(judged, 8);
}

TEST_F(Calibrate, learns_what_the_online_rule_learns) {
    const fixture::ArmData arm = planted_arm(9, 200);
    budget::Controller online = budget::Controller::adaptive(kBlock, 1, kCosts);
    for (const StepRecord& step : arm.steps) {
        online.observe(step.prefix_confidence, static_cast<std::size_t>(step.verified),
                       static_cast<std::size_t>(step.accepted));
    }
    EXPECT_EQ(must({arm}).seed.state, online.state());
}

TEST_F(Calibrate, counts_reached_and_verified_positions_only) {
    const Calibration made = must({small_arm(Arm::fresh, {3, 7, 0})});
    EXPECT_EQ(made.seed.state, counted({2, 2, 2, 1, 1, 1, 1}, {1, 0, 0, 1}));
    EXPECT_EQ(made.seed.provenance.lane_cycles, 3);
}

TEST_F(Calibrate, what_a_limit_cut_is_censored) {
    fixture::ArmData arm = small_arm(Arm::fresh, {3, 5});
    cut_by_limit(arm.steps[1], 2);
    EXPECT_EQ(must({arm}).seed.state, counted({2, 2, 1}, {0, 0, 0, 1}));
    // Cut right at the mismatch: the rejection was not retained, so it was not seen.
    arm = small_arm(Arm::fresh, {3, 5});
    cut_by_limit(arm.steps[1], 5);
    EXPECT_EQ(must({arm}).seed.state, counted({2, 2, 2, 1, 1}, {0, 0, 0, 1}));
}

TEST_F(Calibrate, positions_that_were_not_verified_are_not_seen) {
    fixture::ArmData arm = small_arm(Arm::fresh, {3, 5, 2});
    fixture::set_verified(arm.steps[1], 2);
    arm.steps[1].verified_cut = CutReason::grammar;
    fixture::set_verified(arm.steps[2], 0);
    arm.steps[2].verified_cut = CutReason::grammar;
    const Calibration made = must({arm});
    EXPECT_EQ(made.seed.state, counted({2, 2, 1}, {0, 0, 0, 1}));
    EXPECT_EQ(made.not_at_risk, 1);
}

TEST_F(Calibrate, forced_and_scripted_cycles_do_not_teach) {
    fixture::ArmData arm = small_arm(Arm::fresh, {3, 7, 1, 2});
    arm.steps[1].forced = true;
    arm.steps[2].proposal_source = "scripted";
    arm.steps[3].proposal_source = "sampled";
    const Calibration made = must({arm});
    EXPECT_EQ(made.seed.state, counted({1, 1, 1}, {0, 0, 0, 1}));
    EXPECT_EQ(made.forced, 1);
    EXPECT_EQ(made.not_drafted, 2);
    EXPECT_EQ(made.seed.provenance.lane_cycles, 1);
}

TEST_F(Calibrate, a_confidence_that_is_not_finite_teaches_nothing) {
    fixture::ArmData arm = small_arm(Arm::fresh, {3});
    arm.steps[0].prefix_confidence[1] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(must({arm}).seed.state, counted({1, 0, 1}, {0, 0, 0, 1}));
}

TEST_F(Calibrate, every_context_counts_once) {
    const fixture::ArmData arm = small_arm(Arm::fresh, {3, 7, 0});
    fixture::ArmData repeat = small_arm(Arm::repeat, {3, 7, 0});
    repeat.steps.push_back(repeat.steps.back());  // a repeated context within an arm
    repeat.steps.back().cycle += 1;
    const Calibration made = must({arm, repeat, arm});
    EXPECT_EQ(made.seed.state, must({arm}).seed.state);
    EXPECT_EQ(made.duplicates, 7);
    EXPECT_EQ(made.captures, 2u);
    EXPECT_EQ(made.seed.provenance.captures.size(), 2u);
    EXPECT_EQ(made.seed.provenance.lane_cycles, 3);
}

TEST_F(Calibrate, a_context_seen_further_adds_the_further_positions) {
    const fixture::ArmData whole = small_arm(Arm::fresh, {3, 5});
    fixture::ArmData cut = small_arm(Arm::fresh, {3, 5});
    cut_by_limit(cut.steps[1], 2);
    const budget::State expected = must({whole}).seed.state;
    EXPECT_EQ(must({cut, whole}).seed.state, expected);
    EXPECT_EQ(must({whole, cut}).seed.state, expected);
}

TEST_F(Calibrate, the_seed_does_not_depend_on_the_order_of_captures) {
    const auto a = write(planted_arm(3, 60));
    const auto b = write(planted_arm(4, 60));
    const auto c = write(small_arm(Arm::natural, {1, 2}, 5));
    const auto bytes = [&](std::vector<std::filesystem::path> paths) {
        const Result<Calibration> made = calibrate(paths, options());
        EXPECT_TRUE(made.ok()) << made.status().message();
        return *budget::seed_json(made->seed);
    };
    const std::string text = bytes({a, b, c});
    EXPECT_EQ(bytes({c, a, b}), text);
    EXPECT_EQ(bytes({b, c, a, a}), text);
    EXPECT_NE(bytes({a, b}), text);
}

TEST_F(Calibrate, the_seed_says_where_it_came_from) {
    const fixture::ArmData arm = small_arm(Arm::fresh, {3});
    const auto path = write(arm);
    CalibrateOptions with = options();
    with.lanes = 3;
    with.note = "one prompt";
    const Result<Calibration> made = calibrate(std::vector{path}, with);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const auto reader = CaptureReader::open(path);
    EXPECT_EQ(made->seed.provenance.captures, std::vector<std::string>{reader->digest()});
    EXPECT_EQ(made->seed.provenance.target, reader->header().identity.target.digest);
    EXPECT_EQ(made->seed.provenance.draft, reader->header().identity.draft.digest);
    EXPECT_EQ(made->seed.provenance.note, "one prompt");
    EXPECT_FALSE(made->seed.provenance.after_restore);
    EXPECT_EQ(made->seed.lanes, 3u);
    EXPECT_EQ(made->seed.block, kBlock);
    EXPECT_EQ(made->seed.state.cost, kCosts);
}

TEST_F(Calibrate, equal_contexts_with_different_outcomes_are_refused) {
    const fixture::ArmData arm = small_arm(Arm::fresh, {3, 7, 0});
    const std::function<void(StepRecord&)> damages[] = {
        [](StepRecord& s) { fixture::set_matches(s, 2); },
        [](StepRecord& s) { fixture::set_matches(s, 4); },
        [](StepRecord& s) { s.prefix_confidence[6] = 0.25f; },
        [](StepRecord& s) { s.proposals[6] += 1; },
    };
    for (const auto& damage : damages) {
        fixture::ArmData other = small_arm(Arm::repeat, {3});
        damage(other.steps[0]);
        expect_refused({arm, other}, StatusCode::mismatch, {"cycle 0 of request 'r0'", "equal outcomes"});
    }
}

TEST_F(Calibrate, captures_that_are_no_evidence_are_refused) {
    const auto setting = [](std::string field, std::string value) {
        return [field, value](fixture::ArmData& a) {
            std::erase_if(a.header.settings, [&](const Setting& s) { return s.field == field; });
            if (!value.empty()) a.header.settings.push_back({field, value});
        };
    };
    const struct {
        std::function<void(fixture::ArmData&)> damage;
        StatusCode code;
        std::vector<std::string> parts;
    } rows[] = {
        {setting("budget", "adaptive"), StatusCode::invalid_argument, {"settings.budget", "found adaptive"}},
        {setting("budget", ""), StatusCode::invalid_argument, {"settings.budget", "found nothing", "expected full"}},
        {setting("sampling", "temperature 0.7"), StatusCode::invalid_argument, {"settings.sampling"}},
        {[](auto& a) { a.header.timing_confounded = true; }, StatusCode::invalid_argument, {"timing_confounded"}},
        {[](auto& a) { a.header.treatment.faults = {"shift-rows=1"}; }, StatusCode::invalid_argument, {"shift-rows=1"}},
        {[](auto& a) { a.shape.level = 0; }, StatusCode::invalid_argument, {"level", "found 0"}},
        {[](auto& a) { a.steps[1].prefix_confidence.clear(); },
         StatusCode::invalid_argument,
         {"cycle 1 of request 'r0'", "no prefix confidences", "record the capture with them"}},
        {[](auto& a) { fixture::set_verified(a.steps[1], 2); },
         StatusCode::corrupt,
         {"cycle 1 of request 'r0'", "found 2 of 7", "settings.budget full"}},
    };
    for (const auto& row : rows) {
        fixture::ArmData arm = small_arm(Arm::fresh, {3, 7, 0});
        row.damage(arm);
        expect_refused({arm}, row.code, row.parts);
    }
}

TEST_F(Calibrate, a_sanitised_capture_serves_while_it_has_confidences) {
    fixture::ArmData arm = small_arm(Arm::fresh, {3, 7, 0});
    arm.header.sanitised = arm.shape.sanitised = true;
    arm.header.requests[0].prompt_ids.clear();
    for (StepRecord& step : arm.steps) {
        step.candidate_scores.clear();
        step.target_top2_logits.clear();
    }
    EXPECT_EQ(must({arm}).seed.state, must({small_arm(Arm::fresh, {3, 7, 0})}).seed.state);
    for (StepRecord& step : arm.steps) step.prefix_confidence.clear();
    expect_refused({arm}, StatusCode::invalid_argument, {"calibrate from the capture that was sanitised"});
}

TEST_F(Calibrate, captures_that_do_not_belong_together_are_refused_with_every_reason) {
    const struct {
        std::function<void(CaptureHeader&)> change;
        std::string field;
    } rows[] = {
        {[](auto& h) { h.identity.target = fixture::group("other"); }, "identity.target"},
        {[](auto& h) { h.identity.draft = fixture::group("other"); }, "identity.draft"},
        {[](auto& h) { h.identity.tokenizer = fixture::group("other"); }, "identity.tokenizer"},
        {[](auto& h) {
             h.identity.chat_template = {std::string(64, 'a'), "on", ""};
         },
         "identity.template"},
        {[](auto& h) { h.settings[0].value = "int8"; }, "settings.kv_format"},
        {[](auto& h) {
             h.settings.push_back({"extra", "1"});
         },
         "settings.extra"},
        {[](auto& h) { h.requests[0].window = 0; }, "request.window"},
    };
    const fixture::ArmData first = small_arm(Arm::fresh, {3, 7, 0});
    for (const auto& row : rows) {
        fixture::ArmData other = small_arm(Arm::fresh, {1, 2}, 2);
        row.change(other.header);
        if (row.field == "request.window") {
            for (StepRecord& s : other.steps) s.exposure = {192, 192, 0, 0, 0};
        }
        expect_refused({first, other}, StatusCode::mismatch, {row.field, "does not belong with"});
    }
    fixture::ArmData both = small_arm(Arm::fresh, {1, 2}, 2);
    both.header.identity.draft = fixture::group("other");
    both.header.settings[0].value = "int8";
    expect_refused({first, both}, StatusCode::mismatch, {"identity.draft", "settings.kv_format"});
}

TEST_F(Calibrate, another_block_is_refused) {
    fixture::ArmData other = small_arm(Arm::fresh, {}, 2);
    other.shape.block = 4;
    expect_refused({small_arm(Arm::fresh, {3}), other}, StatusCode::mismatch, {"capture.block"});
}

TEST_F(Calibrate, another_prompt_boundary_and_build_are_no_obstacle) {
    fixture::Options options;
    options.level = 1;
    options.boundary = 64;
    options.seed = 2;
    fixture::ArmData other = fixture::make_arm(Arm::fresh, options);
    other.header.ledger.clear();
    other.header.identity.build = fixture::group("other build");
    other.header.notes = {"no effectiveness conclusion: another precision"};
    const Calibration made = must({small_arm(Arm::fresh, {3, 7, 0}), other, other});
    EXPECT_EQ(made.seed.provenance.lane_cycles, 9);
    ASSERT_EQ(made.notes.size(), 2u);
    EXPECT_EQ(made.notes[0], other.header.notes[0]);
    EXPECT_THAT(made.notes[1], HasSubstr("build"));
}

TEST_F(Calibrate, restored_arms_have_a_seed_of_their_own) {
    const fixture::ArmData fresh = small_arm(Arm::fresh, {3, 7, 0});
    const fixture::ArmData restored = small_arm(Arm::restored, {3, 2, 0});
    expect_refused({fresh, restored}, StatusCode::invalid_argument, {"arm", "found restored", "--after-restore"});
    expect_refused({restored, fresh}, StatusCode::invalid_argument, {"arm", "found fresh", "expected restored"}, true);
    const Result<Calibration> made = calibrate_all({restored}, true);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_TRUE(made->seed.provenance.after_restore);
    EXPECT_EQ(made->seed.state, counted({2, 2, 1}, {1, 0, 1, 1}));

    fixture::ArmData rows = small_arm(Arm::restored, {1}, 2);
    rows.header.treatment.restore_draft = "rows";
    expect_refused({restored, rows}, StatusCode::mismatch, {"treatment.restore_draft: found rows, expected exact"},
                   true);
}

TEST_F(Calibrate, no_evidence_and_bad_costs_are_refused) {
    EXPECT_EQ(calibrate({}, options()).status().code(), StatusCode::invalid_argument);
    fixture::ArmData arm = small_arm(Arm::fresh, {3});
    const auto path = write(arm);
    CalibrateOptions few = options();
    few.costs.pop_back();
    EXPECT_THAT(calibrate(std::vector{path}, few).status().message(), HasSubstr("found 7 costs, expected 8"));
    arm.steps[0].forced = true;
    const Result<Calibration> none = calibrate(std::vector{write(arm)}, options());
    ASSERT_FALSE(none.ok());
    EXPECT_THAT(none.status().message(), HasSubstr("1 forced"));
    EXPECT_EQ(calibrate(std::vector{directory_ / "nowhere"}, options()).status().code(), StatusCode::not_found);
}

TEST_F(Calibrate, damage_is_corrupt) {
    const auto path = write(small_arm(Arm::fresh, {3, 7, 0}));
    std::filesystem::resize_file(path / "steps.jsonl", std::filesystem::file_size(path / "steps.jsonl") - 1);
    EXPECT_EQ(calibrate(std::vector{path}, options()).status().code(), StatusCode::corrupt);
}

}  // namespace
}  // namespace draftprobe::replay
