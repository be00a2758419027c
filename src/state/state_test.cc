#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "state/ledger.h"
#include "state/snapshot.h"
#include "state/test_lane.h"

namespace draftprobe::state {
namespace {

TEST(KvPages, RandomWritesReadBackAsTheirRoundedValues) {
    for (const KvFormat format : {KvFormat::f32, KvFormat::bf16, KvFormat::int8}) {
        const StateShape shape = small_shape(format);
        KvPages pages(shape, true);
        Random random(7);
        std::map<std::pair<std::size_t, Position>, std::pair<std::vector<float>, std::vector<float>>> naive;
        for (int i = 0; i < 300; ++i) {
            const std::size_t layer = random.below(2);
            const auto position = static_cast<Position>(random.below(100));
            auto k = random.row(shape.kv_row_floats());
            auto v = random.row(shape.kv_row_floats());
            ASSERT_TRUE(pages.reserve(position).ok());
            pages.write(layer, position, k.data(), v.data());
            naive[{layer, position}] = {k, v};
        }
        const std::size_t d = shape.head_dim;
        std::vector<float> keys_t(d * 32);
        std::vector<float> values(d * 32);
        for (const auto& [at, row] : naive) {
            for (std::size_t head = 0; head < shape.kv_heads; ++head) {
                pages.load_page(at.first, at.second / 32, head, keys_t.data(), values.data());
                const auto slot = static_cast<std::size_t>(at.second % 32);
                float absmax_k = 0;
                float absmax_v = 0;
                for (std::size_t i = 0; i < d; ++i) {
                    absmax_k = std::max(absmax_k, std::fabs(row.first[head * d + i]));
                    absmax_v = std::max(absmax_v, std::fabs(row.second[head * d + i]));
                }
                for (std::size_t i = 0; i < d; ++i) {
                    const float k = keys_t[i * 32 + slot];
                    const float v = values[slot * d + i];
                    if (format == KvFormat::int8) {
                        EXPECT_LE(std::fabs(k - row.first[head * d + i]), absmax_k / 127.0f * 0.501f);
                        EXPECT_LE(std::fabs(v - row.second[head * d + i]), absmax_v / 127.0f * 0.501f);
                    } else {
                        const bool exact = format == KvFormat::f32;
                        EXPECT_EQ(k, exact ? row.first[head * d + i] : round_to_bf16(row.first[head * d + i]));
                        EXPECT_EQ(v, exact ? row.second[head * d + i] : round_to_bf16(row.second[head * d + i]));
                    }
                }
            }
        }
    }
}

// Pages of one lane lie in slabs of growing size: none reaches into another, whatever the slab.
TEST(KvPages, PagesAreApartAndNewOnesArePoisonedOrZero) {
    for (const bool poison : {false, true}) {
        StateShape shape = small_shape(KvFormat::bf16);
        shape.max_tokens = 32 * 300 - 5;
        KvPages pages(shape, poison);
        for (std::size_t page = 0; page < 300; ++page) {
            ASSERT_TRUE(pages.reserve(std::min<Position>(static_cast<Position>(page * 32), 32 * 300 - 6)).ok());
            const std::span<std::byte> bytes = pages.page_bytes(page);
            ASSERT_EQ(bytes.size(), shape.kv_page_bytes());
            const std::byte fresh{static_cast<unsigned char>(poison ? 0xff : 0)};
            ASSERT_TRUE(std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == fresh; })) << page;
            std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(page % 251));
        }
        for (std::size_t page = 0; page < 300; ++page) {
            const auto bytes = std::as_const(pages).page_bytes(page);
            ASSERT_TRUE(std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) {
                return b == static_cast<std::byte>(page % 251);
            })) << page;
        }
    }
}

TEST(KvPages, PositionsBeyondTheLaneAreExhausted) {
    KvPages pages(small_shape(KvFormat::bf16), false);
    EXPECT_TRUE(pages.reserve(199).ok());
    EXPECT_EQ(pages.reserve(200).code(), StatusCode::exhausted);
    EXPECT_EQ(pages.reserve(-1).code(), StatusCode::exhausted);
}

TEST(Ledger, DigestsCoverValidRangesOnlyAndNotWhereTheyLie) {
    const StateShape shape = small_shape(KvFormat::int8);
    Lane a(0, shape, true);
    Lane b(1, shape, false);
    fill(a, 77, 3);
    // The same state in a lane with another history: scratch past the length, the other parity, other ring slots
    // visited before.
    fill(b, 90, 5);
    b.reset();
    b.recurrent.flip();
    fill(b, 77, 3);
    ASSERT_TRUE(b.kv.reserve(120).ok());
    b.kv.write(0, 77, std::vector<float>(32, 9.0f).data(), std::vector<float>(32, 9.0f).data());
    for (const Component component : kComponents) {
        EXPECT_EQ(component_digest(a, component), component_digest(b, component)) << component_name(component);
    }
    EXPECT_EQ(context_row_digests(a), context_row_digests(b));
    EXPECT_EQ(context_row_digests(a).size(), shape.context_capacity);
}

