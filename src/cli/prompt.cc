#include "cli/prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"

namespace draftprobe::cli {

namespace {

Result<std::vector<TokenId>> ids_of(const Json& document, const std::string& path) {
    const Json* list = document.is_object() ? json_find(document, "ids") : &document;
    if (list == nullptr || !list->is_array()) {
        return corrupt(fmt::format("{}: found {}, expected a JSON array of token ids or {{\"ids\": [...]}}", path,
                                   document.is_object() ? "an object without an array \"ids\"" : document.type_name()));
    }
    std::vector<TokenId> ids;
    ids.reserve(list->size());
    for (const Json& entry : *list) {
        const bool fits = entry.is_number_integer() && (entry.is_number_unsigned() || entry.get<std::int64_t>() >= 0) &&
                          entry.get<std::uint64_t>() <= std::numeric_limits<TokenId>::max();
        if (!fits) {
            return corrupt(fmt::format("{}: entry {} is {}, expected a token id (an integer that is not negative)",
                                       path, ids.size(),
                                       quoted_excerpt(entry.dump(-1, ' ', true, Json::error_handler_t::replace))));
        }
        ids.push_back(entry.get<TokenId>());
    }
    return ids;
}

// Which option gives the prompt, and that the options of a chat come with one.
Result<PromptKind> prompt_kind(const Arguments& arguments) {
    constexpr std::pair<const char*, PromptKind> kKinds[] = {
        {"prompt", PromptKind::text}, {"prompt-ids", PromptKind::ids}, {"chat", PromptKind::chat}};
    const std::string_view command = arguments.command().name;
    std::string found;
    std::size_t count = 0;
    PromptKind kind = PromptKind::text;
    for (const auto& [name, of] : kKinds) {
        if (!arguments.given(name)) continue;
        found += fmt::format("{}--{}", count == 0 ? "" : " and ", name);
        kind = of;
        ++count;
    }
    if (count != 1) {
        return invalid_argument(
            fmt::format("{}: found {} of --prompt FILE, --prompt-ids FILE.json and --chat FILE.json, expected exactly "
                        "one; see 'draftprobe {} --help'",
                        command, count == 0 ? "none" : found, command));
    }
    if (kind == PromptKind::chat && !arguments.given("thinking")) {
        return invalid_argument(
            fmt::format("{}: --thinking on|off is missing, expected with --chat: the two modes are different prompts; "
                        "see 'draftprobe {} --help'",
                        command, command));
    }
    for (const char* name : {"thinking", "effort"}) {
        if (kind == PromptKind::chat || !arguments.given(name)) continue;
        return invalid_argument(
            fmt::format("{}: found --{} with {}, expected it with --chat FILE.json only: nothing is added around other "
                        "prompts; see 'draftprobe {} --help'",
                        command, name, found, command));
    }
    return kind;
}

Status read_text(PromptFile& file) {
    DP_ASSIGN_OR_RETURN(file.text, read_text_file(file.path, kMaxPromptTextBytes));
    return {};
}

Status read_ids(PromptFile& file) {
    DP_ASSIGN_OR_RETURN(const Json document, parse_json_file(file.path, kMaxPromptBytes));
    DP_ASSIGN_OR_RETURN(file.ids, ids_of(document, file.path));
    return {};
}

Status read_chat(PromptFile& file, const Arguments& arguments) {
    const ChatMode mode{arguments.text("thinking") == "on", arguments.text("effort")};
    if (!mode.effort.empty()) DP_RETURN_IF_ERROR(check_effort(mode.effort));
    DP_ASSIGN_OR_RETURN(const std::string text, read_text_file(file.path, kMaxPromptTextBytes));
    DP_ASSIGN_OR_RETURN(const Chat chat, parse_chat(text, file.path));
    file.chat = render_chat(chat, mode);
    file.chat_template = {chat_template_digest(), arguments.text("thinking"), mode.effort,
                          sha256_hex(file.chat.text())};
    return {};
}

// `arguments` is null where no chat can be asked for.
Result<PromptFile> read_one(PromptKind kind, std::string path, const Arguments* arguments) {
    PromptFile file;
    file.kind = kind;
    file.path = std::move(path);
    Status status;
    switch (kind) {
        case PromptKind::text: status = read_text(file); break;
        case PromptKind::ids: status = read_ids(file); break;
        case PromptKind::chat: status = read_chat(file, *arguments); break;
    }
    DP_RETURN_IF_ERROR(status.with_context("prompt"));
    if (file.text.empty() && file.ids.empty() && file.chat.parts.empty()) {
        return invalid_argument(
            fmt::format("prompt: {}: found 0 tokens, expected at least 1; give a prompt that is not empty", file.path));
    }
    return file;
}

// Where the target's directory has a chat template of its own; empty when it has none.
std::string shipped_template(const std::filesystem::path& directory) {
    std::error_code error;
    if (std::filesystem::exists(directory / "chat_template.jinja", error)) return "chat_template.jinja";
    const Result<Json> config = parse_json_file(directory / "tokenizer_config.json", kMaxPromptBytes);
    return config.ok() && json_find(*config, "chat_template") != nullptr ? "the chat_template of tokenizer_config.json"
                                                                         : "";
}

void tell_template(const PromptFile& file, const probe::Assembly& assembly, Console& console) {
    const TemplateIdentity& chat = file.chat_template;
    const std::string shipped = shipped_template(assembly.target_dir);
    console.note(fmt::format("chat: built-in template {} ({}), thinking {}, {}{}", kChatTemplateVersion,
                             chat.digest.substr(0, 16), chat.thinking,
                             chat.effort.empty() ? "no effort" : "effort " + chat.effort,
                             shipped.empty() ? "" : fmt::format("; {} of the target is not executed", shipped)));
    if (!chat.effort.empty() && chat.thinking == "off") {
        console.warning(fmt::format(
            "--effort {} with --thinking off: it is part of the identity, and reaches no text of the prompt",
            chat.effort));
    }
    const std::vector<TokenId>& stops = assembly.models.target->config().eos_ids;
    const TokenId end = *assembly.tokenizer->find_special(kChatTurnEnd);
    if (std::find(stops.begin(), stops.end(), end) == stops.end()) {
        console.warning(
            fmt::format("{} ({}) ends the template's turns and is no stop token of the target; decoding "
                        "goes on behind it (eos_token_id of {})",
                        kChatTurnEnd, end, (assembly.target_dir / "generation_config.json").string()));
    }
}

Result<std::vector<TokenId>> encode(const PromptFile& file, const probe::Assembly& assembly) {
    if (file.kind == PromptKind::ids) return file.ids;
    if (assembly.tokenizer == nullptr) {
        return invalid_argument(
            fmt::format("prompt: {} is text, but {} has no tokenizer.json; expected one, so put it there or "
                        "give ids with --prompt-ids",
                        file.path, assembly.target_dir.string()));
    }
    Result<std::vector<TokenId>> encoded = file.kind == PromptKind::chat ? encode_chat(file.chat, *assembly.tokenizer)
                                                                         : assembly.tokenizer->encode(file.text);
    if (!encoded.ok()) return encoded.status().with_context(fmt::format("prompt: {}", file.path));
    return encoded;
}

}  // namespace

Result<PromptFile> read_prompt_at(PromptKind kind, const std::string& path) { return read_one(kind, path, nullptr); }

Result<std::vector<PromptFile>> read_prompt_files(const Arguments& arguments) {
    DP_ASSIGN_OR_RETURN(const PromptKind kind, prompt_kind(arguments));
    const char* const option = kind == PromptKind::text ? "prompt" : kind == PromptKind::ids ? "prompt-ids" : "chat";
    std::vector<PromptFile> files;
    for (std::string& path : arguments.all(option)) {
        DP_ASSIGN_OR_RETURN(PromptFile file, read_one(kind, std::move(path), &arguments));
        files.push_back(std::move(file));
    }
    return files;
}

Result<PromptFile> read_prompt_file(const Arguments& arguments) {
    DP_ASSIGN_OR_RETURN(std::vector<PromptFile> files, read_prompt_files(arguments));
    return std::move(files.front());
}

Result<std::vector<TokenId>> prompt_tokens(const PromptFile& file, const probe::Assembly& assembly, Console& console) {
    DP_ASSIGN_OR_RETURN(std::vector<TokenId> ids, encode(file, assembly));
    if (file.kind == PromptKind::chat) tell_template(file, assembly, console);
    const auto vocab = static_cast<std::size_t>(assembly.models.target->config().vocab);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] >= vocab) {
            return invalid_argument(
                fmt::format("prompt: {}: token id {} at index {}, expected ids below the target's vocabulary of "
                            "{} rows; use ids of this target's tokenizer",
                            file.path, ids[i], i, vocab));
        }
    }
    return ids;
}

}  // namespace draftprobe::cli
