#include "formats/identity.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/files.h"
#include "base/hash.h"
#include "base/test_directory.h"

namespace draftprobe {
namespace {

TEST(Identity, EqualsSortedSha256sumLines) {
    TestDirectory dir;
    ASSERT_TRUE(write_file(dir / "a", std::string_view("alpha\n")).ok());
    ASSERT_TRUE(write_file(dir / "b", std::string_view("beta\n")).ok());
    const std::vector<std::string> names = {"b", "a"};
    const auto files = digest_files(dir.path(), names);
    ASSERT_TRUE(files.ok());
    EXPECT_EQ((*files)[0], (FileDigest{"b", sha256_hex("beta\n")}));
    const auto digest = group_digest(*files);
    ASSERT_TRUE(digest.ok());
    // printf 'alpha\n' >a; printf 'beta\n' >b; sha256sum a b | LC_ALL=C sort | sha256sum
    EXPECT_EQ(*digest, "28b9bf63c162e5a99f6d0db5d9114ea9bdb8db0f6ffd37a02215c2757cee3de5");
    std::vector<FileDigest> reversed(files->rbegin(), files->rend());
    EXPECT_EQ(*group_digest(reversed), *digest);
    reversed[0].name = "c";
    EXPECT_NE(*group_digest(reversed), *digest);
    EXPECT_EQ(*group_digest({}), sha256_hex(""));
}

TEST(Identity, Refusals) {
    const std::string digest = sha256_hex("x");
    const auto code = [](std::vector<FileDigest> files) { return group_digest(files).status().code(); };
    EXPECT_EQ(code({{"a", digest}, {"a", digest}}), StatusCode::invalid_argument);
    EXPECT_EQ(code({{"", digest}}), StatusCode::invalid_argument);
    EXPECT_EQ(code({{"a\nb", digest}}), StatusCode::invalid_argument);
    EXPECT_EQ(code({{"a\\b", digest}}), StatusCode::invalid_argument);
    EXPECT_EQ(code({{"a", "00"}}), StatusCode::invalid_argument);
    EXPECT_EQ(code({{"a", std::string(64, 'A')}}), StatusCode::invalid_argument);
    TestDirectory dir;
    const std::vector<std::string> names = {"none"};
    EXPECT_EQ(digest_files(dir.path(), names).status().code(), StatusCode::not_found);
}

}  // namespace
}  // namespace draftprobe
