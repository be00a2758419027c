#include "text/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/hash.h"
#include "base/json.h"
#include "base/utf8.h"

namespace draftprobe {
namespace {

enum class PartKind { token, text, effort, content };

struct TemplatePart {
    PartKind kind = PartKind::text;
    std::string_view text;  // of token and text
};

// Everything the template can put out. chat_template_digest is taken over this table.
enum class Sequence { system, user, assistant, effort, effort_break, open_on, open_off, reasoning_end, reasoning_gap };

struct NamedSequence {
    Sequence sequence;
    std::string_view name;
    std::array<TemplatePart, 6> parts;
    std::size_t count = 0;
};

constexpr TemplatePart token(std::string_view text) { return {PartKind::token, text}; }
constexpr TemplatePart literal(std::string_view text) { return {PartKind::text, text}; }
constexpr TemplatePart kTurnStart = token("<|im_start|>");
constexpr TemplatePart kTurnEnd = token(kChatTurnEnd);
constexpr TemplatePart kThink = token("<think>");
constexpr TemplatePart kThinkEnd = token("</think>");
constexpr TemplatePart kContent = {PartKind::content, {}};
constexpr TemplatePart kEffortName = {PartKind::effort, {}};

template <typename... Parts>
constexpr NamedSequence sequence(Sequence which, std::string_view name, Parts... parts) {
    return {which, name, {parts...}, sizeof...(parts)};
}

constexpr NamedSequence kTemplate[] = {
    sequence(Sequence::system, "system", kTurnStart, literal("system\n"), kContent, kTurnEnd, literal("\n")),
    sequence(Sequence::user, "user", kTurnStart, literal("user\n"), kContent, kTurnEnd, literal("\n")),
    sequence(Sequence::assistant, "assistant", kTurnStart, literal("assistant\n"), kContent, kTurnEnd, literal("\n")),
    sequence(Sequence::effort, "effort", literal("Reasoning effort is set to "), kEffortName, literal(".")),
    sequence(Sequence::effort_break, "between effort and system text", literal("\n\n")),
    sequence(Sequence::open_on, "open, thinking on", kTurnStart, literal("assistant\n"), kThink, literal("\n")),
    sequence(Sequence::open_off, "open, thinking off", kTurnStart, literal("assistant\n"), kThink, literal("\n\n"),
             kThinkEnd, literal("\n\n")),
    sequence(Sequence::reasoning_end, "earlier reasoning ends with", literal("</think>")),
    sequence(Sequence::reasoning_gap, "and any number of", literal("\n")),
};

// Trimmed from both ends of a message: what Python's str.strip removes.
struct CodeRange {
    char32_t first;
    char32_t last;
};
constexpr CodeRange kTrimmed[] = {{0x09, 0x0d},     {0x1c, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},
                                  {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                  {0x205f, 0x205f}, {0x3000, 0x3000}};

const NamedSequence& find_sequence(Sequence which) {
    return *std::find_if(std::begin(kTemplate), std::end(kTemplate),
                         [which](const NamedSequence& s) { return s.sequence == which; });
}

// The text of a sequence of one literal.
std::string_view literal_of(Sequence which) { return find_sequence(which).parts[0].text; }

// Character of the UTF-8 sequence of `length` bytes.
char32_t code_at(std::string_view text, std::size_t at, std::size_t length) {
    constexpr unsigned kFirstBits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    char32_t code = static_cast<unsigned char>(text[at]) & kFirstBits[length];
    for (std::size_t i = 1; i < length; ++i) code = code << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3fu);
    return code;
}

bool is_trimmed(char32_t code) {
    return std::any_of(std::begin(kTrimmed), std::end(kTrimmed),
                       [code](const CodeRange& range) { return code >= range.first && code <= range.last; });
}

// Requires UTF-8.
std::string_view trimmed(std::string_view text) {
    std::size_t begin = 0;
    while (begin < text.size()) {
        const std::size_t length = utf8_sequence(text, begin);
        if (!is_trimmed(code_at(text, begin, length))) break;
        begin += length;
    }
    std::size_t end = text.size();
    while (end > begin) {
        std::size_t start = end - 1;
        while ((static_cast<unsigned char>(text[start]) & 0xc0u) == 0x80u) --start;
        if (!is_trimmed(code_at(text, start, end - start))) break;
        end = start;
    }
    return text.substr(begin, end - begin);
}

// ---------------------------------------------------------------------------------------------------------------
// Reading

constexpr std::string_view kServed = "served are text messages of system, user and assistant";

std::string shown(const Json& value) {
    return quoted_excerpt(value.dump(-1, ' ', true, Json::error_handler_t::replace));
}

Result<ChatRole> read_role(const Json& message, std::string_view place) {
    DP_ASSIGN_OR_RETURN(const std::string role, json_get_string(message, "role", place));
    if (role == "system") return ChatRole::system;
    if (role == "user") return ChatRole::user;
    if (role == "assistant") return ChatRole::assistant;
    return unsupported(
        fmt::format("{}: role is {}, expected system, user or assistant; {}", place, quoted_excerpt(role), kServed));
}

// The first member that is neither null nor among `known`.
std::optional<std::string> other_member(const Json& object, std::initializer_list<std::string_view> known) {
    for (const auto& [key, value] : object.items()) {
        if (!value.is_null() && std::find(known.begin(), known.end(), key) == known.end()) return key;
    }
    return std::nullopt;
}

Result<std::string> read_part(const Json& part, std::string_view place) {
    if (!part.is_object()) {
        return corrupt(
            fmt::format("{}: found {}, expected {{\"type\": \"text\", \"text\": ...}}", place, part.type_name()));
    }
    DP_ASSIGN_OR_RETURN(const std::string type, json_get_string(part, "type", place));
    if (type != "text") {
        return unsupported(fmt::format("{}: type is {}, expected \"text\"; {}", place, quoted_excerpt(type), kServed));
    }
    if (const auto other = other_member(part, {"type", "text"})) {
        return unsupported(
            fmt::format("{}: found a member {}, expected type and text only", place, quoted_excerpt(*other)));
    }
    return json_get_string(part, "text", place);
}

Result<std::string> read_content(const Json& message, std::string_view place) {
    const Json* content = json_find(message, "content");
    if (content == nullptr || content->is_string()) return json_get_string(message, "content", place);
    if (!content->is_array()) {
        return corrupt(
            fmt::format("{}: content is {}, expected a string or an array of text parts", place, shown(*content)));
    }
    std::string text;
    for (std::size_t i = 0; i < content->size(); ++i) {
        DP_ASSIGN_OR_RETURN(const std::string part, read_part((*content)[i], fmt::format("{}, part {}", place, i)));
        text += part;
    }
    return text;
}

Result<ChatMessage> read_message(const Json& entry, std::string_view place) {
    if (!entry.is_object()) {
        return corrupt(
            fmt::format("{}: found {}, expected {{\"role\": ..., \"content\": ...}}", place, entry.type_name()));
    }
    ChatMessage message;
    DP_ASSIGN_OR_RETURN(message.role, read_role(entry, place));
    const bool assistant = message.role == ChatRole::assistant;
    const auto other = assistant ? other_member(entry, {"role", "content", "reasoning_content"})
                                 : other_member(entry, {"role", "content"});
    if (other) {
        return unsupported(fmt::format("{}: found a member {}, expected role and content{}; {}", place,
                                       quoted_excerpt(*other), assistant ? " (and reasoning_content)" : "", kServed));
    }
    DP_ASSIGN_OR_RETURN(message.content, read_content(entry, place));
    if (json_find(entry, "reasoning_content") != nullptr) {
        DP_RETURN_IF_ERROR(json_get_string(entry, "reasoning_content", place).status());
        message.separate_reasoning = true;
    }
    const std::string_view text = trimmed(message.content);
    if (message.role == ChatRole::user && text.starts_with("<tool_response>") && text.ends_with("</tool_response>")) {
        return unsupported(fmt::format("{}: found a <tool_response>, expected a user's text; {}", place, kServed));
    }
    return message;
}

std::string_view role_name(ChatRole role) {
    constexpr std::string_view kNames[] = {"system", "user", "assistant"};
    return kNames[static_cast<std::size_t>(role)];
}

Status check_order(const Chat& chat, std::string_view subject) {
    if (chat.messages.empty()) {
        return corrupt(fmt::format("{}: found 0 messages, expected at least one, the last by the user", subject));
    }
    for (std::size_t i = 1; i < chat.messages.size(); ++i) {
        if (chat.messages[i].role != ChatRole::system) continue;
        return corrupt(fmt::format("{}: message {}: found role system, expected it as message 0 only", subject, i));
    }
    if (chat.messages.back().role == ChatRole::user) return {};
    return corrupt(fmt::format(
        "{}: message {}: found role {} at the end, expected user: the prompt asks the model for a new turn that "
        "answers the user; leave out what follows the question",
        subject, chat.messages.size() - 1, role_name(chat.messages.back().role)));
}

// ---------------------------------------------------------------------------------------------------------------
// Rendering

class Renderer {
public:
    explicit Renderer(const ChatMode& mode) : mode_(mode) {}

