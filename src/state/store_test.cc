#include "state/store.h"

#include <gmock/gmock.h>

#include <atomic>
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
std::uint64_t one_hash(std::uint64_t, std::span<const TokenId>) { return 1; }

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
