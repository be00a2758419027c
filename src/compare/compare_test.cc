// Verdicts over constructed pairs of captures: each verdict is reached, and each healthy twin stays SAME.
#include "compare/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/files.h"
#include "base/test_directory.h"
#include "capture/test_capture.h"

namespace draftprobe {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class Compare : public testing::Test {
protected:
    Comparison run(const fixture::ArmData& control, const fixture::ArmData& treated,
                   const CompareOptions& options = {}) {
        const std::string run = std::to_string(++runs_);
        const auto control_path = directory_ / ("control" + run);
        const auto treated_path = directory_ / ("treated" + run);
        for (const auto& [path, data] : {std::pair(control_path, &control), std::pair(treated_path, &treated)}) {
            const Result<std::string> digest = fixture::write_arm(path, *data);
            EXPECT_TRUE(digest.ok()) << digest.status().message();
        }
        Result<Comparison> result = compare_captures(control_path, treated_path, options);
        EXPECT_TRUE(result.ok()) << result.status().message();
        return result.ok() ? *result : Comparison();
    }

    fixture::ArmData control_ = fixture::make_arm(Arm::fresh);
    fixture::ArmData treated_ = fixture::make_arm(Arm::restored);
    TestDirectory directory_;
    int runs_ = 0;
};

LedgerEvent& event_of(fixture::ArmData& data, std::string_view name) {
    for (LedgerEvent& event : data.header.ledger) {
        if (event.event == name) return event;
    }
    std::abort();
}

LedgerComponent& component_of(fixture::ArmData& data, std::string_view event, std::string_view name) {
    for (LedgerComponent& component : event_of(data, event).components) {
        if (component.component == name) return component;
    }
    std::abort();
}

// Proposals differ from position `at` (from 0) on, and the counts follow.
void flip_proposals(StepRecord& step, std::int64_t at) {
    for (std::size_t i = static_cast<std::size_t>(at); i < step.proposals.size(); ++i) step.proposals[i] += 500;
    if (step.accepted > at) fixture::set_accepted(step, at);
}

// ---------------------------------------------------------------------------------------------------------------
// SAME and what must not disturb it

TEST_F(Compare, HealthyRestoreIsSame) {
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::same) << c.why;
    EXPECT_EQ(c.pairs.matched, 6);
    EXPECT_EQ(c.pairs.unmatched_control + c.pairs.unmatched_treated, 0);
    EXPECT_TRUE(c.armed.armed);
    EXPECT_EQ(c.armed.draft_exposure, 192 - (256 - 127));
    EXPECT_FALSE(c.first.has_value());
    EXPECT_EQ(c.draft_drift.max_relative_l2, 0.0);
    EXPECT_EQ(c.draft_drift.rows, 42);
    EXPECT_THAT(c.warnings, IsEmpty());
    EXPECT_EQ(c.level, 3);
}

TEST_F(Compare, EveryLevelJudges) {
    for (int level = 1; level <= 3; ++level) {
        fixture::Options options;
        options.level = level;
        const Comparison c = run(fixture::make_arm(Arm::fresh), fixture::make_arm(Arm::restored, options));
        EXPECT_EQ(c.verdict, Verdict::same) << c.why;
        EXPECT_EQ(c.level, level);
    }
}

TEST_F(Compare, LaneEnvironmentAndControllerDoNotCount) {
    treated_.header.environment = {{"threads", "64"}};
    for (StepRecord& step : treated_.steps) step.lane = 3;
    for (StepRecord& step : treated_.steps)
        step.state_digests.push_back({std::string(kController), std::string(64, 'a')});
    for (StepRecord& step : control_.steps)
        step.state_digests.push_back({std::string(kController), std::string(64, 'b')});
    EXPECT_EQ(run(control_, treated_).verdict, Verdict::same);
}

TEST_F(Compare, ATreatmentThatNamesNothingIsAnError) {
    const auto control = directory_ / "control";
    const auto treated = directory_ / "treated";
    ASSERT_TRUE(fixture::write_arm(control, control_).ok());
    ASSERT_TRUE(fixture::write_arm(treated, treated_).ok());
    const Result<Comparison> result = compare_captures(control, treated, {{"nosuchfield"}});
    EXPECT_EQ(result.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(result.status().message(), HasSubstr("nosuchfield"));
    EXPECT_TRUE(compare_captures(control, treated, {{"settings.numerics", "draft"}}).ok());
}

TEST_F(Compare, DigestsAreComparedWholeThoughShownShort) {
    control_.header.identity.draft = IdentityGroup{std::string(64, 'a'), {}, false};
    treated_.header.identity.draft = IdentityGroup{std::string(63, 'a') + 'b', {}, false};
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::not_comparable);
    ASSERT_EQ(c.refusals.size(), 1u);
    EXPECT_EQ(c.refusals[0].field, "identity.draft");
}

