// Numbers read by the short path must be the bits that the exact conversion gives.
#include "capture/json_cursor.h"

#include <gtest/gtest.h>

#include <bit>
#include <charconv>
#include <cmath>

#include "base/json_writer.h"
#include "capture/test_capture.h"

namespace draftprobe {
namespace {

float read_f32(const std::string& text) {
    JsonCursor in(text, "t");
    const float value = in.f32();
    in.finish();
    EXPECT_TRUE(in.ok()) << in.status().message();
    return value;
}

TEST(JsonCursor, EveryKindOfFloatReadsBackToItsBits) {
    for (std::uint64_t i = 0; i < 200000; ++i) {
        const auto bits = static_cast<std::uint32_t>(fixture::mix(i, 3));
        const float value = std::bit_cast<float>(i % 2 == 0 ? bits : (bits & 0x07ffffffu) | 0x3c000000u);
        if (std::isnan(value)) continue;
        JsonWriter out;
        out.value(value);
        const std::string text = out.take();
        EXPECT_EQ(std::bit_cast<std::uint32_t>(read_f32(text)), std::bit_cast<std::uint32_t>(value)) << text;
    }
}

// Decimals that are nobody's shortest form, some of them near the middle between two float32.
TEST(JsonCursor, LongDecimalsRoundOnce) {
    for (std::uint64_t i = 0; i < 200000; ++i) {
        const auto whole = static_cast<float>(1 << (i % 24));
        const double middle = (double(whole) + double(std::nextafter(whole, 1e9f))) / 2;
        char text[64];
        const int digits = 6 + static_cast<int>(i % 12);
        const auto end =
            std::to_chars(text, text + 64, middle + (double(i % 7) - 3) * 1e-9, std::chars_format::fixed, digits);
        float expected = 0;
        std::from_chars(text, end.ptr, expected);
        EXPECT_EQ(read_f32(std::string(text, end.ptr)), expected) << std::string(text, end.ptr);
    }
    EXPECT_EQ(read_f32("16777217"), 16777216.0f);  // exactly between: to even
    EXPECT_EQ(read_f32("16777219"), 16777220.0f);
    EXPECT_EQ(read_f32("16777217.000000001"), 16777218.0f);
}

// Decimals of 16 digits that lie so close to the middle of two float32 that float64 puts them exactly there.
TEST(JsonCursor, DecimalsBesideAMiddleRoundOnce) {
    constexpr std::uint64_t kFive15 = 30517578125;
    int found = 0;
    for (std::uint64_t odd = (1u << 24) + 1; odd < 1u << 25; odd += 2) {
        // The middle is odd / 2^24; times 10^15 it is odd * 5^15 / 2^9.
        const std::uint64_t scaled = odd * kFive15;
        const std::uint64_t rest = scaled % 512;
        if (rest > 5 && rest < 507) continue;
        const std::uint64_t digits = (scaled + 256) / 512;
        const std::string text = fmt::format("{}.{:015}", digits / 1000000000000000, digits % 1000000000000000);
        float expected = 0;
        std::from_chars(text.data(), text.data() + text.size(), expected);
        ASSERT_EQ(read_f32(text), expected) << text;
        ++found;
    }
    EXPECT_GT(found, 1000);
}

TEST(JsonCursor, SignOfZeroAndLimits) {
    EXPECT_TRUE(std::signbit(read_f32("-0.0")));
    EXPECT_FALSE(std::signbit(read_f32("0")));
    EXPECT_EQ(read_f32("3.4028235e38"), std::numeric_limits<float>::max());
    EXPECT_TRUE(std::isinf(read_f32("\"-Infinity\"")));
    for (std::string_view bad : {"3.5e38", "1e400", ".5", "5.", "01", "+1", "1e", "--1", "nan", "\"nan\"", ""}) {
        JsonCursor in(bad, "t");
        in.f32();
        in.finish();
        EXPECT_EQ(in.status().code(), StatusCode::corrupt) << bad;
    }
}

TEST(JsonCursor, IntegersAreCanonical) {
    const auto read = [](std::string_view text) {
        JsonCursor in(text, "t");
        const std::uint64_t value = in.unsigned_integer();
        in.finish();
        return in.ok() ? std::optional<std::uint64_t>(value) : std::nullopt;
    };
    EXPECT_EQ(read("9007199254740992"), std::uint64_t{1} << 53);
    EXPECT_EQ(read("\"9007199254740993\""), (std::uint64_t{1} << 53) + 1);
    EXPECT_EQ(read("\"18446744073709551615\""), ~std::uint64_t{0});
    for (std::string_view bad : {"9007199254740993", "\"9007199254740992\"", "\"18446744073709551616\"", "-1", "1.0",
                                 "\"\"", "\"01\"", "18446744073709551616"}) {
        EXPECT_FALSE(read(bad)) << bad;
    }
}

TEST(JsonCursor, StringsDecodeAndRefuse) {
    const auto read = [](std::string_view text) {
        JsonCursor in(text, "t");
        std::string value;
        in.string(value);
        in.finish();
        return in.ok() ? value : "refused";
    };
    EXPECT_EQ(read(R"("a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00")"), "a\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80");
    for (std::string_view bad : {R"("\ud83d")", R"("\ude00")", R"("\x")", R"("\u12g4")", "\"\x01\"", "\"\xff\"",
                                 "\"open", R"("\ud83dA")", "\"\\"}) {
        EXPECT_EQ(read(bad), "refused") << bad;
    }
}

TEST(JsonCursor, ErrorsNamePlaceAndStick) {
    JsonCursor in("{\"a\":1,\"b\":x}", "file");
    in.begin_object();
    EXPECT_EQ(in.peek_key(), "a");
    in.take_key();
    EXPECT_EQ(in.integer(0, 9), 1);
    EXPECT_EQ(in.peek_key(), "b");
    in.take_key();
    EXPECT_EQ(in.integer(3, 9), 3);
    EXPECT_EQ(in.status().message(), "file: byte 11, at key 'b': found 'x', expected a JSON number");
    in.begin_array();
    EXPECT_FALSE(in.more_elements());
    EXPECT_EQ(in.status().message(), "file: byte 11, at key 'b': found 'x', expected a JSON number");
}

}  // namespace
}  // namespace draftprobe
