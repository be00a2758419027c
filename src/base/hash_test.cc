#include "base/hash.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/test_directory.h"

namespace draftprobe {
namespace {

TEST(Sha256, PublishedVectors) {
    EXPECT_EQ(sha256_hex(std::string_view()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesEqualWhole) {
    const std::string text(200, 'x');
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
        Sha256 hash;
        hash.update(text.data(), cut);
        hash.update(std::string_view(text).substr(cut));
        ASSERT_EQ(hex(hash.finish()), sha256_hex(text)) << cut;
    }
}

TEST(Sha256, FileEqualsItsBytes) {
    TestDirectory dir;
    const std::string text(3'000'001, 'q');  // some blocks and a rest
    ASSERT_TRUE(write_file(dir / "f", text).ok());
    const auto digest = sha256_file(dir / "f");
    ASSERT_TRUE(digest.ok()) << digest.status().message();
    EXPECT_EQ(*digest, sha256_hex(text));
    EXPECT_EQ(sha256_file(dir / "absent").status().code(), StatusCode::not_found);
    EXPECT_EQ(sha256_file(dir.path()).status().code(), StatusCode::io);
}

// Seed 0: the empty input, and one zero byte.
TEST(Xxh3, KnownValues) {
    EXPECT_EQ(xxh3_64({}), 0x2D06800538D394C2ULL);
    const std::byte zero{0};
    EXPECT_EQ(xxh3_64({&zero, 1}), 0xC44BDFF4074EECDBULL);
}

TEST(Hex, DigitsAndOrder) {
    EXPECT_EQ(hex64(0), "0000000000000000");
    EXPECT_EQ(hex64(0x0123456789abcdefULL), "0123456789abcdef");
    const std::vector<std::uint8_t> bytes = {0x00, 0x0f, 0xf0, 0xff};
    EXPECT_EQ(hex(bytes), "000ff0ff");
}

}  // namespace
}  // namespace draftprobe