TEST_F(Compare, AnotherBuildIsAWarning) {
    treated_.header.identity.build = fixture::group("other build");
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::same);
    ASSERT_EQ(c.warnings.size(), 1u);
    EXPECT_THAT(c.warnings[0], HasSubstr("different builds"));
}

TEST_F(Compare, NaturalControlIsSameOnCanonicalNumerics) {
    fixture::ArmData natural = fixture::make_arm(Arm::natural);
    natural.header.schedule = {{ForwardKind::prefill, ForwardPhase::resume, "r0", 0, 0, 256, "f32"}};
    natural.header.requests[0].boundary = 0;
    for (StepRecord& step : natural.steps) step.exposure = {};  // no boundary, nothing below it
    natural.header.ledger.erase(natural.header.ledger.begin());
    EXPECT_EQ(run(control_, natural).verdict, Verdict::same);
}

TEST_F(Compare, SameTokensInTheLaneBeforeAreABlindSpot) {
    event_of(treated_, "restore").previous_shared_tokens = 192;
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::same);
    ASSERT_EQ(c.warnings.size(), 1u);
    EXPECT_THAT(c.warnings[0], HasSubstr("blind spot: lane 1 held the same first 192 tokens"));
    event_of(treated_, "restore").previous_shared_tokens = 1;
    EXPECT_THAT(run(control_, treated_).warnings, IsEmpty());
}

// ---------------------------------------------------------------------------------------------------------------
// CHANGED

TEST_F(Compare, ChangedProposalsNameTheFirstPosition) {
    flip_proposals(treated_.steps[1], 2);
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::changed);
    EXPECT_TRUE(c.proposals_changed);
    EXPECT_TRUE(c.acceptance_changed);
    EXPECT_FALSE(c.width_changed);
    EXPECT_FALSE(c.output_changed);
    ASSERT_TRUE(c.first);
    EXPECT_EQ(c.first->stage, "select");
    EXPECT_EQ(c.first->component, "proposals");
    EXPECT_EQ(c.first->cycle, 1);
    EXPECT_EQ(c.first->lane, 1);
    EXPECT_THAT(c.first->detail, HasSubstr("position 3 of 7"));
    EXPECT_EQ(c.paired.first_proposal_difference, (std::vector<std::int64_t>{0, 0, 1}));
}

TEST_F(Compare, HiddenRowsThatFlipNothingAreChangedWithoutAPart) {
    treated_.steps[0].draft_hidden_digests[4] ^= 1;
    treated_.draft_hidden[0][4 * fixture::kHidden] ^= 1;
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::changed);
    EXPECT_FALSE(c.proposals_changed || c.width_changed || c.acceptance_changed || c.output_changed);
    EXPECT_EQ(c.first->component, "draft_hidden");
    EXPECT_EQ(c.draft_drift.rows_different, 1);
    EXPECT_GT(*c.draft_drift.max_relative_l2, 0.0);
    EXPECT_EQ(c.draft_drift.row, 4);
    EXPECT_EQ(*c.target_drift.max_relative_l2, 0.0);
}

TEST_F(Compare, WidthWithEqualRetainedIsNotLostAcceptance) {
    ASSERT_EQ(control_.steps[0].accepted, 3);
    fixture::set_verified(treated_.steps[0], 4);
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::changed);
    EXPECT_TRUE(c.width_changed);
    EXPECT_FALSE(c.acceptance_changed);
    EXPECT_FALSE(c.output_changed);
    EXPECT_EQ(c.first->stage, "width");
}

TEST_F(Compare, NarrowerVerificationCensorsAcceptance) {
    ASSERT_EQ(control_.steps[3].accepted, 5);
    fixture::set_verified(treated_.steps[3], 4);
    treated_.steps.resize(4);
    treated_.draft_hidden.resize(4);
    treated_.target_hidden.resize(4);
    const Comparison c = run(control_, treated_);
    EXPECT_TRUE(c.width_changed);
    EXPECT_FALSE(c.acceptance_changed);
    EXPECT_EQ(c.pairs.control.arm_ended, 2);
}

