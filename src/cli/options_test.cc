#include "cli/options.h"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <map>
#include <sstream>

#include "cli/arguments.h"
#include "cli/help.h"
#include "cli/help_parts.h"

namespace draftprobe::cli {
namespace {

bool kebab(std::string_view name) {
    if (name.empty() || name.front() == '-' || name.back() == '-') return false;
    for (const char c : name) {
        if ((c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-') return false;
    }
    return name.find("--") == std::string_view::npos;
}

TEST(option_table, has_each_name_once_per_command_in_kebab_case) {
    std::map<std::string_view, unsigned> commands;
    for (const Option& option : option_table()) {
        EXPECT_TRUE(kebab(option.name)) << option.name;
        EXPECT_EQ(commands[option.name] & option.commands, 0u) << option.name;
        commands[option.name] |= option.commands;
    }
}

TEST(option_table, finds_the_row_of_the_command) {
    EXPECT_EQ(find_option("out", kProbe)->value, "DIR");
    EXPECT_EQ(find_option("out", kBudgetCalibrate)->value, "SEED.json");
    EXPECT_EQ(find_option("out", kHelp), nullptr);
    EXPECT_EQ(
        parse_arguments(*find_command("budget calibrate"), std::vector<std::string>{"c", "--out", "s", "--costs", "f"})
            ->number("lanes"),
        1);
}

TEST(option_table, documents_each_option) {
    for (const Option& option : option_table()) {
        SCOPED_TRACE(option.name);
        EXPECT_FALSE(option.brief.empty());
        EXPECT_NE(option.brief.back(), '.');
        EXPECT_TRUE(option.details.empty() || option.details.back() == '.');
        EXPECT_NE(option.commands, 0u);
        EXPECT_EQ(option.required_in & ~option.commands, 0u);
        EXPECT_EQ(option.value.empty(), option.kind == OptionKind::flag);
        EXPECT_TRUE(option.instead.empty() || option.required_in == 0);
        EXPECT_EQ(option.repeatable_in & ~option.commands, 0u);
        EXPECT_TRUE(option.repeatable_in == 0 || option.kind == OptionKind::text);
    }
}

TEST(option_table, has_defaults_that_parse) {
    for (const Option& option : option_table()) {
        SCOPED_TRACE(option.name);
        const bool numeric = option.kind == OptionKind::number || option.kind == OptionKind::decimal;
        if (numeric) {
            EXPECT_LT(option.min, option.max);
        }
        if (option.fallback.empty()) continue;
        ASSERT_TRUE(numeric || option.kind == OptionKind::choice || option.kind == OptionKind::text);
        if (numeric) {
            const double value = std::stod(std::string(option.fallback));
            EXPECT_GE(value, static_cast<double>(option.min));
            EXPECT_LE(value, static_cast<double>(option.max));
        } else {
            const auto choices = split_choices(option.value);
            EXPECT_NE(std::find(choices.begin(), choices.end(), option.fallback), choices.end());
        }
    }
}

TEST(option_table, gives_every_command_a_bit_and_options_of_its_own) {
    unsigned bits = 0;
    for (const Command* command : commands()) {
        EXPECT_EQ(std::popcount(static_cast<unsigned>(command->bit)), 1) << command->name;
        EXPECT_EQ(bits & command->bit, 0u) << command->name;
        bits |= command->bit;
        EXPECT_FALSE(served_options(*command).empty()) << command->name;
        EXPECT_FALSE(command->brief.empty());
        EXPECT_NE(command->run, nullptr);
    }
    EXPECT_EQ(bits, static_cast<unsigned>(kAnyCommand));
}

// The spellings of the contract, refused ones included.
TEST(option_table, knows_every_spelling_of_the_contract) {
    for (const char* name :
         {"target",        "draft",       "prompt",  "prompt-ids", "chat",     "thinking",      "effort",
          "prefix-tokens", "cycles",      "kv",      "numerics",   "budget",   "restore-draft", "restore-target",
          "tier",          "controls",    "factors", "lockstep",   "minimize", "sweep",         "plan",
          "inject",        "list-faults", "bisect",  "lanes",      "threads",  "device",        "level",
          "out",           "report",      "json",    "force"}) {
        EXPECT_NE(find_option(name, kProbe), nullptr) << name;
    }
    EXPECT_NE(find_option("arm", kCapture), nullptr);
    EXPECT_NE(find_option("treat", kCompare), nullptr);
}

TEST(help, names_every_option_of_the_command) {
    for (const Command* command : commands()) {
        const std::string text = command_help(*command);
        for (const Option& option : option_table()) {
            if ((option.commands & command->bit) == 0) continue;
            EXPECT_NE(text.find(option_usage(option)), std::string::npos) << command->name << " --" << option.name;
        }
    }
}

TEST(help, fits_the_terminal_and_has_no_trailing_space) {
    for (const Command* command : commands()) {
        std::istringstream lines(command_help(*command) + program_help());
        for (std::string line; std::getline(lines, line);) {
            EXPECT_TRUE(line.empty() || line.back() != ' ') << line;
            EXPECT_LE(line.size(), 120u) << line;
        }
    }
}

TEST(help, is_what_docs_cli_md_holds) {
    std::ifstream file(std::string(DRAFTPROBE_SOURCE_DIR) + "/docs/cli.md", std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    EXPECT_TRUE(text.str() == markdown_manual()) << "run: draftprobe help --markdown > docs/cli.md";
}

Result<Arguments> parse(std::string_view command, std::vector<std::string> words) {
    return parse_arguments(*find_command(command), words);
}

TEST(arguments, take_values_in_both_spellings) {
    const auto arguments = parse("compare", {"a", "--treat=x", "--treat", "y", "--", "--b"});
    ASSERT_TRUE(arguments.ok()) << arguments.status().message();
    EXPECT_EQ(arguments->positionals(), (std::vector<std::string>{"a", "--b"}));
    EXPECT_EQ(arguments->all("treat"), (std::vector<std::string>{"x", "y"}));
    EXPECT_FALSE(arguments->given("json"));
}

TEST(arguments, give_defaults) {
    const auto arguments = parse("generate", {"--target", "t"});
    ASSERT_TRUE(arguments.ok()) << arguments.status().message();
    EXPECT_EQ(arguments->number("max-tokens"), 64);
    EXPECT_EQ(arguments->text("kv"), "bf16");
    EXPECT_EQ(arguments->text("numerics"), "");
    EXPECT_EQ(arguments->number("threads"), std::nullopt);
}

TEST(arguments, take_any_number_of_repeated_positionals) {
    const auto words = [](std::vector<std::string> names) {
        for (const char* word : {"--costs", "c", "--out", "s"}) names.push_back(word);
        return names;
    };
    EXPECT_FALSE(parse("budget calibrate", words({})).ok());
    EXPECT_EQ(parse("budget calibrate", words({"a"}))->positionals().size(), 1u);
    EXPECT_EQ(parse("budget calibrate", words({"a", "b", "c"}))->positionals().size(), 3u);
    EXPECT_FALSE(parse("inspect", {"a", "b"}).ok());
}

TEST(arguments, distinguish_bisect_from_its_values) {
    EXPECT_EQ(parse("compare", {"a", "b", "--bisect"})->text("bisect"), "");
    EXPECT_EQ(parse("compare", {"a", "b", "--bisect=drift-ok"})->text("bisect"), "drift-ok");
    EXPECT_FALSE(parse("compare", {"a", "b", "--bisect="}).ok());
    EXPECT_EQ(parse("compare", {"--bisect", "a", "b"})->positionals().size(), 2u);
}

TEST(arguments, list_controls_in_order) {
    const auto arguments =
        parse("probe", {"--target", "t", "--draft", "d", "--prefix-tokens", "32", "--controls", "natural,repeat"});
    ASSERT_TRUE(arguments.ok()) << arguments.status().message();
    EXPECT_EQ(arguments->all("controls"), (std::vector<std::string>{"natural", "repeat"}));
}

TEST(arguments, guess_only_what_is_close) {
    const std::vector<std::string_view> names = {"probe", "compare", "capture"};
    EXPECT_EQ(closest("comapre", names), "compare");
    EXPECT_EQ(closest("prob", names), "probe");
    EXPECT_EQ(closest("xyzzy", names), "");
}

}  // namespace
}  // namespace draftprobe::cli
