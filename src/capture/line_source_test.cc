// Lines of plain and compressed files, and every way in which they can be cut short.
#include "capture/line_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <fstream>
#include <vector>

#include "base/test_directory.h"

namespace draftprobe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Lines : public testing::Test {
protected:
    std::filesystem::path write(std::string_view name, std::string_view bytes) {
        std::ofstream(directory_ / name, std::ios::binary) << bytes;
        return directory_ / name;
    }
    static std::string pack(const std::string& text) {
        std::string packed(ZSTD_compressBound(text.size()), '\0');
        packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
        return packed;
    }
    static Status read(const std::filesystem::path& path, std::vector<std::string>& lines) {
        Result<LineSource> source = LineSource::open(path);
        if (!source.ok()) return source.status();
        std::string_view line;
        while (true) {
            const Result<bool> more = source->next(line);
            if (!more.ok()) return more.status();
            if (!*more) return {};
            lines.emplace_back(line);
        }
    }
    TestDirectory directory_;
};

TEST_F(Lines, GivesLinesWithoutTheirEnds) {
    std::vector<std::string> lines;
    ASSERT_TRUE(read(write("a", "one\n\nthree\n"), lines).ok());
    EXPECT_THAT(lines, ElementsAre("one", "", "three"));
    lines.clear();
    ASSERT_TRUE(read(write("empty", ""), lines).ok());
    EXPECT_TRUE(lines.empty());
}

TEST_F(Lines, LinesLongerThanABlockStayWhole) {
    const std::string text =
        std::string(700'000, 'x') + "\n" + std::string(3, 'y') + "\n" + std::string(300'000, 'z') + "\n";
    for (const auto& path : {write("long", text), write("long.zst", pack(text))}) {
        std::vector<std::string> lines;
        ASSERT_TRUE(read(path, lines).ok());
        ASSERT_EQ(lines.size(), 3u);
        EXPECT_EQ(lines[0].size() + lines[1].size() + lines[2].size() + 3, text.size());
    }
}

TEST_F(Lines, ALastLineWithoutLineFeedIsCutShort) {
    std::vector<std::string> lines;
    const Status status = read(write("cut", "{}\n{}"), lines);
    EXPECT_EQ(status.code(), StatusCode::corrupt);
    EXPECT_THAT(status.message(), HasSubstr("line 2 has no line feed"));
}

TEST_F(Lines, ACutFrameIsSeenEvenAtALineEnd) {
    std::string text;
    for (int i = 0; i < 20000; ++i) text += std::to_string(i * 7919) + "\n";
    const std::string packed = pack(text);
    std::vector<std::string> lines;
    ASSERT_TRUE(read(write("whole.zst", packed), lines).ok());
    EXPECT_EQ(lines.size(), 20000u);
    for (std::size_t cut : {packed.size() - 1, packed.size() / 2, std::size_t{5}}) {
        const Status status = read(write("cut" + std::to_string(cut) + ".zst", packed.substr(0, cut)), lines);
        EXPECT_EQ(status.code(), StatusCode::corrupt) << cut;
    }
    // Two frames, the second one cut before its first byte of text.
    const std::string second = packed + pack("more\n").substr(0, 6);
    EXPECT_THAT(read(write("two.zst", second), lines).message(), HasSubstr("frame is cut short"));
    EXPECT_THAT(read(write("noise.zst", "not a frame"), lines).message(), HasSubstr("damaged zstd data"));
}

TEST_F(Lines, AnEndlessLineIsRefused) {
    const std::string text(kMaxLineBytes + 10, 'x');
    std::vector<std::string> lines;
    const Status status = read(write("endless.zst", pack(text)), lines);
    EXPECT_EQ(status.code(), StatusCode::corrupt);
    EXPECT_THAT(status.message(), HasSubstr("line 1 is longer than"));
}

TEST_F(Lines, OnlyRegularFilesAreOpened) {
    std::vector<std::string> lines;
    EXPECT_EQ(read(directory_ / "none", lines).code(), StatusCode::not_found);
    EXPECT_EQ(read(directory_.path(), lines).code(), StatusCode::io);
}

}  // namespace
}  // namespace draftprobe
