#include "study/sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace draftprobe::study {

namespace fs = std::filesystem;

namespace {

constexpr SweepVariable kVariables[] = {SweepVariable::boundary, SweepVariable::suffix, SweepVariable::window_fill,
                                        SweepVariable::verify_width};

Status malformed(std::string_view text, std::string_view found) {
    return invalid_argument(
        fmt::format("--sweep {}: {}, expected NAME=FROM..TO[:STEP] with NAME one of boundary, suffix, window-fill, "
                    "verify-width and numbers from 1, FROM <= TO, for example suffix=1..96",
                    text, found));
}

// The number at the start of `text`, which is shortened by it.
std::optional<std::int64_t> take_number(std::string_view& text) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || number < 1 || number > 1'000'000'000) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return number;
}

bool take(std::string_view& text, std::string_view word) {
    if (!text.starts_with(word)) return false;
    text.remove_prefix(word.size());
    return true;
}

Status outside(SweepVariable variable, std::int64_t value, std::string_view expected) {
    return invalid_argument(fmt::format("--sweep {}: value {}, expected {}; choose another range",
                                        sweep_variable_name(variable), value, expected));
}

}  // namespace

std::string_view sweep_variable_name(SweepVariable variable) {
    switch (variable) {
        case SweepVariable::boundary: return "boundary";
        case SweepVariable::suffix: return "suffix";
        case SweepVariable::window_fill: return "window-fill";
        case SweepVariable::verify_width: return "verify-width";
    }
    return "suffix";
}

Result<SweepRange> parse_sweep(std::string_view text) {
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) return malformed(text, "found no '='");
    const std::string_view name = text.substr(0, equals);
    const auto* variable = std::find_if(std::begin(kVariables), std::end(kVariables),
                                        [&](SweepVariable v) { return sweep_variable_name(v) == name; });
    if (variable == std::end(kVariables)) return malformed(text, fmt::format("found the name '{}'", name));
    SweepRange range;
    range.variable = *variable;
    range.step = range.variable == SweepVariable::boundary ? kPageTokens : 1;
    std::string_view rest = text.substr(equals + 1);
    const auto from = take_number(rest);
    if (!from || !take(rest, "..")) return malformed(text, "found no range FROM..TO");
    const auto to = take_number(rest);
    if (!to) return malformed(text, "found no end of the range");
    std::optional<std::int64_t> step = range.step;
    if (take(rest, ":")) step = take_number(rest);
    if (!step || !rest.empty()) return malformed(text, fmt::format("found '{}' behind the range", rest));
    range.from = *from;
    range.to = *to;
    range.step = *step;
    if (range.to < range.from) return malformed(text, fmt::format("the range ends at {} before {}", *to, *from));
    if (range.points() > kMaxSweepPoints) {
        return invalid_argument(fmt::format("--sweep {}: found {} values, expected at most {}; give a larger step",
                                            text, range.points(), kMaxSweepPoints));
    }
    return range;
}

Result<Case> case_at(const probe::Assembly& assembly, const Case& item, SweepVariable variable, std::int64_t value) {
    Case varied = item;
    std::vector<TokenId>& prompt = varied.request.prompt;
    const auto length = static_cast<Position>(prompt.size());
    switch (variable) {
        case SweepVariable::boundary:
            if (value % kPageTokens != 0 || value >= length) {
                return outside(variable, value,
                               fmt::format("a multiple of {} below the prompt's {} tokens", kPageTokens, length));
            }
            varied.request.boundary = value;
            break;
        case SweepVariable::suffix: {
            const Position most = length - item.request.boundary;
            if (value > most)
                return outside(variable, value, fmt::format("at most the {} tokens behind the prefix", most));
            prompt.resize(static_cast<std::size_t>(item.request.boundary + value));
            break;
        }
        case SweepVariable::window_fill: {
            const auto window = static_cast<Position>(assembly.models.draft->window());
            const Position most = window == 0 ? length : std::min(length, window - 1);
            if (value <= kPageTokens || value > most) {
                const std::string seen =
                    window == 0 ? ""
                                : fmt::format(
                                      "the draft's window of {} less one, beyond which the draft does not see "
                                      "all of the restore, and ",
                                      window);
                return outside(variable, value,
                               fmt::format("{} to {}: more than a page, and at most {}the prompt's {} tokens",
                                           kPageTokens + 1, most, seen, length));
            }
            prompt.erase(prompt.begin(), prompt.end() - value);
            varied.request.boundary = (value - 1) / kPageTokens * kPageTokens;
            break;
        }
        case SweepVariable::verify_width: {
            const std::int64_t block = assembly.models.draft->config().block;
            if (value > block) return outside(variable, value, fmt::format("at most the draft's block of {}", block));
            varied.settings.verify_rows = static_cast<std::size_t>(value);
            break;
        }
    }
    return varied;
}

