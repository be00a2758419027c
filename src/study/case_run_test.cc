// A case of a study with real arms.
#include <gmock/gmock.h>

#include "base/test_directory.h"
#include "study/toy_assembly.h"

namespace draftprobe::study {
namespace {

Case with_faults(std::initializer_list<const char*> faults) {
    Case item = toy_case();
    item.request.prompt.resize(40);
    item.request.boundary = 32;
    for (const char* fault : faults) item.settings.treatment.faults.push_back(*instrument::parse_fault(fault));
    return item;
}

// Studies vary sizes, so that a fault's place may lie outside of a case.
TEST(CaseRuns, a_fault_that_finds_nothing_to_act_on_leaves_the_case_as_it_is) {
    TestDirectory directory;
    for (const char* fault :
         {"stale-anchor=token:60", "stale-anchor=row:60", "checkpoint-inside-step=31", "checkpoint-inside-step=9",
          "mislabelled-checkpoint=9", "alias-snapshot=41", "flip=target_kv:99999999", "flip=draft_context:99999999",
          "position-base=1000", "rows-unwritten=1000:zeros", "suffix-unwritten=30", "pending-row=500"}) {
        const auto summary = run_case(toys(), with_faults({fault}), directory / "case");
        ASSERT_TRUE(summary.ok()) << fault << ": " << summary.status().message();
        const bool acts = std::string_view(fault).starts_with("rows-") || std::string_view(fault).starts_with("pos");
        EXPECT_EQ(summary->verdict, acts ? Verdict::changed : Verdict::same) << fault << ": " << summary->why;
        Case alone = with_faults({fault});
        const auto refused =
            probe::run_arm(toys(), alone.request, alone.settings, Arm::restored, directory / "arm", false);
        EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument) << fault;
    }
}

TEST(CaseRuns, a_fault_without_effect_keeps_no_other_from_acting) {
    TestDirectory directory;
    for (const char* idle : {"flip=draft_context:99999999", "flip=target_kv:99999999", "mislabelled-checkpoint=9"}) {
        const auto summary = run_case(toys(), with_faults({idle, "flip=recurrent:4"}), directory / "case");
        ASSERT_TRUE(summary.ok()) << idle << ": " << summary.status().message();
        EXPECT_EQ(first_place(*summary), "restore/recurrent") << idle;
        const auto copied = run_case(toys(), with_faults({idle, "context-shift=3"}), directory / "case");
        ASSERT_TRUE(copied.ok()) << idle << ": " << copied.status().message();
        EXPECT_EQ(first_place(*copied), "restore/draft_context") << idle;
    }
    const auto anchor = run_case(toys(), with_faults({"pending-row=500", "stale-anchor=token:3"}), directory / "case");
    ASSERT_TRUE(anchor.ok()) << anchor.status().message();
    EXPECT_EQ(first_place(*anchor), "draft/draft_hidden");
}

TEST(CaseRuns, a_fault_that_needs_more_room_than_the_lane_has_is_without_effect) {
    TestDirectory directory;
    Case item = toy_case();
    item.settings.treatment.faults.push_back(*instrument::parse_fault("alias-snapshot=95"));
    const auto summary = run_case(toys(), item, directory / "case");
    ASSERT_TRUE(summary.ok()) << summary.status().message();
    EXPECT_EQ(summary->verdict, Verdict::same);
    const auto alone = probe::run_arm(toys(), item.request, item.settings, Arm::restored, directory / "arm", false);
    EXPECT_EQ(alone.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(alone.status().message().find("fit behind it in a lane of 190"), std::string::npos);
}

TEST(CaseRuns, a_cached_control_is_found_whatever_the_tier) {
    TestDirectory directory;
    for (const state::Tier tier : {state::Tier::memory, state::Tier::disk}) {
        Case item = with_faults({"cached-control=all"});
        item.settings.treatment.tier = tier;
        const auto summary = run_case(toys(), item, directory / "case");
        ASSERT_TRUE(summary.ok()) << summary.status().message();
        EXPECT_EQ(summary->verdict, Verdict::contaminated) << state::tier_name(tier);
    }
}

TEST(CaseRuns, ids_that_lockstep_cannot_commit_are_refused) {
    TestDirectory directory;
    Case item = toy_case();
    const TokenId vocab = static_cast<TokenId>(toys().models.target->config().vocab);
    for (const probe::ControlCycle& cycle : {probe::ControlCycle{{}, 1}, probe::ControlCycle{{vocab}, 1},
                                             probe::ControlCycle{{1, vocab}, 1}, probe::ControlCycle{{1}, vocab}}) {
        item.settings.lockstep = std::make_shared<const probe::ControlTokens>(probe::ControlTokens{{cycle}});
        const auto arm = probe::run_arm(toys(), item.request, item.settings, Arm::restored, directory / "arm", false);
        EXPECT_EQ(arm.status().code(), StatusCode::invalid_argument);
        EXPECT_FALSE(std::filesystem::exists(directory / "arm"));
    }
}

}  // namespace
}  // namespace draftprobe::study
