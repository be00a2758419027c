#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "base/files.h"
#include "base/test_directory.h"

namespace draftprobe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Json parsed(std::string_view text) {
    auto json = parse_json(text, "t.json");
    EXPECT_TRUE(json.ok()) << json.status().message();
    return json.ok() ? std::move(json).value() : Json();
}

std::string refusal(std::string_view text) {
    const auto json = parse_json(text, "t.json");
    EXPECT_FALSE(json.ok()) << text;
    if (json.ok()) return {};
    EXPECT_EQ(json.status().code(), StatusCode::corrupt);
    EXPECT_THAT(json.status().message(), HasSubstr("t.json: byte "));
    return json.status().message();
}

TEST(ParseJson, AllKindsOfValues) {
    const Json json = parsed(R"( {"a":[1,-2,3.5,true,false,null,"x\u00e9\n"],"b":{"c":{}},"":[]} )");
    EXPECT_EQ(json, (Json{{"a", {1, -2, 3.5, true, false, nullptr, "x\xC3\xA9\n"}},
                          {"b", {{"c", Json::object()}}},
                          {"", Json::array()}}));
    EXPECT_EQ(parsed("18446744073709551615"), Json(18446744073709551615ULL));
    EXPECT_EQ(parsed("-9223372036854775808"), Json(std::numeric_limits<std::int64_t>::min()));
    EXPECT_EQ(parsed("\"\""), Json(""));
}

TEST(ParseJson, NestedContainersLandInTheirParents) {
    EXPECT_EQ(parsed("[[1],[2,[3]],{\"a\":[4,{\"b\":5}],\"c\":6}]").dump(),
              "[[1],[2,[3]],{\"a\":[4,{\"b\":5}],\"c\":6}]");
}

TEST(ParseJson, RefusesWithPlace) {
    EXPECT_THAT(refusal(""), HasSubstr("byte 0:"));
    EXPECT_THAT(refusal("{"), HasSubstr("byte 1:"));
    EXPECT_THAT(refusal("{\"a\":1,}"), HasSubstr("byte 7:"));
    EXPECT_THAT(refusal("[1 2]"), HasSubstr("byte 3:"));
    EXPECT_THAT(refusal("{} x"), HasSubstr("byte 3:"));
    EXPECT_THAT(refusal("{}{}"), HasSubstr("byte 2:"));
    EXPECT_THAT(refusal("nan"), HasSubstr("byte 1:"));
    EXPECT_THAT(refusal("[NaN]"), HasSubstr("byte 1:"));
    EXPECT_THAT(refusal("[-Infinity]"), HasSubstr("byte 2:"));
    refusal("1e999");
    refusal("01");
    refusal("+1");
    refusal("'a'");
    refusal("\"\\ud800\"");
    refusal("\"a\nb\"");
    refusal("// c\n1");
}

TEST(ParseJson, DuplicateKeyAtAnyDepth) {
    EXPECT_THAT(refusal(R"({"a":1,"a":2})"),
                AllOf(HasSubstr("byte 9: duplicate key \"a\""), HasSubstr("each key once")));
    EXPECT_THAT(refusal(R"([{"x":{"k":1,"j":2,"k":3}}])"), HasSubstr("byte 21: duplicate key \"k\""));
    EXPECT_THAT(refusal(R"({"a":1,"\u0061":2})"), HasSubstr("duplicate key"));
    parsed(R"({"a":{"a":1},"b":{"a":1}})");
}

TEST(ParseJson, NulByteDoesNotEndTheText) {
    using namespace std::string_view_literals;
    EXPECT_THAT(refusal("{}\0"sv), HasSubstr("byte 2: NUL"));
    EXPECT_THAT(refusal("{}\0{\"a\":1}"sv), HasSubstr("byte 2: NUL"));
    EXPECT_EQ(parsed("\"\\u0000\""), Json("\0"sv));
}

TEST(ParseJson, InvalidUtf8) {
    refusal("\"\xC3\"");
    refusal("\"\xED\xA0\x80\"");
    refusal("{\"\xFF\":1}");
    refusal("\xFF");
}

TEST(ParseJson, DepthLimitIsExact) {
    const auto nested = [](int depth) {
        return std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']');
    };
    parsed(nested(kMaxJsonDepth));
    EXPECT_THAT(refusal(nested(kMaxJsonDepth + 1)), HasSubstr("byte 64: nesting deeper than 64"));
    refusal(std::string(1'000'000, '['));
    std::string objects;
    for (int i = 0; i < 1000; ++i) objects += "{\"a\":";
    refusal(objects);
}

TEST(ParseJson, NumberOfValuesIsBounded) {
    std::string text = "[0";
    for (std::size_t i = 2; i < kMaxJsonValues; ++i) text += ",0";
    EXPECT_TRUE(parse_json(text + "]", "t.json").ok());
    const Status status = parse_json(text + ",0]", "t.json").status();
    EXPECT_EQ(status.code(), StatusCode::exhausted);
    EXPECT_THAT(status.message(), HasSubstr("more than 8000000 values"));
}

