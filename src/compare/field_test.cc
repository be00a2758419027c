// The field scenarios: how restored prefixes break speculative decoding, as pairs of captures. Each fault has a healthy
// twin. What the captures carry is what an engine would have recorded; no model runs here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/test_directory.h"
#include "capture/test_capture.h"
#include "compare/compare.h"

namespace draftprobe {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

using fixture::find_event;
using fixture::find_part;

class Field : public testing::Test {
protected:
    Comparison run(const fixture::ArmData& control, const fixture::ArmData& treated,
                   std::vector<std::string> treat = {}) {
        const std::string number = std::to_string(++runs_);
        const auto control_path = directory_ / ("control" + number);
        const auto treated_path = directory_ / ("treated" + number);
        for (const auto& [path, data] : {std::pair(control_path, &control), std::pair(treated_path, &treated)}) {
            const Result<std::string> digest = fixture::write_arm(path, *data);
            EXPECT_TRUE(digest.ok()) << digest.status().message();
        }
        Result<Comparison> result = compare_captures(control_path, treated_path, {std::move(treat)});
        EXPECT_TRUE(result.ok()) << result.status().message();
        return result.ok() ? *result : Comparison();
    }
    Comparison judge() { return run(control_, treated_); }
    void expect_same(const Comparison& c) { EXPECT_EQ(c.verdict, Verdict::same) << c.why; }
    void expect_first(const Comparison& c, Verdict verdict, std::string_view stage, std::string_view component,
                      std::string_view detail) {
        EXPECT_EQ(c.verdict, verdict) << c.why;
        ASSERT_TRUE(c.first.has_value());
        EXPECT_EQ(c.first->stage, stage);
        EXPECT_EQ(c.first->component, component);
        EXPECT_THAT(c.first->detail, HasSubstr(std::string(detail)));
    }
    LedgerComponent& part(std::string_view event, std::string_view name) { return *find_part(treated_, event, name); }

    fixture::ArmData control_ = fixture::make_arm(Arm::fresh);
    fixture::ArmData treated_ = fixture::make_arm(Arm::restored);
    TestDirectory directory_;
    int runs_ = 0;
};

// Both arms of a schedule-sensitive engine; the treated one cut its chunks elsewhere and differs a little everywhere.
class FieldSchedule : public Field {
protected:
    void SetUp() override {
        fixture::Options options;
        options.numerics = "schedule-sensitive";
        control_ = fixture::make_arm(Arm::fresh, options);
        treated_ = fixture::make_arm(Arm::restored, options);
    }
    void move_schedule() {
        treated_.header.schedule[0].rows -= 32;
        treated_.header.schedule[1].start -= 32;
        treated_.header.schedule[1].rows += 32;
        for (LedgerEvent& event : treated_.header.ledger) {
            for (LedgerComponent& c : event.components) c.digest = fixture::digest_of("moved " + c.digest);
        }
        for (StepRecord& step : treated_.steps) {
            for (auto& digest : step.target_hidden_digests) digest ^= 2;
        }
    }
    // Another target choice at the first row of cycle 2, after which nothing pairs.
    void flip(float margin) {
        for (auto* arm : {&control_, &treated_}) arm->steps[2].target_margins[0] = margin;
        treated_.steps[2].target_choices[0] += 7;
        treated_.steps[2].next_anchor += 7;
        fixture::keep_steps(treated_, 3);
    }
};

// ---------------------------------------------------------------------------------------------------------------
// D1: rows that only a target forward makes are missing for the restored prefix

TEST_F(Field, D1UnwrittenRowsAreClaimedAgainstWritten) {
    fixture::leave_unwritten(treated_, 0, 192);
    fixture::disturb_draft(treated_, 0, 0);
    fixture::keep_steps(treated_, 1);
    const Comparison c = judge();
    expect_first(c, Verdict::changed, "restore", kDraftContext, "192 rows claimed, 0 written");
    EXPECT_THAT(c.first->detail, HasSubstr("nobody wrote [0, 192)"));
    EXPECT_TRUE(c.proposals_changed);
    EXPECT_THAT(c.why, HasSubstr("window filled 64 of 128"));
}

TEST_F(Field, D1PartlyWrittenRowsAndTheStepAlone) {
    fixture::leave_unwritten(treated_, 0, 128);
    EXPECT_THAT(judge().first->detail, StartsWith("192 rows claimed, 64 written"));
    // Level 1 has no ledger: the step says it.
    fixture::Options options;
    options.level = 1;
    control_ = fixture::make_arm(Arm::fresh, options);
    treated_.shape.level = 1;
    fixture::leave_unwritten(treated_, 0, 192);
    const Comparison c = judge();
    expect_first(c, Verdict::changed, "draft", kDraftContext, "127 rows claimed, 64 written; nobody wrote [129, 192)");
    EXPECT_EQ(c.first->cycle, 0);
}

TEST_F(Field, D1PoisonThatIsCalledWrittenStillDiffers) {
    LedgerEvent& restore = *find_event(treated_, "restore");
    for (auto& digest : restore.row_digests) digest = fixture::mix(digest, 3);
    part("restore", kDraftContext).digest = fixture::digest_of("noise");
    expect_first(judge(), Verdict::changed, "restore", kDraftContext,
                 "192 of 192 rows differ, the first at position 0");
}

TEST_F(Field, D1MaskedContextIsADeclaration) {
    fixture::disturb_draft(treated_, 0, 1);
    fixture::mask(treated_);
    fixture::keep_steps(treated_, 1);
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::changed) << c.why;
    EXPECT_EQ(c.first->stage, "snapshot");
    EXPECT_THAT(c.first->detail, HasSubstr("by declaration (masked)"));
    EXPECT_THAT(c.why, Not(HasSubstr("written")));
    treated_.shape.level = 1;
    const Comparison step = judge();
    expect_first(step, Verdict::changed, "draft", kDraftContext,
                 "context shortened by declaration: [192, 256) of [129, 256)");
    EXPECT_THAT(step.why, HasSubstr("window filled 64 of 128"));
}

