#include "base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/test_directory.h"

namespace draftprobe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> entries(const fs::path& dir) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

std::string content(const fs::path& path) {
    auto text = read_text_file(path, 1 << 20);
    EXPECT_TRUE(text.ok()) << text.status().message();
    return text.ok() ? *text : "";
}

TEST(ReadTextFile, ContentAndBound) {
    TestDirectory dir;
    const std::string text("a\0b\n", 4);
    ASSERT_TRUE(write_file(dir / "f", text).ok());
    EXPECT_EQ(content(dir / "f"), text);
    EXPECT_TRUE(read_text_file(dir / "f", 4).ok());
    const Status large = read_text_file(dir / "f", 3).status();
    EXPECT_EQ(large.code(), StatusCode::exhausted);
    EXPECT_THAT(large.message(), HasSubstr("4 bytes, expected at most 3"));
    ASSERT_TRUE(write_file(dir / "f", std::string_view()).ok());
    EXPECT_EQ(content(dir / "f"), "");
}

TEST(ReadTextFile, FilesWithoutASizeAreReadToTheirEnd) { EXPECT_GT(content("/proc/self/status").size(), 100u); }

TEST(ReadTextFile, OtherKindsAreRefusedWithoutBlocking) {
    TestDirectory dir;
    ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
    EXPECT_THAT(read_text_file(dir / "fifo", 10).status().message(), HasSubstr("found a FIFO"));
    EXPECT_THAT(read_text_file(dir.path(), 10).status().message(), HasSubstr("found a directory"));
    EXPECT_THAT(read_text_file("/dev/zero", 10).status().message(), HasSubstr("found a device"));
    EXPECT_EQ(read_text_file(dir / "none", 10).status().code(), StatusCode::not_found);
    EXPECT_EQ(MappedFile::open(dir / "fifo").status().code(), StatusCode::io);
    EXPECT_EQ(MappedFile::open(dir.path()).status().code(), StatusCode::io);
    EXPECT_EQ(MappedFile::open(dir / "none").status().code(), StatusCode::not_found);
}

TEST(MappedFile, MapsAndMoves) {
    TestDirectory dir;
    ASSERT_TRUE(write_file(dir / "f", std::string_view("hello")).ok());
    auto opened = MappedFile::open(dir / "f");
    ASSERT_TRUE(opened.ok());
    const std::byte* data = opened->data();
    MappedFile map = std::move(opened).value();
    EXPECT_EQ(map.data(), data);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(map.data()), map.size()), "hello");
    ASSERT_TRUE(write_file(dir / "empty", std::string_view()).ok());
    auto empty = MappedFile::open(dir / "empty");
    ASSERT_TRUE(empty.ok());
    EXPECT_EQ(empty->size(), 0u);
    map = std::move(empty).value();
    EXPECT_EQ(map.size(), 0u);
}

TEST(WriteFile, ReplacesAndNamesThePathOnFailure) {
    TestDirectory dir;
    ASSERT_TRUE(write_file(dir / "f", std::string_view("long content")).ok());
    ASSERT_TRUE(write_file(dir / "f", std::string_view("x")).ok());
    EXPECT_EQ(content(dir / "f"), "x");
    const Status status = write_file(dir / "no/such", std::string_view("x"));
    EXPECT_EQ(status.code(), StatusCode::not_found);
    EXPECT_THAT(status.message(), HasSubstr("no/such"));
}

TEST(WriteFileAtomically, WritesANewFileAndLeavesNoOther) {
    TestDirectory dir;
    ASSERT_TRUE(write_file_atomically(dir / "f", "one", false).ok());
    EXPECT_EQ(content(dir / "f"), "one");
    EXPECT_THAT(entries(dir.path()), ElementsAre("f"));
}

