// Texts made from the option table and the commands: --help, docs/cli.md, the manual page, shell completion.
#pragma once

#include <string>

#include "cli/command.h"

namespace draftprobe::cli {

std::string program_help();
std::string command_help(const Command& command);
std::string markdown_manual();  // docs/cli.md
std::string manual_page();      // man(7), section 1
std::string bash_completion_script();

}  // namespace draftprobe::cli