TEST(ParseJson, MessagesStayShortAndPrintable) {
    const std::string message =
        refusal("{\"" + std::string(100'000, 'k') + "\":1,\"" + std::string(100'000, 'k') + "\":2}");
    EXPECT_LT(message.size(), 400u);
    EXPECT_LT(refusal(std::string(1000, 'x')).size(), 400u);
    EXPECT_EQ(refusal("{\"a\nb\":1}").find('\n'), std::string::npos);
}

TEST(ParseJson, EveryCutAndEveryFlippedBitIsHandled) {
    const std::string good =
        R"({"name":"caf\u00e9 ☃","list":[1,-2.5e3,true,null,{"k":[[]]}],"n":18446744073709551615})";
    parsed(good);
    for (std::size_t length = 0; length < good.size(); ++length) refusal(std::string_view(good).substr(0, length));
    for (std::size_t at = 0; at < good.size(); ++at) {
        for (int bit = 0; bit < 8; ++bit) {
            std::string bad = good;
            bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
            const auto json = parse_json(bad, "t.json");  // may still be JSON; then it must be writable
            if (!json.ok()) continue;
            EXPECT_NO_THROW(json->dump());
        }
    }
}

TEST(ParseJsonFile, BoundAndKinds) {
    TestDirectory dir;
    ASSERT_TRUE(write_file(dir / "a.json", std::string_view("[1]")).ok());
    EXPECT_TRUE(parse_json_file(dir / "a.json", 3).ok());
    EXPECT_EQ(parse_json_file(dir / "a.json", 2).status().code(), StatusCode::exhausted);
    EXPECT_EQ(parse_json_file(dir / "b.json", 2).status().code(), StatusCode::not_found);
}

TEST(JsonGet, IntegersAndTheirRanges) {
    const Json json = parsed(R"({"i":8,"f":8.0,"h":8.5,"s":"8","z":null,"big":18446744073709551615,"n":-3,"t":true})");
    EXPECT_EQ(*json_get_int(json, "i", "c"), 8);
    EXPECT_EQ(*json_get_int(json, "f", "c"), 8);
    EXPECT_EQ(*json_get_int(json, "i", "c", 8, 8), 8);
    EXPECT_THAT(json_get_int(json, "i", "c", 9, 20).status().message(),
                AllOf(HasSubstr("c: \"i\" is 8"), HasSubstr("from 9 to 20")));
    EXPECT_FALSE(json_get_int(json, "i", "c", 0, 7).ok());
    for (const char* key : {"h", "s", "z", "big", "t", "absent"})
        EXPECT_FALSE(json_get_int(json, key, "c").ok()) << key;
    EXPECT_THAT(json_get_int(json, "absent", "c").status().message(), HasSubstr("missing"));
    EXPECT_EQ(*json_int_or(json, "absent", "c", 5), 5);
    EXPECT_EQ(*json_int_or(json, "z", "c", 5), 5);
    EXPECT_FALSE(json_int_or(json, "s", "c", 5).ok());
    EXPECT_FALSE(json_int_or(json, "n", "c", 5, 0).ok());
}

TEST(JsonGet, OtherTypes) {
    const Json json = parsed(R"({"f":0.5,"i":2,"b":false,"s":"text","a":[1,2],"o":{"k":1}})");
    EXPECT_EQ(*json_get_float(json, "f", "c"), 0.5);
    EXPECT_EQ(*json_get_float(json, "i", "c"), 2.0);
    EXPECT_FALSE(json_get_float(json, "f", "c", 0.6, 1).ok());
    EXPECT_FALSE(json_get_float(json, "f", "c", 0, 0.4).ok());
    EXPECT_TRUE(json_get_float(json, "f", "c", 0.5, 0.5).ok());
    EXPECT_FALSE(json_get_float(json, "s", "c").ok());
    EXPECT_EQ(*json_float_or(json, "none", "c", 1.5), 1.5);
    EXPECT_EQ(*json_get_bool(json, "b", "c"), false);
    EXPECT_FALSE(json_get_bool(json, "i", "c").ok());
    EXPECT_EQ(*json_bool_or(json, "none", "c", true), true);
    EXPECT_EQ(*json_get_string(json, "s", "c"), "text");
    EXPECT_FALSE(json_get_string(json, "i", "c").ok());
    EXPECT_EQ(*json_string_or(json, "none", "c", "d"), "d");
    EXPECT_EQ((*json_get_array(json, "a", "c"))->size(), 2u);
    EXPECT_FALSE(json_get_array(json, "o", "c").ok());
    EXPECT_EQ(*json_array_or_null(json, "none", "c"), nullptr);
    EXPECT_TRUE((*json_get_object(json, "o", "c"))->contains("k"));
    EXPECT_FALSE(json_get_object(json, "a", "c").ok());
    EXPECT_EQ(*json_object_or_null(json, "none", "c"), nullptr);
    EXPECT_FALSE(json_object_or_null(json, "a", "c").ok());
    EXPECT_EQ(*json_get_int_array(json, "a", "c", 1, 2, 2), (std::vector<std::int64_t>{1, 2}));
    EXPECT_THAT(json_get_int_array(json, "a", "c", 1, 1, 2).status().message(), HasSubstr("\"a[1]\" is 2"));
    EXPECT_FALSE(json_get_int_array(json, "a", "c", 1, 2, 1).ok());
    EXPECT_EQ(json_find(parsed("[1]"), "a"), nullptr);
}

