#include "text/tokenizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/utf8.h"

namespace draftprobe {
namespace {

constexpr std::int64_t kMaxTokenId = (std::int64_t{1} << 22) - 1;
constexpr std::size_t kMaxAddedTokens = 65536;
constexpr std::size_t kMaxAddedBytes = 256;

constexpr std::string_view kServed =
    "served is what Qwen tokenizers use: BPE over bytes, NFC, a Split by one regular expression, ByteLevel";

Status not_served(std::string_view subject, std::string_view component, std::string_view found) {
    return unsupported(fmt::format("{}: {} is {}, {}", subject, component, found, kServed));
}

std::string type_of(const Json& component) {
    const Json* type = json_find(component, "type");
    return type != nullptr && type->is_string() ? quoted_excerpt(type->get<std::string>()) : "without a type";
}

bool has_type(const Json& component, std::string_view type) {
    const Json* found = json_find(component, "type");
    return found != nullptr && *found == type;
}

// A member that must be absent, null, or one of these values for the tokenizer to be served.
Status expect_only(const Json& object, std::string_view key, std::initializer_list<Json> allowed,
                   std::string_view subject) {
    const Json* found = json_find(object, key);
    if (found == nullptr || std::find(allowed.begin(), allowed.end(), *found) != allowed.end()) return {};
    return not_served(subject, quoted_excerpt(key),
                      found->is_structured() ? found->type_name() : quoted_excerpt(found->dump()));
}

// The GPT-2 byte alphabet: printable Latin-1 characters stand for their own byte, the other bytes for U+0100 and up, in
// order.
struct ByteAlphabet {
    std::array<int, 0x144> byte_of;  // by character; -1: not in the alphabet

    ByteAlphabet() {
        byte_of.fill(-1);
        int next = 0x100;
        for (int byte = 0; byte < 256; ++byte) {
            const bool own = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
            byte_of[static_cast<std::size_t>(own ? byte : next++)] = byte;
        }
    }

