#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/json.h"

namespace draftprobe {
namespace {

constexpr std::size_t kMaxPatternBytes = 4096;
constexpr std::size_t kJitStackStart = 32 * 1024;
constexpr std::size_t kJitStackMax = 8 * 1024 * 1024;

// The 25 characters with the Unicode property White_Space, as the inside of a class.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

constexpr std::array<std::string_view, 8> kGroups = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "("};

class Translator {
public:
    explicit Translator(std::string_view pattern) : pattern_(pattern) {}

    Result<std::string> run() {
        while (at_ < pattern_.size()) {
            DP_RETURN_IF_ERROR(in_class_ ? class_item() : item());
        }
        if (in_class_) return refuse("[", "an open class");
        return std::move(out_);
    }

private:
    std::string_view rest() const { return pattern_.substr(at_); }
    bool next_is(std::string_view text) const { return rest().substr(0, text.size()) == text; }
    void copy(std::size_t count) {
        out_ += pattern_.substr(at_, count);
        at_ += count;
    }

    Status refuse(std::string_view what, std::string_view why) const {
        return unsupported(
            fmt::format("pattern {} at byte {}: {} is {}, served is the syntax of the Qwen pre-tokenizers",
                        quoted_excerpt(pattern_), at_, quoted_excerpt(what), why));
    }

    // Copies "{n}", "{n,}" or "{n,m}". "{,m}" and a "+" after the brace are read differently by different engines.
    Status counted_repeat() {
        const auto skip_digits = [&](std::size_t from) {
            while (from < pattern_.size() && pattern_[from] >= '0' && pattern_[from] <= '9') ++from;
            return from;
        };
        const std::size_t low_end = skip_digits(at_ + 1);
        std::size_t close = low_end;
        if (close < pattern_.size() && pattern_[close] == ',') close = skip_digits(close + 1);
        if (low_end == at_ + 1 || close >= pattern_.size() || pattern_[close] != '}') {
            return refuse(rest().substr(0, 8), "no plain repeat count");
        }
        copy(close - at_ + 1);
        if (next_is("+")) return refuse("}+", "read differently by different engines");
        return {};
    }