TEST(WriteFileAtomically, ReplacesOnlyWithForce) {
    TestDirectory dir;
    ASSERT_TRUE(write_file(dir / "f", "old").ok());
    const Status refused = write_file_atomically(dir / "f", "new", false);
    EXPECT_EQ(refused.code(), StatusCode::invalid_argument);
    EXPECT_THAT(refused.message(), HasSubstr("already exists"));
    EXPECT_EQ(content(dir / "f"), "old");
    ASSERT_TRUE(write_file_atomically(dir / "f", "new", true).ok());
    EXPECT_EQ(content(dir / "f"), "new");
    EXPECT_THAT(entries(dir.path()), ElementsAre("f"));
}

TEST(WriteFileAtomically, FailuresLeaveNothing) {
    TestDirectory dir;
    fs::create_directory(dir / "d");
    EXPECT_FALSE(write_file_atomically(dir / "d", "x", true).ok());
    EXPECT_EQ(write_file_atomically(dir / "d", "x", false).code(), StatusCode::invalid_argument);
    EXPECT_EQ(write_file_atomically(dir / "none" / "f", "x", false).code(), StatusCode::not_found);
    EXPECT_EQ(write_file_atomically("", "x", true).code(), StatusCode::invalid_argument);
    EXPECT_EQ(write_file_atomically(dir.path() / "", "x", true).code(), StatusCode::invalid_argument);
    fs::create_symlink("nowhere", dir / "link");
    EXPECT_EQ(write_file_atomically(dir / "link", "x", false).code(), StatusCode::invalid_argument);
    EXPECT_THAT(entries(dir.path()), ElementsAre("d", "link"));
    EXPECT_THAT(entries(dir / "d"), IsEmpty());
}

TEST(FileWriter, DiskFullIsExhausted) {
    if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
    const Status status = write_file("/dev/full", std::string_view("x"));
    EXPECT_EQ(status.code(), StatusCode::exhausted) << status.message();
}

TEST(AtomicDirectory, AppearsOnlyAtCommit) {
    TestDirectory dir;
    auto made = AtomicDirectory::create(dir / "out", false);
    ASSERT_TRUE(made.ok()) << made.status().message();
    ASSERT_TRUE(write_file(made->file("a"), std::string_view("1")).ok());
    ASSERT_EQ(entries(dir.path()).size(), 1u);
    EXPECT_THAT(entries(dir.path())[0], ::testing::StartsWith(".out.partial-"));
    ASSERT_TRUE(made->commit().ok());
    EXPECT_THAT(entries(dir.path()), ElementsAre("out"));
    EXPECT_EQ(content(dir / "out/a"), "1");
    EXPECT_EQ(made->commit().code(), StatusCode::internal);
}

TEST(AtomicDirectory, DestructorRemovesWhatWasNotCommitted) {
    TestDirectory dir;
    {
        auto made = AtomicDirectory::create(dir / "out", false);
        ASSERT_TRUE(made.ok());
        AtomicDirectory moved = std::move(made).value();
        fs::create_directory(moved.path() / "sub");
        ASSERT_TRUE(write_file(moved.path() / "sub/x", std::string_view("1")).ok());
    }
    EXPECT_THAT(entries(dir.path()), IsEmpty());
}

