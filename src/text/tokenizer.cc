#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <utility>

#include "base/files.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/nfc.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_file.h"

namespace draftprobe {
namespace {

constexpr std::uint64_t kMaxFileBytes = 256u << 20;
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;  // positions inside a piece are 32-bit

// Finds added tokens in text: the leftmost, and the longest of those that start there.
class AddedTokens {
public:
    explicit AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
        std::sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.content < b.content; });
        for (const AddedToken& token : tokens_) starts_.set(static_cast<unsigned char>(token.content.front()));
    }

    const AddedToken* find(std::string_view content) const {
        const auto found =
            std::lower_bound(tokens_.begin(), tokens_.end(), content,
                             [](const AddedToken& token, std::string_view key) { return token.content < key; });
        return found != tokens_.end() && found->content == content ? &*found : nullptr;
    }

    // Position and token of the first match at or after `from`; no token when there is none.
    std::pair<std::size_t, const AddedToken*> next(std::string_view text, std::size_t from) const {
        for (std::size_t at = from; at < text.size(); ++at) {
            if (!starts_.test(static_cast<unsigned char>(text[at]))) continue;
            if (const AddedToken* token = longest_at(text, at)) return {at, token};
        }
        return {text.size(), nullptr};
    }

    const std::vector<AddedToken>& all() const { return tokens_; }

private:
    // Narrows the sorted tokens to those that agree with the text byte by byte.
    const AddedToken* longest_at(std::string_view text, std::size_t at) const {
        auto low = tokens_.begin();
        auto high = tokens_.end();
        const AddedToken* best = nullptr;
        for (std::size_t depth = 0; low != high && at + depth < text.size(); ++depth) {
            const auto byte = static_cast<unsigned char>(text[at + depth]);
            const auto below = [depth](const AddedToken& token, unsigned char key) {
                return token.content.size() <= depth || static_cast<unsigned char>(token.content[depth]) < key;
            };
            const auto above = [depth](unsigned char key, const AddedToken& token) {
                return token.content.size() > depth && key < static_cast<unsigned char>(token.content[depth]);
            };
            low = std::lower_bound(low, high, byte, below);
            high = std::upper_bound(low, high, byte, above);
            if (low != high && low->content.size() == depth + 1) best = &*low;
        }
        return best;
    }

    std::vector<AddedToken> tokens_;
    std::bitset<256> starts_;
};

Status check_text(std::string_view text) {
    if (text.size() > kMaxTextBytes) {
        return invalid_argument(
            fmt::format("text of {} bytes, expected at most {}; give it in parts", text.size(), kMaxTextBytes));
    }
    if (const auto error = utf8_first_error(text)) {
        return invalid_argument(
            fmt::format("text is not UTF-8: byte {} (0x{:02x}) starts no character; convert the text to "
                        "UTF-8",
                        *error, static_cast<unsigned char>(text[*error])));
    }
    return {};
}

}  // namespace

struct Tokenizer::Impl {
    Impl(TokenizerFile read, PreTokenizer compiled)
        : file(std::move(read)), added(std::move(file.added)), pre_tokenizer(std::move(compiled)) {
        for (const AddedToken& token : added.all()) {
            if (token.special) special_ids.push_back(token.id);
        }
        std::sort(special_ids.begin(), special_ids.end());
    }

    Status encode_stretch(std::string_view raw, std::vector<TokenId>& ids) const;
    Status encode_piece(std::string_view piece, std::vector<TokenId>& symbols, std::vector<TokenId>& ids) const;

    TokenizerFile file;
    AddedTokens added;
    PreTokenizer pre_tokenizer;
    std::vector<TokenId> special_ids;
};

// `symbols` is scratch space, kept between pieces.
Status Tokenizer::Impl::encode_piece(std::string_view piece, std::vector<TokenId>& symbols,
                                     std::vector<TokenId>& ids) const {
    if (file.ignore_merges) {
        const auto whole = std::lower_bound(file.whole_words.begin(), file.whole_words.end(), piece,
                                            [](const auto& entry, std::string_view key) { return entry.first < key; });
        if (whole != file.whole_words.end() && whole->first == piece) {
            ids.push_back(whole->second);
            return {};
        }
    }
    symbols.clear();
    for (const char c : piece) {
        const TokenId id = file.byte_tokens[static_cast<unsigned char>(c)];
        if (id == kNoToken) {
            return unsupported(
                fmt::format("tokenizer: byte 0x{:02x} has no token, expected a vocabulary with all 256 bytes; "
                            "use another tokenizer.json or leave out {}",
                            static_cast<unsigned char>(c), quoted_excerpt(piece)));
        }
        symbols.push_back(id);
    }
    merge_symbols(file.merges, symbols, ids);
    return {};
}

// A stretch between added tokens: it is normalised and split by itself.
Status Tokenizer::Impl::encode_stretch(std::string_view raw, std::vector<TokenId>& ids) const {
    std::string normal;
    if (file.nfc) {
        normal = to_nfc(raw);
        raw = normal;
    }
    DP_ASSIGN_OR_RETURN(const std::vector<std::string_view> pieces, pre_tokenizer.split(raw));
    std::vector<TokenId> symbols;
    for (const std::string_view piece : pieces) DP_RETURN_IF_ERROR(encode_piece(piece, symbols, ids));
    return {};
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
    DP_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxFileBytes));
    return parse(text, path.string());
}

Result<Tokenizer> Tokenizer::parse(std::string_view text, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json json, parse_json(text, subject));
    DP_ASSIGN_OR_RETURN(TokenizerFile file, read_tokenizer_file(json, subject));
    Result<PreTokenizer> compiled = PreTokenizer::compile(file.pattern);
    if (!compiled.ok()) return compiled.status().with_context(fmt::format("{}: pre-tokenizer", subject));
    return Tokenizer(std::make_unique<const Impl>(std::move(file), std::move(compiled).value()));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text) const {
    DP_RETURN_IF_ERROR(check_text(text));
    std::vector<TokenId> ids;
    std::size_t done = 0;
    while (done < text.size()) {
        const auto [at, token] = impl_->added.next(text, done);
        DP_RETURN_IF_ERROR(impl_->encode_stretch(text.substr(done, at - done), ids));
        if (token == nullptr) break;
        ids.push_back(token->id);
        done = at + token->content.size();
    }
    return ids;
}

Result<std::vector<TokenId>> Tokenizer::encode_plain(std::string_view text) const {
    DP_RETURN_IF_ERROR(check_text(text));
    std::vector<TokenId> ids;
    DP_RETURN_IF_ERROR(impl_->encode_stretch(text, ids));
    return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
    std::string bytes;
    for (const TokenId id : ids) {
        if (id < impl_->file.token_bytes.size()) bytes += impl_->file.token_bytes[id];
    }
    return bytes;
}

std::size_t Tokenizer::vocab_size() const { return impl_->file.token_bytes.size(); }

std::optional<TokenId> Tokenizer::find_special(std::string_view content) const {
    const AddedToken* token = impl_->added.find(content);
    if (token == nullptr) return std::nullopt;
    return token->id;
}

bool Tokenizer::is_special(TokenId id) const {
    return std::binary_search(impl_->special_ids.begin(), impl_->special_ids.end(), id);
}

}  // namespace draftprobe
