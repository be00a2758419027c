// The option table: every option of every command, once. Parsing (cli/arguments.h), --help, docs/cli.md, the man page
// and the shell completions (cli/help.h) are all made from it, and options_test.cc checks the table itself.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace draftprobe::cli {

// One bit per command, so that an option can name all commands that take it.
enum CommandBit : unsigned {
    kGenerate = 1u << 0,
    kProbe = 1u << 1,
    kCapture = 1u << 2,
    kCompare = 1u << 3,
    kInspect = 1u << 4,
    kBenchProbe = 1u << 5,
    kVersionBit = 1u << 6,
    kHelp = 1u << 7,
    kBudgetCalibrate = 1u << 8,
    kBenchSnapshot = 1u << 9,
    kAnyCommand = (1u << 10) - 1,
};

enum class OptionKind {
    flag,             // --name
    optional_choice,  // --name or --name=CHOICE
    choice,           // --name CHOICE
    list,             // --name CHOICE,CHOICE,...
    number,           // --name N, an integer in [min, max]
    decimal,          // --name X, a decimal number in [min, max]
    text,             // --name TEXT: a path or another free value
};

// Values are written --name VALUE or --name=VALUE. An option given twice is an error outside
// `repeatable_in`.
struct Option {
    std::string_view name;  // without the dashes
    OptionKind kind = OptionKind::flag;
    std::string_view value;       // name of the value in help; for choices the spellings, separated by '|'
    std::string_view not_served;  // choices of the contract that this version refuses, '|'-separated; "PREFIX*" matches
    std::int64_t min = 0;         // numbers only
    std::int64_t max = 0;
    std::string_view fallback;       // default, as it is parsed; empty: none
    std::string_view fallback_text;  // default in words, when it depends on something
    std::string_view brief;          // one line, lower case, no full stop
    std::string_view details;        // whole sentences; may be empty
    unsigned commands = 0;           // CommandBit
    unsigned required_in = 0;        // CommandBit
    std::string_view unless;         // not required beside this option
    unsigned repeatable_in = 0;      // CommandBit: where it may be given several times
    // Not empty: the whole option belongs to the contract but not to this version; says what to use instead.
    std::string_view instead;
};

std::span<const Option> option_table();

// One row per name and set of commands: commands may spell different things alike (--out names a directory or a file).
// The row that one of `commands` takes; null when none of them has it.
const Option* find_option(std::string_view name, unsigned commands = kAnyCommand);

// Parts of a '|'-separated list of spellings.
std::vector<std::string_view> split_choices(std::string_view choices);

// "--kv bf16|int8", "--bisect[=drift-ok|drift-bad]", "--json".
std::string option_usage(const Option& option);

}  // namespace draftprobe::cli
