// Acceptance counted by hand (field scenario D9): what was committed counts, not what a verifier matched.
#include <gtest/gtest.h>

#include "base/test_directory.h"
#include "capture/test_capture.h"
#include "compare/compare.h"

namespace draftprobe {
namespace {

struct Counts {
    std::int64_t drafted, accepted, committed;
    CutReason drafted_cut, retained_cut;
};

// Two requests of three steps each, as an engine reported them.
constexpr Counts kSteps[] = {
    {7, 7, 8, CutReason::none, CutReason::none},   {7, 2, 3, CutReason::none, CutReason::none},
    {7, 5, 3, CutReason::none, CutReason::stop},   {0, 0, 1, CutReason::error, CutReason::none},
    {4, 4, 5, CutReason::budget, CutReason::none}, {7, 3, 2, CutReason::none, CutReason::limit},
};

fixture::ArmData by_hand(int level) {
    fixture::Options options;
    options.level = level;
    options.accepted.clear();
    fixture::ArmData data = fixture::make_arm(Arm::fresh, options);
    Position length = options.prompt;
    std::int64_t cycle = 0;
    for (const Counts& counts : kSteps) {
        StepRecord s = fixture::make_step(options, data.header, cycle++, 0, length, counts.accepted, false);
        const auto drafted = static_cast<std::size_t>(counts.drafted);
        const auto rows = drafted + 1;
        s.drafted = s.offered = s.verified = counts.drafted;
        s.drafted_cut = counts.drafted_cut;
        s.accepted_cut = counts.accepted < counts.drafted ? CutReason::mismatch : CutReason::none;
        s.retained = s.emitted = counts.committed;
        s.retained_cut = s.emitted_cut = counts.retained_cut;
        s.proposals.resize(drafted);
        s.candidate_ids.clear();
        s.candidate_scores.clear();
        s.q.clear();
        s.prefix_confidence.clear();
        s.selector_margins.clear();
        s.candidate_margins.clear();
        s.draft_hidden_digests.clear();
        s.target_choices.resize(rows);
        s.target_top2.clear();
        s.target_top2_logits.clear();
        s.target_margins.clear();
        s.target_hidden_digests.clear();
        s.committed.clear();
        for (Position i = 0; i < counts.committed; ++i)
            s.committed.push_back(fixture::token_at(length + i, options.seed));
        s.next_anchor = fixture::token_at(length + counts.committed, options.seed);
        s.censored = !observed_acceptance(s).rejected;
        s.state_digests.clear();
        data.steps.push_back(std::move(s));
        length += counts.committed;
    }
    return data;
}

TEST(Acceptance, CountsWhatWasCommittedAndCensorsWhatWasCutShort) {
    const TestDirectory directory;
    ASSERT_TRUE(fixture::write_arm(directory / "a", by_hand(1)).ok());
    const auto result = compare_captures(directory / "a", directory / "a", {});
    ASSERT_TRUE(result.ok()) << result.status().message();
    const ArmAcceptance& arm = result->control;
    EXPECT_EQ(arm.lane_cycles, 6);
    EXPECT_EQ(arm.drafted, 32);
    EXPECT_EQ(arm.accepted, 21);
    EXPECT_EQ(arm.retained, 22);
    EXPECT_NEAR(arm.mean_retained(), 3.67, 0.005);
    ASSERT_TRUE(arm.survival.has_value()) << result->survival_refused;
    EXPECT_EQ(arm.survival->at_risk, (std::vector<std::int64_t>{5, 5, 4, 2, 1, 1, 1}));
    EXPECT_EQ(arm.survival->rejected, (std::vector<std::int64_t>{0, 0, 1, 0, 0, 0, 0}));
    EXPECT_EQ(arm.survival->survival, (std::vector<double>{1, 1, 0.75, 0.75, 0.75, 0.75, 0.75}));
}

TEST(Acceptance, TotalsAloneGiveNoSurvival) {
    const TestDirectory directory;
    fixture::ArmData data = by_hand(0);
    data.header.ledger.clear();
    ASSERT_TRUE(fixture::write_arm(directory / "a", data).ok());
    const auto result = compare_captures(directory / "a", directory / "a", {});
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_FALSE(result->control.survival.has_value());
    EXPECT_NE(result->survival_refused.find("totals only"), std::string::npos) << result->survival_refused;
}

}  // namespace
}  // namespace draftprobe
