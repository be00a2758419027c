#include "cli/command.h"

#include <limits>

namespace draftprobe::cli {

namespace {

constexpr RefusedCommand kRefused[] = {
    {"replay", "recompute a capture"},
    {"archive", "create, verify or sanitise an archive"},
};

}  // namespace

std::span<const Command* const> commands() {
    static const Command* const kCommands[] = {
        &kProbeCommand,      &kCaptureCommand,       &kCompareCommand,         &kInspectCommand, &kGenerateCommand,
        &kBenchProbeCommand, &kBenchSnapshotCommand, &kBudgetCalibrateCommand, &kVersionCommand, &kHelpCommand};
    return kCommands;
}

const Command* find_command(std::string_view name) {
    for (const Command* command : commands()) {
        if (command->name == name) return command;
    }
    return nullptr;
}

std::vector<const Command*> commands_of_group(std::string_view group) {
    std::vector<const Command*> members;
    for (const Command* command : commands()) {
        const std::size_t space = command->name.find(' ');
        if (space != std::string_view::npos && command->name.substr(0, space) == group) members.push_back(command);
    }
    return members;
}

std::span<const RefusedCommand> refused_commands() { return kRefused; }

PositionalCount positional_count(const Command& command) {
    PositionalCount count;
    std::string_view rest = command.positionals;
    while (!rest.empty()) {
        const std::size_t space = rest.find(' ');
        const std::string_view name = rest.substr(0, space);
        count.min += name.front() == '[' ? 0 : 1;
        count.max = name.ends_with("...") ? std::numeric_limits<std::size_t>::max() : count.max + 1;
        rest = space == std::string_view::npos ? std::string_view() : rest.substr(space + 1);
    }
    return count;
}

}  // namespace draftprobe::cli
