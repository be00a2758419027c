#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/help.h"
#include "cli/help_parts.h"
#include "cli/version.h"

namespace draftprobe::cli {

namespace {

constexpr std::string_view kExitStatus =
    "0 SAME, or done\n"
    "1 CHANGED\n"
    "2 usage error, or could not run\n"
    "3 DRIFT only\n"
    "4 NOT_COMPARABLE, NOT_RESTORED or CONTAMINATED\n"
    "5 CORRUPT: a capture breaks its own rules\n"
    "6 INSUFFICIENT";

// Backslashes and leading dots mean something to troff, and so do hyphens.
std::string roff(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '\\') {
            out += "\\e";
        } else if (c == '-') {
            out += "\\-";
        } else if ((c == '.' || c == '\'') && (i == 0 || text[i - 1] == '\n')) {
            out += "\\&";
            out += c;
        } else {
            out += c;
        }
    }
    return out;
}

// Table cells must not hold a bar, and angle brackets would be read as HTML.
std::string cell(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '|') out += '\\';
        out += c;
    }
    return out;
}

std::string sentence(const Option& option) {
    std::string text(option.brief);
    if (!option.details.empty()) text += fmt::format(". {}", option.details);
    return text;
}

}  // namespace

std::string markdown_manual() {
    std::string out = "# Command line\n\n";
    out += "This page is generated: `draftprobe help --markdown > docs/cli.md`.\n\n";
    out += wrapped(kProgramDescription, 0, 116);
    out +=
        "\n`--help` of every command, the manual page (`draftprobe help --man`) and the completion of bash\n"
        "(`draftprobe help --completions bash`) come from the same table.\n\n";
    out +=
        "Values are written `--name VALUE` or `--name=VALUE`; `--` ends the options. Results go to standard output; "
        "progress,\n"
        "warnings and errors go to standard error. `--json` prints exactly one JSON object; of a command that could "
        "not "
        "run it has\n`exit` and `error {code, message}`.\n\n";
    out += "| Command | What it does |\n| --- | --- |\n";
    for (const Command* command : commands())
        out += fmt::format("| `{}` | {} |\n", command->name, cell(command->brief));
    for (const RefusedCommand& command : refused_commands()) {
        out += fmt::format("| `{}` | {} (not available in this version) |\n", command.name, cell(command.brief));
    }
    out += "\n## Exit status\n\n| Status | Meaning |\n| --- | --- |\n";
    for (const std::string_view line : split_on(kExitStatus, "\n")) {
        out += fmt::format("| {} | {} |\n", line.substr(0, 1), cell(line.substr(2)));
    }
    out += "\nWith `--bisect`: 0 good, 1 bad, 125 whatever decides nothing, a probe that could not run included.\n";
    for (const Command* command : commands()) {
        out += fmt::format("\n## draftprobe {}\n\n{}", command->name, wrapped_items(synopsis(*command), 4, 116));
        for (const std::string_view paragraph : split_on(command->description, "\n\n")) {
            out += '\n' + wrapped(paragraph, 0, 116);
        }
        out += "\n| Option | Meaning | Default |\n| --- | --- | --- |\n";
        for (const Option* option : served_options(*command)) {
            std::string fallback = default_text(*option, *command);
            if (fallback.starts_with("default: ")) fallback.erase(0, 9);
            out += fmt::format("| `{}`{} | {} | {} |\n", cell(option_usage(*option)),
                               (option->repeatable_in & command->bit) != 0 ? ", repeatable" : "",
                               cell(sentence(*option)), cell(fallback));
        }
        if (std::vector<std::string> items = not_served(*command); !items.empty()) {
            for (std::string& item : items) item = fmt::format("`{}`{}", item, &item == &items.back() ? "" : ",");
            out += "\nRecognised, and refused in this version:\n" + wrapped_items(items, 0, 116);
        }
        if (!command->exit_status.empty()) {
            out += "\nExit status:\n\n";
            for (const std::string_view line : split_on(command->exit_status, "\n"))
                out += fmt::format("    {}\n", line);
        }
        if (!command->examples.empty()) {
            out += "\nExamples:\n\n";
            for (const std::string_view line : split_on(command->examples, "\n")) out += fmt::format("    {}\n", line);
        }
    }
    return out;
}

