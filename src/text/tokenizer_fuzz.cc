// libFuzzer target. Input up to the first 0xFF byte, which no UTF-8 has: a tokenizer.json; after it: text. Without a
// 0xFF byte a small built-in tokenizer encodes all of the input. Where encoding succeeds without normalisation changing
// the text, decoding gives the text back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/nfc.h"
#include "text/tokenizer.h"

namespace {

using namespace draftprobe;

std::string byte_vocabulary() {
    Json vocab = Json::object();
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
        const bool own = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        const int code = own ? byte : next++;
        std::string letter(1, static_cast<char>(code));
        if (code >= 0x80) letter = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
        vocab[letter] = byte;
    }
    Json merges = Json::array();
    for (const char* pair : {"a b", "ab ab", "e r", "er e", "\xC3\x83 \xC2\xA9", "! !"}) {
        std::string joined = pair;
        joined.erase(joined.find(' '), 1);
        if (!vocab.contains(joined)) vocab[joined] = vocab.size();
        merges.push_back(pair);
    }
    return Json{{"model", {{"vocab", vocab}, {"merges", merges}}}}.dump();
}

std::string built_in() {
    Json json = Json::parse(byte_vocabulary());
    const char* pattern =
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    json["normalizer"] = {{"type", "NFC"}};
    json["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers",
                              {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
                               {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    json["decoder"] = {{"type", "ByteLevel"}};
    json["added_tokens"] = {{{"id", 900}, {"content", "<|x|>"}, {"special", true}},
                            {{"id", 901}, {"content", "<|x|>!"}, {"special", true}}};
    return json.dump();
}

void try_text(const Tokenizer& tokenizer, std::string_view text, bool whole) {
    const auto ids = tokenizer.encode(text);
    if (!ids.ok()) return;
    for (const TokenId id : *ids) {
        if (id >= tokenizer.vocab_size()) std::abort();
    }
    const std::string back = tokenizer.decode(*ids);
    if (whole && to_nfc(back) != to_nfc(text)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const Tokenizer fixed = [] {
        auto parsed = Tokenizer::parse(built_in(), "built-in");
        if (!parsed.ok()) std::abort();
        return std::move(parsed).value();
    }();
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const std::size_t cut = input.find('\xff');
    if (cut == std::string_view::npos) {
        try_text(fixed, input, true);
        return 0;
    }
    const auto parsed = Tokenizer::parse(input.substr(0, cut), "fuzz");
    if (parsed.ok()) try_text(*parsed, input.substr(cut + 1), false);
    return 0;
}
