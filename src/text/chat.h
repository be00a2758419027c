// Chat messages to a prompt: a JSON chat file, rendered by one built-in template.
//
// The rendering is Qwen's ChatML. For conversations of plain text it gives the text that the chat template published
// with Qwen3.5 (and 3.6) gives with add_generation_prompt and enable_thinking set to the thinking mode: white space
// around every message is trimmed, reasoning is removed from earlier assistant turns, and a new assistant turn is
// opened with <think> (on) or with an empty <think></think> (off). tests/golden/chat holds such renderings. It
// deliberately stops there:
//   - no tools: tool roles, tool_calls and user messages that are one <tool_response> are refused;
//   - no images or videos, no template variables; the checkpoint's own template is never executed;
//   - the last message is the user's: the template opens a new assistant turn, and the published one has no text for
//     an assistant turn to be continued or for a conversation in which nobody asked;
//   - earlier reasoning is always removed. Qwen3.8's published template keeps it by default (preserve_thinking), and
//     states its effort xhigh when none is given; this one states none.
// Effort: with thinking on, the sentence "Reasoning effort is set to NAME." starts the system message, a blank line
// before the system text, as in Qwen3.8's template; there a model's own advice follows the sentence for low and xhigh,
// and medium is silent. One sentence for every name keeps the template free of a model's vocabulary. With thinking off
// effort reaches no text, as there.
//
// Text of messages never becomes a template token: it is encoded without added tokens, so "<|im_end|>" typed by a user
// stays the characters it is written with, and the only turn marks in a prompt are the template's. (Hugging Face's
// tokenizers turn such spellings into the token.) Who needs another rendering gives the rendered text as a text prompt.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace draftprobe {

// Far more turns than any served context holds; every turn costs time even when it is empty.
inline constexpr std::size_t kMaxChatMessages = 16384;

enum class ChatRole { system, user, assistant };

struct ChatMessage {
    ChatRole role = ChatRole::user;
    std::string content;  // UTF-8, as in the file; parts joined without a separator
    // The reasoning came in a field of its own, so `content` is the answer as it stands.
    bool separate_reasoning = false;
};

// At least one message; a system message only as the first; the last is the user's.
struct Chat {
    std::vector<ChatMessage> messages;
};

// Reads a JSON array of messages, or {"messages": [...]}. A message has "role" and "content" (a string, or an array of
// {"type": "text", "text": ...}); an assistant's may have "reasoning_content" (a string), which is dropped like all
// earlier reasoning. Members that are null count as absent. `subject` names the file in messages. Errors: corrupt
// (broken JSON, wrong type or order), exhausted (more than kMaxChatMessages), unsupported (a role, member or part that
// is not served), each with the index of the message.
Result<Chat> parse_chat(std::string_view text, std::string_view subject);

struct ChatMode {
    bool thinking = false;
    std::string effort;  // empty: none
};

// An effort's name: 1 to 32 of a-z, 0-9, '_' and '-'. Error: invalid_argument.
Status check_effort(std::string_view name);

// A rendered chat: template tokens, and the stretches of text between them. No two neighbours are both text.
struct RenderedPart {
    bool token = false;  // an added token of the tokenizer, spelled out
    std::string text;
};
struct RenderedChat {
    std::vector<RenderedPart> parts;

    std::string text() const;
};

// Requires a chat as parse_chat gives it and an effort that check_effort accepts.
RenderedChat render_chat(const Chat& chat, const ChatMode& mode);

// Token ids of a rendered chat. Errors: unsupported, naming a token of the template that the tokenizer lacks; those of
// Tokenizer::encode_plain.
Result<std::vector<TokenId>> encode_chat(const RenderedChat& chat, const Tokenizer& tokenizer);

// Token that ends a turn.
inline constexpr std::string_view kChatTurnEnd = "<|im_end|>";

// Goes up when rendering changes in a way that its pieces do not show.
inline constexpr std::string_view kChatTemplateVersion = "qwen-chatml-1";

// What is rendered, in words: version, then each piece in order. The rendering reads the same table.
std::string chat_template_description();
// SHA-256 of the description, 64 hex digits.
std::string chat_template_digest();

}  // namespace draftprobe