    // The bytes that `token` spells, or nothing when a character is not in the alphabet. Requires UTF-8.
    std::optional<std::string> decode(std::string_view token) const {
        std::string bytes;
        for (std::size_t i = 0; i < token.size();) {
            const std::size_t length = utf8_sequence(token, i);
            const auto first = static_cast<unsigned char>(token[i]);
            std::size_t code = first;
            if (length == 2) code = (first & 0x1fu) << 6 | (static_cast<unsigned char>(token[i + 1]) & 0x3fu);
            if (length > 2 || code >= byte_of.size() || byte_of[code] < 0) return std::nullopt;
            bytes += static_cast<char>(byte_of[code]);
            i += length;
        }
        return bytes;
    }
};

Status read_normalizer(TokenizerFile& file, const Json& json, std::string_view subject) {
    const Json* normalizer = json_find(json, "normalizer");
    if (normalizer == nullptr) return {};
    std::vector<const Json*> parts = {normalizer};
    if (has_type(*normalizer, "Sequence")) {
        DP_ASSIGN_OR_RETURN(const Json* list, json_get_array(*normalizer, "normalizers", subject));
        parts.clear();
        for (const Json& part : *list) parts.push_back(&part);
    }
    for (const Json* part : parts) {
        if (!has_type(*part, "NFC")) return not_served(subject, "the normalizer", type_of(*part));
        file.nfc = true;
    }
    return {};
}

Status read_pre_tokenizer(TokenizerFile& file, const Json& json, std::string_view subject) {
    const Json* sequence = json_find(json, "pre_tokenizer");
    if (sequence == nullptr) return not_served(subject, "the pre-tokenizer", "absent");
    if (!has_type(*sequence, "Sequence")) return not_served(subject, "the pre-tokenizer", type_of(*sequence));
    DP_ASSIGN_OR_RETURN(const Json* parts, json_get_array(*sequence, "pretokenizers", subject));
    if (parts->size() != 2 || !has_type((*parts)[0], "Split") || !has_type((*parts)[1], "ByteLevel")) {
        std::string found;
        for (const Json& part : *parts) found += (found.empty() ? "" : ", ") + type_of(part).substr(0, 40);
        return not_served(subject, "the pre-tokenizer", "[" + found.substr(0, 200) + "]");
    }
    const Json& split = (*parts)[0];
    const Json& bytes = (*parts)[1];
    DP_RETURN_IF_ERROR(expect_only(split, "behavior", {"Isolated"}, subject));
    DP_RETURN_IF_ERROR(expect_only(split, "invert", {false}, subject));
    // Absent, these two are true in the Hugging Face library.
    for (const char* key : {"add_prefix_space", "use_regex"}) {
        DP_ASSIGN_OR_RETURN(const bool set, json_bool_or(bytes, key, subject, true));
        if (set) return not_served(subject, fmt::format("{} of ByteLevel", key), "true");
    }
    DP_ASSIGN_OR_RETURN(const Json* pattern, json_get_object(split, "pattern", subject));
    if (json_find(*pattern, "Regex") == nullptr) {
        return not_served(subject, "the pattern of Split", "not a regular expression");
    }
    DP_ASSIGN_OR_RETURN(file.pattern, json_get_string(*pattern, "Regex", subject));
    return {};
}

Status check_other_components(const Json& json, std::string_view subject) {
    for (const char* key : {"truncation", "padding"}) {
        if (json_find(json, key) != nullptr) return not_served(subject, key, "set");
    }
    // ByteLevel moves offsets only; others add tokens.
    const Json* processor = json_find(json, "post_processor");
    if (processor != nullptr && !has_type(*processor, "ByteLevel")) {
        return not_served(subject, "the post-processor", type_of(*processor));
    }
    const Json* decoder = json_find(json, "decoder");
    if (decoder == nullptr || !has_type(*decoder, "ByteLevel")) {
        return not_served(subject, "the decoder", decoder == nullptr ? "absent" : type_of(*decoder));
    }
    return {};
}

Status check_model_options(const Json& model, std::string_view subject) {
    // Files of older library versions have no type; the BPE model alone has merges.
    if (json_find(model, "type") != nullptr && !has_type(model, "BPE"))
        return not_served(subject, "the model", type_of(model));
    DP_RETURN_IF_ERROR(expect_only(model, "dropout", {0, 0.0}, subject));
    DP_RETURN_IF_ERROR(expect_only(model, "unk_token", {}, subject));
    DP_RETURN_IF_ERROR(expect_only(model, "continuing_subword_prefix", {""}, subject));
    DP_RETURN_IF_ERROR(expect_only(model, "end_of_word_suffix", {""}, subject));
    return expect_only(model, "byte_fallback", {false}, subject);
}

// Fills token_bytes, byte_tokens and whole_words.
Status read_vocabulary(TokenizerFile& file, const Json& vocabulary, std::string_view subject) {
    static const ByteAlphabet alphabet;
    std::int64_t largest = -1;
    for (const auto& [token, id] : vocabulary.items()) {
        if (!id.is_number_integer() || !id.is_number_unsigned() || id.get<std::uint64_t>() > kMaxTokenId) {
            return corrupt(fmt::format("{}: id of token {} is {}, expected an integer from 0 to {}", subject,
                                       quoted_excerpt(token), id.is_structured() ? id.type_name() : id.dump(),
                                       kMaxTokenId));
        }
        largest = std::max(largest, id.get<std::int64_t>());
    }
    file.token_bytes.resize(static_cast<std::size_t>(largest + 1));
    file.byte_tokens.fill(kNoToken);
    std::vector<bool> taken(file.token_bytes.size());
    for (const auto& [token, value] : vocabulary.items()) {
        const auto id = value.get<TokenId>();
        if (token.empty() || taken[id]) {
            return corrupt(fmt::format("{}: token {} has id {}, expected a non-empty token and an id of its own",
                                       subject, quoted_excerpt(token), id));
        }
        taken[id] = true;
        std::optional<std::string> bytes = alphabet.decode(token);
        // A token outside the alphabet is never made by merging bytes; it decodes as it is written.
        file.token_bytes[id] = bytes ? *bytes : token;
        if (!bytes) continue;
        if (bytes->size() == 1) file.byte_tokens[static_cast<unsigned char>(bytes->front())] = id;
        if (file.ignore_merges) file.whole_words.emplace_back(std::move(*bytes), id);
    }
    std::sort(file.whole_words.begin(), file.whole_words.end());
    return {};
}

// The two sides of one merge: "a b" or ["a", "b"].
std::optional<std::pair<std::string, std::string>> sides_of(const Json& merge) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
    }
    if (!merge.is_string()) return std::nullopt;
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) return std::nullopt;
    return std::pair(text.substr(0, space), text.substr(space + 1));
}