// D3 (ii): no drafts at all is a change of width, not "acceptance not available".
TEST_F(Compare, NoDraftsIsAWidthChange) {
    StepRecord& step = treated_.steps[2];
    ASSERT_EQ(step.accepted, 0);
    step.drafted = step.offered = 0;
    step.drafted_cut = CutReason::error;
    step.offered_cut = step.accepted_cut = CutReason::none;
    for (auto* list : {&step.proposals, &step.candidate_ids}) list->clear();
    for (auto* list :
         {&step.candidate_scores, &step.q, &step.prefix_confidence, &step.selector_margins, &step.candidate_margins}) {
        list->clear();
    }
    step.draft_hidden_digests.clear();
    step.proposal_source = "none";
    fixture::set_verified(step, 0);
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::changed);
    EXPECT_TRUE(c.width_changed);
    EXPECT_FALSE(c.proposals_changed);
    EXPECT_FALSE(c.acceptance_changed);
    EXPECT_THAT(c.first->detail, HasSubstr("drafted 0"));
}

TEST_F(Compare, AnotherTargetChoiceChangesOutput) {
    StepRecord& step = treated_.steps[2];
    step.target_choices[0] += 7;
    step.next_anchor += 7;
    treated_.steps.resize(3);
    treated_.draft_hidden.resize(3);
    treated_.target_hidden.resize(3);
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::changed);
    EXPECT_TRUE(c.output_changed);
    EXPECT_EQ(c.first->component, "target_choice");
    EXPECT_EQ(c.flips.total, 1);
    EXPECT_EQ(c.flips.near_ties, 0);
    EXPECT_EQ(c.flips.largest_margin, 2.5);
}

TEST_F(Compare, AnotherFirstTokenIsChangedThoughNothingPairs) {
    fixture::Options options;
    for (StepRecord& step : treated_.steps) step.context_hash = fixture::digest_of(step.context_hash);
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::changed);
    EXPECT_EQ(c.pairs.matched, 0);
    EXPECT_TRUE(c.output_changed);
    EXPECT_EQ(c.first->stage, "prefill");
    EXPECT_EQ(c.first->component, "anchor");
}

// A limit may cut acceptance in one arm only: the choices agree, the counts do not.
TEST_F(Compare, AcceptanceCutWhereChoicesAgreeIsNamed) {
    ASSERT_EQ(control_.steps[3].accepted, 5);
    fixture::set_accepted(treated_.steps[3], 4);
    treated_.steps[3].accepted_cut = CutReason::limit;
    treated_.steps[3].censored = true;
    const Comparison c = run(control_, treated_);
    EXPECT_TRUE(c.acceptance_changed);
    EXPECT_THAT(c.first->detail, HasSubstr("though proposals and target choices agree"));
}

// ---------------------------------------------------------------------------------------------------------------
// Only equal inputs are compared

TEST_F(Compare, RowsBehindADifferentProposalAreNotCompared) {
    StepRecord& step = treated_.steps[3];
    step.proposals[5] += 500;  // accepted 5 in both: position 6 was rejected anyway
    step.q[6] += 0.125f;
    step.prefix_confidence[6] = 0.0f;
    step.target_choices[6] += 3;
    step.target_choices[7] += 3;
    step.target_hidden_digests[7] ^= 1;
    step.target_margins[6] = 0.0f;
    const Comparison c = run(control_, treated_);
    EXPECT_TRUE(c.proposals_changed);
    EXPECT_FALSE(c.acceptance_changed);
    EXPECT_EQ(c.flips.total, 1);
    EXPECT_EQ(c.target_drift.rows_different, 0);
    EXPECT_EQ(c.target_drift.rows_input_differs, 2);
    EXPECT_EQ(c.max_confidence_change, 0.0);
}

TEST_F(Compare, ConfidenceAtEqualInputsIsCompared) {
    treated_.steps[3].prefix_confidence[4] += 0.25f;
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::changed);
    EXPECT_EQ(c.first->component, "confidence");
    EXPECT_NEAR(c.max_confidence_change, 0.25, 1e-6);
}

