// Command-line words of one command, parsed and checked against the option table. Owns its strings.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/command.h"

namespace draftprobe::cli {

class Arguments {
public:
    const Command& command() const { return *command_; }
    const std::vector<std::string>& positionals() const { return positionals_; }

    // `name` must be an option of the command (asserted).
    bool given(std::string_view name) const;
    // The value given last, else the table's default, else "".
    std::string text(std::string_view name) const;
    // Value or default of a number; nothing when neither is there.
    std::optional<std::int64_t> number(std::string_view name) const;
    // Value or default of a decimal; the option has a default.
    double decimal(std::string_view name) const;
    // Every value of a repeatable option, or the parts of a list, in order.
    std::vector<std::string> all(std::string_view name) const;

private:
    friend Result<Arguments> parse_arguments(const Command& command, std::span<const std::string> words);
    const Command* command_ = nullptr;
    std::map<std::string, std::vector<std::string>, std::less<>> values_;
    std::vector<std::string> positionals_;
};

// Parses the words after the command's name. `--` ends the options. Required options and positionals are not demanded
// when
// --help or --list-faults is among the words. Errors: invalid_argument (unknown, repeated or missing option, bad
// value); unsupported (a spelling of the contract that this version does not serve).
Result<Arguments> parse_arguments(const Command& command, std::span<const std::string> words);

// The candidate closest to `word`, or "" when none is close.
std::string_view closest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace draftprobe::cli
