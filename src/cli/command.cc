#include "cli/command.h"

namespace draftprobe::cli {

namespace {

constexpr RefusedCommand kRefused[] = {
    {"replay", "recompute a capture"},
    {"archive", "create, verify or sanitise an archive"},
    {"budget", "calibrate a verify budget"},
};

}  // namespace

std::span<const Command* const> commands() {
    static const Command* const kCommands[] = {&kProbeCommand,   &kCaptureCommand,  &kCompareCommand,
                                               &kInspectCommand, &kGenerateCommand, &kBenchProbeCommand,
                                               &kVersionCommand, &kHelpCommand};
    return kCommands;
}

const Command* find_command(std::string_view name) {
    for (const Command* command : commands()) {
        if (command->name == name) return command;
    }
    return nullptr;
}

std::span<const RefusedCommand> refused_commands() { return kRefused; }

PositionalCount positional_count(const Command& command) {
    PositionalCount count;
    std::string_view rest = command.positionals;
    while (!rest.empty()) {
        const std::size_t space = rest.find(' ');
        const std::string_view name = rest.substr(0, space);
        count.min += name.front() == '[' ? 0 : 1;
        count.max += 1;
        rest = space == std::string_view::npos ? std::string_view() : rest.substr(space + 1);
    }
    return count;
}

}  // namespace draftprobe::cli