// ---------------------------------------------------------------------------------------------------------------
// D2: rows land a constant number of positions too high

TEST_F(Field, D2ShiftAndALengthBeyondThePositions) {
    for (std::string_view event : {"restore", "prefill"}) {
        LedgerEvent& e = *find_event(treated_, event);
        for (std::size_t p = 0; p < e.row_digests.size(); ++p) {
            e.row_digests[p] = p < 32 ? fixture::mix(p, 99) : fixture::row_digest(static_cast<Position>(p) - 32);
        }
        LedgerComponent& c = part(event, kDraftContext);
        c.last += 32;
        c.rows_claimed += 32;
        c.rows_written = c.rows_claimed - 32;
        c.digest = fixture::digest_of("shifted");
    }
    const Comparison c = judge();
    EXPECT_EQ(c.shift_tokens, 32);
    expect_first(c, Verdict::changed, "restore", kDraftContext, "rows shifted by +32");
    EXPECT_THAT(c.first->detail, HasSubstr("claimed length exceeds positions"));
}

TEST_F(Field, D2TheStepAloneSeesALengthBeyondThePositions) {
    fixture::Options options;
    options.level = 1;
    control_ = fixture::make_arm(Arm::fresh, options);
    treated_ = fixture::make_arm(Arm::restored, options);
    for (StepRecord& step : treated_.steps) {
        step.draft_context.rows_claimed += 32;
        step.draft_context.rows_valid += 32;
    }
    expect_first(judge(), Verdict::changed, "draft", kDraftContext, "claimed length exceeds positions");
}

TEST_F(Field, D2TheSameTokensBeforeAreABlindSpot) {
    find_event(treated_, "restore")->previous_shared_tokens = 192;
    const Comparison c = judge();
    expect_same(c);
    EXPECT_EQ(c.blind_spots, 1);
    EXPECT_THAT(c.why, HasSubstr("a blind spot remains"));
    ASSERT_FALSE(c.warnings.empty());
    EXPECT_THAT(c.warnings[0], HasSubstr("stale rows would be the right rows and are undetectable"));
    find_event(treated_, "restore")->previous_shared_tokens = 3;
    EXPECT_EQ(judge().blind_spots, 0);
}

// ---------------------------------------------------------------------------------------------------------------
// D3: the draft's state is not in the snapshot

TEST_F(Field, D3DraftComponentMissingInSnapshot) {
    std::erase_if(find_event(treated_, "snapshot")->components,
                  [](const LedgerComponent& c) { return c.component == kDraftContext; });
    expect_first(judge(), Verdict::changed, "snapshot", kDraftContext, "draft component missing in 'snapshot'");
    treated_.header.treatment.restore_draft = "recompute";  // needs none
    expect_same(judge());
}

TEST_F(Field, D3NoDraftsAreAWidthOfZero) {
    for (StepRecord& step : treated_.steps) {
        step.drafted = step.offered = 0;
        step.drafted_cut = CutReason::grammar;
        for (auto* list : {&step.proposals, &step.candidate_ids}) list->clear();
        for (auto* list : {&step.candidate_scores, &step.q, &step.prefix_confidence, &step.selector_margins,
                           &step.candidate_margins}) {
            list->clear();
        }
        step.draft_hidden_digests.clear();
        step.proposal_source = "none";
        fixture::set_verified(step, 0);
    }
    fixture::keep_steps(treated_, 1);
    const Comparison c = judge();
    expect_first(c, Verdict::changed, "width", "verify_rows", "drafted 0, offered 0, verified 0; the control 7, 7, 7");
    EXPECT_TRUE(c.width_changed);
    EXPECT_FALSE(c.acceptance_changed);
    EXPECT_EQ(c.treated.drafted, 0);
}

TEST_F(Field, D3PositionGap) {
    for (std::string_view event : {"restore", "prefill"}) {
        for (std::string_view name : {kDraftContext, kDraftRing}) {
            LedgerComponent& c = part(event, name);
            c.first = c.base = 192;
            c.rows_claimed = c.rows_written = c.last - 192;
        }
        LedgerEvent& e = *find_event(treated_, event);
        e.row_first = 192;
        e.row_digests = fixture::row_digests(192, e.position);
    }
    expect_first(judge(), Verdict::changed, "restore", kDraftContext,
                 "position gap: 0 rows from 192, expected 192 from 0");
    treated_.shape.level = 1;
    for (StepRecord& step : treated_.steps) {
        step.draft_context.first_position = 192;
        step.draft_context.rows_claimed = step.draft_context.rows_valid = step.length - 192;
    }
    expect_first(judge(), Verdict::changed, "draft", kDraftContext,
                 "position gap: context rows 64 of 127, first position 192, expected 129");
}

// ---------------------------------------------------------------------------------------------------------------
// D4: one row of the draft's input comes from elsewhere

TEST_F(Field, D4PairingOfOneRowAndNothingAfter) {
    find_event(treated_, "restore")->row_digests[171] = fixture::row_digest(180);
    fixture::disturb_draft(treated_, 0, 3);
    const Comparison c = judge();
    expect_first(c, Verdict::changed, "restore", kDraftContext, "pairing: expected row 171, got row 180");
    EXPECT_THAT(c.why,
                HasSubstr("1 of 6 matched lane-cycles differ, the last at cycle 0: the 5 behind it are the same"));
}

