#include "base/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/test_directory.h"

namespace draftprobe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string container(std::string_view header, std::string_view buffer) {
    const std::uint64_t size = header.size();
    std::string out(8, '\0');
    std::memcpy(out.data(), &size, 8);
    return out + std::string(header) + std::string(buffer);
}

Status parse_status(std::string_view file) { return SafetensorsFile::parse(bytes_of(file), "m.safetensors").status(); }

std::string refusal(std::string_view header, std::string_view buffer) {
    const Status status = parse_status(container(header, buffer));
    EXPECT_EQ(status.code(), StatusCode::corrupt) << header;
    EXPECT_THAT(status.message(), HasSubstr("m.safetensors"));
    return status.message();
}

SafetensorsWriter small_writer() {
    SafetensorsWriter writer;
    static const std::array<float, 4> floats = {1.5f, -2.0f, 0.0f, 3.25f};
    static const std::array<std::uint16_t, 3> halves = {0x3f80, 0xc000, 0x7f80};
    const std::array<std::uint64_t, 2> shape = {2, 2};
    const std::array<std::uint64_t, 1> three = {3};
    const std::array<std::uint64_t, 2> none = {0, 7};
    EXPECT_TRUE(writer.add("b", DType::bf16, three, std::as_bytes(std::span(halves))).ok());
    EXPECT_TRUE(writer.add("a", DType::f32, shape, std::as_bytes(std::span(floats))).ok());
    EXPECT_TRUE(writer.add("empty", DType::u8, none, {}).ok());
    EXPECT_TRUE(writer.add_owned("scalar", DType::boolean, {}, {std::byte{1}}).ok());
    writer.set_metadata("format", "pt");
    return writer;
}

TEST(Safetensors, WriterBytesArePinned) {
    const std::string header =
        R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},)"
        R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[6,22]},)"
        R"("empty":{"dtype":"U8","shape":[0,7],"data_offsets":[22,22]},)"
        R"("scalar":{"dtype":"BOOL","shape":[],"data_offsets":[22,23]}}  )";
    using namespace std::string_view_literals;
    const std::string_view buffer =
        "\x80\x3f\x00\xc0\x80\x7f"
        "\x00\x00\xc0\x3f\x00\x00\x00\xc0\x00\x00\x00\x00\x00\x00\x50\x40\x01"sv;
    EXPECT_EQ(small_writer().to_bytes(), container(header, buffer));
    std::uint64_t size = 0;
    std::memcpy(&size, small_writer().to_bytes().data(), 8);
    EXPECT_EQ(size % 8, 0u);
    EXPECT_EQ(small_writer().to_bytes().size(), 8 + size + 23);
}

TEST(Safetensors, RoundTripThroughAFile) {
    TestDirectory dir;
    ASSERT_TRUE(small_writer().write(dir / "m.safetensors").ok());
    auto opened = SafetensorsFile::open(dir / "m.safetensors");
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    const SafetensorsFile file = std::move(opened).value();
    EXPECT_THAT(file.names(), ElementsAre("a", "b", "empty", "scalar"));
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(file.path(), dir / "m.safetensors");
    EXPECT_EQ(file.find("c"), nullptr);
    const TensorView* a = file.find("a");
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(a->dtype, DType::f32);
    EXPECT_THAT(a->shape, ElementsAre(2, 2));
    std::vector<float> values(4);  // "a" starts at an address that is not a multiple of 4
    ASSERT_TRUE(load_f32(*a, values).ok());
    EXPECT_THAT(values, ElementsAre(1.5f, -2.0f, 0.0f, 3.25f));
    std::vector<float> halves(3);
    ASSERT_TRUE(load_f32(*file.find("b"), halves).ok());
    EXPECT_THAT(halves, ElementsAre(1.0f, -2.0f, std::numeric_limits<float>::infinity()));
    EXPECT_EQ(file.find("empty")->elements(), 0u);
    EXPECT_EQ(file.find("scalar")->elements(), 1u);
    EXPECT_TRUE(load_f32(*file.find("empty"), {}).code() == StatusCode::ok);
}