TEST(Ledger, EveryComponentsBytesReachItsDigest) {
    const StateShape shape = small_shape(KvFormat::bf16);
    Lane lane(0, shape, true);
    fill(lane, 70, 3);
    std::map<Component, std::string> before;
    for (const Component component : kComponents) before[component] = component_digest(lane, component);
    lane.kv.page_bytes(1)[5] ^= std::byte{1};
    EXPECT_NE(component_digest(lane, Component::target_kv), before[Component::target_kv]);
    lane.recurrent.current().matrix[2].back() += 1.0f;
    EXPECT_NE(component_digest(lane, Component::recurrent_matrix), before[Component::recurrent_matrix]);
    lane.recurrent.current().conv[1].bytes(2).back() ^= std::byte{1};
    EXPECT_NE(component_digest(lane, Component::recurrent_conv), before[Component::recurrent_conv]);
    lane.draft.rows().bytes(lane.draft.slot(50))[0] ^= std::byte{1};
    EXPECT_NE(component_digest(lane, Component::draft_context), before[Component::draft_context]);
    lane.draft.values(1).bytes(lane.draft.slot(69)).back() ^= std::byte{1};
    EXPECT_NE(component_digest(lane, Component::draft_rings), before[Component::draft_rings]);
}

// Whatever is written where, kept digests are those of lanes that kept nothing.
TEST(Ledger, PagesAreHashedOnceAndAgainAfterAnyWrite) {
    const StateShape shape = small_shape(KvFormat::int8);
    Random random(17);
    Lane lane(0, shape, true);
    fill(lane, 150, 3);
    const auto fresh_digest = [&](Component component) {
        Lane copy(1, shape, false);
        auto snapshot = take_snapshot(lane, kIdentity, {.request = RequestRecord{}});
        EXPECT_TRUE(snapshot.ok()) << snapshot.status().message();
        EXPECT_TRUE(restore_snapshot(*snapshot, kIdentity, DraftRestore::exact, copy).ok());
        return component_digest(copy, component);
    };
    lane.has_anchor = true;
    for (int round = 0; round < 60; ++round) {
        const auto p = static_cast<Position>(random.below(150));
        const auto row = random.row(shape.kv_row_floats());
        switch (round % 4) {
            case 0: lane.kv.write(round % 2, p, row.data(), row.data()); break;
            case 1: lane.kv.page_bytes(static_cast<std::size_t>(p / 32))[7] ^= std::byte{1}; break;
            case 2: lane.draft.rows().write(lane.draft.slot(p), random.row(shape.hidden).data()); break;
            default: lane.draft.rows().bytes(lane.draft.slot(p))[3] ^= std::byte{1}; break;
        }
        for (const Component component : {Component::target_kv, Component::draft_context}) {
            ASSERT_EQ(component_digest(lane, component), fresh_digest(component)) << "round " << round;
        }
    }
    const std::size_t kv = lane.kv.pages_hashed();
    const std::size_t rows = lane.draft.pages_hashed();
    for (int repeat = 0; repeat < 3; ++repeat) static_cast<void>(lane_ledger(lane, true));
    EXPECT_EQ(lane.kv.pages_hashed(), kv);
    EXPECT_EQ(lane.draft.pages_hashed(), rows);
    lane.kv.write(0, 40, random.row(shape.kv_row_floats()).data(), random.row(shape.kv_row_floats()).data());
    static_cast<void>(lane_ledger(lane, true));
    EXPECT_EQ(lane.kv.pages_hashed(), kv + 1);
}

TEST(DraftContext, ClaimsAndWritesAreSeparateNumbers) {
    Lane lane(0, small_shape(KvFormat::bf16), true);
    lane.draft.claim(10, 30, RowSource::restored);
    EXPECT_EQ(lane.draft.rows_claimed(), 20u);
    EXPECT_EQ(lane.draft.rows_written(), 0u);
    for (Position p = 20; p < 30; ++p) lane.draft.mark_written(p, false);
    EXPECT_EQ(lane.draft.rows_written(), 10u);
    EXPECT_EQ(lane.draft.rings_written(), 0u);
    // A ring of 40 rows: after 60 positions only 20..59 can be claimed, and sources before that are gone.
    lane.draft.advance(60, RowSource::computed);
    EXPECT_EQ(lane.draft.first(), 20);
    ASSERT_EQ(lane.draft.sources().size(), 2u);
    EXPECT_EQ(lane.draft.sources()[0], (SourceRange{20, 30, RowSource::restored}));
    EXPECT_EQ(lane.draft.sources()[1], (SourceRange{30, 60, RowSource::computed}));
    // Position 60's slot is position 20's: a stamp of another position does not count.
    lane.draft.mark_written(60, false);
    lane.draft.advance(61, RowSource::computed);
    EXPECT_EQ(lane.draft.rows_written(), 10u);
}

