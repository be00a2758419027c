#include "text/nfc.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>
#include <string>

namespace draftprobe {
namespace {

std::string utf8(utf8proc_int32_t code) {
    utf8proc_uint8_t bytes[4];
    return {reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(utf8proc_encode_char(code, bytes))};
}

std::string library_nfc(const std::string& text) {
    utf8proc_uint8_t* out = nullptr;
    const auto size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                     &out, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    std::string result(reinterpret_cast<const char*>(out), static_cast<std::size_t>(size));
    std::free(out);
    return result;
}

TEST(Nfc, KnownForms) {
    EXPECT_EQ(to_nfc(""), "");
    EXPECT_EQ(to_nfc("plain"), "plain");
    EXPECT_EQ(to_nfc("e\xCC\x81"), "\xC3\xA9");
    EXPECT_EQ(to_nfc("\xC3\xA9"), "\xC3\xA9");
    EXPECT_EQ(to_nfc("\xE2\x84\xAB"), "\xC3\x85");                              // angstrom sign
    EXPECT_EQ(to_nfc("q\xCC\x87\xCC\xA3"), "q\xCC\xA3\xCC\x87");                // marks in class order
    EXPECT_EQ(to_nfc("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"), "\xEA\xB0\x81");  // Hangul
    EXPECT_EQ(to_nfc("\xE0\xA5\x98"), "\xE0\xA4\x95\xE0\xA4\xBC");              // composition exclusion
    EXPECT_EQ(to_nfc("\xEF\xAC\x81"), "\xEF\xAC\x81");  // ligatures are compatibility forms: kept
    EXPECT_EQ(to_nfc(std::string("a\0b\xCC\x81", 5)), std::string("a\0b\xCC\x81", 5));
}

// Expected values from the Hugging Face library's NFC: to Unicode 9 these characters are unassigned.
TEST(Nfc, CharactersNewerThanUnicode9StayInPlace) {
    EXPECT_EQ(to_nfc("a\xCD\x85\xE0\xB4\xBB"), "a\xCD\x85\xE0\xB4\xBB");  // class 240 before class 9
    EXPECT_EQ(to_nfc("a\xCD\x85\xE1\xAC\xB4"), "a\xE1\xAC\xB4\xCD\x85");  // class 7, older: moves
    const std::string parts = "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0";         // U+11935 U+11930
    EXPECT_EQ(to_nfc(parts), parts);
    EXPECT_EQ(to_nfc("e\xCC\x81" + parts + "e\xCC\x81"), "\xC3\xA9" + parts + "\xC3\xA9");
    EXPECT_EQ(to_nfc("e\xE0\xB4\xBB\xCC\x81"), "e\xE0\xB4\xBB\xCC\x81");
}

TEST(Nfc, EveryCharacterEqualsTheLibrary) {
    for (utf8proc_int32_t code = 1; code <= 0x10FFFF; ++code) {
        if (code >= 0xD800 && code <= 0xDFFF) continue;
        const std::string text = utf8(code);
        ASSERT_EQ(to_nfc(text), library_nfc(text)) << std::hex << code;
    }
}

TEST(Nfc, RandomStringsEqualTheLibrary) {
    std::mt19937 random(3);
    const auto pick = [&]() -> utf8proc_int32_t {
        switch (random() % 5) {
            case 0: return static_cast<utf8proc_int32_t>(0x300 + random() % 0x70);
            case 1: return static_cast<utf8proc_int32_t>('a' + random() % 26);
            case 2: return static_cast<utf8proc_int32_t>(0x1100 + random() % 0x100);
            case 3: return static_cast<utf8proc_int32_t>(0x900 + random() % 0xf0);
            default: return static_cast<utf8proc_int32_t>(0xAC00 + random() % 0x2BA4);
        }
    };
    for (int round = 0; round < 20'000; ++round) {
        std::string text;
        for (std::size_t n = random() % 12; n > 0; --n) text += utf8(pick());
        const std::string normal = to_nfc(text);
        ASSERT_EQ(normal, library_nfc(text)) << round;
        ASSERT_EQ(to_nfc(normal), normal) << round;
    }
}

}  // namespace
}  // namespace draftprobe
