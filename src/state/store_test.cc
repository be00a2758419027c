#include "state/store.h"

#include <gmock/gmock.h>
#include <malloc.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "state/test_lane.h"

namespace draftprobe::state {
namespace {

StateShape shape() { return small_shape(KvFormat::bf16); }

// A snapshot whose tokens are first, first + 1, ...
std::shared_ptr<const Snapshot> prefix(TokenId first, Position length, const StateIdentity& identity = kIdentity) {
    Lane lane(0, shape(), false);
    fill(lane, length, first);
    for (std::size_t i = 0; i < lane.tokens.size(); ++i) lane.tokens[i] = first + static_cast<TokenId>(i);
    auto snapshot = take_snapshot(lane, identity);
    EXPECT_TRUE(snapshot.ok()) << snapshot.status().message();
    return std::make_shared<const Snapshot>(std::move(snapshot).value());
}

std::vector<TokenId> prompt(TokenId first, std::size_t count) {
    std::vector<TokenId> tokens(count);
    for (std::size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<TokenId>(i);
    return tokens;
}

// Collisions everywhere: what is found is decided by equality alone.
std::uint64_t one_hash(std::uint64_t, std::span<const std::byte>) { return 1; }

TEST(PrefixStore, TheLongestExactPrefixWinsWhateverTheHash) {
    for (const PrefixStore::ChainHash hash : {PrefixStore::ChainHash{}, &one_hash}) {
        PrefixStore store(1 << 20, hash);
        for (const Position length : {32, 96, 64}) ASSERT_TRUE(store.put(prefix(100, length)).ok());
        ASSERT_TRUE(store.put(prefix(101, 96)).ok());
        const auto length_of = [&](const std::vector<TokenId>& tokens, Position limit) -> Position {
            const auto found = store.find_longest(kIdentity, tokens, limit);
            return found == nullptr ? 0 : found->length;
        };
        EXPECT_EQ(length_of(prompt(100, 150), 150), 96);
        EXPECT_EQ(length_of(prompt(100, 150), 95), 64);
        EXPECT_EQ(length_of(prompt(100, 150), 64), 64);
        EXPECT_EQ(length_of(prompt(100, 40), 150), 32);
        EXPECT_EQ(length_of(prompt(100, 31), 150), 0);
        EXPECT_EQ(length_of(prompt(99, 150), 150), 0);
        std::vector<TokenId> branched = prompt(100, 150);
        branched[95] = 1;
        EXPECT_EQ(length_of(branched, 150), 64);
        EXPECT_EQ(store.usage().entries, 4u);
        EXPECT_EQ(store.usage().hits, 5u);
        EXPECT_EQ(store.usage().misses, 2u);
    }
}

TEST(PrefixStore, NothingCrossesFromOneIdentityToAnother) {
    for (const PrefixStore::ChainHash hash : {PrefixStore::ChainHash{}, &one_hash}) {
        PrefixStore store(1 << 20, hash);
        StateIdentity on = kIdentity;
        on.chat_template = "t";
        on.thinking = "on";
        ASSERT_TRUE(store.put(prefix(5, 64, on)).ok());
        const auto tokens = prompt(5, 64);
        EXPECT_NE(store.find_longest(on, tokens, 64), nullptr);
        std::vector<StateIdentity> others(7, on);
        others[0].target += "x";
        others[1].draft += "x";
        others[2].tokenizer += "x";
        others[3].chat_template += "x";
        others[4].thinking = "off";
        others[5].effort = "high";
        others[6].settings[0].second = "other";
        for (const StateIdentity& other : others) EXPECT_EQ(store.find_longest(other, tokens, 64), nullptr);
    }
}

TEST(PrefixStore, EvictsTheLeastRecentlyUsedAndNothingThatIsLent) {
    const std::size_t each = resident_bytes(*prefix(0, 64));
    PrefixStore store(each * 3 + 3000);
    for (const TokenId first : {1000, 2000, 3000}) ASSERT_TRUE(store.put(prefix(first, 64)).ok());
    const auto held = [&](TokenId first) { return store.find_longest(kIdentity, prompt(first, 64), 64) != nullptr; };
    ASSERT_TRUE(held(1000));  // used: 2000 is the oldest now
    ASSERT_TRUE(store.put(prefix(4000, 64)).ok());
    EXPECT_FALSE(held(2000));
    EXPECT_TRUE(held(3000) && held(1000) && held(4000));  // 3000 is the oldest again

    const auto lent = store.find_longest(kIdentity, prompt(3000, 64), 64);
    const Snapshot copy = *lent;
    ASSERT_TRUE(held(1000) && held(4000));
    ASSERT_TRUE(store.put(prefix(5000, 64)).ok());
    EXPECT_TRUE(held(3000)) << "lent";
    EXPECT_FALSE(held(1000));
    EXPECT_EQ(store.evict_all(), 2u);
    EXPECT_EQ(store.usage().entries, 1u);
    EXPECT_TRUE(check_snapshot(*lent, true).ok());
    EXPECT_EQ(lent->components[0].bytes, copy.components[0].bytes);

    // Everything lent: nothing to evict, so nothing more is taken and nothing is lost.
    const auto a = prefix(6000, 64);
    const auto b = prefix(7000, 64);
    ASSERT_TRUE(store.put(a).ok() && store.put(b).ok());
    const auto usage = store.usage();
    EXPECT_EQ(store.put(prefix(8000, 64)).code(), StatusCode::exhausted);
    EXPECT_EQ(store.usage().bytes, usage.bytes);
    EXPECT_EQ(store.usage().entries, 3u);
    PrefixStore tiny(each / 2);
    EXPECT_EQ(tiny.put(prefix(1, 64)).code(), StatusCode::exhausted);
}

TEST(PrefixStore, StaysWithinItsBudgetAndCountsRealBytes) {
    const auto one = prefix(0, 64);
    const std::size_t each = resident_bytes(*one);
    std::size_t payload = 0;
    for (const auto& part : one->components) payload += part.bytes.size();
    EXPECT_GE(each, payload + 64 * sizeof(TokenId));
    EXPECT_LT(each, payload + 4096);
    PrefixStore store(20 * each);
    for (TokenId first = 0; first < 200; ++first) {
        ASSERT_TRUE(store.put(prefix(first * 1000, first % 2 == 0 ? 64 : 96)).ok());
        EXPECT_LE(store.usage().bytes, store.usage().budget);
    }
    EXPECT_GT(store.usage().entries, 10u);
    EXPECT_EQ(store.usage().evictions + store.usage().entries, 200u);
}

// Snapshots of one text under names "0", "1", ..: all their common pages are equal.
struct Family {
    StateShape shape;
    std::vector<Position> lengths;

    std::shared_ptr<const Snapshot> snapshot(std::size_t i) const {
        Lane lane(0, shape, false);
        fill(lane, lengths[i], 5);
        return std::make_shared<const Snapshot>(std::move(take_snapshot(lane, kIdentity).value()));
    }
};

Family small_family() {
    Family family{shape(), {256, 128, 320}};  // blocks of 64 positions
    family.shape.max_tokens = 320;
    return family;
}

bool same_bytes(const Snapshot& a, const Snapshot& b) {
    return std::equal(a.components.begin(), a.components.end(), b.components.begin(), b.components.end(),
                      [](const auto& left, const auto& right) { return left.bytes == right.bytes; });
}

TEST(PrefixStore, CommonPagesOfPrefixesAreHeldOnce) {
    const Family family = small_family();
    std::vector<std::shared_ptr<const Snapshot>> made;
    for (std::size_t i = 0; i < 3; ++i) made.push_back(family.snapshot(i));
    for (const PrefixStore::ChainHash hash : {PrefixStore::ChainHash{}, &one_hash}) {
        PrefixStore store(1 << 20, hash);
        for (std::size_t i = 0; i < 3; ++i) ASSERT_TRUE(store.put(made[i], std::to_string(i)).ok());
        std::vector<std::shared_ptr<const Snapshot>> kept;
        for (std::size_t i = 0; i < 3; ++i) {
            kept.push_back(store.find_named(kIdentity, made[i]->tokens, std::to_string(i)));
            ASSERT_NE(kept[i], nullptr);
            EXPECT_TRUE(same_bytes(*kept[i], *made[i]));
            EXPECT_TRUE(check_snapshot(*kept[i], true).ok());
            EXPECT_EQ(kept[i]->tokens, made[i]->tokens);
        }
        const auto block = [&](std::size_t i, std::size_t at) { return kept[i]->components[0].bytes.blocks().at(at); };
        for (std::size_t at = 0; at < 4; ++at) EXPECT_EQ(block(0, at), block(2, at));
        for (std::size_t at = 0; at < 2; ++at) EXPECT_EQ(block(0, at), block(1, at));
        EXPECT_EQ(made[2]->components[0].bytes.blocks().size(), 5u);
        // Recurrent state is of one length alone, equal checksums or not.
        EXPECT_NE(kept[0]->components[1].bytes.blocks()[0], kept[2]->components[1].bytes.blocks()[0]);
    }
}

TEST(PrefixStore, OnlyEqualBytesOfOneIdentityAreShared) {
    const Family family = small_family();
    const auto first = family.snapshot(0);
    for (const PrefixStore::ChainHash hash : {PrefixStore::ChainHash{}, &one_hash}) {
        PrefixStore store(1 << 20, hash);
        ASSERT_TRUE(store.put(first, "first").ok());
        Snapshot changed = *first;
        changed.components[0].bytes.writable()[70 << 8] ^= std::byte{1};
        reseal(changed);
        const auto other = std::make_shared<const Snapshot>(changed);
        ASSERT_TRUE(store.put(other, "changed").ok());
        const auto kept = store.find_named(kIdentity, first->tokens, "changed");
        const auto& blocks = kept->components[0].bytes.blocks();
        for (std::size_t at = 0; at < blocks.size(); ++at) {
            EXPECT_EQ(blocks[at] == first->components[0].bytes.blocks()[at], at != (70 << 8) / (16 << 10)) << at;
        }
        EXPECT_TRUE(same_bytes(*kept, changed));
        EXPECT_FALSE(same_bytes(*kept, *first));

        Snapshot foreign = *family.snapshot(0);
        foreign.identity.target = "another";
        ASSERT_TRUE(store.put(std::make_shared<const Snapshot>(foreign), "first").ok());
        const auto apart = store.find_named(foreign.identity, foreign.tokens, "first");
        EXPECT_NE(apart->components[0].bytes.blocks()[0], first->components[0].bytes.blocks()[0]);
    }
}

TEST(PrefixStore, SharedBytesAreCountedOnceInEveryOrderOfEviction) {
    const Family family = small_family();
    const auto payload = [](const std::vector<std::shared_ptr<const Snapshot>>& snapshots) {
        ResidentPayload resident;
        for (const auto& snapshot : snapshots) resident.add(*snapshot);
        return resident.bytes();
    };
    std::vector<std::vector<TokenId>> tokens;
    std::size_t entry = 0;  // what the store needs for one
    std::size_t apart = 0;
    for (std::size_t i = 0; i < 3; ++i) {
        const auto snapshot = family.snapshot(i);
        PrefixStore alone(1 << 20);
        ASSERT_TRUE(alone.put(snapshot).ok());
        entry = alone.usage().bytes - resident_bytes(*snapshot);
        tokens.push_back(snapshot->tokens);
        apart += alone.usage().bytes;
    }
    std::vector<std::size_t> order = {0, 1, 2};
    do {
        PrefixStore store(1 << 20);
        for (std::size_t i = 0; i < 3; ++i) ASSERT_TRUE(store.put(family.snapshot(i), std::to_string(i)).ok());
        EXPECT_LT(store.usage().bytes, apart * 3 / 4);
        for (std::size_t gone = 1; gone <= 3; ++gone) {
            const std::size_t last = order[gone - 1];
            ASSERT_TRUE(store.evict_named(kIdentity, tokens[last], std::to_string(last)));
            std::vector<std::shared_ptr<const Snapshot>> left;
            std::size_t expected = 0;
            for (std::size_t i = gone; i < 3; ++i) {
                left.push_back(store.find_named(kIdentity, tokens[order[i]], std::to_string(order[i])));
                ASSERT_NE(left.back(), nullptr);
                ASSERT_TRUE(check_snapshot(*left.back(), true).ok());
                ASSERT_TRUE(same_bytes(*left.back(), *family.snapshot(order[i])));
                expected += entry + resident_bytes(*left.back()) - payload({left.back()});
            }
            EXPECT_EQ(store.usage().bytes, expected + payload(left));
        }
        EXPECT_EQ(store.usage().bytes, 0u);
    } while (std::next_permutation(order.begin(), order.end()));
}

TEST(PrefixStore, WhatIsLentKeepsOnlyItself) {
    const Family family = small_family();
    PrefixStore store(1 << 20);
    for (std::size_t i = 0; i < 3; ++i) ASSERT_TRUE(store.put(family.snapshot(i), std::to_string(i)).ok());
    const auto short_one = family.snapshot(1);
    const auto lent = store.find_named(kIdentity, short_one->tokens, "1");
    EXPECT_FALSE(store.evict_named(kIdentity, short_one->tokens, "1"));
    EXPECT_EQ(store.evict_all(), 2u);
    EXPECT_TRUE(same_bytes(*lent, *short_one));
    ResidentPayload alone;
    alone.add(*lent);
    EXPECT_LT(store.usage().bytes, resident_bytes(*lent) + 1024);
    // Its pages lie in the memory of the longer one, of which whole small pages were given back.
    EXPECT_LT(alone.bytes(), lent->bytes() + kSmallPage + 2048);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kOwnHeap = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
constexpr bool kOwnHeap = false;
#else
constexpr bool kOwnHeap = true;
#endif
#else
constexpr bool kOwnHeap = true;
#endif

std::size_t heap_in_use() {
    const auto info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
}

TEST(PrefixStore, CountsWhatTheHeapGaveOutToTwoPercent) {
    if (!kOwnHeap) GTEST_SKIP() << "another heap";
    for (const bool shared : {false, true}) {
        std::vector<std::shared_ptr<const Snapshot>> made;
        Family family{shape(), {}};
        for (int i = 0; i < 400; ++i) {
            if (shared) {
                family.lengths.push_back(i % 2 == 0 ? 64 : 96);
                made.push_back(family.snapshot(static_cast<std::size_t>(i)));
            } else {
                made.push_back(prefix(i * 1000, i % 3 == 0 ? 32 : 96));
            }
        }
        auto store = std::make_unique<PrefixStore>(64 << 20);
        for (std::size_t i = 0; i < made.size(); ++i) {
            ASSERT_LT(made[i]->bytes(), std::size_t{64} << 10) << "not on the heap";
            ASSERT_TRUE(store->put(std::move(made[i]), std::to_string(i)).ok());
        }
        // Many, since the heap keeps some of what is freed in a thread's cache and still calls it used.
        const auto counted = static_cast<double>(store->usage().bytes);
        const std::size_t before = heap_in_use();
        store.reset();
        const auto real = static_cast<double>(before - heap_in_use());
        EXPECT_NEAR(counted, real, 0.02 * real) << "shared " << shared;
    }
}

// Anonymous memory that the process has resident, as the kernel counts it.
std::size_t anonymous_bytes() {
    std::ifstream file("/proc/self/smaps_rollup");
    std::string word;
    std::size_t kib = 0;
    while (file >> word) {
        if (word == "Anonymous:" && file >> kib) return kib << 10;
    }
    return 0;
}

TEST(PrefixStore, CountsWhatTheSystemGaveOutToTwoPercent) {
    if (!kOwnHeap || anonymous_bytes() == 0) GTEST_SKIP() << "another heap, or no figures";
    Family family{shape(), {2048, 1024, 3072}};
    family.shape.attention_layers = 16;
    family.shape.kv_heads = 4;  // 8 KiB a position
    family.shape.max_tokens = 4096;
    std::vector<std::vector<TokenId>> tokens;
    const std::size_t before = anonymous_bytes();
    PrefixStore store(256 << 20);
    for (std::size_t i = 0; i < 3; ++i) {
        const auto made = family.snapshot(i);
        tokens.push_back(made->tokens);
        ASSERT_TRUE(store.put(made, std::to_string(i)).ok());
    }
    const auto expect_counted = [&] {
        const auto real = static_cast<double>(anonymous_bytes() - before);
        const auto counted = static_cast<double>(store.usage().bytes);
        EXPECT_NEAR(counted, real, 0.02 * real + (256 << 10));
    };
    EXPECT_LT(store.usage().bytes, std::size_t{30} << 20) << "24 MiB are shared by 48";
    expect_counted();
    ASSERT_TRUE(store.evict_named(kIdentity, tokens[2], "2"));
    EXPECT_LT(store.usage().bytes, std::size_t{20} << 20) << "the longest one's own third is gone";
    expect_counted();
    ASSERT_TRUE(store.evict_named(kIdentity, tokens[0], "0"));
    EXPECT_LT(store.usage().bytes, std::size_t{12} << 20);
    expect_counted();
}

TEST(PrefixStore, RefusesWhatIsNoPrefixOrContradictsItself) {
    PrefixStore store(1 << 20);
    EXPECT_EQ(store.put(nullptr).code(), StatusCode::invalid_argument);
    Snapshot mid = *prefix(1, 64);
    mid.request = RequestRecord{};
    EXPECT_EQ(store.put(std::make_shared<const Snapshot>(mid)).code(), StatusCode::invalid_argument);
    Snapshot flipped = *prefix(1, 64);
    flipped.components[0].bytes.writable()[9] ^= std::byte{1};
    EXPECT_EQ(store.put(std::make_shared<const Snapshot>(flipped)).code(), StatusCode::corrupt);
    EXPECT_EQ(store.usage().entries, 0u);
}

TEST(PrefixStore, LendsToManyThreadsWhileOthersEvict) {
    const std::size_t each = resident_bytes(*prefix(0, 64));
    PrefixStore store(4 * each + 4000);
    std::vector<std::shared_ptr<const Snapshot>> snapshots;
    for (TokenId first = 0; first < 8; ++first) snapshots.push_back(prefix(first * 1000, 64));
    std::vector<std::string> expected;
    for (const auto& snapshot : snapshots) expected.push_back(snapshot_digest(*snapshot, Component::target_kv));
    std::atomic<int> found{0};
    const auto work = [&](unsigned seed) {
        Random random(seed);
        Lane lane(static_cast<int>(seed), shape(), false);
        for (int round = 0; round < 300; ++round) {
            const std::size_t i = random.below(8);
            // A copy, so that the test itself lends nothing.
            static_cast<void>(store.put(std::make_shared<const Snapshot>(*snapshots[i])));
            const std::size_t j = random.below(8);
            const auto lent = store.find_longest(kIdentity, prompt(static_cast<TokenId>(j * 1000), 80), 80);
            if (lent == nullptr) continue;
            ++found;
            ASSERT_TRUE(restore_snapshot(*lent, kIdentity, DraftRestore::exact, lane).ok());
            lane.kv.page_bytes(0)[0] ^= std::byte{0xff};  // the borrower writes into its lane
            ASSERT_EQ(snapshot_digest(*lent, Component::target_kv), expected[j]);
        }
    };
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed);
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(found.load(), 100);
    EXPECT_LE(store.usage().bytes, store.usage().budget);
}

}  // namespace
}  // namespace draftprobe::state
