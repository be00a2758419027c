#include "cli/prompt.h"

#include <fmt/format.h>

#include <limits>

#include "base/files.h"
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

}  // namespace

Result<PromptFile> read_prompt_file(const Arguments& arguments) {
    const std::string_view command = arguments.command().name;
    if (arguments.given("prompt") == arguments.given("prompt-ids")) {
        return invalid_argument(
            fmt::format("{}: found {} of --prompt FILE and --prompt-ids FILE.json, expected exactly one; see "
                        "'draftprobe {} --help'",
                        command, arguments.given("prompt") ? "both" : "neither", command));
    }
    PromptFile file;
    file.is_text = arguments.given("prompt");
    file.path = arguments.text(file.is_text ? "prompt" : "prompt-ids");
    bool empty = false;
    if (file.is_text) {
        Result<std::string> text = read_text_file(file.path, kMaxPromptTextBytes);
        if (!text.ok()) return text.status().with_context("prompt");
        file.text = std::move(text).value();
        empty = file.text.empty();
    } else {
        Result<Json> document = parse_json_file(file.path, kMaxPromptBytes);
        if (!document.ok()) return document.status().with_context("prompt");
        Result<std::vector<TokenId>> ids = ids_of(*document, file.path);
        if (!ids.ok()) return ids.status().with_context("prompt");
        file.ids = std::move(ids).value();
        empty = file.ids.empty();
    }
    if (empty) {
        return invalid_argument(
            fmt::format("prompt: {}: found 0 tokens, expected at least 1; give a prompt that is not empty", file.path));
    }
    return file;
}

Result<std::vector<TokenId>> prompt_tokens(const PromptFile& file, const probe::Assembly& assembly) {
    std::vector<TokenId> ids = file.ids;
    if (file.is_text) {
        if (assembly.tokenizer == nullptr) {
            return invalid_argument(
                fmt::format("prompt: {} is text, but {} has no tokenizer.json; expected one, so put it there or "
                            "give ids with --prompt-ids",
                            file.path, assembly.target_dir.string()));
        }
        Result<std::vector<TokenId>> encoded = assembly.tokenizer->encode(file.text);
        if (!encoded.ok()) return encoded.status().with_context(fmt::format("prompt: {}", file.path));
        ids = std::move(encoded).value();
    }
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
