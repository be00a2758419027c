#include "study/rule.h"

#include <gtest/gtest.h>

#include <functional>

#include "study/sweep.h"

namespace draftprobe::study {
namespace {

std::vector<RulePoint> points(std::int64_t from, std::int64_t to, std::int64_t step,
                              const std::function<bool(std::int64_t)>& differs) {
    std::vector<RulePoint> result;
    for (std::int64_t x = from; x <= to; x += step) result.push_back({x, differs(x)});
    return result;
}

std::string rule_of(const std::vector<RulePoint>& list) { return rule_text(find_rule(list), "suffix"); }

TEST(Rule, everywhere_and_nowhere) {
    EXPECT_EQ(rule_of(points(1, 9, 1, [](auto) { return true; })), "differs everywhere");
    EXPECT_EQ(rule_of(points(1, 9, 1, [](auto) { return false; })), "differs nowhere");
    EXPECT_EQ(rule_of({}), "no simple rule");
}

TEST(Rule, thresholds_are_tried_before_everything_else) {
    EXPECT_EQ(rule_of(points(1, 96, 1, [](auto x) { return x < 64; })), "differs only where suffix < 64");
    EXPECT_EQ(rule_of(points(8, 200, 8, [](auto x) { return x >= 64; })),
              "differs only where suffix >= t, t between 56 and 64");
    EXPECT_EQ(rule_of(points(8, 200, 8, [](auto x) { return x < 64; })),
              "differs only where suffix < t, t between 56 and 64");
    EXPECT_EQ(rule_of(points(1, 2, 1, [](auto x) { return x == 2; })), "differs only where suffix >= 2");
}

TEST(Rule, the_smallest_modulus_that_explains_every_point) {
    EXPECT_EQ(rule_of(points(1, 400, 1, [](auto x) { return x % 128 == 8; })), "differs only where suffix mod 128 = 8");
    EXPECT_EQ(rule_of(points(1, 20, 1, [](auto x) { return x % 2 == 1; })), "differs only where suffix mod 2 = 1");
    EXPECT_EQ(rule_of(points(1, 600, 1, [](auto x) { return x % 256 == 255; })),
              "differs only where suffix mod 256 = 255");
    EXPECT_EQ(rule_of(points(1, 99, 1, [](auto x) { return x % 32 != 0; })),
              "differs everywhere but where suffix mod 32 = 0");
    // Above the largest modulus only the values themselves can be named.
    EXPECT_EQ(rule_of(points(1, 700, 1, [](auto x) { return x % 300 == 5; })),
              "differs only where suffix is one of 5, 305, 605");
}

TEST(Rule, few_or_sparse_points_do_not_support_a_modulus) {
    // One point outside the class is no evidence of a period.
    EXPECT_EQ(rule_of(points(1, 3, 1, [](auto x) { return x != 2; })), "differs everywhere but where suffix = 2");
    // Of multiples of 8 nobody knows what lies between.
    const auto every_second = [](auto x) { return x % 16 == 8; };
    EXPECT_EQ(rule_of(points(8, 64, 8, every_second)), "differs only where suffix is one of 8, 24, 40, 56");
    EXPECT_EQ(rule_of(points(8, 240, 8, [](auto x) { return x % 3 == 1; })), "differs only where suffix mod 3 = 1");
    // A variable that has no other values is known at every one of them.
    const auto pages = points(32, 320, 32, [](auto x) { return x % 64 == 32; });
    EXPECT_EQ(rule_text(find_rule(pages, 32), "boundary"), "differs only where boundary mod 64 = 32");
    EXPECT_EQ(rule_text(find_rule(points(32, 320, 32, [](auto x) { return x >= 96; }), 32), "boundary"),
              "differs only where boundary >= 96");
}

TEST(Rule, intervals_and_their_complement) {
    EXPECT_EQ(rule_of(points(8, 80, 8, [](auto x) { return x >= 24 && x <= 40; })),
              "differs only where suffix is 24 to 40, perhaps from above 16 on, perhaps up to below 48");

    EXPECT_EQ(rule_of(points(1, 96, 1, [](auto x) { return x >= 30 && x <= 41; })),
              "differs only where suffix is 30 to 41");
    EXPECT_EQ(rule_of(points(1, 96, 1, [](auto x) { return x < 30 || x > 41; })),
              "differs everywhere but where suffix is 30 to 41");
    // One point is no evidence of a period.
    EXPECT_EQ(rule_of(points(1, 96, 1, [](auto x) { return x == 8; })), "differs only where suffix = 8");
    EXPECT_EQ(rule_of(points(1, 96, 1, [](auto x) { return x != 8; })), "differs everywhere but where suffix = 8");
}

TEST(Rule, small_sets_and_then_nothing) {
    EXPECT_EQ(rule_of(points(1, 60, 1, [](auto x) { return x == 3 || x == 4 || x == 37; })),
              "differs only where suffix is one of 3, 4, 37");
    EXPECT_EQ(rule_of(points(1, 60, 1, [](auto x) { return x != 3 && x != 4 && x != 37; })),
              "differs everywhere but where suffix is one of 3, 4, 37");
    EXPECT_EQ(rule_of(points(1, 60, 1, [](auto x) { return x * x % 7 == 2 && x != 30; })), "no simple rule");
}

TEST(Rule, what_is_found_explains_every_point) {
    std::uint64_t state = 1;
    for (int round = 0; round < 300; ++round) {
        std::vector<RulePoint> list;
        for (std::int64_t x = 1; x <= 7; ++x) {
            state = state * 6364136223846793005ULL + 1442695040888963407ULL;
            list.push_back({x, (state >> 60) % 2 == 0});
        }
        const Rule rule = find_rule(list);
        ASSERT_NE(rule.kind, RuleKind::none);  // seven points always have at most three of one kind
        for (const RulePoint& point : list) EXPECT_EQ(rule.holds(point.x), point.differs) << rule_text(rule, "x");
    }
}

TEST(SweepRules, list_the_points_that_were_not_judged) {
    Sweep sweep;
    sweep.range = {SweepVariable::suffix, 8, 40, 8};
    for (std::int64_t value = 8; value <= 40; value += 8) {
        SweepPoint point;
        point.value = value;
        point.summary.verdict = value < 24 ? Verdict::same : Verdict::changed;
        point.summary.matched = value == 16 ? 0 : 3;
        point.summary.proposals_changed = value >= 24;
        sweep.points.push_back(point);
    }
    sweep.rules = rules_of(sweep.points);
    EXPECT_TRUE(sweep.rules[0].not_judged.empty());
    EXPECT_EQ(sweep.rules[1].not_judged, (std::vector<std::int64_t>{16}));
    const std::string text = sweep_text(sweep);
    EXPECT_NE(text.find("Rules that explain every judged point exactly"), std::string::npos) << text;
    EXPECT_NE(text.find("verdict     differs only where suffix >= t, t between 16 and 24 (5 points)"),
              std::string::npos);
    EXPECT_NE(text.find("proposals   differs only where suffix >= t, t between 8 and 24 (4 points)"),
              std::string::npos);
    EXPECT_NE(text.find("not judged  proposals: suffix 16: no pair of cycles was matched there"), std::string::npos);
    EXPECT_NE(sweep_json(sweep).find("\"not_judged\":[16]"), std::string::npos);

    for (SweepPoint& point : sweep.points) point.summary.matched = 3;
    sweep.rules = rules_of(sweep.points);
    EXPECT_NE(sweep_text(sweep).find("Rules that explain every point exactly"), std::string::npos);
}

}  // namespace
}  // namespace draftprobe::study
