// What a restored arm says against itself: what a lossy form had to leave, what it made again, and the first token's
// margin. Rounding that a form declares stays DRIFT, and a fault under it does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/test_directory.h"
#include "capture/test_capture.h"
#include "compare/compare.h"

namespace draftprobe {
namespace {

using testing::HasSubstr;
using testing::Not;

class Expected : public testing::Test {
protected:
    Expected() {
        for (const auto& [event, name] :
             {std::pair("restore", kRecurrent), std::pair("restore", kDraftContext), std::pair("restore", kDraftRing)})
            part(event, name).digest = fixture::digest_of(fmt::format("rounded {}", name));
    }

    LedgerComponent& part(std::string_view event, std::string_view name) {
        return *fixture::find_part(treated_, event, name);
    }
    LedgerEvent& event(std::string_view name) { return *fixture::find_event(treated_, name); }

    Comparison judge() {
        const std::string run = std::to_string(++runs_);
        EXPECT_TRUE(fixture::write_arm(directory_ / ("c" + run), control_).ok());
        EXPECT_TRUE(fixture::write_arm(directory_ / ("t" + run), treated_).ok());
        Result<Comparison> result = compare_captures(directory_ / ("c" + run), directory_ / ("t" + run), {});
        EXPECT_TRUE(result.ok()) << result.status().message();
        return result.ok() ? *result : Comparison();
    }

    // The lane holds what the form int8-state has to make of the snapshot's recurrent state.
    void round_target() {
        treated_.header.treatment.restore_target = "int8-state";
        exact_draft();
        part("snapshot", kRecurrent).expected = part("restore", kRecurrent).digest;
    }
    // And of its context rows, all of which are other ones, under rows-q4.
    void round_draft() {
        treated_.header.treatment.restore_draft = "rows-q4";
        part("restore", kRecurrent).digest = part("snapshot", kRecurrent).digest;
        for (const std::string_view name : {kDraftContext, kDraftRing})
            part("snapshot", name).expected = part("restore", name).digest;
        LedgerEvent& restore = event("restore");
        for (std::uint64_t& digest : restore.row_digests) digest ^= 2;
        event("snapshot").expected_row_first = restore.row_first;
        event("snapshot").expected_row_digests = restore.row_digests;
    }
    void exact_draft() {
        for (const std::string_view name : {kDraftContext, kDraftRing})
            part("restore", name).digest = part("snapshot", name).digest;
    }

    fixture::ArmData control_ = fixture::make_arm(Arm::fresh);
    fixture::ArmData treated_ = fixture::make_arm(Arm::restored);
    TestDirectory directory_;
    int runs_ = 0;
};

TEST_F(Expected, WhatALossyFormHasToLeaveIsDrift) {
    round_target();
    EXPECT_EQ(judge().verdict, Verdict::drift);
}

TEST_F(Expected, AnotherRecurrentStateUnderInt8StateIsAFault) {
    round_target();
    part("restore", kRecurrent).digest = fixture::digest_of("flipped");
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::changed) << c.why;
    EXPECT_EQ(c.first->stage, "restore");
    EXPECT_EQ(c.first->component, kRecurrent);
    EXPECT_THAT(c.first->detail, HasSubstr("differs from what the form int8-state makes of the snapshot"));
}

TEST_F(Expected, RowsUnderRowsQ4AreSearchedForAShift) {
    round_draft();
    EXPECT_EQ(judge().verdict, Verdict::drift);
    LedgerEvent& restore = event("restore");
    std::rotate(restore.row_digests.rbegin(), restore.row_digests.rbegin() + 7, restore.row_digests.rend());
    part("restore", kDraftContext).digest = fixture::digest_of("moved");
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::changed) << c.why;
    EXPECT_EQ(c.shift_tokens, 7);
    EXPECT_EQ(c.first->component, kDraftContext);
    EXPECT_THAT(c.first->detail, HasSubstr("rows shifted by +7"));
    EXPECT_THAT(c.first->detail, HasSubstr("hold the due row of 7 positions earlier"));
}