TEST_F(Field, D4ARowOfTheEarlierGeneration) {
    find_event(treated_, "restore")->row_digests[171] = fixture::row_digest(250);  // in the control's prefill only
    EXPECT_THAT(judge().first->detail, StartsWith("pairing: expected row 171, got row 250 (of 'prefill')"));
}

TEST_F(Field, D4ARowOfAnEarlierRequest) {
    fixture::Options other;
    other.request = "r1";
    other.seed = 2;
    const fixture::ArmData earlier = fixture::make_arm(Arm::fresh, other);
    for (auto* arm : {&control_, &treated_}) arm->header.requests.push_back(earlier.header.requests[0]);
    LedgerEvent event = fixture::event("prefill", other, 256, 1, false);
    for (auto& digest : event.row_digests) digest = fixture::mix(digest, 11);
    treated_.header.ledger.insert(treated_.header.ledger.begin(), event);
    expect_same(judge());
    find_event(treated_, "restore")->row_digests[171] = event.row_digests[180];
    EXPECT_THAT(judge().first->detail, StartsWith("pairing: expected row 171, got row 180 (earlier request)"));
}

TEST_F(Field, D4TheStepAloneNamesTheRowThatItWasPairedWith) {
    const RowPairing right{200, "r0", 200};
    control_.steps[0].draft_context.pairing = treated_.steps[0].draft_context.pairing = {right};
    expect_same(judge());
    treated_.steps[0].draft_context.pairing = {{200, "", 209}};
    const Comparison c = judge();
    expect_first(c, Verdict::changed, "draft", kDraftContext,
                 "pairing: expected row 200, got row 209 (earlier request)");
    EXPECT_EQ(c.first->cycle, 0);
    treated_.steps[0].draft_context.pairing = {{200, "r0", 191}};
    EXPECT_EQ(judge().first->detail, "pairing: expected row 200, got row 191");
    // An arm that computes everything has no earlier request's row.
    control_.steps[0].draft_context.pairing = {{200, "", 209}};
    EXPECT_EQ(judge().verdict, Verdict::contaminated);
}

TEST_F(Field, C4AReadBeforeItsWriteIsNamedFirst) {
    LedgerEvent* restore = find_event(treated_, "restore");
    restore->read_step = 4;
    restore->written_step = 3;
    expect_same(judge());
    restore->written_step = 4;
    expect_first(judge(), Verdict::changed, "restore", kTargetKv,
                 "read before write, same step: [0, 192) was read in step 4 and written in step 4");
    restore->written_step = 6;
    expect_first(judge(), Verdict::changed, "restore", kTargetKv, "read before write: ");
    restore->written_step = 0;
    expect_first(judge(), Verdict::changed, "restore", kTargetKv, "never written");
}

TEST_F(Field, D1ARestoreOfNothingIsJudgedWithAWarning) {
    fixture::Options nothing;
    nothing.boundary = 0;
    control_ = fixture::make_arm(Arm::fresh, nothing);
    treated_ = fixture::make_arm(Arm::restored, nothing);
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::same) << c.why;
    EXPECT_THAT(c.warnings, Contains(HasSubstr("boundary 0: the restore had nothing to restore")));
}

// Outside every recorded component: the draft's inputs differ although rows, ledger and target are equal.
TEST_F(Field, D4StaleAnchorShowsAtTheFirstDraftOnly) {
    for (auto& digest : treated_.steps[0].draft_hidden_digests) digest ^= 1;
    const Comparison c = judge();
    expect_first(c, Verdict::changed, "draft", "draft_hidden", "another input of the draft differs");
    EXPECT_THAT(c.first->detail, HasSubstr("stale anchor or a pending row"));
    EXPECT_EQ(c.first->cycle, 0);
    EXPECT_EQ(c.pairs.differing, 1);
    EXPECT_EQ(c.pairs.same_after, 5);
    EXPECT_EQ(c.target_drift.rows_different, 0);
}

TEST_F(Field, D4AnOldRowInANewPromptIsContamination) {
    control_.steps[0].draft_context.provenance = {{0, 130, RowSource::carried}, {130, 256, RowSource::computed}};
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::contaminated);
    EXPECT_THAT(c.why, HasSubstr("reads rows [0, 130) that are carried"));
    control_ = fixture::make_arm(Arm::fresh);
    find_part(control_, "prefill", kDraftRing)->sources = {{0, 64, RowSource::carried}, {64, 256, RowSource::computed}};
    EXPECT_THAT(judge().why, HasSubstr("draft_ring at 'prefill' says [0, 64) is carried"));
}

// ---------------------------------------------------------------------------------------------------------------
// D5: a stale mirror and a moved schedule, in all four combinations

TEST_F(FieldSchedule, D5AllFourCombinations) {
    expect_same(judge());
    const auto stale = [&] {
        part("restore", kDraftRing).digest = fixture::digest_of("stale");
        fixture::disturb_draft(treated_, 0, 2);
    };
    const fixture::ArmData healthy = treated_;
    stale();
    Comparison c = judge();
    expect_first(c, Verdict::changed, "restore", kDraftRing, "differs from the snapshot it was restored from");
    EXPECT_THAT(c.why, Not(HasSubstr("DRIFT")));
    treated_ = healthy;
    move_schedule();
    c = judge();
    EXPECT_EQ(c.verdict, Verdict::drift) << c.why;
    stale();
    c = judge();
    expect_first(c, Verdict::changed, "restore", kDraftRing, "differs from the snapshot it was restored from");
    EXPECT_TRUE(c.proposals_changed);
    EXPECT_THAT(c.why, HasSubstr("; second, DRIFT: forward calls cut differently (from stage 'materialise'"));
    EXPECT_LT(c.why.find("draft_ring"), c.why.find("DRIFT"));
}