    void add(Sequence which, std::string_view content = {}) {
        const NamedSequence& sequence = find_sequence(which);
        for (std::size_t i = 0; i < sequence.count; ++i) {
            const TemplatePart& part = sequence.parts[i];
            switch (part.kind) {
                case PartKind::token: out_.parts.push_back({true, std::string(part.text)}); break;
                case PartKind::text: add_text(part.text); break;
                case PartKind::effort: add_text(mode_.effort); break;
                case PartKind::content: add_text(content); break;
            }
        }
    }

    RenderedChat take() && { return std::move(out_); }

private:
    void add_text(std::string_view text) {
        if (text.empty()) return;
        if (out_.parts.empty() || out_.parts.back().token) out_.parts.push_back({});
        out_.parts.back().text += text;
    }

    const ChatMode& mode_;
    RenderedChat out_;
};

// The answer of an earlier assistant turn: what follows its last end of reasoning.
std::string_view answer_of(const ChatMessage& message) {
    std::string_view text = trimmed(message.content);
    if (message.separate_reasoning) return text;
    const std::string_view end = literal_of(Sequence::reasoning_end);
    const std::size_t at = text.rfind(end);
    if (at == std::string_view::npos) return text;
    text.remove_prefix(at + end.size());
    const std::string_view gap = literal_of(Sequence::reasoning_gap);
    while (text.starts_with(gap)) text.remove_prefix(gap.size());
    return text;
}

std::string effort_sentence(const ChatMode& mode) {
    if (mode.effort.empty() || !mode.thinking) return {};
    Renderer sentence(mode);
    sentence.add(Sequence::effort);
    return std::move(sentence).take().text();
}

}  // namespace

Result<Chat> parse_chat(std::string_view text, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json document, parse_json(text, subject));
    const Json* list = document.is_object() ? json_find(document, "messages") : &document;
    if (list == nullptr || !list->is_array()) {
        return corrupt(
            fmt::format("{}: found {}, expected a JSON array of messages or {{\"messages\": [...]}}", subject,
                        document.is_object() ? "an object without an array \"messages\"" : document.type_name()));
    }
    if (document.is_object()) {
        if (const auto other = other_member(document, {"messages"})) {
            return unsupported(
                fmt::format("{}: found a member {}, expected \"messages\" only: nothing else in the file "
                            "would have an effect",
                            subject, quoted_excerpt(*other)));
        }
    }
    if (list->size() > kMaxChatMessages) {
        return exhausted(fmt::format("{}: found {} messages, expected at most {}; shorten the chat", subject,
                                     list->size(), kMaxChatMessages));
    }
    Chat chat;
    for (std::size_t i = 0; i < list->size(); ++i) {
        DP_ASSIGN_OR_RETURN(ChatMessage message, read_message((*list)[i], fmt::format("{}: message {}", subject, i)));
        chat.messages.push_back(std::move(message));
    }
    DP_RETURN_IF_ERROR(check_order(chat, subject));
    return chat;
}