TEST(Safetensors, LoadersCheckDtypeAndPlaces) {
    const std::string bytes = small_writer().to_bytes();
    const auto file = SafetensorsFile::parse(bytes_of(bytes), "m");
    ASSERT_TRUE(file.ok());
    std::vector<float> three(3);
    EXPECT_EQ(load_f32(*file->find("a"), three).code(), StatusCode::invalid_argument);
    std::vector<float> one(1);
    EXPECT_EQ(load_f32(*file->find("scalar"), one).code(), StatusCode::unsupported);
    std::vector<std::uint32_t> words(4);
    EXPECT_EQ(load_u32(*file->find("a"), words).code(), StatusCode::unsupported);
    const std::uint32_t word = 0xdeadbeef;
    const TensorView view{DType::u32, {1}, std::as_bytes(std::span(&word, 1))};
    words.resize(1);
    ASSERT_TRUE(load_u32(view, words).ok());
    EXPECT_EQ(words[0], word);
    const std::uint16_t half = 0x3c01;  // 1 + 2^-10 in binary16
    ASSERT_TRUE(load_f32({DType::f16, {1}, std::as_bytes(std::span(&half, 1))}, one).ok());
    EXPECT_EQ(one[0], 1.0f + 0x1p-10f);
}

TEST(Safetensors, FirstNonFiniteFindsTheFirst) {
    std::vector<float> values(10'000, 1.0f);
    const auto first = [&] { return first_nonfinite({DType::f32, {values.size()}, std::as_bytes(std::span(values))}); };
    values[17] = std::numeric_limits<float>::max();
    EXPECT_EQ(first(), std::nullopt);
    values[9'999] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(first(), 9'999u);
    values[4'096] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(first(), 4'096u);
    const auto half = [](DType dtype, std::uint16_t bits) {
        return first_nonfinite({dtype, {1}, std::as_bytes(std::span(&bits, 1))}).has_value();
    };
    EXPECT_TRUE(half(DType::bf16, 0xff80));
    EXPECT_FALSE(half(DType::bf16, 0x7f7f));
    EXPECT_TRUE(half(DType::f16, 0x7c01));
    EXPECT_FALSE(half(DType::f16, 0x7bff));
    EXPECT_FALSE(half(DType::u16, 0xffff));
}

TEST(Safetensors, DtypeTable) {
    for (int i = 0; i <= static_cast<int>(DType::f8_e5m2); ++i) {
        const auto dtype = static_cast<DType>(i);
        SafetensorsWriter writer;
        const std::array<std::uint64_t, 1> two = {2};
        ASSERT_TRUE(writer.add_owned("t", dtype, two, std::vector<std::byte>(2 * dtype_bytes(dtype))).ok());
        const std::string bytes = writer.to_bytes();
        const auto file = SafetensorsFile::parse(bytes_of(bytes), "m");
        ASSERT_TRUE(file.ok()) << dtype_name(dtype);
        EXPECT_EQ(file->find("t")->dtype, dtype);
    }
    EXPECT_EQ(dtype_name(DType::boolean), "BOOL");
    EXPECT_EQ(dtype_bytes(DType::f8_e4m3), 1u);
    EXPECT_EQ(shape_text(std::array<std::uint64_t, 2>{5120, 25600}), "[5120, 25600]");
}

TEST(Safetensors, SmallestFiles) {
    EXPECT_TRUE(parse_status(container("{}", "")).ok());
    EXPECT_TRUE(parse_status(container("{} ", "")).ok());
    EXPECT_TRUE(parse_status(container(R"({"__metadata__":{}})", "")).ok());
}

TEST(Safetensors, HeaderRules) {
    EXPECT_EQ(parse_status("").code(), StatusCode::corrupt);
    EXPECT_EQ(parse_status(std::string(8, '\0')).code(), StatusCode::corrupt);
    EXPECT_THAT(refusal(" {}", ""), HasSubstr("does not begin with '{'"));
    EXPECT_THAT(refusal("[]", ""), HasSubstr("does not begin with '{'"));
    EXPECT_THAT(parse_status(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10)).message(),
                HasSubstr("at most 100000000"));
    EXPECT_THAT(parse_status(std::string("\x03\0\0\0\0\0\0\0{}", 10)).message(), HasSubstr("cut short"));
    refusal(R"({"a":1})", "");
    refusal(R"({"a":{"dtype":"U8","shape":[1]}})", "x");
    refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}})", "x");
    refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", "x");
    refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", "x");
    refusal(R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", "x");
    refusal(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", "x");
    refusal(R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", "x");
    refusal(R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", "x");
    refusal(R"({"__metadata__":[]})", "");
    refusal(R"({"__metadata__":{"a":1}})", "");
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                        "x"),
                HasSubstr("duplicate key \"a\""));
    const Status status = parse_status(container(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", "x"));
    EXPECT_EQ(status.code(), StatusCode::unsupported);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("tensor \"a\""), HasSubstr("\"F4\""), HasSubstr("BF16")));
}

TEST(Safetensors, OffsetRules) {
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "x"),
                AllOf(HasSubstr("tensor \"a\""), HasSubstr("U8 [2]"), HasSubstr("ends at byte 2"), HasSubstr("has 1")));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "xy"), HasSubstr("extra bytes"));
    EXPECT_THAT(refusal("{}", "x"), HasSubstr("extra bytes"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xy"), HasSubstr("hole"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                        R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                        "xyz"),
                HasSubstr("overlaps"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                        "xyz"),
                HasSubstr("hole"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,3]}})", "xyz"),
                AllOf(HasSubstr("3 bytes"), HasSubstr("expected 4")));
    refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "x");
    refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551615]}})", "x");
    // 2^32 * 2^32 wraps to 0 in 64 bits; 2^53 * 2^11 as well.
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", ""),
                HasSubstr("more than 2^64"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"U64","shape":[2305843009213693952],"data_offsets":[0,0]}})", ""),
                HasSubstr("\"shape[0]\""));
    EXPECT_TRUE(
        parse_status(
            container(R"({"a":{"dtype":"U8","shape":[4503599627370496,4503599627370496,0],"data_offsets":[0,0]}})", ""))
            .ok());
    // Empty tensors may share their place with others.
    EXPECT_TRUE(parse_status(container(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},)"
                                       R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                       R"("c":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
                                       "x"))
                    .ok());
}