std::string manual_page() {
    std::string out = fmt::format(".TH DRAFTPROBE 1 \"\" \"draftprobe {}\" \"User Commands\"\n", kVersion);
    out += ".SH NAME\ndraftprobe \\- diagnostics of restored prefixes in speculative decoding\n";
    out += ".SH SYNOPSIS\n.B draftprobe\n.I COMMAND\n.RI [ OPTION ...]\n";
    out += fmt::format(".SH DESCRIPTION\n{}\n", roff(kProgramDescription));
    out += ".SH COMMANDS\n";
    for (const Command* command : commands()) {
        out += fmt::format(".SS draftprobe {}\n.B {}\n", roff(command->name),
                           roff(fmt::format("{}", fmt::join(synopsis(*command), " "))));
        for (const std::string_view paragraph : split_on(command->description, "\n\n")) {
            out += fmt::format(".PP\n{}\n", roff(paragraph));
        }
        for (const Option* option : served_options(*command)) {
            const std::string fallback = default_text(*option, *command);
            out += fmt::format(".TP\n.B {}\n{}{}\n", roff(option_usage(*option)), roff(sentence(*option)),
                               fallback.empty() ? std::string() : roff(fmt::format(" ({})", fallback)));
        }
        if (!command->examples.empty()) out += fmt::format(".PP\nExamples:\n.nf\n{}\n.fi\n", roff(command->examples));
    }
    out += ".SH EXIT STATUS\n";
    for (const std::string_view line : split_on(kExitStatus, "\n")) {
        out += fmt::format(".TP\n.B {}\n{}\n", line.substr(0, 1), roff(line.substr(2)));
    }
    out += ".PP\nWith \\-\\-bisect: 0 good, 1 bad, 125 whatever decides nothing.\n";
    return out;
}

std::string bash_completion_script() {
    std::string out =
        "# bash completion of draftprobe; generated by 'draftprobe help --completions bash'\n"
        "_draftprobe() {\n"
        "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} "
        "options=\n"
        "    COMPREPLY=()\n"
        "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
        "        COMPREPLY=($(compgen -W \"";
    std::string names;
    std::vector<std::string_view> firsts;
    for (const Command* command : commands()) {
        const std::string_view first = command->name.substr(0, command->name.find(' '));
        names += fmt::format("{}{}", names.empty() ? "" : " ", first);
    }
    out += names +
           "\" -- \"$current\"))\n"
           "        return\n"
           "    fi\n"
           "    case $previous in\n";
    for (const Option& option : option_table()) {
        if (!option.instead.empty() || find_option(option.name) != &option) continue;
        if (option.kind == OptionKind::choice || option.kind == OptionKind::list) {
            std::string choices;
            for (const std::string_view choice : split_choices(option.value)) {
                choices += fmt::format("{}{}", choices.empty() ? "" : " ", choice);
            }
            out += fmt::format("        --{}) COMPREPLY=($(compgen -W \"{}\" -- \"$current\")); return ;;\n",
                               option.name, choices);
        } else if (option.value == "DIR") {
            out += fmt::format("        --{}) COMPREPLY=($(compgen -d -- \"$current\")); return ;;\n", option.name);
        } else if (option.value.starts_with("FILE")) {
            out += fmt::format("        --{}) COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n", option.name);
        } else if (option.kind == OptionKind::number || option.kind == OptionKind::decimal ||
                   option.kind == OptionKind::text) {
            out += fmt::format("        --{}) return ;;\n", option.name);
        }
    }
    out += "    esac\n    case $command in\n";
    for (const Command* command : commands()) {
        std::string options;
        for (const Option* option : served_options(*command))
            options += fmt::format("{}--{}", options.empty() ? "" : " ", option->name);
        const std::string_view first = command->name.substr(0, command->name.find(' '));
        const std::string_view second =
            first.size() == command->name.size() ? "" : command->name.substr(first.size() + 1);
        out += fmt::format("        {}) options=\"{}{}{}\" ;;\n", first, second, second.empty() ? "" : " ", options);
    }
    out +=
        "    esac\n"
        "    case $current in\n"
        "        -*) COMPREPLY=($(compgen -W \"$options\" -- \"$current\")) ;;\n"
        "        *) COMPREPLY=($(compgen -W \"$options\" -- \"$current\") $(compgen -f -- \"$current\")) ;;\n"
        "    esac\n"
        "}\n"
        "complete -o filenames -F _draftprobe draftprobe\n";
    return out;
}

}  // namespace draftprobe::cli