TEST(AtomicDirectory, ExistingTargetIsRefusedFirst) {
    TestDirectory dir;
    fs::create_directory(dir / "out");
    ASSERT_TRUE(write_file(dir / "file", std::string_view("keep")).ok());
    for (const char* name : {"out", "out/", "out/.", "file"}) {
        const Status status = AtomicDirectory::create(dir / name, false).status();
        EXPECT_EQ(status.code(), StatusCode::invalid_argument) << name;
    }
    EXPECT_EQ(AtomicDirectory::create(dir / "file", true).status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(AtomicDirectory::create(dir / "none/out", false).status().code(), StatusCode::not_found);
    EXPECT_EQ(AtomicDirectory::create("", false).status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(AtomicDirectory::create("..", true).status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(AtomicDirectory::create("/", true).status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(entries(dir.path()), ElementsAre("file", "out"));
    EXPECT_EQ(content(dir / "file"), "keep");
}

TEST(AtomicDirectory, TargetThatAppearsMeanwhileIsNotReplaced) {
    TestDirectory dir;
    auto made = AtomicDirectory::create(dir / "out", false);
    ASSERT_TRUE(made.ok());
    fs::create_directory(dir / "out");  // rename() alone would replace an empty directory
    EXPECT_EQ(made->commit().code(), StatusCode::invalid_argument);
    EXPECT_TRUE(fs::is_empty(dir / "out"));
}

TEST(AtomicDirectory, ForceReplacesAtCommitAndNotBefore) {
    TestDirectory dir;
    fs::create_directory(dir / "out");
    ASSERT_TRUE(write_file(dir / "out/old", std::string_view("1")).ok());
    {
        auto abandoned = AtomicDirectory::create(dir / "out", true);
        ASSERT_TRUE(abandoned.ok());
    }
    EXPECT_THAT(entries(dir / "out"), ElementsAre("old"));
    auto made = AtomicDirectory::create(dir / "out", true);
    ASSERT_TRUE(made.ok());
    ASSERT_TRUE(write_file(made->file("new"), std::string_view("2")).ok());
    EXPECT_THAT(entries(dir / "out"), ElementsAre("old"));
    ASSERT_TRUE(made->commit().ok());
    EXPECT_THAT(entries(dir / "out"), ElementsAre("new"));
    EXPECT_THAT(entries(dir.path()), ElementsAre("out"));
}

TEST(AtomicDirectory, ForceReplacesOnlyWhatTheProgramMakes) {
    static constexpr std::string_view kKnown[] = {"capture.json", "steps.jsonl", "*.html"};
    constexpr ReplaceRule kRule{"capture.json", kKnown};
    TestDirectory dir;
    fs::create_directory(dir / "precious");
    ASSERT_TRUE(write_file(dir / "precious/thesis", std::string_view("1")).ok());
    const Status status = AtomicDirectory::create(dir / "precious", true, kRule).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_THAT(status.message(), HasSubstr("capture.json"));
    fs::create_directory(dir / "empty");
    EXPECT_TRUE(AtomicDirectory::create(dir / "empty", true, kRule).ok());
    ASSERT_TRUE(write_file(dir / "precious/capture.json", std::string_view("{}")).ok());
    // The marker alone does not let the rest go.
    const Status foreign = AtomicDirectory::create(dir / "precious", true, kRule).status();
    EXPECT_EQ(foreign.code(), StatusCode::invalid_argument);
    EXPECT_THAT(foreign.message(), HasSubstr("thesis"));
    EXPECT_EQ(content(dir / "precious/thesis"), "1");
    fs::rename(dir / "precious/thesis", dir / "precious/page.html");
    EXPECT_TRUE(AtomicDirectory::create(dir / "precious", true, kRule).ok());
}

TEST(AtomicDirectory, PartialDirectoriesCanBeRemovedAtOnce) {
    TestDirectory dir;
    auto first = AtomicDirectory::create(dir / "first", false);
    auto second = AtomicDirectory::create(dir / "second", false);
    ASSERT_TRUE(first.ok() && second.ok());
    ASSERT_TRUE(second->commit().ok());
    remove_partial_directories();
    EXPECT_THAT(entries(dir.path()), ElementsAre("second"));
}

TEST(AtomicDirectory, KilledWriterLeavesNothingThatLooksComplete) {
    TestDirectory dir;
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        auto made = AtomicDirectory::create(dir / "out", false);
        if (!made.ok() || !write_file(made->file("a"), std::string_view("1")).ok()) ::_exit(1);
        if (::write(ready[1], "r", 1) != 1) ::_exit(1);
        ::pause();
        ::_exit(0);
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    EXPECT_TRUE(WIFSIGNALED(state));
    ASSERT_EQ(entries(dir.path()).size(), 1u);
    EXPECT_THAT(entries(dir.path())[0], ::testing::StartsWith(".out.partial-"));
    ::close(ready[0]);
    ::close(ready[1]);
    auto again = AtomicDirectory::create(dir / "out", false);
    ASSERT_TRUE(again.ok());
    EXPECT_TRUE(again->commit().ok());
}

}  // namespace
}  // namespace draftprobe