TEST_F(Compare, NotANumberEqualsItself) {
    for (auto* arm : {&control_, &treated_})
        arm->steps[1].prefix_confidence[0] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(run(control_, treated_).verdict, Verdict::same);
    control_.steps[1].prefix_confidence[0] = 0.5f;
    EXPECT_EQ(run(control_, treated_).verdict, Verdict::changed);
}

TEST_F(Compare, RelativeDriftIsExact) {
    auto& row = treated_.target_hidden[1];
    for (std::int64_t i = 0; i < fixture::kHidden; ++i) {
        control_.target_hidden[1][static_cast<std::size_t>(i)] = 0x3f80;  // 1
        row[static_cast<std::size_t>(i)] = 0x3f80;
    }
    row[0] = 0x4000;  // 2: relative L2 1 / sqrt(6)
    const Comparison c = run(control_, treated_);
    EXPECT_DOUBLE_EQ(*c.target_drift.max_relative_l2, 1.0 / std::sqrt(6.0));
    EXPECT_EQ(c.target_drift.cycle, 1);
    EXPECT_EQ(c.target_drift.row, 0);
    row[0] = 0x7fc0;  // NaN
    EXPECT_TRUE(std::isinf(*run(control_, treated_).target_drift.max_relative_l2));
}

// ---------------------------------------------------------------------------------------------------------------
// Pairing

TEST_F(Compare, CyclesAtOtherBoundariesStayUnmatched) {
    flip_proposals(treated_.steps[0], 1);  // accepts 1 instead of 3: lengths 258, then 260 again
    fixture::Options options;
    StepRecord between = fixture::make_step(options, treated_.header, 1, 1, 258, 1, true);
    treated_.steps.insert(treated_.steps.begin() + 1, between);
    treated_.draft_hidden.insert(treated_.draft_hidden.begin() + 1, fixture::hidden_rows(7, 258));
    treated_.target_hidden.insert(treated_.target_hidden.begin() + 1, fixture::hidden_rows(8, 258));
    for (std::size_t i = 2; i < treated_.steps.size(); ++i) ++treated_.steps[i].cycle;
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.pairs.matched, 6);
    EXPECT_EQ(c.pairs.unmatched_treated, 1);
    EXPECT_EQ(c.pairs.treated.cycle_boundaries, 1);
    EXPECT_EQ(c.pairs.differing, 1);
}

TEST_F(Compare, EqualDuplicatesCountOnceAndUnequalOnesAreCorrupt) {
    const auto repeat = [](fixture::ArmData& data, std::size_t at) {
        data.steps.insert(data.steps.begin() + static_cast<std::ptrdiff_t>(at), data.steps[at]);
        data.draft_hidden.insert(data.draft_hidden.begin() + static_cast<std::ptrdiff_t>(at), data.draft_hidden[at]);
        data.target_hidden.insert(data.target_hidden.begin() + static_cast<std::ptrdiff_t>(at), data.target_hidden[at]);
        for (std::size_t i = at + 1; i < data.steps.size(); ++i) ++data.steps[i].cycle;
    };
    repeat(treated_, 2);
    Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::same);
    EXPECT_EQ(c.pairs.duplicates_treated, 1);
    EXPECT_EQ(c.pairs.matched, 6);
    treated_.steps[3].q[0] += 0.125f;
    c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::corrupt);
    EXPECT_EQ(c.corrupt_capture, "treated");
    EXPECT_THAT(c.corruption, HasSubstr("cycles 2 and 3"));
}

TEST_F(Compare, InterleavedLanesPairByRequest) {
    fixture::Options other;
    other.request = "r1";
    other.seed = 2;
    const auto merge = [](fixture::ArmData a, const fixture::ArmData& b, bool b_first) {
        a.header.requests.push_back(b.header.requests[0]);
        for (const auto& call : b.header.schedule) a.header.schedule.push_back(call);
        for (const auto& event : b.header.ledger) a.header.ledger.push_back(event);
        for (const auto& rows : b.header.totals.rows) a.header.totals.rows.push_back(rows);
        fixture::ArmData out = a;
        out.steps.clear();
        out.draft_hidden.clear();
        out.target_hidden.clear();
        for (std::size_t i = 0; i < a.steps.size(); ++i) {
            const fixture::ArmData* order[2] = {b_first ? &b : &a, b_first ? &a : &b};
            for (const fixture::ArmData* data : order) {
                out.steps.push_back(data->steps[i]);
                out.draft_hidden.push_back(data->draft_hidden[i]);
                out.target_hidden.push_back(data->target_hidden[i]);
            }
        }
        return out;
    };
    const Comparison c = run(merge(control_, fixture::make_arm(Arm::fresh, other), false),
                             merge(treated_, fixture::make_arm(Arm::restored, other), true));
    EXPECT_EQ(c.verdict, Verdict::same) << c.why;
    EXPECT_EQ(c.pairs.matched, 12);
}

