// Pieces that the different forms of the help share. Inside cli/ only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"

namespace draftprobe::cli {

inline constexpr std::string_view kProgramDescription =
    "draftprobe tells whether a restored prefix changes what a speculative draft proposes, how many rows are verified, "
    "or what "
    "is accepted, and which part of the restore did it. It runs the same request fresh and restored, records both as "
    "captures, "
    "and compares them.";

std::vector<std::string_view> split_on(std::string_view text, std::string_view separator);
// Words broken to lines of at most `width` columns, each indented; ends with a line feed.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t width);
// The same for items that stay whole, separated by spaces.
std::string wrapped_items(const std::vector<std::string>& items, std::size_t indent, std::size_t width);
// Options that the command takes and this version serves, in the order of the table.
std::vector<const Option*> served_options(const Command& command);
// Parts of the usage line.
std::vector<std::string> synopsis(const Command& command);
// "required", "default: X", or "".
std::string default_text(const Option& option, const Command& command);
// Spellings that the command recognises and refuses.
std::vector<std::string> not_served(const Command& command);

}  // namespace draftprobe::cli