Status check_effort(std::string_view name) {
    const auto allowed = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    };
    if (!name.empty() && name.size() <= 32 && std::all_of(name.begin(), name.end(), allowed)) return {};
    return invalid_argument(
        fmt::format("effort: found {}, expected 1 to 32 characters of a-z, 0-9, '_' and '-'", quoted_excerpt(name)));
}

std::string RenderedChat::text() const {
    std::string all;
    for (const RenderedPart& part : parts) all += part.text;
    return all;
}

RenderedChat render_chat(const Chat& chat, const ChatMode& mode) {
    Renderer out(mode);
    std::string effort = effort_sentence(mode);
    if (!effort.empty() && chat.messages.front().role != ChatRole::system) out.add(Sequence::system, effort);
    for (const ChatMessage& message : chat.messages) {
        const std::string_view text = trimmed(message.content);
        switch (message.role) {
            case ChatRole::system:
                if (!effort.empty() && !text.empty()) effort += literal_of(Sequence::effort_break);
                out.add(Sequence::system, effort + std::string(text));
                break;
            case ChatRole::user: out.add(Sequence::user, text); break;
            case ChatRole::assistant: out.add(Sequence::assistant, answer_of(message)); break;
        }
    }
    out.add(mode.thinking ? Sequence::open_on : Sequence::open_off);
    return std::move(out).take();
}