// ---------------------------------------------------------------------------------------------------------------
// NOT_COMPARABLE

TEST_F(Compare, AllMismatchesAreListed) {
    treated_.header.identity.target = fixture::group("other weights");
    treated_.header.identity.draft = fixture::group("other draft");
    treated_.header.identity.chat_template = {fixture::digest_of("template"), "on", "", ""};
    treated_.header.settings[0].value = "int8";
    treated_.header.settings.push_back({"extra", "1"});
    treated_.header.timing_confounded = true;
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::not_comparable);
    std::vector<std::string> fields;
    for (const Refusal& refusal : c.refusals) fields.push_back(refusal.field);
    EXPECT_THAT(fields, testing::ElementsAre("identity.target", "identity.draft", "identity.template",
                                             "settings.kv_format", "settings.extra", "capture.timing_confounded"));
    EXPECT_EQ(c.refusals[3].control, "bf16");
    EXPECT_EQ(c.refusals[3].treated, "int8");
    EXPECT_EQ(c.refusals[4].control, "not recorded");
}

TEST_F(Compare, OtherPromptsAreNotComparableAndNotQuoted) {
    fixture::Options options;
    options.seed = 9;
    const Comparison c = run(control_, fixture::make_arm(Arm::restored, options));
    EXPECT_EQ(c.verdict, Verdict::not_comparable);
    EXPECT_EQ(c.refusals[0].field, "identity.prompt");
    EXPECT_THAT(c.refusals[0].treated, HasSubstr("256 tokens"));
}

TEST_F(Compare, ThinkingEffortAndTemplateAreIdentity) {
    const TemplateIdentity control = {fixture::digest_of("template"), "on", "low", fixture::digest_of("text")};
    std::string tail = control.digest;
    tail.back() = tail.back() == '0' ? '1' : '0';  // beyond what a report shows
    const TemplateIdentity others[] = {{control.digest, "off", "low", control.rendered_digest},
                                       {control.digest, "on", "", control.rendered_digest},
                                       {tail, "on", "low", control.rendered_digest},
                                       {}};
    control_.header.identity.chat_template = treated_.header.identity.chat_template = control;
    EXPECT_EQ(run(control_, treated_).verdict, Verdict::same);
    for (const TemplateIdentity& other : others) {
        treated_.header.identity.chat_template = other;
        const Comparison c = run(control_, treated_);
        EXPECT_EQ(c.verdict, Verdict::not_comparable);
        ASSERT_FALSE(c.refusals.empty());
        EXPECT_EQ(c.refusals[0].field, "identity.template");
        EXPECT_THAT(c.refusals[0].control, HasSubstr("thinking=on effort=low"));
    }
    // Another text is another prompt, even when its ids are the same; no digest of it is shown.
    treated_.header.identity.chat_template = control;
    treated_.header.identity.chat_template.rendered_digest = fixture::digest_of("another text");
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::not_comparable);
    ASSERT_EQ(c.refusals.size(), 1u);
    EXPECT_EQ(c.refusals[0].field, "identity.prompt");
    EXPECT_THAT(c.refusals[0].treated, testing::Not(HasSubstr(fixture::digest_of("another text").substr(0, 8))));
    EXPECT_EQ(run(control_, treated_, {{"prompt"}}).verdict, Verdict::same);
}

TEST_F(Compare, DeclaredTreatmentIsAllowed) {
    treated_.header.settings[0].value = "int8";
    EXPECT_EQ(run(control_, treated_).verdict, Verdict::not_comparable);
    const Comparison c = run(control_, treated_, {{"kv_format"}});
    EXPECT_EQ(c.verdict, Verdict::same);
    EXPECT_THAT(c.declared, testing::ElementsAre("settings.kv_format"));
    EXPECT_EQ(run(control_, treated_, {{"numerics"}}).verdict, Verdict::not_comparable);
}

