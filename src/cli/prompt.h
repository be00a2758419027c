// Prompts from files: UTF-8 text, or token ids as JSON.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/arguments.h"
#include "probe/assembly.h"

namespace draftprobe::cli {

inline constexpr std::uint64_t kMaxPromptBytes = 64u << 20;  // ids
// Text: far above what any served position limit takes, and little enough that tokenising it takes seconds.
inline constexpr std::uint64_t kMaxPromptTextBytes = 8u << 20;

// A prompt file as read, before the model is known. Exactly one of text and ids is meant.
struct PromptFile {
    std::string path;
    bool is_text = false;
    std::string text;
    std::vector<TokenId> ids;
};

// Reads the file of --prompt or --prompt-ids. Errors: invalid_argument (neither or both given, an empty prompt),
// not_found, io, exhausted (above kMaxPromptBytes), corrupt (JSON that is not a list of ids).
Result<PromptFile> read_prompt_file(const Arguments& arguments);

// Token ids of the prompt, all within the target's vocabulary. Errors: invalid_argument, unsupported, and those of
// Tokenizer::encode.
Result<std::vector<TokenId>> prompt_tokens(const PromptFile& file, const probe::Assembly& assembly);

}  // namespace draftprobe::cli
