#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/json.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "cli/help.h"

namespace draftprobe::cli {

namespace {

Result<int> run_help(const Arguments& arguments, Console& console) {
    const int forms = arguments.given("man") + arguments.given("markdown") + arguments.given("completions");
    if (forms > 1 || (forms == 1 && !arguments.positionals().empty())) {
        return invalid_argument(
            "help: found several forms, expected one of a command's name, --man, --markdown and --completions");
    }
    if (arguments.given("man")) {
        console.out(manual_page());
    } else if (arguments.given("markdown")) {
        console.out(markdown_manual());
    } else if (arguments.given("completions")) {
        console.out(bash_completion_script());
    } else if (arguments.positionals().empty()) {
        console.out(program_help());
    } else {
        const std::string name = fmt::format("{}", fmt::join(arguments.positionals(), " "));
        const Command* command = find_command(name);
        if (const auto members = commands_of_group(name); !members.empty()) command = members.front();
        if (command == nullptr) {
            return invalid_argument(
                fmt::format("help: no command {}; 'draftprobe help' lists them", quoted_excerpt(name)));
        }
        console.out(command_help(*command));
    }
    return kExitDone;
}

}  // namespace

const Command kHelpCommand = {
    .bit = kHelp,
    .name = "help",
    .positionals = "[COMMAND] [SUBCOMMAND]",
    .brief = "help of a command, the manual page, shell completion",
    .description = "Without a name it lists the commands.",
    .examples =
        "draftprobe help probe\n"
        "draftprobe help --man | man -l -\n"
        "draftprobe help --completions bash > ~/.local/share/bash-completion/completions/draftprobe",
    .run = run_help,
};

}  // namespace draftprobe::cli