int gravity(Verdict verdict) {
    switch (verdict) {
        case Verdict::same: return 0;
        case Verdict::insufficient: return 1;
        case Verdict::drift: return 2;
        case Verdict::not_comparable:
        case Verdict::not_restored:
        case Verdict::contaminated: return 3;
        case Verdict::changed: return 4;
        case Verdict::corrupt: return 5;
    }
    return 5;
}

std::vector<SweepRule> rules_of(const std::vector<SweepPoint>& points, std::int64_t unit) {
    const auto rule_over = [&](std::string observable, auto enters, auto differs) {
        std::vector<RulePoint> list;
        std::vector<std::int64_t> not_judged;
        for (const SweepPoint& point : points) {
            if (enters(point.summary)) {
                list.push_back({point.value, differs(point.summary)});
            } else {
                not_judged.push_back(point.value);
            }
        }
        return SweepRule{std::move(observable), find_rule(list, unit), list.size(), std::move(not_judged)};
    };
    const auto tested = [](const CaseSummary& s) { return outcome_of(s.verdict) != Outcome::untested; };
    // Decisions of matched pairs stand whether or not the draft could see the restore.
    const auto paired = [](const CaseSummary& s) { return s.matched > 0; };
    std::vector<SweepRule> rules;
    rules.push_back(
        rule_over("verdict", tested, [](const CaseSummary& s) { return outcome_of(s.verdict) == Outcome::differs; }));
    rules.push_back(rule_over("proposals", paired, [](const CaseSummary& s) { return s.proposals_changed; }));
    rules.push_back(rule_over("width", paired, [](const CaseSummary& s) { return s.width_changed; }));
    rules.push_back(rule_over("acceptance", paired, [](const CaseSummary& s) { return s.acceptance_changed; }));
    rules.push_back(rule_over("output", paired, [](const CaseSummary& s) { return s.output_changed; }));
    return rules;
}

std::size_t representative_of(const std::vector<SweepPoint>& points) {
    const bool any_same = std::any_of(points.begin(), points.end(),
                                      [](const SweepPoint& p) { return p.summary.verdict == Verdict::same; });
    std::size_t best = 0;
    int best_gravity = -1;
    for (std::size_t i = 0; i < points.size(); ++i) {
        const Verdict verdict = points[i].summary.verdict;
        if (verdict == Verdict::insufficient && any_same) continue;
        if (gravity(verdict) <= best_gravity) continue;
        best = i;
        best_gravity = gravity(verdict);
    }
    return best;
}

Result<Sweep> run_sweep(const probe::Assembly& assembly, const Case& item, const SweepRange& range,
                        const fs::path& scratch, const std::function<void(std::size_t, std::size_t)>& progress) {
    Sweep sweep;
    sweep.range = range;
    const std::size_t count = range.points();
    const auto value_of = [&](std::size_t i) { return range.from + static_cast<std::int64_t>(i) * range.step; };
    for (std::size_t i = 0; i < count; ++i) {
        DP_RETURN_IF_ERROR(case_at(assembly, item, range.variable, value_of(i)).status());
    }
    for (std::size_t i = 0; i < count; ++i) {
        DP_ASSIGN_OR_RETURN(const Case varied, case_at(assembly, item, range.variable, value_of(i)));
        SweepPoint point;
        point.value = value_of(i);
        DP_ASSIGN_OR_RETURN(point.summary, run_case(assembly, varied, scratch));
        sweep.untested += outcome_of(point.summary.verdict) == Outcome::untested ? 1 : 0;
        sweep.points.push_back(std::move(point));
        if (progress) progress(i + 1, count);
    }
    sweep.rules = rules_of(sweep.points, range.variable == SweepVariable::boundary ? kPageTokens : 1);
    sweep.representative = representative_of(sweep.points);
    return sweep;
}

