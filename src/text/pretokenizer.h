// Splitting text by a tokenizer's regular expression, with PCRE2, so that the pieces equal those of Oniguruma.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace draftprobe {

// The pattern in PCRE2 spelling: \s and \S become explicit classes of White_Space (PCRE2's own \s also has U+180E).
// Syntax whose meaning differs between the two engines, or that a tokenizer has no use for, is unsupported; the message
// quotes it.
Result<std::string> translate_pattern(std::string_view pattern);

// Immutable; any number of threads.
class PreTokenizer {
public:
    // `pattern` as in tokenizer.json. Errors: unsupported (see translate_pattern, or a pattern that matches nothing at
    // all, or that PCRE2 refuses).
    static Result<PreTokenizer> compile(std::string_view pattern);

    PreTokenizer(PreTokenizer&&) noexcept;
    PreTokenizer& operator=(PreTokenizer&&) noexcept;
    ~PreTokenizer();

    // Cuts `text`, which must be UTF-8, into its matches and the stretches between them, in order; nothing is dropped
    // and no piece is empty. Errors: exhausted when one match takes
    // more steps than kMatchSteps and four per byte of text: a run of white space alone needs about one per byte.
    Result<std::vector<std::string_view>> split(std::string_view text) const;

    static constexpr std::uint32_t kMatchSteps = 10'000'000;

private:
    struct Compiled;
    explicit PreTokenizer(std::unique_ptr<Compiled> compiled);
    std::unique_ptr<Compiled> compiled_;
};

}  // namespace draftprobe