TEST_F(Compare, ADeclaredDraftCoversWhatIsReadFromIt) {
    fixture::Options options;
    options.window = 96;
    treated_ = fixture::make_arm(Arm::restored, options);
    treated_.header.settings = control_.header.settings;
    control_.header.settings.push_back({"draft.window", "128"});
    treated_.header.settings.push_back({"draft.window", "96"});
    treated_.header.settings.push_back({"draft.extra", "1"});
    treated_.header.identity.draft = fixture::group("other draft");
    treated_.shape.block = 9;
    for (StepRecord& step : treated_.steps) step.drafted_cut = CutReason::budget;
    for (auto& rows : treated_.draft_hidden) rows.resize(rows.size() + fixture::kHidden);
    const Comparison undeclared = run(control_, treated_);
    EXPECT_EQ(undeclared.verdict, Verdict::not_comparable);
    std::vector<std::string> fields;
    for (const Refusal& refusal : undeclared.refusals) fields.push_back(refusal.field);
    const std::vector<std::string> expected = {"identity.draft", "settings.draft.window", "settings.draft.extra",
                                               "request.window", "capture.block"};
    EXPECT_EQ(fields, expected);
    for (const char* treatment : {"draft", "identity.draft"}) {
        const Comparison declared = run(control_, treated_, {{treatment}});
        EXPECT_THAT(declared.refusals, IsEmpty()) << treatment;
        EXPECT_EQ(declared.verdict, Verdict::changed) << declared.why;  // another exposure
        EXPECT_EQ(declared.drift_explained_by, "") << "another draft explains no drift";
        EXPECT_THAT(declared.declared, testing::UnorderedElementsAreArray(expected));
    }
    // A draft does not cover how the run was set up.
    treated_.header.settings[0].value = "int8";
    EXPECT_EQ(run(control_, treated_, {{"draft"}}).verdict, Verdict::not_comparable);
}

// ---------------------------------------------------------------------------------------------------------------
// NOT_RESTORED, CONTAMINATED, INSUFFICIENT, CORRUPT

TEST_F(Compare, RecomputedPrefixIsNotRestored) {
    for (ForwardCall& call : treated_.header.schedule) call.phase = ForwardPhase::resume;
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::not_restored);
    EXPECT_EQ(c.armed.recomputed_rows, 192);
    EXPECT_THAT(c.why, HasSubstr("positions repeat"));
}

TEST_F(Compare, ClaimedRestoreWithoutRestoredRowsIsNotRestored) {
    for (ComponentRows& rows : treated_.header.totals.rows) rows = {"r0", rows.component, 256, 0, 0, 0};
    EXPECT_EQ(run(control_, treated_).verdict, Verdict::not_restored);
}

TEST_F(Compare, GapAfterTheBoundaryIsNotRestored) {
    treated_.header.schedule.back().start += 8;
    treated_.header.schedule.back().rows -= 8;
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::not_restored);
    EXPECT_THAT(c.why, HasSubstr("[192, 200) were neither restored nor computed"));
}

// D5: the suffix is fed with a part of the prefix again, or a chunk twice.
TEST_F(Compare, RepeatedPositionsAreNamed) {
    ForwardCall again = treated_.header.schedule.back();
    again.start += 16;
    again.rows = 8;
    treated_.header.schedule.push_back(again);
    Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::not_restored);
    EXPECT_THAT(c.why, HasSubstr("positions [208, 216) twice: positions repeat"));
    control_.header.schedule.push_back(control_.header.schedule.front());
    c = run(control_, fixture::make_arm(Arm::restored));
    EXPECT_EQ(c.verdict, Verdict::contaminated);
    EXPECT_THAT(c.why, HasSubstr("positions [0, 128) twice"));
}

TEST_F(Compare, ControlServedFromACacheIsContaminated) {
    control_.header.totals.rows[0] = {"r0", std::string(kTargetKv), 64, 192, 0, 0};
    Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::contaminated);
    EXPECT_THAT(c.why, HasSubstr("the control arm is not fresh"));
    control_ = fixture::make_arm(Arm::fresh);
    control_.header.schedule.erase(control_.header.schedule.begin());
    c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::contaminated);
    EXPECT_THAT(c.why, HasSubstr("never computed positions [0, 128)"));
}