Result<std::vector<TokenId>> encode_chat(const RenderedChat& chat, const Tokenizer& tokenizer) {
    for (const TemplatePart& needed : {kTurnStart, kTurnEnd, kThink, kThinkEnd}) {
        if (tokenizer.find_special(needed.text)) continue;
        return unsupported(fmt::format(
            "chat template {}: the tokenizer has no token {}, expected {}, {}, {} and {}; use the checkpoint's own "
            "tokenizer.json, or give a prompt that is not a chat",
            kChatTemplateVersion, needed.text, kTurnStart.text, kTurnEnd.text, kThink.text, kThinkEnd.text));
    }
    std::vector<TokenId> ids;
    for (const RenderedPart& part : chat.parts) {
        if (part.token) {
            ids.push_back(*tokenizer.find_special(part.text));
            continue;
        }
        DP_ASSIGN_OR_RETURN(const std::vector<TokenId> stretch, tokenizer.encode_plain(part.text));
        ids.insert(ids.end(), stretch.begin(), stretch.end());
    }
    return ids;
}

std::string chat_template_description() {
    constexpr std::string_view kKinds[] = {"token", "text", "effort", "content"};
    std::string out = fmt::format("chat template {}\n", kChatTemplateVersion);
    for (const NamedSequence& sequence : kTemplate) {
        out += fmt::format("{}:", sequence.name);
        for (std::size_t i = 0; i < sequence.count; ++i) {
            const TemplatePart& part = sequence.parts[i];
            out += fmt::format(" {}", kKinds[static_cast<std::size_t>(part.kind)]);
            if (!part.text.empty()) out += " " + Json(part.text).dump();
        }
        out += "\n";
    }
    out += "trimmed:";
    for (const CodeRange& range : kTrimmed) {
        out += fmt::format(" {:04X}-{:04X}", static_cast<std::uint32_t>(range.first),
                           static_cast<std::uint32_t>(range.last));
    }
    return out + "\n";
}

std::string chat_template_digest() { return sha256_hex(chat_template_description()); }

}  // namespace draftprobe
