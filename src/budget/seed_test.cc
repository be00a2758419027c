#include "budget/seed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <limits>

#include "base/files.h"
#include "base/hash.h"
#include "base/test_directory.h"

namespace draftprobe::budget {
namespace {

using ::testing::HasSubstr;

Seed small_seed() {
    Seed seed;
    seed.block = 3;
    seed.lanes = 2;
    seed.upper_edges = {0.1, 0.5, 1.0};
    seed.state = {{1.75, 12.75, 100.75}, {0.25, 8.25, 3.25}, {0.0125, 0.013, 0.1}};
    seed.provenance.target = std::string(64, 'a');
    seed.provenance.captures = {std::string(64, '0'), std::string(64, 'c')};
    seed.provenance.lane_cycles = 40;
    seed.provenance.note = "two prompts";
    return seed;
}

// The bytes are a contract: their digest is part of the identity of every capture made with the seed.
const std::string kSmallText = R"({
  "format": "draftprobe-budget-seed",
  "version": 1,
  "block": 3,
  "lanes": 2,
  "upper_edges": [
    0.1,
    0.5,
    1
  ],
  "successes": [
    1.75,
    12.75,
    100.75
  ],
  "failures": [
    0.25,
    8.25,
    3.25
  ],
  "cost": [
    0.0125,
    0.013,
    0.1
  ],
  "provenance": {
    "target": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "draft": "",
    "captures": [
      "0000000000000000000000000000000000000000000000000000000000000000",
      "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
    ],
    "after_restore": false,
    "lane_cycles": 40,
    "note": "two prompts"
  }
}
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(Seed, has_pinned_bytes) {
    const auto text = seed_json(small_seed());
    ASSERT_TRUE(text.ok()) << text.status().message();
    EXPECT_EQ(*text, kSmallText);
}

TEST(Seed, survives_a_round_trip) {
    const auto seed = parse_seed(kSmallText, "seed.json");
    ASSERT_TRUE(seed.ok()) << seed.status().message();
    const Seed expected = small_seed();
    EXPECT_EQ(seed->block, expected.block);
    EXPECT_EQ(seed->lanes, expected.lanes);
    EXPECT_EQ(seed->upper_edges, expected.upper_edges);
    EXPECT_EQ(seed->state, expected.state);
    EXPECT_EQ(seed->provenance, expected.provenance);
    EXPECT_EQ(*seed_json(*seed), kSmallText);
}

TEST(Seed, numbers_keep_every_bit) {
    Seed seed = small_seed();
    seed.state.cost = {1.0 / 3.0, std::nextafter(1.0 / 3.0, 1.0), kMinCost};
    seed.state.successes = {0x1p53, std::numeric_limits<double>::denorm_min(), 0.1 + 0.2};
    const auto again = parse_seed(*seed_json(seed), "seed.json");
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->state, seed.state);
}

TEST(Seed, digest_is_that_of_the_bytes_read) {
    EXPECT_EQ(parse_seed(kSmallText, "a")->digest, sha256_hex(kSmallText));
    const std::string spaced = kSmallText + "\n";
    EXPECT_EQ(parse_seed(spaced, "b")->digest, sha256_hex(spaced));
    EXPECT_EQ(*seed_json(*parse_seed(spaced, "b")), kSmallText);

    const TestDirectory directory;
    ASSERT_TRUE(write_file(directory / "seed.json", kSmallText).ok());
    const auto read = read_seed(directory / "seed.json");
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->digest, *sha256_file(directory / "seed.json"));
}