TEST_F(Compare, CarriedRowsInTheControlsDraftAreContamination) {
    Exposure& exposure = control_.steps[0].exposure;
    exposure.carried = 1;
    exposure.computed -= 1;
    EXPECT_EQ(run(control_, treated_).verdict, Verdict::contaminated);
}

TEST_F(Compare, InvisibleRestoreIsInsufficientAndStillReportsTheTarget) {
    fixture::Options options;
    options.prompt = 320;
    options.window = 128;
    options.boundary = 192;
    fixture::ArmData control = fixture::make_arm(Arm::fresh, options);
    fixture::ArmData treated = fixture::make_arm(Arm::restored, options);
    Comparison c = run(control, treated);
    EXPECT_EQ(c.verdict, Verdict::insufficient);
    EXPECT_EQ(c.armed.draft_exposure, 0);
    EXPECT_THAT(c.armed.advice, HasSubstr("less than 127 tokens before the end of the prompt"));
    EXPECT_FALSE(c.first.has_value());
    treated.steps[0].target_hidden_digests[0] ^= 1;
    c = run(control, treated);
    EXPECT_EQ(c.verdict, Verdict::insufficient);
    EXPECT_EQ(c.first->component, "target_hidden");
    // A window that slid past the boundary has no restored row left: still a matter of exposure.
    for (ComponentRows& rows : treated.header.totals.rows) {
        if (rows.component == kDraftContext) rows = {"r0", rows.component, 127, 0, 0, 0};
    }
    EXPECT_EQ(run(control, treated).verdict, Verdict::insufficient);
    options.boundary = 224;  // 96 tokens before the end: 31 visible
    EXPECT_EQ(run(fixture::make_arm(Arm::fresh, options), fixture::make_arm(Arm::restored, options)).verdict,
              Verdict::same);
}

TEST_F(Compare, NothingMatchedIsInsufficient) {
    treated_.steps.clear();
    treated_.draft_hidden.clear();
    treated_.target_hidden.clear();
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::insufficient);
    EXPECT_EQ(c.pairs.unmatched_control, 6);
}

TEST_F(Compare, AnArmThatEndsEarlyIsInsufficientAndNotTheSame) {
    treated_.steps.pop_back();
    treated_.draft_hidden.pop_back();
    treated_.target_hidden.pop_back();
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::insufficient);
    EXPECT_EQ(c.pairs.unmatched_control, 1);
    EXPECT_THAT(c.why, HasSubstr("ended before the other"));
}

TEST_F(Compare, InjectedFaultsAndSwappedArmsAreSaid) {
    treated_.header.treatment.faults = {"context-shift=32"};
    EXPECT_THAT(run(control_, treated_).warnings, testing::Contains(HasSubstr("injected fault: context-shift=32")));
    EXPECT_THAT(run(treated_, control_).warnings, testing::Contains(HasSubstr("look swapped")));
    treated_.header.treatment.faults.clear();
    EXPECT_THAT(run(control_, treated_).warnings, testing::Not(testing::Contains(HasSubstr("injected"))));
}

TEST_F(Compare, TotalsAloneAreInsufficientAndHaveNoSurvival) {
    fixture::Options options;
    options.level = 0;
    const Comparison c = run(fixture::make_arm(Arm::fresh, options), fixture::make_arm(Arm::restored, options));
    EXPECT_EQ(c.verdict, Verdict::insufficient);
    EXPECT_FALSE(c.control.survival.has_value());
    EXPECT_THAT(c.survival_refused, HasSubstr("totals only"));
    EXPECT_EQ(c.control.accepted, 23);
}

TEST_F(Compare, DamagedCaptureIsCorrupt) {
    ASSERT_TRUE(fixture::write_arm(directory_ / "a", control_).ok());
    ASSERT_TRUE(fixture::write_arm(directory_ / "b", treated_).ok());
    std::ofstream(directory_ / "b" / "steps.jsonl", std::ios::app) << "{}\n";
    Result<Comparison> c = compare_captures(directory_ / "a", directory_ / "b", {});
    ASSERT_TRUE(c.ok());
    EXPECT_EQ(c->verdict, Verdict::corrupt);
    EXPECT_EQ(c->corrupt_capture, "treated");
    EXPECT_EQ(compare_captures(directory_ / "a", directory_ / "none", {}).status().code(), StatusCode::not_found);
}

// ---------------------------------------------------------------------------------------------------------------
// DRIFT: a recorded cause, and near-ties only

