#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace draftprobe {
namespace {

std::string encode(unsigned code) {
    std::string out;
    if (code < 0x80) {
        out += static_cast<char>(code);
    } else if (code < 0x800) {
        out += static_cast<char>(0xC0 | code >> 6);
        out += static_cast<char>(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        out += static_cast<char>(0xE0 | code >> 12);
        out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
        out += static_cast<char>(0x80 | (code & 0x3F));
    } else {
        out += static_cast<char>(0xF0 | code >> 18);
        out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
        out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
        out += static_cast<char>(0x80 | (code & 0x3F));
    }
    return out;
}

TEST(Utf8, ExactlyTheScalarValuesAreWellFormed) {
    for (unsigned code = 0; code < 0x200000; ++code) {
        const std::string text = encode(code);
        const bool scalar = code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
        ASSERT_EQ(utf8_sequence(text, 0), scalar ? text.size() : 0u) << std::hex << code;
    }
}

TEST(Utf8, EveryTwoByteStringAgreesWithItsDefinition) {
    for (unsigned first = 0; first < 256; ++first) {
        for (unsigned second = 0; second < 256; ++second) {
            const std::string text = {static_cast<char>(first), static_cast<char>(second)};
            const bool pair = first >= 0xC2 && first <= 0xDF && second >= 0x80 && second <= 0xBF;
            const bool good = pair || (first < 0x80 && second < 0x80);
            ASSERT_EQ(!utf8_first_error(text), good) << first << " " << second;
        }
    }
}

TEST(Utf8, OverlongFormsAndCutSequencesAreNot) {
    for (const std::string bad : {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
                                  "\xE2\x82", "\xF0\x9F\x98", "\xF5\x80\x80\x80", "\x80", "\xFF"}) {
        EXPECT_EQ(utf8_first_error("ab" + bad), 2u);
    }
    EXPECT_EQ(utf8_first_error("a\xE2\x82\xAC\xF0\x9F\x98\x80"), std::nullopt);
    EXPECT_EQ(utf8_first_error(""), std::nullopt);
}

TEST(Utf8, PrintableTextDrivesNoTerminal) {
    EXPECT_EQ(printable_text("plain \xc3\xa4 \xf0\x9f\x99\x82"), "plain \xc3\xa4 \xf0\x9f\x99\x82");
    EXPECT_EQ(printable_text("a\x1b[31m\r\nb\x7f"), "a?[31m??b?");
    EXPECT_EQ(printable_text("a\xc2\x9b"
                             "31m\xc2\x85"),
              "a?31m?");
    EXPECT_EQ(printable_text("\xe2\x80\xae"
                             "evil\xe2\x81\xa6\xe2\x80\xa8"),
              "?evil??");
    EXPECT_EQ(printable_text("\xff\xc3"), "??");
    EXPECT_EQ(printable_text("\xc2\xa0"), "\xc2\xa0");
}

}  // namespace
}  // namespace draftprobe