TEST(Safetensors, WriterRefusals) {
    SafetensorsWriter writer;
    const std::array<std::uint64_t, 1> two = {2};
    const std::array<std::byte, 2> data{};
    EXPECT_EQ(writer.add("", DType::u8, two, data).code(), StatusCode::invalid_argument);
    EXPECT_EQ(writer.add("__metadata__", DType::u8, two, data).code(), StatusCode::invalid_argument);
    EXPECT_EQ(writer.add("a", DType::u16, two, data).code(), StatusCode::invalid_argument);
    EXPECT_TRUE(writer.add("a", DType::u8, two, data).ok());
    EXPECT_EQ(writer.add("a", DType::u8, two, data).code(), StatusCode::invalid_argument);
}

TEST(Safetensors, EveryCutIsRefused) {
    const std::string good = small_writer().to_bytes();
    ASSERT_TRUE(parse_status(good).ok());
    for (std::size_t length = 0; length < good.size(); ++length) {
        ASSERT_EQ(parse_status(std::string_view(good).substr(0, length)).code(), StatusCode::corrupt) << length;
    }
    EXPECT_EQ(parse_status(good + "x").code(), StatusCode::corrupt);
}

TEST(Safetensors, EveryFlippedBitGivesValidViewsOrAnError) {
    const std::string good = small_writer().to_bytes();
    std::uint64_t header = 0;
    std::memcpy(&header, good.data(), 8);
    for (std::size_t at = 0; at < 8 + header; ++at) {
        for (int bit = 0; bit < 8; ++bit) {
            std::string bad = good;
            bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
            const auto file = SafetensorsFile::parse(bytes_of(bad), "m");
            if (!file.ok()) continue;
            for (const auto& [name, view] : file->tensors()) {
                ASSERT_EQ(view.bytes.size(), view.elements() * dtype_bytes(view.dtype)) << at << " " << bit;
                ASSERT_GE(view.bytes.data(), bytes_of(bad).data());
                ASSERT_LE(view.bytes.data() + view.bytes.size(), bytes_of(bad).data() + bad.size());
            }
        }
    }
}

TEST(Safetensors, OpenNamesTheFile) {
    TestDirectory dir;
    EXPECT_EQ(SafetensorsFile::open(dir / "none").status().code(), StatusCode::not_found);
    ASSERT_TRUE(write_file(dir / "cut", std::string_view(small_writer().to_bytes()).substr(0, 290)).ok());
    const Status status = SafetensorsFile::open(dir / "cut").status();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("cut"), HasSubstr("tensor \"")));
}

}  // namespace
}  // namespace draftprobe
