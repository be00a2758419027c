// Text to token ids and back, from a Hugging Face tokenizer.json: NFC, special tokens, Qwen pre-tokenizer, byte-level
// BPE.
//
// A Tokenizer is immutable after load; any number of threads may use one object. Ids equal those of the Hugging Face
// tokenizers library (tests/golden/tokenizer holds cases made with it), except that letters, marks and numbers which
// Unicode added after the version of the installed PCRE2 (10.42: Unicode 14) are split off as other symbols.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace draftprobe {

class Tokenizer {
public:
    // Reads tokenizer.json. Errors: not_found, io, exhausted; corrupt (broken JSON or vocabulary); unsupported, naming
    // a component (model, normalizer, pre-tokenizer, option) that this program does not serve.
    static Result<Tokenizer> load(const std::filesystem::path& path);
    // The same from the file's text; `subject` names it in messages.
    static Result<Tokenizer> parse(std::string_view text, std::string_view subject);

    ~Tokenizer();
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;

    // Ids of `text` (UTF-8). Special tokens inside the text become their ids; nothing is added around it. Time and
    // memory grow as n log n of the text at worst. Errors: invalid_argument for text that is not UTF-8, with the byte
    // offset; unsupported when a piece has no token.
    Result<std::vector<TokenId>> encode(std::string_view text) const;
    // The same without added tokens: a spelling such as "<|im_end|>" is text like any other. For text that somebody
    // else wrote.
    Result<std::vector<TokenId>> encode_plain(std::string_view text) const;

    // The bytes of the ids, special tokens included; ids without a token give no bytes. A character that is split over
    // ids is complete only when all of them are given, so the result may hold incomplete UTF-8.
    std::string decode(std::span<const TokenId> ids) const;

    // One more than the largest id in the file. A model's embedding may have more rows.
    std::size_t vocab_size() const;

    // Id of an added token (special or not) by its exact content, such as "<|im_end|>".
    std::optional<TokenId> find_special(std::string_view content) const;
    bool is_special(TokenId id) const;  // an added token marked special

private:
    struct Impl;
    explicit Tokenizer(std::unique_ptr<const Impl> impl);
    std::unique_ptr<const Impl> impl_;
};

}  // namespace draftprobe