class CompareDrift : public Compare {
protected:
    // A schedule-sensitive pair whose chunks were cut elsewhere, with a small difference everywhere.
    void SetUp() override {
        fixture::Options options;
        options.numerics = "schedule-sensitive";
        control_ = fixture::make_arm(Arm::fresh, options);
        treated_ = fixture::make_arm(Arm::restored, options);
        move_schedule();
        for (auto& digest : treated_.steps[2].target_hidden_digests) digest ^= 1;
        for (auto& event : treated_.header.ledger) {
            for (auto& component : event.components) component.digest = fixture::digest_of(component.digest);
        }
    }
    void move_schedule() {
        treated_.header.schedule[0].rows -= 32;
        treated_.header.schedule[1].start -= 32;
        treated_.header.schedule[1].rows += 32;
    }
    void flip_target(float margin) {
        for (auto* arm : {&control_, &treated_}) arm->steps[2].target_margins[0] = margin;
        treated_.steps[2].target_choices[0] += 7;
        treated_.steps[2].next_anchor += 7;
        treated_.steps.resize(3);
        treated_.draft_hidden.resize(3);
        treated_.target_hidden.resize(3);
    }
};

TEST_F(CompareDrift, MovedScheduleIsDrift) {
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::drift) << c.why;
    EXPECT_EQ(c.drift_explained_by, "forward calls cut differently");
}

TEST_F(CompareDrift, NearTieFlipIsDrift) {
    flip_target(0.1f);
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::drift) << c.why;
    EXPECT_EQ(c.flips.near_ties, 1);
    EXPECT_TRUE(c.output_changed);
}

TEST_F(CompareDrift, FlipWithALargeMarginIsChanged) {
    flip_target(4.0f);
    EXPECT_EQ(run(control_, treated_).verdict, Verdict::changed);
}

TEST_F(CompareDrift, FlipWithoutRecordedThresholdsIsChanged) {
    flip_target(0.1f);
    control_.header.near_tie.reset();
    EXPECT_EQ(run(control_, treated_).verdict, Verdict::changed);
}

TEST_F(CompareDrift, SameScheduleLeavesNothingToExplainIt) {
    treated_.header.schedule[0].rows += 32;
    treated_.header.schedule[1].start += 32;
    treated_.header.schedule[1].rows -= 32;
    EXPECT_EQ(run(control_, treated_).verdict, Verdict::changed);
}

TEST_F(CompareDrift, CanonicalNumericsDoNotDrift) {
    for (auto* arm : {&control_, &treated_}) arm->header.settings[1].value = "f32";
    EXPECT_EQ(run(control_, treated_).verdict, Verdict::changed);
}

// D5: a stale mirror together with a moved schedule is a fault first and drift second.
TEST_F(CompareDrift, StaleRowsAreChangedWhateverTheSchedule) {
    component_of(treated_, "restore", kDraftContext).digest = fixture::digest_of("stale");
    const Comparison c = run(control_, treated_);
    EXPECT_EQ(c.verdict, Verdict::changed);
    EXPECT_THAT(
        c.why,
        HasSubstr("second, DRIFT: forward calls cut differently (from stage 'materialise', component 'target_kv' on)"));
}

TEST_F(CompareDrift, DeclaredFormatIsDrift) {
    control_ = fixture::make_arm(Arm::fresh);
    treated_ = fixture::make_arm(Arm::repeat);
    treated_.header.settings[0].value = "int8";
    treated_.steps[4].target_hidden_digests[1] ^= 1;
    EXPECT_EQ(run(control_, treated_, {{"kv_format"}}).verdict, Verdict::drift);
}

TEST_F(CompareDrift, FourBitRowsAreAFormatDifference) {
    control_ = fixture::make_arm(Arm::fresh);
    treated_ = fixture::make_arm(Arm::restored);
    treated_.header.treatment.restore_draft = "rows-q4";
    component_of(treated_, "restore", kDraftContext).digest = fixture::digest_of("q4");
    for (auto& digest : event_of(treated_, "restore").row_digests) digest = fixture::mix(digest, 4);
    EXPECT_EQ(run(control_, treated_).verdict, Verdict::drift);
    treated_.header.treatment.restore_draft = "exact";
    EXPECT_EQ(run(control_, treated_).verdict, Verdict::changed);
}

}  // namespace
}  // namespace draftprobe
