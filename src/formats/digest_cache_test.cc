#include "formats/digest_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/test_directory.h"
#include "formats/identity.h"

namespace draftprobe {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kAnySize = 1;

FileStamp stamp_of(std::uint64_t inode) { return {7, inode, 100, 1'000, 2'000}; }

std::string digest_of(std::string_view text) { return sha256_hex(text); }

std::string slurp(const fs::path& path) {
    auto text = read_text_file(path, 16u << 20);
    return text.ok() ? *text : "";
}

class DigestCacheTest : public ::testing::Test {
protected:
    fs::path file() const { return directory_ / "cache" / "digests.json"; }
    DigestCache open() const { return DigestCache::open(file(), kAnySize); }

    void save(std::uint64_t inode, std::string_view text) const {
        DigestCache cache = open();
        cache.add(stamp_of(inode), digest_of(text));
        ASSERT_TRUE(cache.save().ok());
    }

    TestDirectory directory_;
};

TEST_F(DigestCacheTest, KeepsWhatWasAddedAcrossRuns) {
    EXPECT_EQ(open().find(stamp_of(1)), std::nullopt);
    save(1, "a");
    save(2, "b");
    const DigestCache cache = open();
    EXPECT_EQ(cache.find(stamp_of(1)), digest_of("a"));
    EXPECT_EQ(cache.find(stamp_of(2)), digest_of("b"));
}

TEST_F(DigestCacheTest, EveryPartOfTheStampCounts) {
    save(1, "a");
    const DigestCache cache = open();
    FileStamp stamp = stamp_of(1);
    ASSERT_TRUE(cache.find(stamp));
    for (std::uint64_t* part : {&stamp.device, &stamp.inode, &stamp.size}) {
        ++*part;
        EXPECT_FALSE(cache.find(stamp));
        --*part;
    }
    for (std::int64_t* part : {&stamp.modified, &stamp.changed}) {
        ++*part;
        EXPECT_FALSE(cache.find(stamp));
        --*part;
    }
}

TEST_F(DigestCacheTest, ANewStampReplacesTheOldOneOfTheSameFile) {
    save(1, "a");
    DigestCache cache = open();
    FileStamp later = stamp_of(1);
    later.changed += 5;
    cache.add(later, digest_of("b"));
    ASSERT_TRUE(cache.save().ok());
    EXPECT_FALSE(open().find(stamp_of(1)));
    EXPECT_EQ(open().find(later), digest_of("b"));
}

TEST_F(DigestCacheTest, SmallFilesAndNoPathAreNotKept) {
    EXPECT_FALSE(DigestCache::open(file()).takes(stamp_of(1)));
    FileStamp large = stamp_of(1);
    large.size = kMinCachedFileBytes;
    EXPECT_TRUE(DigestCache::open(file()).takes(large));
    EXPECT_FALSE(DigestCache::open({}).takes(large));
}

TEST_F(DigestCacheTest, IsBounded) {
    DigestCache cache = open();
    for (std::uint64_t i = 0; i < kMaxCachedDigests + 10; ++i) cache.add(stamp_of(i), digest_of("x"));
    ASSERT_TRUE(cache.save().ok());
    EXPECT_FALSE(open().find(stamp_of(9)));
    EXPECT_TRUE(open().find(stamp_of(10)));
    EXPECT_TRUE(open().find(stamp_of(kMaxCachedDigests + 9)));
    EXPECT_LT(fs::file_size(file()), 512u << 10);
}

// Whatever is in the file, it is as if there were none; and the next run writes a good one.
TEST_F(DigestCacheTest, WhatIsWrongWithTheFileIsIgnored) {
    save(1, "a");
    const std::string good = slurp(file());
    const std::string digest = digest_of("a");
    const auto with = [&](std::string_view from, std::string_view to) {
        std::string text = good;
        const std::size_t at = text.find(from);
        EXPECT_NE(at, std::string::npos);
        return text.replace(at, from.size(), to);
    };
    const std::vector<std::string> damaged = {
        "",
        "[]",
        "{\"digest_cache_version\":1,\"entries\":3}",
        good.substr(0, good.size() / 2),
        with("\"digest_cache_version\":1", "\"digest_cache_version\":2"),
        with(digest, digest_of("b")),  // a valid digest, but not the entry's own
        with(digest, digest.substr(1)),
        with("\"size\":100", "\"size\":101"),
        with("\"size\":100", "\"size\":-1"),
        with("\"inode\":1", "\"inode\":\"x\""),
        with("\"check\"", "\"chick\""),
    };
    for (const std::string& text : damaged) {
        ASSERT_TRUE(write_file(file(), text).ok());
        EXPECT_FALSE(open().find(stamp_of(1))) << text;
        save(2, "b");
        EXPECT_EQ(open().find(stamp_of(2)), digest_of("b")) << text;
    }
    ASSERT_TRUE(write_file(file(), good).ok());
    EXPECT_TRUE(open().find(stamp_of(1)));
}

TEST_F(DigestCacheTest, AFileThatOthersMayWriteIsNotBelieved) {
    save(1, "a");
    fs::permissions(file(), fs::perms::others_write, fs::perm_options::add);
    EXPECT_FALSE(open().find(stamp_of(1)));
    fs::permissions(file(), fs::perms::others_write, fs::perm_options::remove);
    EXPECT_TRUE(open().find(stamp_of(1)));
    fs::rename(file(), directory_ / "elsewhere");
    fs::create_symlink(directory_ / "elsewhere", file());
    EXPECT_FALSE(open().find(stamp_of(1)));
}

TEST_F(DigestCacheTest, ConcurrentRunsLeaveAFileThatReads) {
    std::vector<std::thread> runs;
    for (std::uint64_t run = 0; run < 8; ++run) {
        runs.emplace_back([this, run] {
            for (std::uint64_t i = 0; i < 5; ++i) save(run * 100 + i, "x");
        });
    }
    for (std::thread& run : runs) run.join();
    const auto json = parse_json(slurp(file()), "cache");
    ASSERT_TRUE(json.ok()) << json.status().message();
    std::size_t kept = 0;
    for (std::uint64_t run = 0; run < 8; ++run) kept += open().find(stamp_of(run * 100 + 4)) ? 1 : 0;
    EXPECT_GE(kept, 1u);  // the last save is there whole
    std::size_t files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(file().parent_path())) ++files;
    EXPECT_EQ(files, 1u) << "temporary files were left behind";
}

