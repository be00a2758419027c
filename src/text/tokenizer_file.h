// tokenizer.json as plain data, validated. Internal to text.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "base/types.h"
#include "text/bpe.h"

namespace draftprobe {

struct AddedToken {
    TokenId id = 0;
    std::string content;
    bool special = false;
};

struct TokenizerFile {
    std::string pattern;  // of the pre-tokenizer
    bool nfc = false;
    bool ignore_merges = false;
    std::vector<std::string> token_bytes;                      // by id; empty where the file has no token
    std::vector<AddedToken> added;                             // distinct ids and contents, none empty
    std::array<TokenId, 256> byte_tokens{};                    // token of each single byte, or kNoToken
    std::vector<std::pair<std::string, TokenId>> whole_words;  // tokens by their bytes, sorted; only for ignore_merges
    MergeTable merges;
};

// Errors as Tokenizer::parse.
Result<TokenizerFile> read_tokenizer_file(const Json& json, std::string_view subject);

}  // namespace draftprobe