TEST_F(Field, D5PrefixFedAgainIsRefused) {
    treated_.header.schedule.back().start -= 64;
    treated_.header.schedule.back().rows += 64;
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::not_restored);
    EXPECT_THAT(c.why, HasSubstr("positions repeat"));
}

// ---------------------------------------------------------------------------------------------------------------
// D6: a checkpoint that holds more than its label

TEST_F(Field, D6MislabelledCheckpoint) {
    for (std::string_view event : {"snapshot", "restore"}) {
        LedgerComponent& c = part(event, kRecurrent);
        c.last = c.rows_claimed = c.rows_written = 194;
        c.digest = fixture::digest_of("recurrent 194");
    }
    expect_first(judge(), Verdict::changed, "snapshot", kRecurrent, "covers 194, labelled 192");
}

TEST_F(Field, D6TheStateAloneSaysThatItStoppedElsewhere) {
    for (std::string_view event : {"snapshot", "restore"}) {
        part(event, kRecurrent).digest = fixture::digest_of("recurrent 194");
    }
    expect_first(judge(), Verdict::changed, "snapshot", kRecurrent, "state labelled 192 differs from the control's");
    // Known to be the control's of another moment, it names that one.
    for (std::string_view event : {"snapshot", "restore"}) {
        part(event, kRecurrent).digest = find_part(control_, "prefill", kRecurrent)->digest;
    }
    expect_first(judge(), Verdict::changed, "snapshot", kRecurrent, "covers 256, labelled 192");
}

// ---------------------------------------------------------------------------------------------------------------
// D7: rounding against a fault

TEST_F(FieldSchedule, D7NearTieIsDriftAndALargeGapIsNot) {
    move_schedule();
    flip(0.1f);
    Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::drift) << c.why;
    EXPECT_EQ(verdict_exit(c.verdict), 3);
    EXPECT_FLOAT_EQ(static_cast<float>(*c.flips.largest_margin), 0.1f);
    for (auto* arm : {&control_, &treated_}) arm->steps[2].target_margins[0] = 4.0f;
    c = judge();
    expect_first(c, Verdict::changed, "verify", "target_choice", "the control's margin 4");
    EXPECT_TRUE(c.output_changed);
}

TEST_F(FieldSchedule, D7NearTieWithoutAMovedScheduleIsNoDrift) {
    flip(0.1f);
    EXPECT_EQ(judge().verdict, Verdict::changed);
}

TEST_F(FieldSchedule, D7ControlServedFromACacheIsContaminated) {
    move_schedule();
    for (ComponentRows& rows : control_.header.totals.rows) rows = {"r0", rows.component, 64, 192, 0, 0};
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::contaminated);
    EXPECT_THAT(c.why, HasSubstr("the control arm is not fresh"));
    EXPECT_EQ(verdict_exit(c.verdict), 4);
}

TEST_F(Field, D7RestoreThatRecomputedIsNotRestored) {
    for (ForwardCall& call : treated_.header.schedule) call.phase = ForwardPhase::resume;
    EXPECT_EQ(judge().verdict, Verdict::not_restored);
}

// ---------------------------------------------------------------------------------------------------------------
// D8: a window that was not refilled

class D8Window : public Field, public testing::WithParamInterface<int> {};

TEST_P(D8Window, SaysHowFarItIsFilled) {
    const Position suffix = GetParam();
    fixture::Options options;
    options.window = 64;
    options.boundary = 192;
    options.prompt = 192 + suffix;
    options.accepted = {2};
    control_ = fixture::make_arm(Arm::fresh, options);
    treated_ = fixture::make_arm(Arm::restored, options);
    if (suffix < 63) expect_same(judge());
    fixture::leave_unwritten(treated_, 0, 192);
    const Comparison c = judge();
    if (suffix >= 63) {
        EXPECT_FALSE(c.window_fill.has_value());
        EXPECT_EQ(c.verdict, Verdict::insufficient) << c.why;  // no row of the restore is in the window
        return;
    }
    EXPECT_EQ(c.verdict, Verdict::changed) << c.why;
    EXPECT_THAT(c.why, HasSubstr(fmt::format("window filled {} of 64", suffix)));
}

INSTANTIATE_TEST_SUITE_P(Suffixes, D8Window, testing::Values(1, 8, 32, 62, 63, 64, 96));

// ---------------------------------------------------------------------------------------------------------------
// D9: committed tokens, not matches

TEST_F(Field, D9CommittedTokensOfAWholeCapture) {
    fixture::Options options;
    options.accepted = {7, 2, 5};
    control_ = fixture::make_arm(Arm::fresh, options);
    StepRecord& last = control_.steps[2];
    last.retained = last.emitted = 3;
    last.retained_cut = last.emitted_cut = CutReason::stop;
    last.committed.resize(3);
    last.censored = true;
    const Comparison c = run(control_, control_);
    EXPECT_EQ(c.control.drafted, 21);
    EXPECT_EQ(c.control.accepted, 14);
    EXPECT_EQ(c.control.retained, 14);
    ASSERT_TRUE(c.control.survival.has_value());
    EXPECT_THAT(c.control.survival->at_risk, testing::ElementsAre(3, 3, 3, 1, 1, 1, 1));
    EXPECT_THAT(c.control.survival->rejected, testing::ElementsAre(0, 0, 1, 0, 0, 0, 0));
}

