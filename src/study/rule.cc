#include "study/rule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

namespace draftprobe::study {

namespace {

bool explains(const Rule& rule, std::span<const RulePoint> points) {
    return std::all_of(points.begin(), points.end(),
                       [&](const RulePoint& point) { return rule.holds(point.x) == point.differs; });
}

// Points at which a rule that is not negated would hold.
std::vector<std::int64_t> values_where(std::span<const RulePoint> points, bool differs) {
    std::vector<std::int64_t> values;
    for (const RulePoint& point : points) {
        if (point.differs == differs) values.push_back(point.x);
    }
    return values;
}

std::optional<Rule> modulus_rule(std::span<const RulePoint> points, bool negated) {
    const std::vector<std::int64_t> inside = values_where(points, !negated);
    if (inside.size() < 2) return std::nullopt;
    for (std::int64_t modulus = 2; modulus <= kMaxModulus; ++modulus) {
        const Rule rule{RuleKind::modulus, negated, inside.front() % modulus, modulus, {}};
        if (explains(rule, points)) return rule;
    }
    return std::nullopt;
}

std::optional<Rule> interval_rule(std::span<const RulePoint> points, bool negated) {
    const std::vector<std::int64_t> inside = values_where(points, !negated);
    if (inside.empty()) return std::nullopt;
    const Rule rule{RuleKind::interval, negated, inside.front(), inside.back(), {}};
    return explains(rule, points) ? std::optional<Rule>(rule) : std::nullopt;
}

std::optional<Rule> set_rule(std::span<const RulePoint> points, bool negated) {
    std::vector<std::int64_t> inside = values_where(points, !negated);
    if (inside.size() > kMaxSetRule) return std::nullopt;
    return Rule{RuleKind::set, negated, 0, 0, std::move(inside)};
}

}  // namespace

bool Rule::holds(std::int64_t x) const {
    switch (kind) {
        case RuleKind::nowhere: return false;
        case RuleKind::everywhere: return true;
        case RuleKind::below: return x < low;
        case RuleKind::from: return x >= low;
        case RuleKind::modulus: return (x % high == low) != negated;
        case RuleKind::interval: return (low <= x && x <= high) != negated;
        case RuleKind::set: return std::binary_search(values.begin(), values.end(), x) != negated;
        case RuleKind::none: break;
    }
    return false;
}

Rule find_rule(std::span<const RulePoint> points) {
    if (points.empty()) return {};
    for (const RuleKind kind : {RuleKind::nowhere, RuleKind::everywhere}) {
        if (const Rule rule{kind, false, 0, 0, {}}; explains(rule, points)) return rule;
    }
    // Both kinds of points are there: the threshold is the first point of the other kind.
    const auto turn = std::find_if(points.begin(), points.end(),
                                   [&](const RulePoint& point) { return point.differs != points.front().differs; });
    const Rule threshold{points.front().differs ? RuleKind::below : RuleKind::from, false, turn->x, 0, {}};
    if (explains(threshold, points)) return threshold;
    using Search = std::optional<Rule> (*)(std::span<const RulePoint>, bool);
    constexpr std::pair<Search, bool> kSearches[] = {{modulus_rule, false}, {interval_rule, false},
                                                     {modulus_rule, true},  {interval_rule, true},
                                                     {set_rule, false},     {set_rule, true}};
    for (const auto& [search, negated] : kSearches) {
        if (std::optional<Rule> rule = search(points, negated)) return *rule;
    }
    return {};
}

std::string rule_text(const Rule& rule, std::string_view variable) {
    const std::string_view where = rule.negated ? "differs everywhere but where" : "differs only where";
    switch (rule.kind) {
        case RuleKind::nowhere: return "differs nowhere";
        case RuleKind::everywhere: return "differs everywhere";
        case RuleKind::below: return fmt::format("differs only where {} < {}", variable, rule.low);
        case RuleKind::from: return fmt::format("differs only where {} >= {}", variable, rule.low);
        case RuleKind::modulus: return fmt::format("{} {} mod {} = {}", where, variable, rule.high, rule.low);
        case RuleKind::interval:
            if (rule.low == rule.high) return fmt::format("{} {} = {}", where, variable, rule.low);
            return fmt::format("{} {} is {} to {}", where, variable, rule.low, rule.high);
        case RuleKind::set: return fmt::format("{} {} is one of {}", where, variable, fmt::join(rule.values, ", "));
        case RuleKind::none: break;
    }
    return "no simple rule";
}

std::string_view rule_kind_name(RuleKind kind) {
    switch (kind) {
        case RuleKind::nowhere: return "nowhere";
        case RuleKind::everywhere: return "everywhere";
        case RuleKind::below: return "below";
        case RuleKind::from: return "from";
        case RuleKind::modulus: return "modulus";
        case RuleKind::interval: return "interval";
        case RuleKind::set: return "set";
        case RuleKind::none: return "none";
    }
    return "none";
}

}  // namespace draftprobe::study