TEST_F(Expected, OneOtherRowUnderRowsQ4IsAFault) {
    round_draft();
    event("restore").row_digests[150] ^= 4;
    part("restore", kDraftContext).digest = fixture::digest_of("one row");
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::changed) << c.why;
    EXPECT_THAT(c.first->detail,
                HasSubstr("1 of 192 rows differ from what the form rows-q4 makes of the snapshot, the first at "
                          "position 150"));
}

TEST_F(Expected, NoFormThatRestoresRowsLeavesSomeOut) {
    for (const char* form : {"rows", "rows-q4", "recompute"}) {
        treated_ = fixture::make_arm(Arm::restored);
        treated_.header.treatment.restore_draft = form;
        LedgerComponent& rows = part("restore", kDraftContext);
        rows.first = rows.base = rows.last;
        rows.rows_claimed = rows.rows_written = 0;
        rows.sources.clear();
        event("restore").row_digests.clear();
        event("restore").row_first = 0;
        const Comparison c = judge();
        EXPECT_EQ(c.verdict, Verdict::changed) << form;
        EXPECT_EQ(c.first->stage, "restore") << form;
        EXPECT_EQ(c.first->component, kDraftContext) << form;
        EXPECT_THAT(c.first->detail, HasSubstr("position gap: 0 rows from 192, expected 192 from 0")) << form;
    }
}

TEST_F(Expected, RingsThatTheirOwnRowsDoNotMakeAreAFault) {
    round_target();
    part("prefill", kDraftRing).expected = part("prefill", kDraftRing).digest;
    EXPECT_EQ(judge().verdict, Verdict::drift);
    part("prefill", kDraftRing).expected = fixture::digest_of("right positions");
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::changed) << c.why;
    EXPECT_EQ(c.first->stage, "prefill");
    EXPECT_EQ(c.first->component, kDraftRing);
}

TEST_F(Expected, AWitnessThatDisagreesIsAFaultWhereItStands) {
    round_target();
    for (StepRecord& step : treated_.steps) step.witness = {{std::string(kRecurrent), 5, 5}};
    treated_.steps[0].witness.insert(treated_.steps[0].witness.begin(), {"draft_hidden", 7, 7});
    EXPECT_EQ(judge().verdict, Verdict::drift);
    treated_.steps[2].witness[0].found = 6;
    Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::changed) << c.why;
    EXPECT_EQ(c.first->stage, "commit");
    EXPECT_EQ(c.first->component, kRecurrent);
    EXPECT_EQ(c.first->cycle, 2);
    treated_.steps[0].witness[0].found = 6;
    c = judge();
    EXPECT_EQ(c.first->stage, "draft");
    EXPECT_EQ(c.first->component, "draft_hidden");
    EXPECT_EQ(c.first->cycle, 0);
}

TEST_F(Expected, TheFirstReadRowsAreThoseOfTheLedger) {
    round_target();
    LedgerComponent& held = part("prefill", kDraftContext);
    DraftContextUse& read = treated_.steps[0].draft_context;
    held.first = held.base = read.first_position;
    held.rows_claimed = held.rows_written = read.rows_claimed;
    control_.steps[0].draft_context = read;
    LedgerComponent& control_held = *fixture::find_part(control_, "prefill", kDraftContext);
    control_held.first = control_held.base = held.first;
    control_held.rows_claimed = control_held.rows_written = held.rows_claimed;
    control_held.digest = held.digest = read.digest;
    for (LedgerComponent* c : {&held, &control_held}) {
        for (SourceRange& range : c->sources) range.first = std::max(range.first, c->first);
    }
    EXPECT_EQ(judge().verdict, Verdict::drift);
    read.digest = fixture::digest_of("another row");
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::changed) << c.why;
    EXPECT_EQ(c.first->stage, "draft");
    EXPECT_EQ(c.first->component, kDraftContext);
}

