// What the ledger gives away: shifts, unwritten rows, wrong labels, missing parts; and the statistics of acceptance.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capture/test_capture.h"
#include "compare/acceptance.h"
#include "compare/ledger_diff.h"
#include "compare/series.h"
#include "compare/shift_search.h"

namespace draftprobe {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr Position kRows = 511;

// Control rows moved by `shift`; where nothing lands, the previous occupant's rows stay.
std::vector<std::uint64_t> shifted_rows(std::int64_t shift) {
    std::vector<std::uint64_t> rows;
    for (Position p = 0; p < kRows; ++p) {
        const Position q = p - shift;
        rows.push_back(q >= 0 && q < kRows ? fixture::row_digest(q)
                                           : fixture::mix(static_cast<std::uint64_t>(p), 1234));
    }
    return rows;
}

class ShiftSearch : public testing::TestWithParam<std::int64_t> {};

TEST_P(ShiftSearch, FindsTheShift) {
    const std::vector<std::uint64_t> control = fixture::row_digests(0, kRows);
    const std::vector<std::uint64_t> treated = shifted_rows(GetParam());
    const auto shift = find_constant_shift({0, control}, {0, treated});
    ASSERT_TRUE(shift);
    EXPECT_EQ(shift->tokens, GetParam());
    EXPECT_EQ(shift->matching, kRows - std::abs(GetParam()));
}

TEST_P(ShiftSearch, IsNamedByTheLedger) {
    fixture::Options options;
    options.prompt = 600;
    options.boundary = kRows;
    options.window = 1024;
    const CaptureHeader control = fixture::make_arm(Arm::fresh, options).header;
    CaptureHeader treated = fixture::make_arm(Arm::restored, options).header;
    for (LedgerEvent& event : treated.ledger) {
        if (event.event != "restore") continue;
        event.row_digests = shifted_rows(GetParam());
        for (LedgerComponent& c : event.components) {
            if (c.component != kDraftContext) continue;
            c.digest = fixture::digest_of("shifted");
            c.rows_written = kRows - std::abs(GetParam());
        }
    }
    Findings findings;
    const LedgerVerdict verdict = compare_ledgers(control, treated, findings);
    EXPECT_TRUE(verdict.hard);
    EXPECT_EQ(verdict.shift_tokens, GetParam());
    ASSERT_TRUE(findings.first());
    EXPECT_EQ(findings.first()->stage, "restore");
    EXPECT_EQ(findings.first()->component, "draft_context");
    EXPECT_EQ(findings.first()->lane, 1);
    EXPECT_FALSE(findings.first()->cycle.has_value());
    const std::int64_t good = kRows - std::abs(GetParam());
    EXPECT_EQ(
        findings.first()->detail,
        fmt::format("rows shifted by {:+}: {} of 511 rows hold the control's row of {} positions {}; claimed 511, "
                    "written {}",
                    GetParam(), good, std::abs(GetParam()), GetParam() > 0 ? "earlier" : "later", good));
}

INSTANTIATE_TEST_SUITE_P(Shifts, ShiftSearch, testing::Values(1, 5, 31, 32, 33, -7));

TEST(ShiftSearchLimits, EqualRowsHaveNoShift) {
    const std::vector<std::uint64_t> rows = fixture::row_digests(0, 64);
    EXPECT_FALSE(find_constant_shift({0, rows}, {0, rows}));
}

TEST(ShiftSearchLimits, NoiseHasNoShift) {
    const std::vector<std::uint64_t> control = fixture::row_digests(0, 64);
    std::vector<std::uint64_t> treated(64);
    for (std::size_t i = 0; i < 64; ++i) treated[i] = fixture::mix(i, 999);
    treated[10] = control[7];
    treated[20] = control[17];
    EXPECT_FALSE(find_constant_shift({0, control}, {0, treated}));
}

TEST(ShiftSearchLimits, RowsThatAgreeDoNotHideAShiftOfTheRest) {
    const std::vector<std::uint64_t> control = fixture::row_digests(0, 256);
    std::vector<std::uint64_t> treated = control;
    for (Position p = 200; p < 256; ++p) treated[static_cast<std::size_t>(p)] = fixture::row_digest(p - 3);
    EXPECT_EQ(find_constant_shift({0, control}, {0, treated})->tokens, 3);
}

TEST(ShiftSearchLimits, RepeatedRowsDoNotInventAShift) {
    std::vector<std::uint64_t> control(128, 42);
    for (std::size_t i = 0; i < 64; ++i) control[i] = fixture::row_digest(static_cast<Position>(i));
    std::vector<std::uint64_t> treated = control;
    for (std::size_t i = 0; i < 32; ++i) treated[i] = 42;
    const auto shift = find_constant_shift({0, control}, {0, treated});
    EXPECT_FALSE(shift && shift->matching > 32);
}

TEST(ShiftSearchLimits, LongerContextThanPositionsIsSeen) {
    const std::vector<std::uint64_t> control = fixture::row_digests(0, 42);
    const std::vector<std::uint64_t> treated = fixture::row_digests(-32, 42);  // 74 rows, claimed from 0
    const auto shift = find_constant_shift({0, control}, {0, treated});
    ASSERT_TRUE(shift);
    EXPECT_EQ(shift->tokens, 32);
}

TEST(ShiftSearchLimits, OneWrongRowIsLocatedNotShifted) {
    const std::vector<std::uint64_t> control = fixture::row_digests(0, 200);
    std::vector<std::uint64_t> treated = control;
    treated[171] = fixture::row_digest(180);
    EXPECT_FALSE(find_constant_shift({0, control}, {0, treated}));
    EXPECT_EQ(position_of_row({0, control}, {0, treated}, 171), 180);
}

class Ledger : public testing::Test {
protected:
    LedgerComponent& part(std::string_view event, std::string_view name) {
        for (LedgerEvent& e : treated_.ledger) {
            if (e.event != event) continue;
            for (LedgerComponent& c : e.components) {
                if (c.component == name) return c;
            }
        }
        std::abort();
    }
    LedgerEvent& restore() {
        for (LedgerEvent& e : treated_.ledger) {
            if (e.event == "restore") return e;
        }
        std::abort();
    }
    LedgerVerdict run() {
        findings_ = {};
        return compare_ledgers(control_, treated_, findings_);
    }
    const CaptureHeader control_ = fixture::make_arm(Arm::fresh).header;
    CaptureHeader treated_ = fixture::make_arm(Arm::restored).header;
    Findings findings_;
};

TEST_F(Ledger, HealthyRestoreHasNoDifference) {
    const LedgerVerdict verdict = run();
    EXPECT_EQ(verdict.differences, 0) << findings_.first()->detail;
    EXPECT_FALSE(verdict.hard);
}

// D1: poison left where nobody wrote.
TEST_F(Ledger, ClaimedButUnwrittenRowsAreNamed) {
    part("restore", kDraftContext).rows_written = 0;
    EXPECT_TRUE(run().hard);
    EXPECT_EQ(findings_.first()->component, "draft_context");
    EXPECT_EQ(findings_.first()->detail, "192 rows claimed, 0 written; logical offset 192, fill 0");
    EXPECT_EQ(run().unwritten, "draft_context");
}

// D1, masked twin: less context by declaration is not an unwritten row.
TEST_F(Ledger, MaskedRowsAreADeclaration) {
    treated_.treatment.restore_draft = "masked";
    LedgerComponent& rows = part("restore", kDraftContext);
    rows.rows_claimed = rows.rows_written = 0;
    rows.digest.clear();
    restore().row_digests.clear();
    part("restore", kDraftRing).rows_claimed = part("restore", kDraftRing).rows_written = 0;
    part("restore", kDraftRing).digest.clear();
    EXPECT_FALSE(run().hard);
    EXPECT_THAT(findings_.first()->detail, StartsWith("context shortened by declaration (masked)"));
}

// D3 (i).
TEST_F(Ledger, MissingComponentIsNamed) {
    std::erase_if(restore().components, [](const LedgerComponent& c) { return c.component == kDraftRing; });
    EXPECT_TRUE(run().hard);
    EXPECT_EQ(findings_.first()->component, "draft_ring");
    EXPECT_THAT(findings_.first()->detail, HasSubstr("missing"));
}

// D6.
TEST_F(Ledger, StateBeyondItsLabelIsNamed) {
    for (std::string_view event : {"snapshot", "restore"}) {
        LedgerComponent& c = part(event, kRecurrent);
        c.last = c.rows_claimed = c.rows_written = 194;
        c.digest = fixture::digest_of("recurrent 194");
    }
    EXPECT_TRUE(run().hard);
    EXPECT_EQ(findings_.first()->stage, "snapshot");
    EXPECT_EQ(findings_.first()->component, "recurrent");
    EXPECT_EQ(findings_.first()->detail, "covers 194, labelled 192");
}

TEST_F(Ledger, PositionBaseIsNamed) {
    part("restore", kTargetKv).base = 32;
    EXPECT_TRUE(run().hard);
    EXPECT_EQ(findings_.first()->detail, "position base 32, expected 0");
}

TEST_F(Ledger, TargetComesBeforeDraftAndEarlierStagesFirst) {
    part("restore", kDraftContext).digest = fixture::digest_of("x");
    part("restore", kTargetKv).digest = fixture::digest_of("y");
    run();
    EXPECT_EQ(findings_.first()->component, "target_kv");
    part("snapshot", kDraftContext).digest = fixture::digest_of("x");
    run();
    EXPECT_EQ(findings_.first()->stage, "snapshot");
    EXPECT_EQ(findings_.first()->component, "draft_context");
}

// D4.
TEST_F(Ledger, PairingOfOneRowIsNamed) {
    restore().row_digests[171] = restore().row_digests[180];
    EXPECT_TRUE(run().hard);
    EXPECT_THAT(findings_.first()->detail, StartsWith("pairing: expected row 171, got row 180; 1 of 192 rows differ"));
}

TEST_F(Ledger, RecomputedWindowNeedsOnlyItsOwnRows) {
    treated_.treatment.restore_draft = "recompute";
    treated_.treatment.recompute_start = 0;
    LedgerEvent& event = restore();
    event.row_digests.erase(event.row_digests.begin(), event.row_digests.begin() + 64);
    event.row_first = 64;
    LedgerComponent& c = part("restore", kDraftContext);
    c.first = 64;
    c.rows_claimed = c.rows_written = 128;
    c.digest = fixture::digest_of("context [64, 192)");
    EXPECT_EQ(run().differences, 0);
}

// ---------------------------------------------------------------------------------------------------------------
// Acceptance (D9: pure arithmetic)

StepRecord counts(std::int64_t drafted, std::int64_t accepted, std::int64_t retained) {
    StepRecord s;
    s.drafted = s.offered = s.verified = drafted;
    s.accepted = accepted;
    s.retained = s.emitted = retained;
    return s;
}

TEST(Acceptance, CommittedTokensAndCensoring) {
    SurvivalCounter counter;
    ArmAcceptance arm;
    for (const StepRecord& s :
         {counts(7, 7, 8), counts(7, 2, 3), counts(7, 5, 3), counts(0, 0, 1), counts(4, 4, 5), counts(7, 3, 2)}) {
        counter.add(s);
        add_step(s, arm);
    }
    EXPECT_EQ(arm.lane_cycles, 6);
    EXPECT_EQ(arm.drafted, 32);
    EXPECT_EQ(arm.accepted, 21);
    EXPECT_EQ(arm.retained, 22);
    EXPECT_NEAR(arm.mean_retained(), 22.0 / 6.0, 1e-12);
    const Survival survival = counter.estimate();
    EXPECT_THAT(survival.at_risk, testing::ElementsAre(5, 5, 4, 2, 1, 1, 1));
    EXPECT_THAT(survival.rejected, testing::ElementsAre(0, 0, 1, 0, 0, 0, 0));
    EXPECT_THAT(survival.survival, testing::ElementsAre(1, 1, 0.75, 0.75, 0.75, 0.75, 0.75));
}

TEST(Acceptance, EmptyAndAllRejected) {
    SurvivalCounter counter;
    EXPECT_TRUE(counter.estimate().at_risk.empty());
    counter.add(counts(7, 0, 1));
    counter.add(counts(7, 0, 1));
    const Survival survival = counter.estimate();
    EXPECT_THAT(survival.at_risk, testing::ElementsAre(2));
    EXPECT_THAT(survival.survival, testing::ElementsAre(0.0));
}

TEST(Acceptance, PairedCountsOnlyPositionsSeenInBoth) {
    PairedAcceptance paired;
    add_pair(counts(7, 5, 6), counts(7, 2, 3), paired);  // seen to 6 and to 3
    add_pair(counts(7, 7, 8), counts(3, 3, 4), paired);  // seen to 7 and to 3
    EXPECT_THAT(paired.at_risk, testing::ElementsAre(2, 2, 2));
    EXPECT_THAT(paired.accepted_control, testing::ElementsAre(2, 2, 2));
    EXPECT_THAT(paired.accepted_treated, testing::ElementsAre(2, 2, 1));
}

TEST(Acceptance, PopulationEffectIsRepeatableAndBrackets) {
    const auto estimate = [] {
        PromptMeans effects;
        for (std::size_t prompt = 0; prompt < 12; ++prompt) {
            for (int cycle = 0; cycle < 4; ++cycle) effects.add(prompt, prompt % 2 == 0 ? -1.0 : -2.0);
        }
        return effect_over_prompts(effects.means());
    };
    const PopulationEffect effect = estimate();
    EXPECT_EQ(effect.prompts, 12);
    EXPECT_DOUBLE_EQ(effect.difference, -1.5);
    EXPECT_LT(effect.low, -1.5);
    EXPECT_GT(effect.high, -1.5);
    EXPECT_GT(effect.minimum_detectable, 0.3);
    EXPECT_EQ(effect.low, estimate().low);
    EXPECT_EQ(effect.claim(), "lower");
    EXPECT_LT(effect.p_value, 0.01);
}

TEST(Series, StaysBoundedAndKeepsMaximaAndSums) {
    Series series;
    for (std::int64_t i = 0; i < 5000; ++i) {
        SeriesPoint point;
        point.first_cycle = i;
        point.pairs = 1;
        point.draft_drift = i == 3777 ? 9 : 1;
        point.verified_control = 2;
        series.add(point);
    }
    const std::vector<SeriesPoint> points = series.take();
    EXPECT_LE(points.size(), Series::kPoints);
    for (std::size_t i = 1; i + 1 < points.size(); ++i) EXPECT_EQ(points[i].pairs, points[0].pairs);
    double worst = 0;
    std::int64_t verified = 0;
    std::int64_t pairs = 0;
    for (const SeriesPoint& point : points) {
        worst = std::max(worst, point.draft_drift);
        verified += point.verified_control;
        pairs += point.pairs;
    }
    EXPECT_EQ(worst, 9);
    EXPECT_EQ(pairs, 5000);
    EXPECT_EQ(verified, 10000);
}

}  // namespace
}  // namespace draftprobe