// ---------------------------------------------------------------------------------------------------------------
// D10: other weights under the same names

TEST_F(Field, D10OtherContentIsNotComparable) {
    const auto refused = [&](std::string_view field) {
        const Comparison c = judge();
        EXPECT_EQ(c.verdict, Verdict::not_comparable);
        ASSERT_EQ(c.refusals.size(), 1u);
        EXPECT_EQ(c.refusals[0].field, field);
        treated_ = fixture::make_arm(Arm::restored);
    };
    treated_.header.identity.target = fixture::group("one changed tensor");
    refused("identity.target");
    treated_.header.identity.draft = fixture::group("another draft");
    refused("identity.draft");
    treated_.header.identity.tokenizer = fixture::group("another tokenizer");
    for (StepRecord& step : treated_.steps) step.context_hash = fixture::digest_of(step.context_hash);
    refused("identity.tokenizer");
    treated_.header.identity.chat_template = {fixture::digest_of("template"), "on", "", ""};
    refused("identity.template");
    treated_.header.identity.build = fixture::group("another build");
    const Comparison c = judge();
    expect_same(c);
    EXPECT_THAT(c.warnings, testing::ElementsAre(HasSubstr("different builds")));
}

// ---------------------------------------------------------------------------------------------------------------
// The shorter cases

TEST_F(Field, C2DraftPrefixShorterThanTheTargets) {
    fixture::leave_unwritten(treated_, 128, 192);
    expect_first(judge(), Verdict::changed, "restore", kDraftContext, "192 rows claimed, 128 written");
    // The twin is capped where both are valid.
    fixture::Options options;
    options.boundary = 128;
    options.window = 256;
    expect_same(run(fixture::make_arm(Arm::fresh, options), fixture::make_arm(Arm::restored, options)));
}

TEST_F(Field, C5FirstCycleAlone) {
    part("restore", kDraftRing).digest = fixture::digest_of("dense copy");
    fixture::disturb_draft(treated_, 0, 6);
    const Comparison c = judge();
    expect_first(c, Verdict::changed, "restore", kDraftRing, "differs from the snapshot");
    EXPECT_EQ(c.pairs.differing, 1);
    EXPECT_FALSE(c.acceptance_changed);
    EXPECT_THAT(c.population_refused, HasSubstr("at least 10"));
}

TEST_F(Field, C6OneContextRowInsteadOfTheSuffix) {
    treated_.shape.level = 1;
    for (StepRecord& step : treated_.steps) {
        step.draft_context.first_position = step.length - 1;
        step.draft_context.rows_claimed = step.draft_context.rows_valid = 1;
        step.draft_context.provenance = {{step.length - 1, step.length, RowSource::computed}};
    }
    const Comparison c = judge();
    expect_first(c, Verdict::changed, "draft", kDraftContext, "context rows 1 of 127");
    EXPECT_THAT(c.why, HasSubstr("window filled 1 of 128"));
}

TEST_F(Field, C7OffsetAheadOfAnEmptyRing) {
    for (std::string_view name : {kDraftContext, kDraftRing}) {
        LedgerComponent& c = part("restore", name);
        c.rows_claimed = c.rows_written = 0;
        c.sources.clear();
        c.digest.clear();
    }
    find_event(treated_, "restore")->row_digests.clear();
    expect_first(judge(), Verdict::changed, "restore", kDraftContext, "logical offset 192, fill 0");
    treated_.shape.level = 1;
    for (StepRecord& step : treated_.steps) {
        step.draft_context = {0, 0, step.length, {}, ""};
    }
    expect_first(judge(), Verdict::changed, "draft", kDraftContext, "logical offset 256, fill 0");
}

TEST_F(Field, C8KvFormat) {
    treated_ = fixture::make_arm(Arm::repeat);
    treated_.header.settings[0].value = "int8";
    treated_.steps[3].proposals[1] += 500;
    fixture::set_accepted(treated_.steps[3], 1);
    fixture::keep_steps(treated_, 4);
    EXPECT_EQ(judge().verdict, Verdict::not_comparable);
    const Comparison declared = run(control_, treated_, {"kv_format"});
    EXPECT_EQ(declared.verdict, Verdict::changed);
    EXPECT_TRUE(declared.acceptance_changed);
    EXPECT_THAT(declared.declared, testing::ElementsAre("settings.kv_format"));
    // Same label, another layout.
    treated_.header.settings[0].value = "bf16";
    for (auto* arm : {&control_, &treated_}) arm->header.settings.push_back({"kv_group", "64"});
    treated_.header.settings.back().value = "32";
    const Comparison layout = judge();
    EXPECT_EQ(layout.verdict, Verdict::not_comparable);
    EXPECT_EQ(layout.refusals[0].field, "settings.kv_group");
}

TEST_F(Field, C8QuantisedTwiceIsAFault) {
    for (auto* arm : {&control_, &treated_}) arm->header.settings[0].value = "int8";
    expect_same(judge());
    part("restore", kTargetKv).digest = fixture::digest_of("twice");
    expect_first(judge(), Verdict::changed, "restore", kTargetKv, "differs from the");
}

TEST_F(FieldSchedule, C9ScheduleMatchedControlIsSameAndNaturalDrifts) {
    expect_same(judge());
    fixture::Options options;
    options.numerics = "schedule-sensitive";
    control_ = fixture::make_arm(Arm::natural, options);
    control_.header.schedule = {{ForwardKind::prefill, ForwardPhase::resume, "r0", 0, 0, 128, "schedule-sensitive"},
                                {ForwardKind::prefill, ForwardPhase::resume, "r0", 0, 128, 128, "schedule-sensitive"}};
    for (auto& digest : control_.steps[1].target_hidden_digests) digest ^= 4;
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::drift) << c.why;
}

