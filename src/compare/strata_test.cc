// Statistics by stratum: nothing is pooled silently, small samples make no claim, and censoring is bounded.
#include "compare/strata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capture/test_capture.h"

namespace draftprobe {
namespace {

using testing::ElementsAre;

StepRecord counts(std::int64_t verified, std::int64_t accepted) {
    StepRecord s;
    s.drafted = s.offered = 7;
    s.verified = verified;
    s.accepted = accepted;
    s.retained = s.emitted = accepted + 1;
    return s;
}

double uniform(std::uint64_t& state) {
    state = fixture::mix(state, 31);
    return static_cast<double>(state >> 11) / 9007199254740992.0;
}

std::int64_t matches(std::uint64_t& state, double late) {
    std::int64_t n = 0;
    while (n < 7 && uniform(state) < (n >= 4 ? late : 0.95)) ++n;
    return n;
}

// D8: the match rate falls by 0.1 at positions 5 to 7 only.
std::vector<PositionEffect> planted(std::size_t prompts, int cycles) {
    std::uint64_t state = 5;
    PositionEffects effects;
    for (std::size_t prompt = 0; prompt < prompts; ++prompt) {
        for (int cycle = 0; cycle < cycles; ++cycle) {
            effects.add(prompt, counts(7, matches(state, 0.9)), counts(7, matches(state, 0.8)));
        }
    }
    return effects.estimate();
}

TEST(PositionEffects, LocateALossThatIsLargeEnoughToSee) {
    const std::vector<PositionEffect> positions = planted(400, 12);
    ASSERT_EQ(positions.size(), 7u);
    for (const PositionEffect& p : positions) {
        ASSERT_TRUE(p.effect.has_value());
        EXPECT_EQ(p.effect->claim(), p.position >= 5 ? "lower" : "insufficient") << p.position;
        EXPECT_EQ(*p.adjusted_p < 0.05, p.position >= 5) << p.position;
        EXPECT_GE(*p.adjusted_p, p.effect->p_value);
    }
    EXPECT_NEAR(positions[4].effect->difference, -0.1, 0.03);
}

TEST(PositionEffects, ThirtyDraftsAreTooFewAndSayHowLargeALossWouldShow) {
    for (const PositionEffect& p : planted(30, 1)) {
        if (!p.effect) continue;
        EXPECT_GT(*p.adjusted_p, 0.05) << p.position;
        if (p.position >= 5) {
            EXPECT_GT(p.effect->minimum_detectable, 0.1) << p.position;
        }
    }
    for (const PositionEffect& p : planted(9, 30)) EXPECT_FALSE(p.effect.has_value());
}

TEST(Bands, HaveNoGaps) {
    StepRecord step;
    step.length = 1000;
    const auto band = [&](std::int64_t seen) {
        step.exposure.total = seen;
        return std::string(exposure_band(step, 129));
    };
    EXPECT_EQ(band(0), "0 %");
    EXPECT_EQ(band(1), "1-25 %");
    EXPECT_EQ(band(32), "1-25 %");
    EXPECT_EQ(band(33), "26-50 %");
    EXPECT_EQ(band(65), "51-75 %");
    EXPECT_EQ(band(97), "76-100 %");
    EXPECT_EQ(band(128), "76-100 %");
    EXPECT_EQ(distance_band(223, 192), "0-31");
    EXPECT_EQ(distance_band(224, 192), "32-127");
    EXPECT_EQ(distance_band(704, 192), "512 or more");
}

// C1: only what came from the host tier is hurt.
TEST(Strata, AFaultOfOneTierShowsInItsCellAlone) {
    StrataCounter strata;
    CapturedRequest request;
    request.boundary = 192;
    request.window = 128;
    for (std::size_t prompt = 0; prompt < 24; ++prompt) {
        const bool host = prompt % 2 == 1;
        StepRecord control = counts(7, 4);
        StepRecord treated = counts(7, host ? 1 : 4);
        control.length = treated.length = 256;
        treated.exposure.total = 64;
        strata.add(prompt, control, treated, request, host ? "disk" : "memory", host);
    }
    const std::vector<Cell> cells = strata.estimate();
    ASSERT_EQ(cells.size(), 4u);
    EXPECT_EQ(cells[0].dimension, "exposure");
    EXPECT_EQ(cells[0].band, "51-75 %");
    EXPECT_EQ(cells[1].dimension, "distance");
    EXPECT_EQ(cells[1].band, "32-127");
    EXPECT_EQ(cells[2].band, "disk");
    EXPECT_EQ(cells[2].differing, 12);
    EXPECT_EQ(cells[2].effect->claim(), "lower");
    EXPECT_DOUBLE_EQ(cells[2].effect->difference, -3);
    EXPECT_EQ(cells[2].accepted_treated, 12);
    EXPECT_EQ(cells[2].accepted_control, 24);  // two positions were seen in both
    EXPECT_EQ(cells[3].band, "memory");
    EXPECT_EQ(cells[3].differing, 0);
    EXPECT_EQ(cells[3].effect->claim(), "insufficient");
    EXPECT_EQ(cells[3].effect->minimum_detectable, 0);
}

TEST(Holm, StepsDownWithinADimension) {
    std::vector<Cell> cells(4);
    const double p[] = {0.04, 0.01, 0.03, 0.04};
    for (std::size_t i = 0; i < 4; ++i) {
        cells[i].dimension = i < 3 ? "exposure" : "tier";
        cells[i].effect = PopulationEffect{};
        cells[i].effect->p_value = p[i];
    }
    adjust_by_holm(cells);
    EXPECT_DOUBLE_EQ(*cells[1].adjusted_p, 0.03);
    EXPECT_DOUBLE_EQ(*cells[2].adjusted_p, 0.06);
    EXPECT_DOUBLE_EQ(*cells[0].adjusted_p, 0.06);
    EXPECT_DOUBLE_EQ(*cells[3].adjusted_p, 0.04);
}

TEST(Reliability, CountsKnownOutcomesOnly) {
    ReliabilityCounter counter;
    StepRecord step = counts(7, 2);
    step.prefix_confidence = {0.95f, 0.85f, 0.5f, 0.25f, 0.125f, 0.05f, 0.0f};
    counter.add(step, 0);  // 2 matched; the rejection settles the other five
    step = counts(3, 3);
    step.prefix_confidence = {0.95f, 0.85f, 0.5f, 0.25f, 0.125f, 0.05f, 0.0f};
    counter.add(step, 0);  // 3 matched, nothing known behind
    step.prefix_confidence.clear();
    counter.add(step, 0);
    const std::vector<Reliability> bands = counter.take("control");
    ASSERT_EQ(bands.size(), 1u);
    const Reliability& r = bands[0];
    EXPECT_EQ(r.arm, "control");
    EXPECT_EQ(r.positions, 10);
    EXPECT_EQ(r.buckets[9].positions, 2);
    EXPECT_EQ(r.buckets[9].matched, 2);
    EXPECT_EQ(r.buckets[5].positions, 2);
    EXPECT_EQ(r.buckets[5].matched, 1);
    EXPECT_EQ(r.buckets[0].matched, 0);
    const double expected = (2 * (0.05 * 0.05 + 0.15 * 0.15) + 0.25 + 0.25 + 0.0625 + 0.015625 + 0.0025) / 10;
    EXPECT_NEAR(r.brier(), expected, 1e-7);
    EXPECT_EQ(r.widths.at(7).cycles, 1);
    EXPECT_NEAR(r.widths.at(7).predicted, 3.725, 1e-6);
    EXPECT_DOUBLE_EQ(r.widths.at(7).realised, 3);
    EXPECT_NEAR(r.widths.at(3).predicted, 3.3, 1e-6);
    EXPECT_DOUBLE_EQ(r.widths.at(3).realised, 4);
}

// A budget that stops where confidence is low leaves exactly those positions unknown.
TEST(Hazards, UnknownPositionsWidenTheBounds) {
    HazardCounter counter;
    for (int i = 0; i < 4; ++i) {
        StepRecord step = counts(1, i == 0 ? 0 : 1);
        step.prefix_confidence = {0.95f, 0.15f, 0.1f, 0, 0, 0, 0};
        counter.add(step);
    }
    const std::vector<Hazard> hazards = counter.take();
    ASSERT_EQ(hazards.size(), 2u);
    EXPECT_EQ(hazards[0].stratum, 1);
    EXPECT_EQ(hazards[0].known, 0);
    EXPECT_EQ(hazards[0].unknown, 3);
    EXPECT_EQ(hazards[0].low, 0);
    EXPECT_EQ(hazards[0].high, 1);
    EXPECT_EQ(hazards[1].stratum, 9);
    EXPECT_EQ(hazards[1].low, 0.75);
    EXPECT_EQ(hazards[1].high, 0.75);
}

// C4: 3.07 falls to 2.80 over 2000 requests.
TEST(Trend, ADeclineIsFlaggedAndNoiseIsNot) {
    for (const double loss : {0.27, 0.0}) {
        TrendCounter counter;
        std::uint64_t state = 7;
        for (int request = 0; request < 2000; ++request) {
            for (int cycle = 0; cycle < 8; ++cycle) {
                const double mean = 3.07 - loss * request / 1999.0;
                StepRecord step = counts(7, 0);
                for (int i = 0; i < 7; ++i) step.accepted += uniform(state) < mean / 7;
                step.request = std::to_string(request);
                counter.add(step);
            }
        }
        const std::optional<Trend> trend = counter.estimate();
        ASSERT_TRUE(trend.has_value());
        EXPECT_EQ(trend->flagged, loss > 0) << trend->t;
        EXPECT_NEAR(trend->first, 3.07, 0.06);
        EXPECT_NEAR(trend->last, 3.07 - loss, 0.06);
    }
}

TEST(Trend, FewRequestsSayNothing) {
    TrendCounter counter;
    for (int request = 0; request < 19; ++request) {
        StepRecord step = counts(7, request % 7);
        step.request = std::to_string(request);
        counter.add(step);
    }
    EXPECT_FALSE(counter.estimate().has_value());
}

}  // namespace
}  // namespace draftprobe