TEST(Seed, bad_input_is_one_clear_error) {
    const struct {
        std::string from, to;
        StatusCode code;
        std::vector<std::string> says;
    } rows[] = {
        {"\"draftprobe-budget-seed\"", "\"other\"", StatusCode::unsupported, {"format", "other"}},
        {"\"version\": 1", "\"version\": 2", StatusCode::mismatch, {"version", "found 2", "expected 1"}},
        {"\"version\": 1,", "", StatusCode::corrupt, {"version"}},
        {"\"lanes\": 2", "\"lanes\": 2, \"lanes\": 2", StatusCode::corrupt, {"lanes"}},
        {"\"lanes\": 2", "\"lanes\": 2, \"lane\": 2", StatusCode::corrupt, {"\"lane\"", "expected only format"}},
        {"\"lanes\": 2", "\"lanes\": 0", StatusCode::corrupt, {"lanes"}},
        {"\"lanes\": 2", "\"lanes\": 1e9", StatusCode::corrupt, {"lanes"}},
        {"\"lanes\": 2", "\"lanes\": \"2\"", StatusCode::corrupt, {"lanes"}},
        {"\"block\": 3", "\"block\": 0", StatusCode::corrupt, {"block"}},
        {"\"block\": 3", "\"block\": 4", StatusCode::corrupt, {"cost", "found 3 costs, expected 4"}},
        {"\"block\": 3", "\"block\": 100000000000", StatusCode::corrupt, {"block"}},
        {"0.0125", "0", StatusCode::corrupt, {"cost", "found 0 as the cost of 1 rows"}},
        {"0.0125", "-0.5", StatusCode::corrupt, {"found -0.5 as the cost of 1 rows"}},
        {"0.0125", "\"NaN\"", StatusCode::corrupt, {"found nan as the cost of 1 rows"}},
        {"0.0125", "\"Infinity\"", StatusCode::corrupt, {"found inf as the cost of 1 rows"}},
        {"0.0125", "1e400", StatusCode::corrupt, {"seed.json"}},
        {"0.0125", "true", StatusCode::corrupt, {"cost"}},
        {"0.0125,", "", StatusCode::corrupt, {"found 2 costs, expected 3"}},
        {"12.75", "0", StatusCode::corrupt, {"successes[1]", "found 0", "above 0"}},
        {"12.75", "-1", StatusCode::corrupt, {"successes[1]", "found -1"}},
        {"12.75", "\"NaN\"", StatusCode::corrupt, {"successes[1]", "found nan"}},
        {"12.75", "1e300", StatusCode::corrupt, {"successes[1]", "2^53"}},
        {"12.75,", "", StatusCode::corrupt, {"successes", "found 2 counts", "one for each upper edge"}},
        {"8.25", "0", StatusCode::corrupt, {"failures[1]"}},
        {"3.25", "3.25, 1", StatusCode::corrupt, {"failures", "found 4 counts"}},
        {"0.5,\n    1", "0.5,\n    0.9", StatusCode::corrupt, {"upper_edges", "0.9 as the last edge", "expected 1"}},
        {"0.5,\n    1", "0.1,\n    1", StatusCode::corrupt, {"upper_edges[1]", "more than 0.1"}},
        {"0.1,\n    0.5", "0,\n    0.5", StatusCode::corrupt, {"upper_edges[0]", "more than 0"}},
        {"0.5,\n    1", "0.5,\n    \"NaN\"", StatusCode::corrupt, {"upper_edges[2]", "nan"}},
        {"[\n    0.1,\n    0.5,\n    1\n  ]", "[]", StatusCode::corrupt, {"upper_edges", "found 0 edges"}},
        {"[\n    0.1,\n    0.5,\n    1\n  ]", "{}", StatusCode::corrupt, {"upper_edges"}},
        {"\"000", "\"00G", StatusCode::corrupt, {"captures[0]", "64 hex digits"}},
        {"\"ccc", "\"", StatusCode::corrupt, {"captures[1]"}},
        {std::string(64, 'c'), std::string(64, '0'), StatusCode::corrupt, {"captures[1]", "each once"}},
        {"\"aaa", "\"", StatusCode::corrupt, {"provenance.target"}},
        {"\"lane_cycles\": 40", "\"lane_cycles\": -1", StatusCode::corrupt, {"lane_cycles"}},
        {"two prompts", "two\\nprompts", StatusCode::corrupt, {"note", "one line"}},
        {"two prompts", std::string(1001, 'x'), StatusCode::corrupt, {"note", "1000 bytes"}},
        {"\"note\"", "\"remark\"", StatusCode::corrupt, {"provenance", "remark"}},
        {"}\n}\n", "}\n}\n{}", StatusCode::corrupt, {"seed.json"}},
        {"}\n}\n", "}\n", StatusCode::corrupt, {"seed.json"}},
    };
    for (const auto& row : rows) {
        SCOPED_TRACE(row.from + " -> " + row.to);
        const auto seed = parse_seed(replaced(kSmallText, row.from, row.to), "seed.json");
        ASSERT_FALSE(seed.ok());
        EXPECT_EQ(seed.status().code(), row.code) << seed.status().message();
        EXPECT_THAT(seed.status().message(), HasSubstr("seed.json"));
        for (const std::string& part : row.says) EXPECT_THAT(seed.status().message(), HasSubstr(part));
    }
    for (const char* text : {"", "[]", "null", "7", "{}", "{\"format\": 1}"}) {
        EXPECT_FALSE(parse_seed(text, "seed.json").ok()) << text;
    }
}

TEST(Seed, every_truncation_is_refused) {
    for (std::size_t size = 0; size + 1 < kSmallText.size(); ++size) {
        EXPECT_FALSE(parse_seed(kSmallText.substr(0, size), "seed.json").ok()) << size;
    }
}

TEST(Seed, what_cannot_be_read_is_not_written) {
    const std::function<void(Seed&)> damages[] = {
        [](Seed& s) { s.block = 4; },
        [](Seed& s) { s.lanes = 0; },
        [](Seed& s) { s.upper_edges.back() = 2; },
        [](Seed& s) { s.state.failures[0] = std::numeric_limits<double>::quiet_NaN(); },
        [](Seed& s) { s.state.cost[2] = 0; },
        [](Seed& s) { std::swap(s.provenance.captures[0], s.provenance.captures[1]); },
        [](Seed& s) { s.provenance.note = "a\nb"; },
    };
    for (const auto& damage : damages) {
        Seed seed = small_seed();
        damage(seed);
        const auto text = seed_json(seed);
        ASSERT_FALSE(text.ok());
        EXPECT_EQ(text.status().code(), StatusCode::invalid_argument);
    }
}

TEST(Seed, files_that_are_not_there_or_too_large) {
    const TestDirectory directory;
    EXPECT_EQ(read_seed(directory / "none.json").status().code(), StatusCode::not_found);
    EXPECT_EQ(read_seed(directory.path()).status().code(), StatusCode::io);
    ASSERT_TRUE(write_file(directory / "large.json", std::string((1 << 20) + 1, ' ')).ok());
    EXPECT_EQ(read_seed(directory / "large.json").status().code(), StatusCode::exhausted);
}

}  // namespace
}  // namespace draftprobe::budget