// The verify width is the treatment: row 0 reads the same context whatever the width.
TEST_F(FieldSchedule, C10RowZeroAcrossWidths) {
    treated_ = fixture::make_arm(Arm::repeat, [] {
        fixture::Options options;
        options.numerics = "schedule-sensitive";
        return options;
    }());
    for (auto* arm : {&control_, &treated_}) arm->header.settings.push_back({"verify_width", "8"});
    treated_.header.settings.back().value = "3";
    for (StepRecord& step : treated_.steps) {
        step.offered = 2;
        step.offered_cut = CutReason::budget;
        fixture::set_verified(step, 2);
        step.verified_cut = CutReason::none;
        fixture::set_accepted(step, std::min<std::int64_t>(step.accepted, 2));
    }
    fixture::keep_steps(treated_, 1);
    fixture::keep_steps(control_, 1);
    EXPECT_EQ(judge().verdict, Verdict::not_comparable);
    Comparison c = run(control_, treated_, {"verify_width"});
    expect_same(c);
    EXPECT_THAT(c.why, HasSubstr("1 of them verify another number of rows, as declared"));
    // A split that follows the width: a small gap is rounding, a large one a defect.
    for (const auto& [margin, verdict] : {std::pair(0.1f, Verdict::drift), std::pair(4.0f, Verdict::changed)}) {
        fixture::ArmData control = control_;
        fixture::ArmData treated = treated_;
        for (auto* arm : {&control, &treated}) arm->steps[0].target_margins[0] = margin;
        treated.steps[0].target_choices[0] += 7;
        fixture::set_accepted(treated.steps[0], 0);
        treated.steps[0].next_anchor += 7;
        c = run(control, treated, {"verify_width"});
        EXPECT_EQ(c.verdict, verdict) << c.why;
    }
}

TEST_F(Field, C11AnotherDraftSetUpIsNamedByItsField) {
    for (std::string_view field : {"draft.rope", "draft.taps", "draft.mask_token", "draft.window"}) {
        fixture::ArmData control = control_;
        fixture::ArmData treated = treated_;
        control.header.settings.push_back({std::string(field), "1"});
        treated.header.settings.push_back({std::string(field), "0"});
        const Comparison c = run(control, treated);
        EXPECT_EQ(c.verdict, Verdict::not_comparable);
        ASSERT_EQ(c.refusals.size(), 1u);
        EXPECT_EQ(c.refusals[0].field, "settings." + std::string(field));
    }
}

TEST_F(Field, C12RestoreThatIsNoneAndOtherTokens) {
    for (ForwardCall& call : treated_.header.schedule) call.phase = ForwardPhase::resume;
    for (ComponentRows& rows : treated_.header.totals.rows) rows = {"r0", rows.component, 256, 0, 0, 0};
    EXPECT_EQ(judge().verdict, Verdict::not_restored);
    fixture::Options options;
    options.seed = 321;  // ids that agree in their low bits only
    treated_ = fixture::make_arm(Arm::restored, options);
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::not_comparable);
    EXPECT_EQ(c.refusals[0].field, "identity.prompt");
}

// ---------------------------------------------------------------------------------------------------------------
// An arm that stopped with an error

void stop_with_error(fixture::ArmData& data) {
    StepRecord& step = data.steps.back();
    step.accepted = step.retained = step.emitted = 0;
    step.accepted_cut = step.retained_cut = step.emitted_cut = CutReason::error;
    step.censored = true;
    step.committed.clear();
}

TEST_F(Field, AnErrorInTheTreatedArmAloneIsChanged) {
    fixture::keep_steps(treated_, 2);
    stop_with_error(treated_);
    const Comparison c = judge();
    expect_first(c, Verdict::changed, "verify", "target_hidden", "the treated arm stopped with an error");
    EXPECT_TRUE(c.output_changed);
    EXPECT_FALSE(c.acceptance_changed);
    ASSERT_TRUE(c.treated_stop.has_value());
    EXPECT_EQ(c.treated_stop->cycle, 1);
    EXPECT_THAT(c.why, HasSubstr("stopped with an error at cycle 1, stage 'verify'"));
}

TEST_F(Field, TheLedgerNamesTheComponentBehindAnError) {
    fixture::keep_steps(treated_, 1);
    stop_with_error(treated_);
    part("restore", kTargetKv).rows_written = 64;
    const Comparison c = judge();
    expect_first(c, Verdict::changed, "restore", kTargetKv, "192 rows claimed, 64 written");
    EXPECT_THAT(c.why, HasSubstr("stopped with an error at cycle 0, stage 'verify'"));
}

TEST_F(Field, AControlThatStoppedIsNoControl) {
    fixture::keep_steps(control_, 2);
    stop_with_error(control_);
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::corrupt);
    EXPECT_EQ(c.corrupt_capture, "control");
    EXPECT_EQ(verdict_exit(c.verdict), 5);
    // An error that the arm got over is a step like others.
    control_ = fixture::make_arm(Arm::fresh);
    for (auto* arm : {&control_, &treated_}) {
        arm->steps[1].verified_cut = CutReason::error;
        fixture::set_verified(arm->steps[1], 5);
        arm->steps[1].verified_cut = CutReason::error;
        fixture::set_accepted(arm->steps[1], 5);
        fixture::keep_steps(*arm, 1);
    }
    expect_same(judge());
}

// ---------------------------------------------------------------------------------------------------------------
// Lockstep

