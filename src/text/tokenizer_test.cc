#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "base/test_directory.h"
#include "base/utf8.h"

namespace draftprobe {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

const fs::path kGolden = fs::path(DRAFTPROBE_SOURCE_DIR) / "tests/golden/tokenizer";

constexpr const char* kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Letter of the GPT-2 alphabet for one byte.
std::string letter(int byte) {
    const auto own = [](int b) { return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae; };
    int code = byte;
    if (!own(byte)) {
        code = 0x100;
        for (int b = 0; b < byte; ++b) code += own(b) ? 0 : 1;
    }
    if (code < 0x80) return std::string(1, static_cast<char>(code));
    return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// 256 byte tokens with id = byte, then the merges' results in order.
Json small_file(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
    Json vocab = Json::object();
    for (int byte = 0; byte < 256; ++byte) vocab[letter(byte)] = byte;
    Json list = Json::array();
    for (const auto& [left, right] : merges) {
        list.push_back({left, right});
        vocab.emplace(left + right, vocab.size());
    }
    return {{"normalizer", {{"type", "NFC"}}},
            {"pre_tokenizer",
             {{"type", "Sequence"},
              {"pretokenizers",
               {{{"type", "Split"}, {"pattern", {{"Regex", kPattern}}}, {"behavior", "Isolated"}, {"invert", false}},
                {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}}}}}},
            {"decoder", {{"type", "ByteLevel"}}},
            {"added_tokens", Json::array()},
            {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

Json added(std::string_view content, TokenId id, bool special = true) {
    return {{"id", id}, {"content", content}, {"special", special}, {"normalized", false}};
}

Tokenizer made(const Json& json) {
    auto tokenizer = Tokenizer::parse(json.dump(), "tokenizer.json");
    if (!tokenizer.ok()) throw std::runtime_error(tokenizer.status().message());
    return std::move(tokenizer).value();
}

Ids ids_of(const Tokenizer& tokenizer, std::string_view text) {
    const auto ids = tokenizer.encode(text);
    EXPECT_TRUE(ids.ok()) << ids.status().message();
    return ids.ok() ? *ids : Ids();
}

Status refusal(const Json& json) { return Tokenizer::parse(json.dump(), "tokenizer.json").status(); }

// Each maximal prefix of a sequence that cannot be completed becomes one U+FFFD, as other languages' lossy decoding
// does.
std::string lossy(std::string_view bytes) {
    std::string out;
    std::size_t at = 0;
    while (at < bytes.size()) {
        if (const std::size_t length = utf8_sequence(bytes, at)) {
            out += bytes.substr(at, length);
            at += length;
            continue;
        }
        std::size_t length = 1;
        for (std::size_t longer = 2; longer <= 3 && at + longer <= bytes.size(); ++longer) {
            std::string probe(bytes.substr(at, longer));
            bool completes = false;
            for (const char* tail : {"\x80", "\xBF", "\x80\x80", "\xBF\xBF"}) {
                completes |= utf8_sequence(probe + tail, 0) > longer;
            }
            if (!completes) break;
            length = longer;
        }
        out += "\xEF\xBF\xBD";
        at += length;
    }
    return out;
}

TEST(Tokenizer, GoldenCasesEqualTheHuggingFaceLibrary) {
    if (!fs::exists(kGolden / "cases.json")) FAIL() << "golden files are not here";
    auto loaded = Tokenizer::load(kGolden / "tokenizer.json");
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    const Tokenizer tokenizer = std::move(loaded).value();
    auto cases = parse_json_file(kGolden / "cases.json", 64u << 20);
    ASSERT_TRUE(cases.ok());
    ASSERT_GT((*cases)["encode"].size(), 100u);
    for (const Json& entry : (*cases)["encode"]) {
        const auto text = entry["text"].get<std::string>();
        const Ids ids = ids_of(tokenizer, text);
        EXPECT_EQ(ids, entry["ids"].get<Ids>()) << entry["text"];
        EXPECT_EQ(lossy(tokenizer.decode(ids)), entry["decoded"].get<std::string>());
    }
    ASSERT_GT((*cases)["decode"].size(), 10u);
    for (const Json& entry : (*cases)["decode"]) {
        EXPECT_EQ(lossy(tokenizer.decode(entry["ids"].get<Ids>())), entry["text"].get<std::string>()) << entry["ids"];
    }
}

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
    const Tokenizer tokenizer = made(small_file({{"b", "c"}, {"a", "b"}, {"a", "bc"}, {"x", "x"}, {"xx", "xx"}}));
    EXPECT_THAT(ids_of(tokenizer, "ab"), ElementsAre(257));
    EXPECT_THAT(ids_of(tokenizer, "abc"), ElementsAre(258));  // b c before a b
    EXPECT_THAT(ids_of(tokenizer, "abbc"), ElementsAre(257, 256));
    EXPECT_THAT(ids_of(tokenizer, "xxx"), ElementsAre(259, 'x'));
    EXPECT_THAT(ids_of(tokenizer, "xxxxxxx"), ElementsAre(260, 259, 'x'));
    EXPECT_EQ(tokenizer.decode(ids_of(tokenizer, "abbc xxx")), "abbc xxx");
    EXPECT_EQ(tokenizer.vocab_size(), 261u);
}

TEST(Tokenizer, MergesNeverCrossPieces) {
    const Tokenizer tokenizer = made(small_file({{"1", "2"}, {"a", "!"}, {letter(' '), "a"}}));
    EXPECT_THAT(ids_of(tokenizer, "12"), ElementsAre('1', '2'));
    EXPECT_THAT(ids_of(tokenizer, "a!"), ElementsAre('a', '!'));
    EXPECT_THAT(ids_of(tokenizer, " a"), ElementsAre(258));
    EXPECT_THAT(ids_of(tokenizer, "  a"), ElementsAre(' ', 258));
}

// Repeated scanning for the lowest rank: the definition, quadratic.
Ids naive(const std::vector<std::pair<std::string, std::string>>& merges, std::string_view word) {
    std::vector<std::string> parts;
    for (const char c : word) parts.push_back(std::string(1, c));
    for (;;) {
        std::size_t best = merges.size(), where = 0;
        for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
            for (std::size_t rank = 0; rank < best; ++rank) {
                if (merges[rank] == std::pair(parts[i], parts[i + 1])) {
                    best = rank;
                    where = i;
                }
            }
        }
        if (best == merges.size()) break;
        parts[where] += parts[where + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(where) + 1);
    }
    Ids ids;
    for (const std::string& part : parts) {
        TokenId id = static_cast<unsigned char>(part[0]);
        for (std::size_t rank = 0; rank < merges.size(); ++rank) {
            if (part.size() > 1 && merges[rank].first + merges[rank].second == part)
                id = static_cast<TokenId>(256 + rank);
        }
        ids.push_back(id);
    }
    return ids;
}

TEST(Tokenizer, RandomMergesEqualTheDefinition) {
    std::mt19937 random(11);
    for (int round = 0; round < 60; ++round) {
        std::vector<std::string> tokens = {"a", "b", "c"};
        std::vector<std::pair<std::string, std::string>> merges;
        while (merges.size() < 12) {
            std::pair pair(tokens[random() % tokens.size()], tokens[random() % tokens.size()]);
            const std::string joined = pair.first + pair.second;
            if (std::find(tokens.begin(), tokens.end(), joined) != tokens.end()) continue;
            tokens.push_back(joined);
            merges.push_back(pair);
        }
        const Tokenizer tokenizer = made(small_file(merges));
        for (int i = 0; i < 40; ++i) {
            std::string word;
            for (std::size_t n = random() % 24 + 1; n > 0; --n) word += "abc"[random() % 3];
            ASSERT_EQ(ids_of(tokenizer, word), naive(merges, word)) << "round " << round << " " << word;
        }
    }
}

TEST(Tokenizer, MergesAsStrings) {
    Json json = small_file({{"a", "b"}});
    json["model"]["merges"] = Json::array({"a b"});
    EXPECT_THAT(ids_of(made(json), "ab"), ElementsAre(256));
}

TEST(Tokenizer, IgnoreMergesTakesWholePieces) {
    Json json = small_file({{"a", "b"}});
    json["model"]["vocab"]["abc"] = 300;
    json["model"]["vocab"][letter(' ') + "q"] = 301;
    EXPECT_THAT(ids_of(made(json), "abc q"), ElementsAre(256, 'c', ' ', 'q'));
    json["model"]["ignore_merges"] = true;
    EXPECT_THAT(ids_of(made(json), "abc q"), ElementsAre(300, 301));
    EXPECT_THAT(ids_of(made(json), "abcd"), ElementsAre(256, 'c', 'd'));
}

TEST(Tokenizer, AddedTokensLongestFirstAndRaw) {
    Json json = small_file({{"a", "b"}, {"|", ">"}});
    json["added_tokens"] = {added("<|x|>", 500), added("<|x|><|y|>", 501), added("<t>", 502, false),
                            added("e\xCC\x81", 503)};
    const Tokenizer tokenizer = made(json);
    EXPECT_THAT(ids_of(tokenizer, "<|x|>"), ElementsAre(500));
    EXPECT_THAT(ids_of(tokenizer, "a<|x|>b"), ElementsAre('a', 500, 'b'));
    EXPECT_THAT(ids_of(tokenizer, "<|x|><|y|>"), ElementsAre(501));
    EXPECT_THAT(ids_of(tokenizer, "<|x|><|y|"), ElementsAre(500, '<', '|', 'y', '|'));
    EXPECT_THAT(ids_of(tokenizer, "<<|x|>"), ElementsAre('<', 500));
    EXPECT_THAT(ids_of(tokenizer, "ab<t>ab"), ElementsAre(256, 502, 256));
    EXPECT_THAT(ids_of(tokenizer, "e\xCC\x81"), ElementsAre(503));  // found before normalisation
    EXPECT_THAT(ids_of(tokenizer, "<|x"), ElementsAre('<', '|', 'x'));
    EXPECT_EQ(tokenizer.find_special("<|x|>"), 500u);
    EXPECT_EQ(tokenizer.find_special("<t>"), 502u);
    EXPECT_EQ(tokenizer.find_special("<|z|>"), std::nullopt);
    EXPECT_TRUE(tokenizer.is_special(500));
    EXPECT_FALSE(tokenizer.is_special(502));
    EXPECT_FALSE(tokenizer.is_special('a'));
    EXPECT_EQ(tokenizer.vocab_size(), 504u);
    EXPECT_EQ(tokenizer.decode(Ids{'a', 500, 400, 9999}), "a<|x|>");
}

TEST(Tokenizer, NormalisesToNfc) {
    const Tokenizer tokenizer = made(small_file());
    EXPECT_EQ(tokenizer.decode(ids_of(tokenizer, "e\xCC\x81")), "\xC3\xA9");
    Json json = small_file();
    json["normalizer"] = nullptr;
    const Tokenizer raw = made(json);
    EXPECT_EQ(raw.decode(ids_of(raw, "e\xCC\x81")), "e\xCC\x81");
}

TEST(Tokenizer, DecodeKeepsIncompleteCharacters) {
    const Tokenizer tokenizer = made(small_file());
    const Ids ids = ids_of(tokenizer, "\xF0\x9F\x98\x80");
    ASSERT_EQ(ids.size(), 4u);
    EXPECT_EQ(tokenizer.decode(std::span(ids).first(2)), "\xF0\x9F");
    EXPECT_EQ(tokenizer.decode(ids), "\xF0\x9F\x98\x80");
}

TEST(Tokenizer, TextThatIsNotUtf8NamesTheByte) {
    const Tokenizer tokenizer = made(small_file());
    const Status status = tokenizer.encode("ab\xC3").status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("byte 2"), HasSubstr("0xc3")));
    EXPECT_FALSE(tokenizer.encode("\xED\xA0\x80").ok());
    EXPECT_THAT(ids_of(tokenizer, std::string("a\0b", 3)), ElementsAre('a', 0, 'b'));
}

