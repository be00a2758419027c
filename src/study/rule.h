// The shortest rule that tells where something differs, from points of a sweep.
//
// A small family, in the order in which rules are tried; the first one that explains every point exactly is the rule:
//   nowhere, everywhere
//   x < t, x >= t                    t: a value of the sweep, or somewhere between two that are not neighbours
//   x mod m = r                      m up to 256, the smallest; at least two points are in the class and two are not,
//                                    and m has no factor in common with the distance of the points, which would make
//                                    classes look empty that were never tried
//   a <= x <= b                      a, b: values of the sweep; with a gap before or behind, how far it may reach
//   x mod m != r, not (a <= x <= b)  the same, negated
//   x in {..}, x not in {..}         at most four values
// A rule says what was seen at the points that were tried and nothing about others.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace draftprobe::study {

inline constexpr std::int64_t kMaxModulus = 256;
inline constexpr std::size_t kMaxSetRule = 4;

struct RulePoint {
    std::int64_t x = 0;
    bool differs = false;
};

enum class RuleKind { nowhere, everywhere, below, from, modulus, interval, set, none };

struct Rule {
    RuleKind kind = RuleKind::none;
    bool negated = false;              // of modulus, interval and set: it differs everywhere else
    std::int64_t low = 0;              // threshold; first of an interval; remainder
    std::int64_t high = 0;             // last of an interval; modulus
    std::vector<std::int64_t> values;  // of a set, ascending
    // How far the edges are known: a threshold lies above `before` and at most at `low`; an interval begins above
    // `before` and ends below `behind`. Absent where there was no point, or where nothing lies between.
    std::optional<std::int64_t> before;
    std::optional<std::int64_t> behind;
    bool holds(std::int64_t x) const;  // requires kind != none
};

// Points are ascending in x, each x once, x >= 0. `unit`: x has no values but its multiples. Without points: kind none.
Rule find_rule(std::span<const RulePoint> points, std::int64_t unit = 1);

// "differs only where suffix mod 128 = 8", "differs only where suffix >= t, t between 56 and 64", "no simple rule".
std::string rule_text(const Rule& rule, std::string_view variable);

std::string_view rule_kind_name(RuleKind kind);

}  // namespace draftprobe::study