TEST_F(DigestCacheTest, FreshStampsAreNotSettled) {
    const FileStamp stamp{1, 1, 1, 10'000'000'000, 20'000'000'000};
    EXPECT_TRUE(settled(stamp, 20'000'000'000 + kSettledNanoseconds));
    EXPECT_FALSE(settled(stamp, 20'000'000'000 + kSettledNanoseconds - 1));
    EXPECT_FALSE(settled({1, 1, 1, 20'000'000'000, 0}, 20'000'000'000 + kSettledNanoseconds - 1));
    EXPECT_FALSE(settled(stamp, 0)) << "a time in the future is never settled";
}

TEST(DigestCacheFile, FollowsTheEnvironment) {
    const auto restore = [](const char* name, const char* value) {
        value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
    };
    const char* names[] = {"DRAFTPROBE_CACHE", "XDG_CACHE_HOME", "HOME"};
    std::vector<std::optional<std::string>> old;
    for (const char* name : names) {
        const char* value = std::getenv(name);
        old.push_back(value == nullptr ? std::nullopt : std::optional<std::string>(value));
    }
    restore("DRAFTPROBE_CACHE", "/a");
    restore("XDG_CACHE_HOME", "/b");
    restore("HOME", "/c");
    EXPECT_EQ(default_digest_cache_file(), "/a/digests.json");
    restore("DRAFTPROBE_CACHE", "relative");
    EXPECT_EQ(default_digest_cache_file(), "/b/draftprobe/digests.json");
    restore("XDG_CACHE_HOME", nullptr);
    EXPECT_EQ(default_digest_cache_file(), "/c/.cache/draftprobe/digests.json");
    restore("HOME", nullptr);
    EXPECT_EQ(default_digest_cache_file(), "");
    for (std::size_t i = 0; i < old.size(); ++i) restore(names[i], old[i] ? old[i]->c_str() : nullptr);
}

// Real files. Their change time cannot be set, so the tests that need a settled file wait for it once.
class CachedFiles : public DigestCacheTest {
protected:
    static constexpr std::string_view kName = "weights";
    fs::path weights() const { return directory_ / kName; }

    Result<std::vector<FileDigest>> digests(DigestCache& cache) const {
        const std::vector<std::string> names = {std::string(kName)};
        return digest_files(directory_.path(), names, &cache);
    }

    FileDigest run() const {
        DigestCache cache = open();
        const auto result = digests(cache);
        EXPECT_TRUE(result.ok());
        EXPECT_TRUE(cache.save().ok());
        return result->front();
    }

    static void settle() { std::this_thread::sleep_for(std::chrono::nanoseconds(kSettledNanoseconds + 50'000'000)); }
};

TEST_F(CachedFiles, AFreshFileIsHashedEveryTime) {
    ASSERT_TRUE(write_file(weights(), std::string_view("alpha")).ok());
    EXPECT_FALSE(run().cached);
    EXPECT_FALSE(run().cached);
    EXPECT_FALSE(fs::exists(file()));
}

TEST_F(CachedFiles, ASettledFileIsHashedOnceAndAChangedOneAgain) {
    ASSERT_TRUE(write_file(weights(), std::string_view("alpha")).ok());
    settle();
    EXPECT_EQ(run(), (FileDigest{std::string(kName), digest_of("alpha"), false}));
    EXPECT_EQ(run(), (FileDigest{std::string(kName), digest_of("alpha"), true}));

    // Other bytes of the same size, and the old modification time put back: only the change time tells.
    const FileStamp before = *file_stamp(weights());
    const auto modified = fs::last_write_time(weights());
    ASSERT_TRUE(write_file(weights(), std::string_view("gamma")).ok());
    fs::last_write_time(weights(), modified);
    const FileStamp after = *file_stamp(weights());
    EXPECT_EQ(std::pair(after.size, after.modified), std::pair(before.size, before.modified));
    EXPECT_EQ(after.inode, before.inode);
    EXPECT_EQ(run(), (FileDigest{std::string(kName), digest_of("gamma"), false}));
}

}  // namespace
}  // namespace draftprobe
