#include "text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace draftprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string> pieces(std::string_view pattern, std::string_view text) {
    const auto compiled = PreTokenizer::compile(pattern);
    EXPECT_TRUE(compiled.ok()) << compiled.status().message();
    if (!compiled.ok()) return {};
    const auto split = compiled->split(text);
    EXPECT_TRUE(split.ok()) << split.status().message();
    return split.ok() ? std::vector<std::string>(split->begin(), split->end()) : std::vector<std::string>();
}

TEST(PreTokenizer, QwenPattern) {
    EXPECT_THAT(pieces(kQwen, "Hello, world"), ElementsAre("Hello", ",", " world"));
    EXPECT_THAT(pieces(kQwen, "it's I'LL"), ElementsAre("it", "'s", " I", "'LL"));
    EXPECT_THAT(pieces(kQwen, "a  b"), ElementsAre("a", " ", " b"));
    EXPECT_THAT(pieces(kQwen, "a 123"), ElementsAre("a", " ", "1", "2", "3"));
    EXPECT_THAT(pieces(kQwen, "x \n\n  y"), ElementsAre("x", " \n\n", " ", " y"));
    EXPECT_THAT(pieces(kQwen, "end  "), ElementsAre("end", "  "));
    EXPECT_THAT(pieces(kQwen, "if (x) {\n"), ElementsAre("if", " (", "x", ")", " {\n"));
    EXPECT_THAT(pieces(kQwen, ""), ElementsAre());
}

// U+180E is white space for PCRE2's \s but not for Unicode or Oniguruma; U+0085 is for all of them.
TEST(PreTokenizer, WhiteSpaceIsTheUnicodeProperty) {
    EXPECT_THAT(pieces(R"(\s+)",
                       "a\xE1\xA0\x8E"
                       "b"),
                ElementsAre("a\xE1\xA0\x8E"
                            "b"));
    EXPECT_THAT(pieces(R"([^\s]+)",
                       "a\xE1\xA0\x8E"
                       "b"),
                ElementsAre("a\xE1\xA0\x8E"
                            "b"));
    EXPECT_THAT(pieces(R"(\S+)",
                       "a\xE1\xA0\x8E"
                       "b"),
                ElementsAre("a\xE1\xA0\x8E"
                            "b"));
    EXPECT_THAT(pieces(R"(\s+)",
                       "a\xC2\x85\xE3\x80\x80"
                       "b"),
                ElementsAre("a", "\xC2\x85\xE3\x80\x80", "b"));
    int spaces = 0;
    const auto space = PreTokenizer::compile(R"(\s)");
    ASSERT_TRUE(space.ok());
    for (unsigned code = 1; code < 0x10000; ++code) {
        if (code >= 0xD800 && code <= 0xDFFF) continue;
        std::string text = "x";
        if (code < 0x80) {
            text += static_cast<char>(code);
        } else if (code < 0x800) {
            text += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
        } else {
            text += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
                     static_cast<char>(0x80 | (code & 0x3F))};
        }
        spaces += space->split(text)->size() == 2 ? 1 : 0;
    }
    EXPECT_EQ(spaces, 25);
}

TEST(PreTokenizer, GapsArePieces) {
    EXPECT_THAT(pieces("[b]+", "abbbcb"), ElementsAre("a", "bbb", "c", "b"));
    EXPECT_THAT(pieces(R"(\p{N}{1,3})", "12345"), ElementsAre("123", "45"));
}

TEST(PreTokenizer, SyntaxWithSeveralMeaningsIsUnsupported) {
    for (const char* pattern : {"",    "\\w+",  "\\W",     "\\b",         "\\h",       "\\d\\1",        "\\Qa\\E",
                                "a.b", "^a",    "a$",      "[[:space:]]", "[a&&b]",    "[a[b]]",        "[]",
                                "[^]", "[a",    "[\\S]",   "a{1,2}+",     "a{,3}",     "a{1,2,3}",      "a{}",
                                "a{1", "a{x}",  "(?<n>a)", "(?i)a",       "(?#c)a",    "(*ACCEPT)a",    "(?R)",
                                "\\",  "\\pL",  "\\x41",   "a)",          "(a",        "\\p{Nonsense}", "a*",
                                "x?",  "(?=a)", "a|",      "(a|b)+",      "(?:a|b)*c", "(a){2}b"}) {
        const auto compiled = PreTokenizer::compile(pattern);
        EXPECT_EQ(compiled.status().code(), StatusCode::unsupported) << pattern;
    }
    EXPECT_EQ(PreTokenizer::compile(std::string(5000, 'a')).status().code(), StatusCode::unsupported);
    for (const char* pattern :
         {"\\.", "[\\]\\-]", "a{2}", "a++", "(?>a|b)c", "(?<!a)b", "(a|b)?c", "a{2,}", "a{1,3}", "\\P{L}"}) {
        EXPECT_TRUE(PreTokenizer::compile(pattern).ok()) << pattern;
    }
}

TEST(PreTokenizer, RunawayPatternEndsAtTheLimit) {
    const auto compiled = PreTokenizer::compile("[ab]*[ab]*[ab]*[ab]*[ab]*[ab]*[cd]");
    ASSERT_TRUE(compiled.ok());
    const auto split = compiled->split(std::string(400, 'a'));
    EXPECT_EQ(split.status().code(), StatusCode::exhausted);
    EXPECT_THAT(split.status().message(), HasSubstr("byte 0 of a text of 400"));
}

// The step limit grows with the text: a run of white space longer than the fixed part of the limit is one piece.
TEST(PreTokenizer, LongRunsStayBelowTheLimit) {
    const auto compiled = PreTokenizer::compile(kQwen);
    ASSERT_TRUE(compiled.ok());
    const std::size_t size = PreTokenizer::kMatchSteps + 2'000'000;
    const auto split = compiled->split(std::string(size, ' ') + "x");
    ASSERT_TRUE(split.ok()) << split.status().message();
    ASSERT_EQ(split->size(), 2u);
    EXPECT_EQ((*split)[0].size(), size - 1);
}

TEST(PreTokenizer, DeepPatternsAreRefusedNotRecursed) {
    EXPECT_FALSE(PreTokenizer::compile(std::string(2000, '(') + "a" + std::string(2000, ')')).ok());
}

}  // namespace
}  // namespace draftprobe
