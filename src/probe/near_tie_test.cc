#include "probe/near_tie.h"

#include <gtest/gtest.h>

#include "numerics/compute.h"

namespace draftprobe::probe {
namespace {

TEST(MarginShift, IsTheDifferenceWhileTheWinnerStays) {
    EXPECT_DOUBLE_EQ(margin_shift({7, 0.5f}, {7, 0.75f}), 0.25);
    EXPECT_DOUBLE_EQ(margin_shift({7, 0.75f}, {7, 0.5f}), 0.25);
    EXPECT_DOUBLE_EQ(margin_shift({7, 0.5f}, {7, 0.5f}), 0);
}

TEST(MarginShift, IsTheSumWhereTheWinnerChanged) {
    EXPECT_DOUBLE_EQ(margin_shift({7, 0.5f}, {9, 0.5f}), 1);
    EXPECT_DOUBLE_EQ(margin_shift({7, 0.25f}, {9, 0.0f}), 0.25);
}

TEST(NearTieSchedules, DifferWhereverChunksEnd) {
    for (const Position chunk : {2, 16, 32, 48, 64, 256}) {
        for (const Position boundary : {32, 64, 96, 256, 512}) {
            const SchedulePair pair = near_tie_schedules(boundary, chunk);
            EXPECT_NE(schedule_ends(pair.first, 600, chunk), schedule_ends(pair.second, 600, chunk))
                << "chunk " << chunk << ", boundary " << boundary;
            EXPECT_EQ(pair.first.cut, boundary);
        }
    }
    EXPECT_EQ(schedule_ends({32}, 72, 64), (std::vector<Position>{32, 64, 72}));
    EXPECT_EQ(schedule_ends({0}, 72, 64), (std::vector<Position>{64, 72}));
    EXPECT_EQ(near_tie_schedules(64, 32).second.cut, 48);
    // One token at a time is one schedule, whatever is cut.
    EXPECT_EQ(schedule_ends({3}, 5, 1), schedule_ends({0}, 5, 1));
}

Result<Assembly> toy() {
    const std::string golden = std::string(DRAFTPROBE_SOURCE_DIR) + "/tests/golden/";
    AssemblyOptions options;
    options.use_digest_cache = false;
    return load_assembly(golden + "target-r2", golden + "draft-w64", false, options);
}

ProbeRequest toy_request() {
    ProbeRequest request;
    for (TokenId i = 0; i < 72; ++i) request.prompt.push_back((i * 37 + i * i) % 240);
    request.boundary = 32;
    return request;
}

// A boundary at the end of a chunk is no reason for thresholds of 0.
TEST(MeasureNearTie, HasThresholdsWhereTheBoundaryEndsAChunk) {
    const auto assembly = toy();
    ASSERT_TRUE(assembly.ok()) << assembly.status().message();
    ProbeRequest request = toy_request();
    request.cycles = 8;
    ProbeSettings settings;
    settings.engine.isa = numerics::best_isa();
    settings.engine.threads = 1;
    settings.engine.numerics = numerics::NumericsClass::schedule_sensitive;
    for (const std::size_t chunk : {16, 32}) {
        settings.engine.chunk_tokens = chunk;
        const Result<NearTie> measured = measure_near_tie(*assembly, request, settings);
        ASSERT_TRUE(measured.ok()) << measured.status().message();
        EXPECT_GT(measured->samples, 0) << chunk;
        EXPECT_GT(measured->target, 0) << chunk;
        EXPECT_GT(measured->selector, 0) << chunk;
        EXPECT_GT(measured->candidate, 0) << chunk;
    }
    settings.engine.chunk_tokens = 1;
    const Result<NearTie> nothing = measure_near_tie(*assembly, request, settings);
    ASSERT_TRUE(nothing.ok()) << nothing.status().message();
    EXPECT_EQ(nothing->samples, 0);
}

// A flip of either schedule never ends the measuring: every cycle of every prompt gives its rows.
TEST(MeasureNearTie, SamplesEveryCycle) {
    const auto assembly = toy();
    ASSERT_TRUE(assembly.ok()) << assembly.status().message();
    ProbeRequest request = toy_request();
    request.cycles = 12;
    ProbeSettings settings;
    settings.engine.isa = numerics::best_isa();
    settings.engine.threads = 1;
    settings.engine.chunk_tokens = 64;
    settings.engine.numerics = numerics::NumericsClass::schedule_sensitive;
    std::size_t prompts = 0;
    settings.progress = [&prompts](std::string_view, std::size_t done, std::size_t) { prompts = done; };
    const Result<NearTie> measured = measure_near_tie(*assembly, request, settings);
    ASSERT_TRUE(measured.ok()) << measured.status().message();
    EXPECT_GE(measured->samples, static_cast<std::int64_t>(kNearTieSamples));
    // The first token, and nearly all of the 8 rows of 12 cycles: proposals part seldom.
    EXPECT_GE(measured->samples, static_cast<std::int64_t>(prompts * (1 + 8 * 12) * 9 / 10));
    EXPECT_LT(prompts, kNearTiePrompts / 2);
    EXPECT_GT(measured->target, 0);
    EXPECT_GT(measured->selector, 0);
    EXPECT_GT(measured->candidate, 0);
    EXPECT_EQ(measured->width, 0);

    // Classes whose bits do not depend on the schedule have nothing to shift.
    settings.engine.numerics = numerics::NumericsClass::f32;
    request.cycles = 2;
    const Result<NearTie> canonical = measure_near_tie(*assembly, request, settings);
    ASSERT_TRUE(canonical.ok()) << canonical.status().message();
    EXPECT_EQ(canonical->target, 0);
    EXPECT_EQ(canonical->selector, 0);
    EXPECT_EQ(canonical->candidate, 0);
}

}  // namespace
}  // namespace draftprobe::probe