TEST(JsonExact, FloatsComeBackWithTheirBits) {
    std::mt19937 random(20240607);
    for (int i = 0; i < 200'000; ++i) {
        const auto bits = static_cast<std::uint32_t>(random());
        const float number = std::bit_cast<float>(bits);
        const std::string text = JsonWriter().value(number).take();
        const auto back = json_to_f32(parsed(text), "c");
        ASSERT_TRUE(back.ok()) << text;
        if (std::isnan(number)) {
            ASSERT_TRUE(std::isnan(*back));
        } else {
            ASSERT_EQ(std::bit_cast<std::uint32_t>(*back), bits) << text;
        }
    }
    using Limits = std::numeric_limits<float>;
    // The first number is the one whose shortest decimal rounds to another float when it is read as a double.
    for (const float number : {std::bit_cast<float>(0x15ae43fdu), std::bit_cast<float>(0x95ae43fdu), 0.0f, -0.0f, 1.0f,
                               16777216.0f, 16777217.0f, 1e10f, 0.1f, Limits::max(), Limits::lowest(), Limits::min(),
                               Limits::denorm_min(), Limits::infinity(), -Limits::infinity()}) {
        const std::string text = JsonWriter().value(number).take();
        EXPECT_EQ(std::bit_cast<std::uint32_t>(*json_to_f32(parsed(text), "c")), std::bit_cast<std::uint32_t>(number))
            << text;
    }
}

TEST(JsonExact, DoublesComeBackWithTheirBits) {
    std::mt19937_64 random(7);
    for (int i = 0; i < 100'000; ++i) {
        const double number = std::bit_cast<double>(random());
        if (std::isnan(number)) continue;
        const std::string text = JsonWriter().value(number).take();
        ASSERT_EQ(std::bit_cast<std::uint64_t>(*json_to_f64(parsed(text), "c")), std::bit_cast<std::uint64_t>(number));
    }
    EXPECT_EQ(*json_to_f64(Json("-Infinity"), "c"), -std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::signbit(*json_to_f64(parsed("-0.0"), "c")));
}

TEST(JsonExact, FloatRefusals) {
    for (const char* text : {"\"nan\"", "\"1.5\"", "\"\"", "true", "null", "[]", "{}", "1e39", "-3.4028236e38"}) {
        EXPECT_FALSE(json_to_f32(parsed(text), "c").ok()) << text;
    }
    EXPECT_TRUE(json_to_f32(parsed("3.4028235e+38"), "c").ok());
}

TEST(JsonExact, Integers) {
    for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{1} << 53, (std::uint64_t{1} << 53) + 1,
                                       std::numeric_limits<std::uint64_t>::max()}) {
        EXPECT_EQ(*json_to_u64(parsed(JsonWriter().value(number).take()), "c"), number);
    }
    for (const std::int64_t number :
         {std::int64_t{0}, -(std::int64_t{1} << 53), -(std::int64_t{1} << 53) - 1,
          std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
        EXPECT_EQ(*json_to_i64(parsed(JsonWriter().value(number).take()), "c"), number);
    }
    for (const char* text : {"\"\"", "\"01\"", "\"+1\"", "\" 1\"", "\"1 \"", "\"-0\"", "\"1e3\"", "1.0", "-1", "null",
                             "\"18446744073709551616\"", "true"}) {
        EXPECT_FALSE(json_to_u64(parsed(text), "c").ok()) << text;
    }
    EXPECT_FALSE(json_to_i64(parsed("9223372036854775808"), "c").ok());
    EXPECT_FALSE(json_to_i64(parsed("\"9223372036854775808\""), "c").ok());
    const Json json = parsed(R"({"a":"9007199254740993"})");
    EXPECT_EQ(*json_get_u64(json, "a", "c"), 9007199254740993u);
    EXPECT_THAT(json_get_u64(json, "b", "c").status().message(), HasSubstr("c: \"b\" is missing"));
    EXPECT_THAT(json_get_f32(json, "a", "c").status().message(), HasSubstr("c: \"a\""));
}

}  // namespace
}  // namespace draftprobe