// Lockstep: the arms' own first tokens differ, and the control's are committed.
class FirstToken : public Expected {
protected:
    FirstToken() {
        round_target();
        treated_.header.treatment.lockstep = true;
        for (auto* arm : {&control_, &treated_}) {
            LedgerComponent anchor;
            anchor.component = kAnchor;
            anchor.first = anchor.base = 256;
            anchor.last = 257;
            anchor.rows_claimed = anchor.rows_written = 1;
            anchor.sources = {{256, 257, RowSource::computed}};
            anchor.digest = fixture::digest_of(arm == &control_ ? "token 4" : "token 9");
            fixture::find_event(*arm, "prefill")->components.push_back(std::move(anchor));
        }
    }
    void margin(float value) { fixture::find_event(control_, "prefill")->anchor_margin = value; }
};

TEST_F(FirstToken, AFlipOfUnknownMarginIsNeverDrift) {
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::changed) << c.why;
    EXPECT_EQ(c.flips.total, 1);
    EXPECT_EQ(c.flips.near_ties, 0);
    EXPECT_TRUE(c.output_changed);
    EXPECT_EQ(c.first->stage, "prefill");
    EXPECT_EQ(c.first->component, kAnchor);
    EXPECT_THAT(c.first->detail, HasSubstr("margin not recorded"));
}

TEST_F(FirstToken, ANearTieIsDriftAndALargeMarginIsNot) {
    control_.header.near_tie = NearTie{0.25, 0.25, 0, 1000};
    margin(0.25f);
    Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::drift) << c.why;
    EXPECT_EQ(c.flips.near_ties, 1);
    margin(0.5f);
    c = judge();
    EXPECT_EQ(c.verdict, Verdict::changed) << c.why;
    EXPECT_THAT(c.first->detail, HasSubstr("the control's margin 0.5"));
}

// The control's winner fell out of the treated arm's candidates: the last candidate's margin decided, not the
// selector's.
TEST_F(Expected, AProposalLostAtTheLastCandidatesPlaceIsJudgedByThatMargin) {
    round_target();
    control_.header.near_tie = NearTie{0.01, 0.01, 0, 1000, 0.3};
    fixture::keep_steps(control_, 1);
    fixture::keep_steps(treated_, 1);
    fixture::set_matches(control_.steps[0], 2);
    fixture::set_matches(treated_.steps[0], 2);
    StepRecord& step = treated_.steps[0];
    const std::size_t at = 5;
    step.candidate_ids[at * static_cast<std::size_t>(fixture::kCandidates)] = step.proposals[at] = 9999;
    Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::drift) << c.why;  // 0.25
    EXPECT_EQ(c.flips.near_ties, 1);
    control_.steps[0].candidate_margins[at] = 0.5f;
    EXPECT_EQ(judge().verdict, Verdict::changed);
    // A choice that both arms had turned on the selector's margin.
    control_.steps[0].candidate_margins[at] = 0.25f;
    control_.steps[0].candidate_ids[at * static_cast<std::size_t>(fixture::kCandidates) + 1] = 9999;
    step.candidate_ids[at * static_cast<std::size_t>(fixture::kCandidates) + 1] = control_.steps[0].proposals[at];
    EXPECT_EQ(judge().verdict, Verdict::changed);
}

TEST_F(Expected, ADifferingTargetRowSaysWhichOptionNarrowsIt) {
    treated_ = fixture::make_arm(Arm::restored);
    for (auto* arm : {&control_, &treated_}) {
        for (StepRecord& step : arm->steps) step.state_digests.clear();
    }
    treated_.steps[3].target_hidden_digests[0] ^= 1;
    EXPECT_THAT(judge().next_step, HasSubstr("--digest-every 1"));
    const Comparison healthy = [&] {
        treated_.steps[3].target_hidden_digests[0] ^= 1;
        return judge();
    }();
    EXPECT_EQ(healthy.verdict, Verdict::same);
    EXPECT_THAT(healthy.next_step, Not(HasSubstr("--digest-every")));
}

}  // namespace
}  // namespace draftprobe