TEST_F(Field, LockstepJudgesBehindAnOutputFlip) {
    ASSERT_EQ(control_.steps[2].accepted, 0);
    for (StepRecord& step : treated_.steps) step.forced = true;
    treated_.header.treatment.lockstep = true;
    Comparison c = judge();
    expect_same(c);
    EXPECT_EQ(c.pairs.forced, 6);
    EXPECT_EQ(c.treated.forced_cycles, 6);
    EXPECT_EQ(c.treated.emitted, 0);
    EXPECT_GT(c.control.emitted, 0);
    // The treated arm would have gone another way at cycle 2, and the pairs behind are judged all the same.
    treated_.steps[2].target_choices[0] += 7;
    treated_.steps[4].q[0] += 0.125f;
    c = judge();
    EXPECT_EQ(c.verdict, Verdict::changed);
    EXPECT_TRUE(c.output_changed);
    EXPECT_EQ(c.first->component, "target_choice");
    EXPECT_EQ(c.first->cycle, 2);
    EXPECT_EQ(c.pairs.matched, 6);
    EXPECT_EQ(c.pairs.differing, 2);
    EXPECT_EQ(c.pairs.last_differing, 4);
    EXPECT_EQ(c.pairs.unmatched_control + c.pairs.unmatched_treated, 0);
}

TEST_F(Field, LockstepComparesAcceptanceAgainstTheArmsOwnTarget) {
    for (StepRecord& step : treated_.steps) step.forced = true;
    StepRecord& step = treated_.steps[3];
    ASSERT_EQ(step.accepted, 5);
    const std::vector<CapturedId> committed = step.committed;
    step.proposals[1] += 500;
    fixture::set_accepted(step, 1);
    step.committed = committed;  // the control's
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::changed);
    EXPECT_TRUE(c.proposals_changed && c.acceptance_changed);
    EXPECT_FALSE(c.output_changed) << "the own choices agree as far as they go";
    EXPECT_EQ(c.pairs.matched, 6);
    EXPECT_EQ(c.pairs.same_after, 2);
}

// ---------------------------------------------------------------------------------------------------------------
// Timing

TEST_F(Field, TimingConfoundedCapturesSayWhatToDo) {
    for (auto* arm : {&control_, &treated_}) arm->header.timing_confounded = true;
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::not_comparable);
    EXPECT_THAT(c.next_step, HasSubstr("frozen seed"));
    EXPECT_THAT(c.next_step, HasSubstr("--treat timing_confounded"));
    expect_same(run(control_, treated_, {"timing_confounded"}));
    treated_.header.settings[0].value = "int8";
    EXPECT_THAT(judge().next_step, HasSubstr("--treat timing_confounded")) << "beside other mismatches too";
}

// ---------------------------------------------------------------------------------------------------------------
// What a report says has to be true of the figures beside it

TEST_F(Field, ExposureIsSplitByWhereTheRowsCameFrom) {
    EXPECT_EQ(judge().armed.draft_exposure_split.restored, 63);
    fixture::leave_unwritten(treated_, 0, 192);
    const Armed armed = judge().armed;
    EXPECT_EQ(armed.draft_exposure, 63);
    EXPECT_EQ(armed.draft_exposure_split.restored, 0);
    EXPECT_EQ(armed.draft_exposure_split.none, 63);
}

TEST_F(Field, ARequestThatEndsWithItsFirstTokenSaysSo) {
    for (auto* arm : {&control_, &treated_}) {
        arm->header.settings.push_back({"stop_tokens", "1,2"});
        std::erase_if(arm->header.ledger, [](const LedgerEvent& e) { return e.event == "end"; });
        fixture::keep_steps(*arm, 0);
    }
    Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::insufficient);
    EXPECT_THAT(c.why, HasSubstr("the request ended with its first token, a stop token"));
    EXPECT_THAT(c.next_step, HasSubstr("cut the prompt elsewhere"));
    EXPECT_FALSE(c.armed.armed);
    // A fault in the ledger is found all the same, and no draft saw it.
    part("restore", kDraftContext).digest = fixture::digest_of("stale");
    c = judge();
    EXPECT_EQ(c.verdict, Verdict::changed) << c.why;
    EXPECT_FALSE(c.armed.armed);
    EXPECT_THAT(c.armed.reason, HasSubstr("no decode cycle"));
}

TEST_F(Field, ATargetChoiceFromWhichNothingFollowedIsNoInput) {
    ASSERT_EQ(control_.steps[2].accepted, 0);
    // Equal proposals up to the last: row 3 has the control's inputs and stands behind the first rejection.
    treated_.steps[2].target_choices[3] += 7;
    const Comparison c = judge();
    expect_first(c, Verdict::changed, "verify", "target_choice", "first at row 3");
    EXPECT_EQ(c.flips.total, 1);
    EXPECT_FALSE(c.acceptance_changed || c.output_changed);
    EXPECT_THAT(c.why, StartsWith("changed: target choices only, in rows from which nothing was accepted or emitted"));
}

TEST_F(Field, WidthMarginsStayOutOfTheLargestMargin) {
    for (auto* arm : {&control_, &treated_}) {
        for (StepRecord& step : arm->steps) step.width_margin = 430.0;
    }
    fixture::set_verified(treated_.steps[0], 4);
    treated_.steps[2].target_choices[3] += 7;
    const Comparison c = judge();
    EXPECT_EQ(c.flips.total, 2);
    EXPECT_EQ(c.flips.widths, 1);
    EXPECT_EQ(c.flips.largest_margin, 2.5);
}

