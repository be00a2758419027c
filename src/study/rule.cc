#include "study/rule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
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

// The greatest distance, in units, of which the distances of all points are multiples.
std::int64_t distance_of(std::span<const RulePoint> points, std::int64_t unit) {
    std::int64_t distance = 0;
    for (std::size_t i = 1; i < points.size(); ++i) distance = std::gcd(distance, points[i].x - points[i - 1].x);
    return std::max<std::int64_t>(1, distance / unit);
}

std::optional<Rule> modulus_rule(std::span<const RulePoint> points, std::int64_t unit, bool negated) {
    const std::vector<std::int64_t> inside = values_where(points, !negated);
    if (inside.size() < 2 || points.size() - inside.size() < 2) return std::nullopt;
    const std::int64_t distance = distance_of(points, unit);
    for (std::int64_t modulus = 2; modulus <= kMaxModulus; ++modulus) {
        if (std::gcd(modulus, distance) != 1) continue;
        const Rule rule{RuleKind::modulus, negated, inside.front() % modulus, modulus, {}, {}, {}};
        if (explains(rule, points)) return rule;
    }
    return std::nullopt;
}

std::optional<Rule> interval_rule(std::span<const RulePoint> points, std::int64_t unit, bool negated) {
    const std::vector<std::int64_t> inside = values_where(points, !negated);
    if (inside.empty()) return std::nullopt;
    Rule rule{RuleKind::interval, negated, inside.front(), inside.back(), {}, {}, {}};
    if (!explains(rule, points)) return std::nullopt;
    for (const RulePoint& point : points) {
        if (point.x < rule.low) rule.before = point.x;
        if (point.x > rule.high && !rule.behind) rule.behind = point.x;
    }
    if (rule.before && rule.low - *rule.before <= unit) rule.before.reset();
    if (rule.behind && *rule.behind - rule.high <= unit) rule.behind.reset();
    return rule;
}

std::optional<Rule> set_rule(std::span<const RulePoint> points, std::int64_t, bool negated) {
    std::vector<std::int64_t> inside = values_where(points, !negated);
    if (inside.size() > kMaxSetRule) return std::nullopt;
    return Rule{RuleKind::set, negated, 0, 0, std::move(inside), {}, {}};
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

Rule find_rule(std::span<const RulePoint> points, std::int64_t unit) {
    if (points.empty()) return {};
    for (const RuleKind kind : {RuleKind::nowhere, RuleKind::everywhere}) {
        if (const Rule rule{kind, false, 0, 0, {}, {}, {}}; explains(rule, points)) return rule;
    }
    // Both kinds of points are there: the threshold is the first point of the other kind.
    const auto turn = std::find_if(points.begin(), points.end(),
                                   [&](const RulePoint& point) { return point.differs != points.front().differs; });
    Rule threshold{points.front().differs ? RuleKind::below : RuleKind::from, false, turn->x, 0, {}, {}, {}};
    if (turn->x - std::prev(turn)->x > unit) threshold.before = std::prev(turn)->x;
    if (explains(threshold, points)) return threshold;
    using Search = std::optional<Rule> (*)(std::span<const RulePoint>, std::int64_t, bool);
    constexpr std::pair<Search, bool> kSearches[] = {{modulus_rule, false}, {interval_rule, false},
                                                     {modulus_rule, true},  {interval_rule, true},
                                                     {set_rule, false},     {set_rule, true}};
    for (const auto& [search, negated] : kSearches) {
        if (std::optional<Rule> rule = search(points, unit, negated)) return *rule;
    }
    return {};
}

std::string rule_text(const Rule& rule, std::string_view variable) {
    const std::string_view where = rule.negated ? "differs everywhere but where" : "differs only where";
    switch (rule.kind) {
        case RuleKind::nowhere: return "differs nowhere";
        case RuleKind::everywhere: return "differs everywhere";
        case RuleKind::below:
        case RuleKind::from: {
            const std::string_view side = rule.kind == RuleKind::below ? "<" : ">=";
            if (!rule.before) return fmt::format("differs only where {} {} {}", variable, side, rule.low);
            return fmt::format("differs only where {} {} t, t between {} and {}", variable, side, *rule.before,
                               rule.low);
        }
        case RuleKind::modulus: return fmt::format("{} {} mod {} = {}", where, variable, rule.high, rule.low);
        case RuleKind::interval:
            return fmt::format(
                "{} {} {}{}{}", where, variable,
                rule.low == rule.high ? fmt::format("= {}", rule.low) : fmt::format("is {} to {}", rule.low, rule.high),
                rule.before ? fmt::format(", perhaps from above {} on", *rule.before) : "",
                rule.behind ? fmt::format(", perhaps up to below {}", *rule.behind) : "");
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
