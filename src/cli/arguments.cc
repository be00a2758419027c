#include "cli/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/json.h"

namespace draftprobe::cli {

namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < a.size(); ++i) {
        std::size_t diagonal = row[0]++;
        for (std::size_t j = 0; j < b.size(); ++j) {
            const std::size_t above = row[j + 1];
            row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
            diagonal = above;
        }
    }
    return row.back();
}

std::string see_help(const Command& command) { return fmt::format("see 'draftprobe {} --help'", command.name); }

Status not_in_this_version(const Command& command, std::string_view spelling, std::string_view available) {
    return unsupported(
        fmt::format("{}: {} is not available in this version; available: {}", command.name, spelling, available));
}

bool matches(std::string_view pattern, std::string_view value) {
    return pattern.ends_with('*') ? value.starts_with(pattern.substr(0, pattern.size() - 1)) : pattern == value;
}

Status check_choice(const Command& command, const Option& option, std::string_view value) {
    const auto served = split_choices(option.value);
    if (std::find(served.begin(), served.end(), value) != served.end()) return {};
    for (const std::string_view pattern : split_choices(option.not_served)) {
        if (!value.empty() && matches(pattern, value)) {
            return not_in_this_version(command, fmt::format("--{} {}", option.name, quoted_excerpt(value)),
                                       fmt::format("--{} {}", option.name, fmt::join(served, ", ")));
        }
    }
    return invalid_argument(fmt::format("{}: --{}: found {}, expected {}{}; {}", command.name, option.name,
                                        quoted_excerpt(value), served.size() > 1 ? "one of " : "",
                                        fmt::join(served, ", "), see_help(command)));
}

Status check_number(const Command& command, const Option& option, std::string_view value) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error == std::errc() && end == value.data() + value.size() && number >= option.min && number <= option.max)
        return {};
    return invalid_argument(fmt::format("{}: --{}: found {}, expected an integer from {} to {}; {}", command.name,
                                        option.name, quoted_excerpt(value), option.min, option.max, see_help(command)));
}

// Finite, plain or with an exponent; nothing when the whole text is not a number.
std::optional<double> parse_decimal(std::string_view value) {
    double number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(number)) return std::nullopt;
    return number;
}

Status check_decimal(const Command& command, const Option& option, std::string_view value) {
    const std::optional<double> number = parse_decimal(value);
    if (number && *number >= static_cast<double>(option.min) && *number <= static_cast<double>(option.max)) return {};
    return invalid_argument(fmt::format("{}: --{}: found {}, expected a number from {} to {}; {}", command.name,
                                        option.name, quoted_excerpt(value), option.min, option.max, see_help(command)));
}

Status check_value(const Command& command, const Option& option, std::string_view value) {
    switch (option.kind) {
        case OptionKind::flag: return {};
        case OptionKind::optional_choice: return value.empty() ? Status() : check_choice(command, option, value);
        case OptionKind::choice: return check_choice(command, option, value);
        case OptionKind::list: {
            std::vector<std::string_view> seen;
            for (const std::string_view part : split_choices(value)) {
                DP_RETURN_IF_ERROR(check_choice(command, option, part));
                if (std::find(seen.begin(), seen.end(), part) != seen.end()) {
                    return invalid_argument(fmt::format("{}: --{}: found '{}' twice, expected each name once",
                                                        command.name, option.name, part));
                }
                seen.push_back(part);
            }
            return seen.empty() ? check_choice(command, option, value) : Status();
        }
        case OptionKind::number: return check_number(command, option, value);
        case OptionKind::decimal: return check_decimal(command, option, value);
        case OptionKind::text:
            if (!value.empty()) return {};
            return invalid_argument(fmt::format("{}: --{}: found an empty value, expected {}; {}", command.name,
                                                option.name, option.value, see_help(command)));
    }
    return internal_error("option kind");
}

// Whether a word can only be an option: then it is not taken as another option's value.
bool looks_like_option(std::string_view word) {
    if (!word.starts_with("--")) return false;
    return find_option(word.substr(2, word.find('=') == std::string_view::npos ? word.npos : word.find('=') - 2)) !=
           nullptr;
}

Status unknown_option(const Command& command, std::string_view word) {
    const std::string_view name = word.substr(0, word.find('='));
    std::vector<std::string_view> takers;
    for (const Command* other : commands()) {
        if (name.starts_with("--") && find_option(name.substr(2), other->bit) != nullptr) takers.push_back(other->name);
    }
    if (!takers.empty()) {
        return invalid_argument(fmt::format("{}: found {}, which is an option of {} only; {}", command.name, name,
                                            fmt::join(takers, ", "), see_help(command)));
    }
    std::vector<std::string_view> names;
    for (const Option& option : option_table()) {
        if ((option.commands & command.bit) != 0 && option.instead.empty()) names.push_back(option.name);
    }
    std::string_view bare = name;
    while (bare.starts_with('-')) bare.remove_prefix(1);
    const std::string_view near = closest(bare, names);
    return invalid_argument(fmt::format("{}: unknown option {}{}; {}", command.name, quoted_excerpt(name),
                                        near.empty() ? std::string() : fmt::format(", did you mean --{}?", near),
                                        see_help(command)));
}