// Each of these took minutes with a quadratic method; linear ones take well under a second.
TEST(Tokenizer, MegabytesInOnePieceAreNotQuadratic) {
    const Tokenizer tokenizer = made(small_file({{"a", "a"}, {"aa", "aa"}, {"a", "b"}}));
    const std::size_t size = 2'000'000;
    EXPECT_EQ(ids_of(tokenizer, std::string(size, 'a')).size(), size / 4);
    EXPECT_EQ(ids_of(tokenizer, std::string(size, ' ') + "x").size(), size + 1);
    EXPECT_EQ(ids_of(tokenizer, std::string(size, '\n')).size(), size);
    EXPECT_EQ(ids_of(tokenizer, std::string(size, '!')).size(), size);
    std::string marks = "a";
    for (std::size_t i = 0; i < size / 4; ++i) marks += "\xCC\x81\xCC\xA3";  // classes 230 and 220 in turn
    EXPECT_GT(ids_of(tokenizer, marks).size(), size / 2);
    std::string mixed;
    while (mixed.size() < size) mixed += "word 12 \t\n it's ";
    EXPECT_EQ(tokenizer.decode(ids_of(tokenizer, mixed)), mixed);
}

TEST(TokenizerFile, ComponentsThatAreNotServedAreNamed) {
    const auto expect = [](auto change, std::string_view name) {
        Json json = small_file();
        change(json);
        const Status status = refusal(json);
        EXPECT_EQ(status.code(), StatusCode::unsupported) << name << ": " << status.message();
        EXPECT_THAT(status.message(), HasSubstr(std::string(name)));
    };
    expect([](Json& j) { j["normalizer"] = {{"type", "NFKC"}}; }, "NFKC");
    expect(
        [](Json& j) {
            j["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array({Json{{"type", "Lowercase"}}})}};
        },
        "Lowercase");
    expect([](Json& j) { j["pre_tokenizer"] = {{"type", "Metaspace"}}; }, "Metaspace");
    expect([](Json& j) { j["pre_tokenizer"] = nullptr; }, "pre-tokenizer");
    expect([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["type"] = "Digits"; }, "Digits");
    expect([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, "Removed");
    expect([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }, "invert");
    expect(
        [](Json& j) {
            j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", " "}};
        },
        "regular expression");
    expect([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; }, "\\\\w");
    expect([](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true; }, "use_regex");
    expect([](Json& j) { j["pre_tokenizer"]["pretokenizers"][1].erase("add_prefix_space"); }, "add_prefix_space");
    expect([](Json& j) { j["model"]["type"] = "Unigram"; }, "Unigram");
    expect([](Json& j) { j["model"]["dropout"] = 0.1; }, "dropout");
    expect([](Json& j) { j["model"]["unk_token"] = "<unk>"; }, "unk_token");
    expect([](Json& j) { j["model"]["byte_fallback"] = true; }, "byte_fallback");
    expect([](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix");
    expect([](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }, "WordPiece");
    expect([](Json& j) { j["post_processor"] = {{"type", "TemplateProcessing"}}; }, "TemplateProcessing");
    expect([](Json& j) { j["truncation"] = {{"max_length", 5}}; }, "truncation");
    expect([](Json& j) { j["padding"] = Json::object(); }, "padding");
    expect(
        [](Json& j) {
            j["added_tokens"] = Json::array({added("<x>", 256)});
            j["added_tokens"][0]["lstrip"] = true;
        },
        "lstrip");
    expect(
        [](Json& j) {
            j["added_tokens"] = Json::array({added("<x>", 256)});
            j["added_tokens"][0]["normalized"] = true;
        },
        "normalized");
    expect([](Json& j) { j["added_tokens"] = Json::array({added("", 256)}); }, "0 bytes");
}

TEST(TokenizerFile, BrokenFilesAreCorrupt) {
    const auto expect = [](auto change, std::string_view text) {
        Json json = small_file({{"a", "b"}});
        change(json);
        const Status status = refusal(json);
        EXPECT_EQ(status.code(), StatusCode::corrupt) << text << ": " << status.message();
        EXPECT_THAT(status.message(), HasSubstr(std::string(text)));
    };
    expect([](Json& j) { j["model"]["merges"] = Json::array({"a q"}); }, "\"aq\" is not in the vocabulary");
    expect([](Json& j) { j["model"]["merges"] = Json::array({"a  b"}); }, "merge 0");
    expect([](Json& j) { j["model"]["merges"] = Json::array({Json{"a", "b", "c"}}); }, "merge 0");
    expect([](Json& j) { j["model"]["merges"] = Json::array({7}); }, "merge 0");
    expect([](Json& j) { j["model"].erase("merges"); }, "merges");
    expect([](Json& j) { j["model"].erase("vocab"); }, "vocab");
    expect([](Json& j) { j.erase("model"); }, "model");
    expect([](Json& j) { j["model"]["vocab"]["zz"] = 5; }, "an id of its own");
    expect([](Json& j) { j["model"]["vocab"]["zz"] = -1; }, "id of token \"zz\"");
    expect([](Json& j) { j["model"]["vocab"]["zz"] = 1.5; }, "id of token \"zz\"");
    expect([](Json& j) { j["model"]["vocab"]["zz"] = 1 << 30; }, "id of token \"zz\"");
    expect([](Json& j) { j["added_tokens"] = {added("<x>", 600), added("<x>", 601)}; }, "repeats");
    expect([](Json& j) { j["added_tokens"] = {added("<x>", 600), added("<y>", 600)}; }, "repeats");
    expect([](Json& j) { j["added_tokens"] = Json::array({added("<x>", 97)}); }, "to another");
    expect([](Json& j) { j["added_tokens"] = Json::array({added("ab", 600)}); }, "to another");
    expect([](Json& j) { j["added_tokens"] = Json::array({Json{{"content", "x"}}}); }, "\"id\" is missing");
    EXPECT_EQ(refusal(Json::array()).code(), StatusCode::corrupt);
    EXPECT_EQ(Tokenizer::parse("{", "t").status().code(), StatusCode::corrupt);
    Json listed = small_file({{"a", "b"}});
    listed["added_tokens"] = Json::array({added("ab", 256)});
    EXPECT_TRUE(refusal(listed).ok());
}

// Without "normalized" the library seeks special tokens in the raw text and others in the normalised text.
TEST(TokenizerFile, AbsentNormalizedDependsOnSpecial) {
    Json json = small_file();
    json["added_tokens"] = Json::array({Json{{"id", 300}, {"content", "<x>"}, {"special", true}}});
    EXPECT_TRUE(refusal(json).ok());
    json["added_tokens"][0]["special"] = false;
    EXPECT_EQ(refusal(json).code(), StatusCode::unsupported);
}

TEST(TokenizerFile, MissingByteIsAnErrorWhenItOccurs) {
    Json json = small_file();
    json["model"]["vocab"].erase("q");
    const Tokenizer tokenizer = made(json);
    EXPECT_TRUE(tokenizer.encode("ab").ok());
    const Status status = tokenizer.encode("aq").status();
    EXPECT_EQ(status.code(), StatusCode::unsupported);
    EXPECT_THAT(status.message(), HasSubstr("0x71"));
}

TEST(TokenizerFile, LoadNamesTheFile) {
    TestDirectory dir;
    EXPECT_EQ(Tokenizer::load(dir / "tokenizer.json").status().code(), StatusCode::not_found);
    ASSERT_TRUE(write_file(dir / "tokenizer.json", std::string_view("{}")).ok());
    EXPECT_THAT(Tokenizer::load(dir / "tokenizer.json").status().message(),
                HasSubstr((dir / "tokenizer.json").string()));
}

TEST(TokenizerFile, EveryCutAndFlippedBitIsHandled) {
    Json json = small_file({{"a", "b"}, {"ab", "c"}});
    for (int byte = 'A'; byte < 256; ++byte) {
        if (byte < 'a' || byte > 'c') json["model"]["vocab"].erase(letter(byte));
    }
    json["added_tokens"] = Json::array({added("<x>", 600)});
    const std::string good = json.dump();
    ASSERT_TRUE(Tokenizer::parse(good, "t").ok());
    for (std::size_t length = 0; length < good.size(); ++length) {
        ASSERT_EQ(Tokenizer::parse(std::string_view(good).substr(0, length), "t").status().code(), StatusCode::corrupt);
    }
    for (std::size_t at = 0; at < good.size(); ++at) {
        for (int bit = 0; bit < 8; ++bit) {
            std::string bad = good;
            bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
            const auto tokenizer = Tokenizer::parse(bad, "t");
            if (!tokenizer.ok()) continue;
            const auto ids = tokenizer->encode("abcab <x>  1\n");
            if (ids.ok()) (void)tokenizer->decode(*ids);
        }
    }
}

}  // namespace
}  // namespace draftprobe