TEST_F(FieldSchedule, OneFlipIsToldAsOne) {
    move_schedule();
    flip(0.1f);
    EXPECT_THAT(judge().why, StartsWith("the only flip is a near-tie; recorded cause: forward calls cut differently"));
}

TEST_F(Field, EveryLossyFormIsNamedAsACause) {
    treated_.header.treatment.restore_target = "int8-state";
    treated_.header.treatment.restore_draft = "rows-q4";
    EXPECT_EQ(judge().drift_explained_by, "target state stored as int8 and draft context rows stored in 4 bits");
    fixture::mask(treated_);
    EXPECT_EQ(judge().drift_explained_by, "target state stored as int8 and context shortened by declaration (masked)");
    treated_.header.treatment.restore_target = "exact";
    EXPECT_EQ(judge().drift_explained_by, "") << "a shorter context explains no drift by itself";
}

TEST_F(Field, RefusalsReadAsSentences) {
    fixture::Options options;
    options.seed = 321;
    const Comparison prompts = run(control_, fixture::make_arm(Arm::restored, options));
    EXPECT_EQ(prompts.refusals[0].control, "a prompt of 256 tokens in 1 request");
    EXPECT_EQ(prompts.refusals[0].treated, "another of 256 tokens in 1 request");
    control_.header.timing_confounded = treated_.header.timing_confounded = true;
    const Comparison times = judge();
    EXPECT_NE(times.refusals[0].control, times.refusals[0].treated);
    treated_.header.timing_confounded = false;
    EXPECT_EQ(judge().refusals[0].treated, "widths that no time decides");
}

class FieldTimes : public Field {
protected:
    // Both arms under an adaptive budget; the treated one verified fewer rows in its first cycle and, the draft being
    // right beyond them, ended that cycle earlier.
    void SetUp() override {
        control_.header.timing_confounded = treated_.header.timing_confounded = true;
        fixture::set_verified(treated_.steps[0], 2);
        fixture::keep_steps(treated_, 1);
    }
};

TEST_F(FieldTimes, WidthsAreNoFindingAndNotAttributed) {
    Comparison c = run(control_, treated_, {"timing_confounded"});
    expect_same(c);
    EXPECT_FALSE(c.width_changed);
    EXPECT_EQ(c.paired.width_differs, 1);
    EXPECT_EQ(c.flips.total, 0);
    EXPECT_GT(c.pairs.unmatched_control, 0);
    EXPECT_THAT(c.next_step, HasSubstr("--lockstep"));
    EXPECT_THAT(c.why, HasSubstr("widths follow measured times: not attributed"));
    EXPECT_THAT(c.why,
                HasSubstr("5 lane-cycles of the control and 0 of the treated arm have no partner because of it"));
    // A declared budget is the treatment itself: there widths are the finding.
    treated_.header.settings[2].value = "adaptive";
    c = run(control_, treated_, {"budget"});
    EXPECT_EQ(c.verdict, Verdict::changed) << c.why;
    EXPECT_TRUE(c.width_changed);
}

TEST_F(FieldTimes, EverythingElseIsStillFound) {
    const fixture::ArmData healthy = treated_;
    treated_.steps[0].proposals[4] += 500;
    Comparison c = run(control_, treated_, {"timing_confounded"});
    expect_first(c, Verdict::changed, "select", "proposals", "first at position 5");
    EXPECT_THAT(c.why, HasSubstr("widths follow measured times: not attributed"));
    treated_ = healthy;
    treated_.steps[0].target_hidden_digests[1] ^= 1;
    EXPECT_EQ(run(control_, treated_, {"timing_confounded"}).verdict, Verdict::changed);
    treated_ = healthy;
    part("restore", kDraftContext).digest = fixture::digest_of("stale");
    EXPECT_EQ(run(control_, treated_, {"timing_confounded"}).verdict, Verdict::changed);
}

TEST_F(Field, TheNextStepFitsTheStage) {
    const fixture::ArmData healthy = treated_;
    part("restore", kDraftContext).digest = fixture::digest_of("stale");
    EXPECT_THAT(judge().next_step, StartsWith("read the ledger of both captures"));
    treated_ = healthy;
    treated_.steps[3].q[0] += 0.125f;
    EXPECT_EQ(judge().next_step,
              "read cycle 3 in steps.jsonl of both captures: what was read, the margins, the witness");
    for (auto* arm : {&control_, &treated_}) {
        for (StepRecord& step : arm->steps) step.state_digests.clear();
    }
    EXPECT_THAT(judge().next_step, StartsWith("repeat both arms with --digest-every 1, which tells after which cycle"));
}

TEST_F(Field, LockstepIsAdvisedWhereMostCyclesHaveNoPartner) {
    treated_.steps[2].target_choices[0] += 7;
    treated_.steps[2].next_anchor += 7;
    fixture::keep_steps(treated_, 3);
    EXPECT_THAT(judge().next_step, Not(HasSubstr("--lockstep"))) << "half of the control's cycles are matched";
    fixture::Options longer;
    longer.accepted = {3, 7, 0, 5, 2, 6, 3};
    control_ = fixture::make_arm(Arm::fresh, longer);
    EXPECT_THAT(judge().next_step, HasSubstr("repeat with --lockstep"));
}

TEST_F(FieldSchedule, WithoutThresholdsTheNextStepSaysHowToGetThem) {
    move_schedule();
    flip(0.1f);
    control_.header.near_tie.reset();
    const Comparison c = judge();
    EXPECT_EQ(c.verdict, Verdict::changed);
    EXPECT_THAT(c.next_step, StartsWith("have near-tie thresholds recorded (--numerics schedule-sensitive"));
}

}  // namespace
}  // namespace draftprobe