std::string rules_title(const Sweep& sweep, std::string_view points) {
    const bool all = std::all_of(sweep.rules.begin(), sweep.rules.end(),
                                 [](const SweepRule& rule) { return rule.not_judged.empty(); });
    return fmt::format("Rules that explain every {}{} exactly", all ? "" : "judged ", points);
}

std::string sweep_text(const Sweep& sweep) {
    const std::string_view name = sweep_variable_name(sweep.range.variable);
    std::string out = fmt::format("\nSweep of {} from {} to {} by {}: {} point{}, {} untested\n", name,
                                  sweep.range.from, sweep.range.to, sweep.range.step, sweep.points.size(),
                                  sweep.points.size() == 1 ? "" : "s", sweep.untested);
    out += fmt::format("  {:<14}{:<16}{:<28}{}\n", name, "verdict", "first", "changed");
    const auto row = [](const CaseSummary& s) {
        return fmt::format("{:<16}{:<28}{}", verdict_name(s.verdict), first_place(s), changed_list(s));
    };
    for (std::size_t i = 0; i < sweep.points.size();) {
        // Neighbours that say the same share a line.
        const std::string text = row(sweep.points[i].summary);
        std::size_t end = i + 1;
        while (end < sweep.points.size() && row(sweep.points[end].summary) == text) ++end;
        const std::int64_t first = sweep.points[i].value;
        const std::int64_t last = sweep.points[end - 1].value;
        std::string line = fmt::format(
            "  {:<14}{}", first == last ? fmt::format("{}", first) : fmt::format("{}..{}", first, last), text);
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + "\n";
        i = end;
    }
    out += "\n" + rules_title(sweep, "point") + "\n";
    for (const SweepRule& rule : sweep.rules) {
        out += fmt::format("  {:<12}{} ({} point{})\n", rule.observable, rule_text(rule.rule, name), rule.points,
                           rule.points == 1 ? "" : "s");
    }
    for (const SweepRule& rule : sweep.rules) {
        if (rule.not_judged.empty()) continue;
        out += fmt::format(
            "  not judged  {}: {} {}: {}\n", rule.observable, name, fmt::join(rule.not_judged, ", "),
            rule.observable == "verdict" ? "nothing was tested there" : "no pair of cycles was matched there");
    }
    return out;
}

std::string sweep_json(const Sweep& sweep) {
    const std::string_view name = sweep_variable_name(sweep.range.variable);
    JsonWriter json;
    json.begin_object().member("variable", name).member("from", sweep.range.from).member("to", sweep.range.to);
    json.member("step", sweep.range.step).member("untested", sweep.untested);
    json.member("representative", sweep.points[sweep.representative].value);
    json.key("rules").begin_array();
    for (const SweepRule& rule : sweep.rules) {
        json.begin_object().member("observable", rule.observable).member("rule", rule_text(rule.rule, name));
        json.member("kind", rule_kind_name(rule.rule.kind)).member("points", rule.points);
        json.key("not_judged").begin_array();
        for (const std::int64_t value : rule.not_judged) json.value(value);
        json.end_array().end_object();
    }
    json.end_array().key("points").begin_array();
    for (const SweepPoint& point : sweep.points) {
        json.begin_object().member("value", point.value);
        write_summary(json, point.summary);
        json.end_object();
    }
    json.end_array().end_object();
    return json.take();
}

}  // namespace draftprobe::study
