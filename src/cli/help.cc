#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cli/help_parts.h"
#include "cli/version.h"

namespace draftprobe::cli {

std::vector<std::string_view> split_on(std::string_view text, std::string_view separator) {
    std::vector<std::string_view> parts;
    while (!text.empty()) {
        const std::size_t end = text.find(separator);
        parts.push_back(text.substr(0, end));
        text = end == std::string_view::npos ? std::string_view() : text.substr(end + separator.size());
    }
    return parts;
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
    std::string out;
    std::size_t column = 0;
    for (const std::string_view word : split_on(text, " ")) {
        if (word.empty()) continue;
        if (column > 0 && column + 1 + word.size() > width) {
            out += '\n';
            column = 0;
        }
        if (column == 0) {
            out.append(indent, ' ');
            column = indent;
        } else {
            out += ' ';
            ++column;
        }
        out += word;
        column += word.size();
    }
    return out + '\n';
}

std::string wrapped_items(const std::vector<std::string>& items, std::size_t indent, std::size_t width) {
    constexpr char kHeldSpace = '\x01';
    std::string text;
    for (const std::string& item : items) {
        text += text.empty() ? "" : " ";
        for (const char c : item) text += c == ' ' ? kHeldSpace : c;
    }
    std::string out = wrapped(text, indent, width);
    std::replace(out.begin(), out.end(), kHeldSpace, ' ');
    return out;
}

std::vector<const Option*> served_options(const Command& command) {
    std::vector<const Option*> options;
    for (const Option& option : option_table()) {
        if ((option.commands & command.bit) != 0 && option.instead.empty()) options.push_back(&option);
    }
    return options;
}

std::vector<std::string> synopsis(const Command& command) {
    std::vector<std::string> items{fmt::format("draftprobe {}", command.name)};
    if (!command.positionals.empty()) items.emplace_back(command.positionals);
    for (const Option* option : served_options(command)) {
        if ((option->required_in & command.bit) != 0) items.push_back(option_usage(*option));
        if (option->name == "prompt") {
            items.emplace_back(
                "(--prompt FILE | --prompt-ids FILE.json | --chat FILE.json --thinking on|off [--effort NAME])");
        }
    }
    items.emplace_back("[OPTION...]");
    return items;
}

std::string default_text(const Option& option, const Command& command) {
    if ((option.required_in & command.bit) != 0) return "required";
    if (!option.fallback_text.empty()) {
        const std::string_view text = option.fallback_text;
        return fmt::format("default: {}", text.substr(0, text.find(';')));
    }
    return option.fallback.empty() ? std::string() : fmt::format("default: {}", option.fallback);
}

std::vector<std::string> not_served(const Command& command) {
    std::vector<std::string> lines;
    for (const Option& option : option_table()) {
        if ((option.commands & command.bit) == 0) continue;
        if (!option.instead.empty()) {
            lines.push_back(option_usage(option));
            continue;
        }
        for (const std::string_view choice : split_choices(option.not_served)) {
            if (choice == "cuda") continue;
            const std::string_view shown = choice == "*" ? "SEED.json" : choice == "cuda:*" ? "cuda:N" : choice;
            lines.push_back(fmt::format("--{} {}", option.name, shown));
        }
    }
    return lines;
}

std::string command_help(const Command& command) {
    std::string out = fmt::format("draftprobe {}: {}\n\nUsage:\n", command.name, command.brief);
    out += wrapped_items(synopsis(command), 2, 100);
    for (const std::string_view paragraph : split_on(command.description, "\n\n"))
        out += '\n' + wrapped(paragraph, 0, 100);
    out += "\nOptions:\n";
    for (const Option* option : served_options(command)) {
        const std::string fallback = default_text(*option, command);
        out += fmt::format("  {}{}\n", option_usage(*option),
                           (option->repeatable_in & command.bit) != 0 ? "  (may be repeated)" : "");
        std::string text(option->brief);
        if (!fallback.empty()) text += fmt::format(" ({})", fallback);
        if (!option->details.empty()) text += fmt::format(". {}", option->details);
        out += wrapped(text, 8, 100);
    }
    if (std::vector<std::string> items = not_served(command); !items.empty()) {
        for (std::size_t i = 0; i + 1 < items.size(); ++i) items[i] += ',';
        out += "\nRecognised, and refused in this version:\n" + wrapped_items(items, 2, 100);
    }
    if (!command.exit_status.empty()) {
        out += "\nExit status:\n";
        for (const std::string_view line : split_on(command.exit_status, "\n")) out += fmt::format("  {}\n", line);
    }
    if (!command.examples.empty()) {
        out += "\nExamples:\n";
        for (const std::string_view line : split_on(command.examples, "\n")) out += fmt::format("  {}\n", line);
    }
    return out;
}

std::string program_help() {
    std::string out = fmt::format("draftprobe {}\n\n", kVersion);
    out += wrapped(kProgramDescription, 0, 100);
    out += "\nUsage:\n  draftprobe COMMAND [OPTION...]\n\nCommands:\n";
    for (const Command* command : commands()) out += fmt::format("  {:<18}{}\n", command->name, command->brief);
    out += "\nRecognised, and refused in this version:\n";
    for (const RefusedCommand& command : refused_commands())
        out += fmt::format("  {:<18}{}\n", command.name, command.brief);
    out += "\n'draftprobe COMMAND --help' is complete. 'draftprobe help --man' prints the manual page.\n";
    return out;
}

}  // namespace draftprobe::cli