Status check_complete(const Command& command, const std::vector<std::string>& positionals,
                      const std::map<std::string, std::vector<std::string>, std::less<>>& values) {
    for (const Option& option : option_table()) {
        if (!option.unless.empty() && values.find(option.unless) != values.end()) continue;
        if ((option.required_in & command.bit) != 0 && values.find(option.name) == values.end()) {
            return invalid_argument(fmt::format("{}: {} is missing ({}); {}", command.name, option_usage(option),
                                                option.brief, see_help(command)));
        }
    }
    const PositionalCount count = positional_count(command);
    if (positionals.size() >= count.min && positionals.size() <= count.max) return {};
    if (count.max == 0) {
        return invalid_argument(fmt::format("{}: found {}, expected options only; {}", command.name,
                                            quoted_excerpt(positionals.front()), see_help(command)));
    }
    return invalid_argument(fmt::format("{}: found {} name{}, expected {}; {}", command.name, positionals.size(),
                                        positionals.size() == 1 ? "" : "s", command.positionals, see_help(command)));
}

}  // namespace

std::string_view closest(std::string_view word, std::span<const std::string_view> candidates) {
    std::string_view best;
    std::size_t best_distance = word.size() < 4 ? 2 : 3;  // above this, a guess is noise
    for (const std::string_view candidate : candidates) {
        const std::size_t distance = edit_distance(word, candidate);
        if (distance < best_distance) {
            best = candidate;
            best_distance = distance;
        }
    }
    return best;
}

Result<Arguments> parse_arguments(const Command& command, std::span<const std::string> words) {
    Arguments arguments;
    arguments.command_ = &command;
    bool options_ended = false;
    for (std::size_t i = 0; i < words.size(); ++i) {
        std::string word = words[i];
        if (options_ended || !word.starts_with('-') || word == "-") {
            arguments.positionals_.push_back(std::move(word));
            continue;
        }
        if (word == "--") {
            options_ended = true;
            continue;
        }
        if (word == "-h") word = "--help";
        const std::size_t equals = word.find('=');
        const Option* option =
            word.starts_with("--") ? find_option(std::string_view(word).substr(2, equals - 2), command.bit) : nullptr;
        if (option == nullptr) return unknown_option(command, word);
        if (!option->instead.empty()) {
            return not_in_this_version(command, fmt::format("--{}", option->name), option->instead);
        }
        std::string value = equals == std::string::npos ? std::string() : word.substr(equals + 1);
        const bool takes_value = option->kind != OptionKind::flag && option->kind != OptionKind::optional_choice;
        if (equals != std::string::npos && option->kind == OptionKind::flag) {
            return invalid_argument(fmt::format("{}: --{}: found a value, expected none; {}", command.name,
                                                option->name, see_help(command)));
        }
        if (equals == std::string::npos && takes_value) {
            if (i + 1 == words.size() || looks_like_option(words[i + 1])) {
                return invalid_argument(fmt::format("{}: --{}: found no value, expected {}; {}", command.name,
                                                    option->name, option->value, see_help(command)));
            }
            value = words[++i];
        }
        if (equals != std::string::npos || takes_value) {
            if (value.empty() && option->kind == OptionKind::optional_choice) {
                return check_choice(command, *option, value);
            }
            DP_RETURN_IF_ERROR(check_value(command, *option, value));
        }
        std::vector<std::string>& values = arguments.values_[std::string(option->name)];
        if (!values.empty() && (option->repeatable_in & command.bit) == 0 && option->name != "help") {
            return invalid_argument(fmt::format("{}: --{} is given twice, expected once; {}", command.name,
                                                option->name, see_help(command)));
        }
        values.push_back(std::move(value));
    }
    const bool asks = arguments.values_.contains("help") || arguments.values_.contains("list-faults");
    if (!asks) DP_RETURN_IF_ERROR(check_complete(command, arguments.positionals_, arguments.values_));
    return arguments;
}

bool Arguments::given(std::string_view name) const {
    assert(find_option(name, command_->bit) != nullptr);
    return values_.find(name) != values_.end();
}

std::string Arguments::text(std::string_view name) const {
    if (given(name)) return values_.find(name)->second.back();
    return std::string(find_option(name, command_->bit)->fallback);
}

std::optional<std::int64_t> Arguments::number(std::string_view name) const {
    const std::string value = text(name);
    if (value.empty()) return std::nullopt;
    std::int64_t number = 0;
    std::from_chars(value.data(), value.data() + value.size(), number);
    return number;
}

double Arguments::decimal(std::string_view name) const { return parse_decimal(text(name)).value_or(0.0); }

std::vector<std::string> Arguments::all(std::string_view name) const {
    if (!given(name)) return {};
    const Option* option = find_option(name, command_->bit);
    if (option->kind != OptionKind::list) return values_.find(name)->second;
    std::vector<std::string> parts;
    for (const std::string_view part : split_choices(values_.find(name)->second.back())) parts.emplace_back(part);
    return parts;
}

}  // namespace draftprobe::cli
