#include "state/payload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace draftprobe::state {
namespace {

Payload numbered(std::size_t bytes, std::size_t block) {
    const Payload::Size size{bytes, block};
    Payload payload = std::move(Payload::unwritten({&size, 1}).front());
    const auto all = payload.writable();
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::byte>(i * 7 + i / 251);
    return payload;
}

TEST(Payload, CopiesShareUntilOneIsChanged) {
    for (const std::size_t bytes : {std::size_t{1000}, std::size_t{100'000}, std::size_t{5'000'000}}) {
        Payload first = numbered(bytes, 300);
        const Payload copy = first;
        EXPECT_EQ(copy.blocks().front(), first.blocks().front());
        EXPECT_EQ(copy.blocks().size(), (bytes + 299) / 300);
        first.writable()[bytes / 2] ^= std::byte{1};
        EXPECT_FALSE(first == copy);
        EXPECT_TRUE(copy == numbered(bytes, 300));
        EXPECT_NE(copy.blocks().front(), first.blocks().front());
        // Alone again: changed where it lies.
        const std::byte* start = first.view(0, 1).data();
        first.writable()[bytes / 2] ^= std::byte{1};
        EXPECT_EQ(first.view(0, 1).data(), start);
        EXPECT_TRUE(first == copy);
    }
}

TEST(Payload, EqualBytesAreEqualHoweverTheyAreCut) {
    const Payload whole = numbered(10'000, 10'000);
    EXPECT_TRUE(whole == numbered(10'000, 64));
    EXPECT_TRUE(numbered(10'000, 96) == numbered(10'000, 64));
    EXPECT_FALSE(whole == numbered(9'999, 64));
    EXPECT_TRUE(Payload() == Payload::copy_of({}));
    const Payload cut = numbered(10'000, 64);
    EXPECT_EQ(cut.view(640, 64).size(), 64u);
    EXPECT_EQ(std::memcmp(cut.view(640, 64).data(), whole.view(640, 64).data(), 64), 0);
    EXPECT_EQ(cut.view(9'999, 1)[0], whole.view(9'999, 1)[0]);
}

TEST(Payload, ABlockOutlivesThePayloadsAroundIt) {
    for (const std::size_t bytes : {std::size_t{10'000}, std::size_t{200'000}, std::size_t{9'000'000}}) {
        Payload::Block kept;
        std::size_t offset = 0;
        {
            const Payload payload = numbered(bytes, 1000);
            offset = payload.blocks().size() / 2 * 1000;
            kept = payload.blocks()[payload.blocks().size() / 2];
        }
        const Payload again = numbered(bytes, 1000);
        const auto expected = again.view(offset, kept->bytes().size());
        EXPECT_TRUE(std::ranges::equal(kept->bytes(), expected));
        // What the block alone keeps: the units that it touches.
        std::size_t resident = 0;
        for (std::size_t unit = kept->first_unit(); unit <= kept->last_unit(); ++unit)
            resident += kept->region().unit_bytes(unit);
        EXPECT_LE(resident, bytes < (64 << 10) ? bytes + 64 : bytes < kHugePage ? 2 * kSmallPage : 2 * kHugePage);
    }
}

TEST(PageMemory, IsWholePagesOfZeros) {
    EXPECT_EQ(PageMemory(1).size(), kSmallPage);
    EXPECT_EQ(PageMemory(kHugePage - 1).size(), kHugePage);
    EXPECT_EQ(PageMemory(kHugePage + 1).size(), kHugePage + kSmallPage);
    EXPECT_EQ(PageMemory(kHugePage + kHugePage / 2).size(), 2 * kHugePage);
    PageMemory memory(3 * kHugePage + 5000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % kHugePage, 0u);
    const auto all_zero = [&] {
        return std::all_of(memory.data(), memory.data() + memory.size(), [](std::byte b) { return b == std::byte{}; });
    };
    EXPECT_TRUE(all_zero());
    std::memset(memory.data() + kHugePage, 1, kHugePage);
    EXPECT_FALSE(all_zero());
    memory.discard(kHugePage, kHugePage);
    EXPECT_TRUE(all_zero());
    PageMemory moved = std::move(memory);
    EXPECT_EQ(memory.data(), nullptr);
    moved = PageMemory(10);
    EXPECT_EQ(moved.size(), kSmallPage);
}

}  // namespace
}  // namespace draftprobe::state