TEST(DraftContext, RowsRememberTheTargetRowAndTheRequestThatTheyCameFrom) {
    Lane lane(0, small_shape(KvFormat::bf16), true);
    lane.draft.mark_written(3, false);
    const RowOrigin first = lane.draft.origin(3);
    EXPECT_EQ(first, (RowOrigin{3, lane.draft.request()}));
    lane.draft.reset();
    EXPECT_NE(lane.draft.origin(3).request, lane.draft.request());
    EXPECT_FALSE(lane.draft.row_written(3));
    lane.draft.mark_written(3, false);
    EXPECT_EQ(lane.draft.origin(3).request, lane.draft.request());
    lane.draft.set_origin(3, first);
    EXPECT_EQ(lane.draft.origin(3), first);
}

// The label and the number of tokens that really went into the state are two things.
TEST(Snapshot, RecurrentStateCarriesWhatItConsumedBesideTheLabel) {
    const StateShape shape = small_shape(KvFormat::bf16);
    Lane lane(0, shape, false);
    fill(lane, 32, 1);
    Result<Snapshot> snapshot = take_snapshot(lane, {});
    ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
    EXPECT_EQ(snapshot->find(Component::recurrent_matrix)->consumed, 32);
    for (SnapshotComponent& part : snapshot->components) {
        if (is_recurrent_component(part.component)) part.consumed = 34;
    }
    Lane other(1, shape, true);
    const Status refused = restore_snapshot(*snapshot, {}, DraftRestore::exact, other);
    EXPECT_EQ(refused.code(), StatusCode::corrupt);
    EXPECT_NE(refused.message().find("consumed 34 tokens, expected 32 as the label says"), std::string::npos);
    EXPECT_EQ(other.length, 0);
    ASSERT_TRUE(restore_snapshot(*snapshot, {}, DraftRestore::exact, other, TargetRestore::exact, Label::trusted).ok());
    EXPECT_EQ(other.length, 32);
    for (const LedgerEntry& entry : lane_ledger(other, false)) {
        const bool recurrent = is_recurrent_component(entry.component);
        EXPECT_EQ(entry.last, recurrent ? 34 : 32) << component_name(entry.component);
        EXPECT_EQ(entry.rows_claimed, entry.rows_written);
    }
    other.reset();
    EXPECT_EQ(other.recurrent.current().consumed, 0);
}

TEST(Snapshot, RestoresIntoADirtyLaneAndLeavesTheSnapshotAlone) {
    for (const KvFormat format : {KvFormat::bf16, KvFormat::int8, KvFormat::f32}) {
        const StateShape shape = small_shape(format);
        Lane source(0, shape, true);
        fill(source, 96, 11);
        auto snapshot = take_snapshot(source, kIdentity);
        ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
        Lane target(1, shape, true);
        fill(target, 130, 12);
        ASSERT_TRUE(restore_snapshot(snapshot.value(), kIdentity, DraftRestore::exact, target).ok());
        for (const Component component : kComponents) {
            EXPECT_EQ(component_digest(target, component), component_digest(source, component))
                << component_name(component);
        }
        EXPECT_EQ(target.tokens, source.tokens);
        EXPECT_FALSE(target.previous_occupant.empty());
        for (const LedgerEntry& entry : lane_ledger(target, false)) {
            EXPECT_EQ(entry.rows_claimed, entry.rows_written) << component_name(entry.component);
            for (const SourceRange& range : entry.sources) EXPECT_EQ(range.source, RowSource::restored);
        }
        // The borrower writes; the lender's bytes stay.
        target.kv.page_bytes(0)[0] ^= std::byte{0xff};
        Lane again(2, shape, true);
        ASSERT_TRUE(restore_snapshot(snapshot.value(), kIdentity, DraftRestore::rows, again).ok());
        EXPECT_EQ(component_digest(again, Component::target_kv), component_digest(source, Component::target_kv));
        EXPECT_EQ(again.draft.rings_written(), 0u);
        EXPECT_EQ(again.draft.rows_written(), shape.context_capacity);
    }
}

TEST(Snapshot, OnlyPageAlignedLanesWithoutAnchorCanBeTaken) {
    Lane lane(0, small_shape(KvFormat::bf16), true);
    fill(lane, 33, 1);
    EXPECT_EQ(take_snapshot(lane, kIdentity).status().code(), StatusCode::invalid_argument);
    Lane aligned(0, small_shape(KvFormat::bf16), true);
    fill(aligned, 64, 1);
    aligned.has_anchor = true;
    EXPECT_EQ(take_snapshot(aligned, kIdentity).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace draftprobe::state