    Status escape() {
        if (at_ + 1 >= pattern_.size()) return refuse("\\", "an unfinished escape");
        const char letter = pattern_[at_ + 1];
        const std::string_view both = pattern_.substr(at_, 2);
        switch (letter) {
            case 's':
                out_ += in_class_ ? std::string(kSpaces) : fmt::format("[{}]", kSpaces);
                at_ += 2;
                return {};
            case 'S':
                if (in_class_) return refuse(both, "not served inside a class");
                out_ += fmt::format("[^{}]", kSpaces);
                at_ += 2;
                return {};
            case 'p':
            case 'P': {
                const std::size_t close = pattern_.find('}', at_);
                if (!(at_ + 2 < pattern_.size() && pattern_[at_ + 2] == '{') || close == std::string_view::npos) {
                    return refuse(both, "not followed by a {category}");
                }
                copy(close - at_ + 1);
                return {};
            }
            case 'r':
            case 'n':
            case 't':
            case 'd': copy(2); return {};
            default: break;
        }
        // Any escaped ASCII punctuation stands for itself in both engines.
        const auto byte = static_cast<unsigned char>(letter);
        const bool alphanumeric =
            (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z');
        if (byte <= 0x20 || byte >= 0x7f || alphanumeric) return refuse(both, "an escape with several meanings");
        copy(2);
        return {};
    }

    Status class_item() {
        const char c = pattern_[at_];
        const bool first = std::exchange(class_empty_, false);
        if (c == '\\') return escape();
        if (c == '[' || next_is("&&")) return refuse(rest().substr(0, 2), "class syntax with several meanings");
        if (c == ']') {
            if (first) return refuse("[]", "an empty class");
            in_class_ = false;
        }
        copy(1);
        return {};
    }

    Status item() {
        const char c = pattern_[at_];
        if (c == '\\') return escape();
        if (c == '{') return counted_repeat();
        if (c == '^' || c == '$' || c == '.')
            return refuse(pattern_.substr(at_, 1), "read differently by different engines");
        if (c == '[') {
            copy(next_is("[^") ? 2 : 1);
            in_class_ = true;
            class_empty_ = true;
            return {};
        }
        if (c == '(') {
            for (const std::string_view group : kGroups) {
                if (next_is(group) && (group.size() > 1 || !(next_is("(?") || next_is("(*")))) {
                    copy(group.size());
                    return {};
                }
            }
            return refuse(rest().substr(0, 4), "a kind of group with several meanings");
        }
        copy(1);
        // A repeated group with a repeat inside can take exponential time; no pre-tokenizer repeats a group.
        if (c == ')' && (next_is("+") || next_is("*") || next_is("{")))
            return refuse(rest().substr(0, 1), "a repeated group");
        return {};
    }

    std::string_view pattern_;
    std::size_t at_ = 0;
    bool in_class_ = false;
    bool class_empty_ = false;
    std::string out_;
};

template <auto Free>
struct Deleter {
    template <typename T>
    void operator()(T* pointer) const {
        Free(pointer);
    }
};

using Code = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

std::string pcre2_message(int code) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(code, text.data(), text.size());
    return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct PreTokenizer::Compiled {
    Code code;
};

PreTokenizer::PreTokenizer(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Result<std::string> translate_pattern(std::string_view pattern) {
    if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
        return unsupported(fmt::format("pattern of {} bytes, served are 1 to {}", pattern.size(), kMaxPatternBytes));
    }
    return Translator(pattern).run();
}

Result<PreTokenizer> PreTokenizer::compile(std::string_view pattern) {
    DP_ASSIGN_OR_RETURN(const std::string translated, translate_pattern(pattern));
    int error = 0;
    PCRE2_SIZE place = 0;
    Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &place, nullptr));
    if (!code) {
        return unsupported(fmt::format("pattern {}: {}", quoted_excerpt(pattern), pcre2_message(error)));
    }
    std::uint32_t matches_empty = 0;
    pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty != 0) {
        return unsupported(fmt::format("pattern {} can match nothing at all, served are patterns that consume text",
                                       quoted_excerpt(pattern)));
    }
    // Without a just-in-time compiler matching falls back to the interpreter: slower, same result.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
    auto compiled = std::make_unique<Compiled>();
    compiled->code = std::move(code);
    return PreTokenizer(std::move(compiled));
}

Result<std::vector<std::string_view>> PreTokenizer::split(std::string_view text) const {
    std::vector<std::string_view> pieces;
    if (text.empty()) return pieces;
    const MatchData match(pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr));
    const MatchContext context(pcre2_match_context_create(nullptr));
    const JitStack stack(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr));
    if (!match || !context) return exhausted("no memory for matching the pre-tokenizer's pattern");
    const std::uint64_t steps = kMatchSteps + 4 * std::uint64_t{text.size()};
    pcre2_set_match_limit(context.get(), static_cast<std::uint32_t>(std::min<std::uint64_t>(steps, 0xffffffffu)));
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());

    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    std::size_t done = 0;
    while (done < text.size()) {
        const int found = pcre2_match(compiled_->code.get(), subject, text.size(), done, PCRE2_NO_UTF_CHECK,
                                      match.get(), context.get());
        if (found == PCRE2_ERROR_NOMATCH) break;
        if (found < 0) {
            return exhausted(
                fmt::format("pre-tokenizer: byte {} of a text of {}: {}; shorten the text or use a simpler "
                            "pattern",
                            done, text.size(), pcre2_message(found)));
        }
        const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
        if (range[0] < done || range[1] <= range[0])
            return internal_error("pre-tokenizer: a match that makes no progress");
        if (range[0] > done) pieces.push_back(text.substr(done, range[0] - done));
        pieces.push_back(text.substr(range[0], range[1] - range[0]));
        done = range[1];
    }
    if (done < text.size()) pieces.push_back(text.substr(done));
    return pieces;
}

}  // namespace draftprobe