Status read_merges(TokenizerFile& file, const Json& merges, const Json& vocabulary, std::string_view subject) {
    // Three look-ups for each of some 250 thousand merges: by hash, the vocabulary's own tree takes seconds.
    std::unordered_map<std::string_view, TokenId> ids_of;
    ids_of.reserve(vocabulary.size());
    for (const auto& [token, id] : vocabulary.get_ref<const Json::object_t&>())
        ids_of.emplace(token, id.get<TokenId>());
    file.merges.reserve(merges.size());
    std::uint32_t rank = 0;
    for (const Json& merge : merges) {
        const auto sides = sides_of(merge);
        if (!sides) {
            return corrupt(
                fmt::format("{}: merge {} is {}, expected \"left right\" or [\"left\", \"right\"]", subject, rank,
                            merge.is_string() ? quoted_excerpt(merge.get<std::string>()) : merge.type_name()));
        }
        const auto& [left, right] = *sides;
        std::array<TokenId, 3> ids{};
        const std::array<std::string, 3> tokens = {left, right, left + right};
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            const auto id = ids_of.find(tokens[i]);
            if (id == ids_of.end()) {
                return corrupt(fmt::format("{}: merge {} of {} and {}: token {} is not in the vocabulary", subject,
                                           rank, quoted_excerpt(left), quoted_excerpt(right),
                                           quoted_excerpt(tokens[i])));
            }
            ids[i] = id->second;
        }
        file.merges.put(ids[0], ids[1], {rank, ids[2]});
        ++rank;
    }
    return {};
}

Status read_added_tokens(TokenizerFile& file, const Json& json, const Json& vocabulary, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json* list, json_array_or_null(json, "added_tokens", subject));
    if (list == nullptr) return {};
    if (list->size() > kMaxAddedTokens) {
        return unsupported(
            fmt::format("{}: {} added tokens, served are at most {}", subject, list->size(), kMaxAddedTokens));
    }
    std::set<std::string> contents;
    std::set<TokenId> ids;
    for (const Json& entry : *list) {
        const std::string place = fmt::format("{}: added token {}", subject, file.added.size());
        AddedToken token;
        DP_ASSIGN_OR_RETURN(token.content, json_get_string(entry, "content", place));
        DP_ASSIGN_OR_RETURN(const std::int64_t id, json_get_int(entry, "id", place, 0, kMaxTokenId));
        DP_ASSIGN_OR_RETURN(token.special, json_bool_or(entry, "special", place, false));
        token.id = static_cast<TokenId>(id);
        if (token.content.empty() || token.content.size() > kMaxAddedBytes) {
            return unsupported(fmt::format("{}: content of {} bytes, served are 1 to {}", place, token.content.size(),
                                           kMaxAddedBytes));
        }
        for (const char* key : {"single_word", "lstrip", "rstrip"}) {
            DP_RETURN_IF_ERROR(expect_only(entry, key, {false}, place));
        }
        // Absent, it is true for tokens that are not special: then the token is sought in the normalised text.
        DP_ASSIGN_OR_RETURN(const bool normalized, json_bool_or(entry, "normalized", place, !token.special));
        if (normalized) return not_served(place, "\"normalized\"", "true");
        if (!contents.insert(token.content).second || !ids.insert(token.id).second) {
            return corrupt(fmt::format("{}: {} with id {} repeats a content or an id", place,
                                       quoted_excerpt(token.content), token.id));
        }
        const Json* listed = json_find(vocabulary, token.content);
        const bool occupied = token.id < file.token_bytes.size() && !file.token_bytes[token.id].empty();
        if (listed != nullptr ? listed->get<TokenId>() != token.id : occupied) {
            return corrupt(fmt::format("{}: {} has id {}, but the vocabulary gives that content or id to another",
                                       place, quoted_excerpt(token.content), token.id));
        }
        if (token.id >= file.token_bytes.size()) file.token_bytes.resize(std::size_t{token.id} + 1);
        file.token_bytes[token.id] = token.content;
        file.added.push_back(std::move(token));
    }
    return {};
}

}  // namespace

Result<TokenizerFile> read_tokenizer_file(const Json& json, std::string_view subject) {
    if (!json.is_object()) return corrupt(fmt::format("{}: {}, expected an object", subject, json.type_name()));
    TokenizerFile file;
    DP_RETURN_IF_ERROR(read_normalizer(file, json, subject));
    DP_RETURN_IF_ERROR(read_pre_tokenizer(file, json, subject));
    DP_RETURN_IF_ERROR(check_other_components(json, subject));
    DP_ASSIGN_OR_RETURN(const Json* model, json_get_object(json, "model", subject));
    const std::string place = fmt::format("{}: model", subject);
    DP_RETURN_IF_ERROR(check_model_options(*model, place));
    DP_ASSIGN_OR_RETURN(file.ignore_merges, json_bool_or(*model, "ignore_merges", place, false));
    DP_ASSIGN_OR_RETURN(const Json* vocabulary, json_get_object(*model, "vocab", place));
    DP_ASSIGN_OR_RETURN(const Json* merges, json_get_array(*model, "merges", place));
    DP_RETURN_IF_ERROR(read_vocabulary(file, *vocabulary, place));
    DP_RETURN_IF_ERROR(read_merges(file, *merges, *vocabulary, place));
    DP_RETURN_IF_ERROR(read_added_tokens(file, json, *vocabulary, subject));
    return file;
}

}  // namespace draftprobe
