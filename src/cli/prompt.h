// Prompts from files: UTF-8 text, token ids as JSON, or chat messages as JSON.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "capture/capture.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "probe/assembly.h"
#include "text/chat.h"

namespace draftprobe::cli {

inline constexpr std::uint64_t kMaxPromptBytes = 64u << 20;  // ids
// Text, and chats as files: far above what any served position limit takes, and little enough that tokenising it takes
// seconds.
inline constexpr std::uint64_t kMaxPromptTextBytes = 8u << 20;

enum class PromptKind { text, ids, chat };

// A prompt file as read, before the model is known; the member of its kind is filled.
struct PromptFile {
    std::string path;
    PromptKind kind = PromptKind::text;
    std::string text;
    std::vector<TokenId> ids;
    RenderedChat chat;
    TemplateIdentity chat_template;  // of a chat, complete
};

// Reads every file of --prompt, --prompt-ids or --chat, in order; at least one. Errors: invalid_argument (not exactly
// one of them; --chat without
// --thinking; --thinking or --effort without --chat; an empty prompt), not_found, io, exhausted (above the limits),
// corrupt (JSON that is not a list of ids), and those of parse_chat.
Result<std::vector<PromptFile>> read_prompt_files(const Arguments& arguments);
// The same for a command that takes one.
Result<PromptFile> read_prompt_file(const Arguments& arguments);

// A prompt that no option names, of kind text or ids. Errors as read_prompt_file's.
Result<PromptFile> read_prompt_at(PromptKind kind, const std::string& path);

// Token ids of the prompt, all within the target's vocabulary. Of a chat it says on stderr which template is used, and
// warns of what the target's files suggest otherwise. Errors: invalid_argument, unsupported, and those of
// Tokenizer::encode and encode_chat.
Result<std::vector<TokenId>> prompt_tokens(const PromptFile& file, const probe::Assembly& assembly, Console& console);

}  // namespace draftprobe::cli
