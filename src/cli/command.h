// A command: its name, its positionals, its texts, and the function that runs it. Each command is one file
// (cli/*_command.cc) with its help text beside what it does; commands() lists them in the order of the help.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/options.h"

namespace draftprobe::cli {

class Arguments;
class Console;

// Exit statuses that are not a verdict's (compare/verdict.h has those).
inline constexpr int kExitDone = 0;
inline constexpr int kExitUsage = 2;  // usage, or could not run
inline constexpr int kExitCorrupt = 5;
inline constexpr int kExitUndecided = 125;

struct Command {
    CommandBit bit = kHelp;
    std::string_view name;         // "probe", "bench probe"
    std::string_view positionals;  // names separated by spaces, "[NAME]" when optional, "NAME..." for one or more
    std::string_view brief;        // one line
    std::string_view description;  // paragraphs, separated by blank lines
    std::string_view exit_status;  // one line each
    std::string_view examples;     // one line each
    // The exit status, or an error for `draftprobe: MESSAGE` and exit 2.
    Result<int> (*run)(const Arguments& arguments, Console& console) = nullptr;
};

extern const Command kGenerateCommand;
extern const Command kProbeCommand;
extern const Command kCaptureCommand;
extern const Command kCompareCommand;
extern const Command kInspectCommand;
extern const Command kBenchProbeCommand;
extern const Command kBenchSnapshotCommand;
extern const Command kBudgetCalibrateCommand;
extern const Command kVersionCommand;
extern const Command kHelpCommand;

std::span<const Command* const> commands();

// Null when there is none of this name.
const Command* find_command(std::string_view name);

// The commands of two words whose first is `group`, in the order of the help.
std::vector<const Command*> commands_of_group(std::string_view group);

// Commands of the contract that this version refuses, with what is there instead.
struct RefusedCommand {
    std::string_view name;
    std::string_view brief;
};
std::span<const RefusedCommand> refused_commands();

// Number of positionals: at least, at most.
struct PositionalCount {
    std::size_t min = 0;
    std::size_t max = 0;
};
PositionalCount positional_count(const Command& command);

}  // namespace draftprobe::cli
