#include "base/json_writer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace draftprobe {
namespace {

template <typename T>
std::string written(T value) {
    return JsonWriter().value(value).take();
}

TEST(JsonWriter, CompactHasNoSpaceAndKeepsKeyOrder) {
    JsonWriter json;
    json.begin_object().member("b", 1).key("a").begin_array().value(true).null().value("x").end_array();
    json.key("o").begin_object().end_object().key("e").begin_array().end_array().end_object();
    EXPECT_EQ(json.take(), R"({"b":1,"a":[true,null,"x"],"o":{},"e":[]})");
    EXPECT_EQ(json.value(7).take(), "7");  // usable again
}

TEST(JsonWriter, PrettyIndentsByTwo) {
    JsonWriter json(JsonWriter::Style::pretty);
    json.begin_object().member("a", 1).key("l").begin_array().value(1).begin_object().member("k", "v").end_object();
    json.end_array().key("o").begin_object().end_object().key("e").begin_array().end_array().end_object();
    EXPECT_EQ(
        json.take(),
        "{\n  \"a\": 1,\n  \"l\": [\n    1,\n    {\n      \"k\": \"v\"\n    }\n  ],\n  \"o\": {},\n  \"e\": []\n}");
}

TEST(JsonWriter, FloatsAreShortestForTheirOwnType) {
    EXPECT_EQ(written(0.1f), "0.1");
    EXPECT_EQ(written(0.1), "0.1");
    EXPECT_EQ(written(static_cast<double>(0.1f)), "0.10000000149011612");
    EXPECT_EQ(written(1.0f), "1");
    EXPECT_EQ(written(-0.0f), "-0.0");
    EXPECT_EQ(written(0.0), "0");
    EXPECT_EQ(written(1e-7f), "1e-07");
    EXPECT_EQ(written(std::numeric_limits<float>::max()), "3.4028235e+38");
    EXPECT_EQ(written(std::numeric_limits<float>::quiet_NaN()), "\"NaN\"");
    EXPECT_EQ(written(std::numeric_limits<float>::infinity()), "\"Infinity\"");
    EXPECT_EQ(written(-std::numeric_limits<double>::infinity()), "\"-Infinity\"");
}

TEST(JsonWriter, IntegersAbove2To53AreStrings) {
    EXPECT_EQ(written(std::uint64_t{1} << 53), "9007199254740992");
    EXPECT_EQ(written((std::uint64_t{1} << 53) + 1), "\"9007199254740993\"");
    EXPECT_EQ(written(-(std::int64_t{1} << 53)), "-9007199254740992");
    EXPECT_EQ(written(-(std::int64_t{1} << 53) - 1), "\"-9007199254740993\"");
    EXPECT_EQ(written(std::numeric_limits<std::int64_t>::min()), "\"-9223372036854775808\"");
    EXPECT_EQ(written(std::int8_t{-5}), "-5");
    EXPECT_EQ(written(std::uint8_t{65}), "65");  // a number, not a character
    EXPECT_EQ(written(true), "true");
}

TEST(JsonWriter, RoundedKeepsSignificantDigits) {
    const auto rounded = [](double number, int digits) { return JsonWriter().value_rounded(number, digits).take(); };
    EXPECT_EQ(rounded(1.0 / 3, 6), "0.333333");
    EXPECT_EQ(rounded(123456.789, 6), "123457");
    EXPECT_EQ(rounded(1234567.89, 6), "1.23457e+06");
    EXPECT_EQ(rounded(0.5, 6), "0.5");
    EXPECT_EQ(rounded(2.0 / 3, 2), "0.67");
    EXPECT_EQ(rounded(0, 6), "0");
    EXPECT_EQ(rounded(std::numeric_limits<double>::quiet_NaN(), 6), "\"NaN\"");
}

TEST(JsonWriter, StringsAreEscapedAndAlwaysUtf8) {
    EXPECT_EQ(written("a\"b\\c/\b\f\n\r\t\x01\x1f\x7f"), R"("a\"b\\c/\b\f\n\r\t\u0001\u001f\u007f")");
    EXPECT_EQ(written("\xC3\xA9\xE2\x98\x83\xF0\x9F\x98\x80"), "\"\xC3\xA9\xE2\x98\x83\xF0\x9F\x98\x80\"");
    EXPECT_EQ(written("a\xFF\xE2\x98z\xED\xA0\x80"),
              "\"a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
    EXPECT_EQ(written(std::string("a\0b", 3)), "\"a\\u0000b\"");
}

TEST(JsonWriter, RawIsTakenAsItIs) {
    JsonWriter json;
    json.begin_array().raw("{\"x\":1}").value(2).end_array();
    EXPECT_EQ(json.take(), "[{\"x\":1},2]");
}

TEST(JsonWriterDeathTest, WrongOrderOfCallsAsserts) {
    EXPECT_DEATH(JsonWriter().begin_object().value(1), "key");
    EXPECT_DEATH(JsonWriter().begin_array().end_object(), "");
    EXPECT_DEATH(JsonWriter().value(1).value(2), "one value");
    EXPECT_DEATH((void)JsonWriter().begin_array().take(), "");
}

}  // namespace
}  // namespace draftprobe
