#include "study/plan.h"

#include <gmock/gmock.h>

#include <fmt/format.h>

namespace draftprobe::study {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kRequests =
    R"([{"name": "A", "prompt": {"ids": [1, 2, 3]}, "prefix_tokens": 96, "cycles": 4},
        {"name": "B", "prompt": {"ids_file": "b/ids.json"}, "prefix_tokens": 64, "cycles": 2}])";

std::string plan_of(std::string_view steps, std::string_view requests = kRequests, int lanes = 2) {
    return fmt::format(R"({{"format": "draftprobe-plan", "version": 1, "lanes": {}, "requests": {}, "steps": [{}]}})",
                       lanes, requests, steps);
}

std::string error_of(const std::string& text, StatusCode code) {
    const auto plan = parse_plan(text, "p.json");
    EXPECT_FALSE(plan.ok()) << text;
    EXPECT_EQ(plan.status().code(), code) << plan.status().message();
    return plan.status().message();
}

std::string step_error(std::string_view steps) { return error_of(plan_of(steps), StatusCode::invalid_argument); }

TEST(Plan, reads_every_step) {
    const auto plan = parse_plan(plan_of(R"(
        {"do": "start", "request": "A", "lane": 0},
        {"do": "materialise", "lane": 0},
        {"do": "save", "lane": 0, "snapshot": "s", "tier": "disk"},
        {"do": "evict", "snapshot": "s"},
        {"do": "restore", "request": "A", "lane": 1, "snapshot": "s", "draft": "rows", "inject": ["context-shift=5"]},
        {"do": "spoil", "snapshot": "s"},
        {"do": "restore", "request": "A", "lane": 0, "snapshot": "s", "refused": true},
        {"do": "run", "lanes": [0, 1], "cycles": 2},
        {"do": "run", "lanes": [1]})"),
                                 "p.json");
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    ASSERT_EQ(plan->steps.size(), 9u);
    EXPECT_EQ(plan->requests[0].prompt.ids, (std::vector<TokenId>{1, 2, 3}));
    EXPECT_EQ(plan->requests[1].prompt.file, "b/ids.json");
    EXPECT_EQ(plan->requests[1].boundary, 64);
    EXPECT_TRUE(plan->steps[2].to_disk);
    EXPECT_EQ(plan->steps[4].treatment.draft, state::DraftRestore::rows);
    EXPECT_EQ(plan->steps[4].treatment.faults[0].spelling, "context-shift=5");
    EXPECT_TRUE(plan->steps[6].refused);
    EXPECT_EQ(plan->steps[7].lanes, (std::vector<int>{0, 1}));
    EXPECT_EQ(plan->steps[7].cycles, 2u);
    EXPECT_FALSE(plan->steps[8].cycles.has_value());
}

TEST(Plan, names_what_does_not_exist) {
    EXPECT_THAT(step_error(R"({"do": "start", "request": "C", "lane": 0})"),
                HasSubstr("p.json.steps[0]: found the request \"C\", expected one of A, B"));
    EXPECT_THAT(step_error(R"({"do": "start", "request": "A", "lane": 2})"),
                HasSubstr("found lane 2, expected 0 to 1: the plan has 2 lanes"));
    EXPECT_THAT(step_error(R"({"do": "start", "request": "A", "lane": -1})"), HasSubstr("found lane -1"));
    EXPECT_THAT(step_error(R"({"do": "start", "request": "A", "lane": 0}, {"do": "run", "lanes": [0, 7]})"),
                HasSubstr("p.json.steps[1]: found lane 7"));
    EXPECT_THAT(step_error(R"({"do": "restore", "request": "A", "lane": 0, "snapshot": "s"})"),
                HasSubstr("steps[0] (restore): found the snapshot 's', expected one that a 'save' before it made"));
}

TEST(Plan, refuses_steps_out_of_order) {
    EXPECT_THAT(step_error(R"({"do": "run", "lanes": [1]})"), HasSubstr("found nothing on lane 1, expected a request"));
    EXPECT_THAT(step_error(R"({"do": "materialise", "lane": 0})"),
                HasSubstr("expected a request that was just started"));
    EXPECT_THAT(
        step_error(R"({"do": "start", "request": "A", "lane": 0}, {"do": "save", "lane": 0, "snapshot": "s"})"),
        HasSubstr("steps[1] (save): found request A at its start on lane 0, expected a request that stands at its "
                  "boundary"));
    const std::string saved =
        R"({"do": "start", "request": "A", "lane": 0}, {"do": "materialise", "lane": 0},
           {"do": "save", "lane": 0, "snapshot": "s"}, )";
    EXPECT_THAT(step_error(saved + R"({"do": "evict", "snapshot": "s"},
                                      {"do": "restore", "request": "A", "lane": 1, "snapshot": "s"})"),
                HasSubstr("evicted and not on disk, expected a good snapshot, or \"refused\": true"));
    EXPECT_THAT(step_error(saved + R"({"do": "spoil", "snapshot": "s"},
                                      {"do": "restore", "request": "A", "lane": 1, "snapshot": "s"})"),
                HasSubstr("found 's' spoiled"));
    EXPECT_THAT(step_error(saved + R"({"do": "restore", "request": "B", "lane": 1, "snapshot": "s"})"),
                HasSubstr("found 's' saved at 96 for request A, expected the boundary 64 of request B"));
    EXPECT_THAT(step_error(saved + R"({"do": "run", "lanes": [0], "cycles": 4})"),
                HasSubstr("found no 'run' without 'cycles'"));
    EXPECT_THAT(step_error(saved + R"({"do": "run", "lanes": [0, 0]})"), HasSubstr("found lane 0 twice"));
}

TEST(Plan, reads_and_checks_a_lane_that_lends) {
    constexpr std::string_view kPair = R"([{"name": "A", "prompt": {"ids": [1]}, "prefix_tokens": 96, "cycles": 4},
        {"name": "B", "prompt": {"ids": [1]}, "prefix_tokens": 96, "cycles": 4},
        {"name": "C", "prompt": {"ids": [1]}, "prefix_tokens": 64, "cycles": 4}])";
    const auto parse = [&](const std::string& steps) {
        return parse_plan(plan_of(steps + R"(, {"do": "run", "lanes": [1]})", kPair), "p.json");
    };
    const std::string start = R"({"do": "start", "request": "A", "lane": 0}, )";
    const auto plan = parse(start + R"({"do": "borrow", "request": "B", "lane": 1, "from": 0})");
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->steps[1].verb, PlanVerb::borrow);
    EXPECT_EQ(plan->steps[1].request, 1u);
    EXPECT_EQ(plan->steps[1].from, 0);
    const auto refused = [&](const std::string& steps) { return parse(steps).status().message(); };
    EXPECT_THAT(refused(R"({"do": "borrow", "request": "B", "lane": 1, "from": 0})"),
                HasSubstr("found nothing on lane 0"));
    EXPECT_THAT(refused(start + R"({"do": "borrow", "request": "B", "lane": 0, "from": 0})"),
                HasSubstr("found lane 0 twice"));
    EXPECT_THAT(refused(start + R"({"do": "borrow", "request": "B", "lane": 1, "from": 2})"),
                HasSubstr("found lane 2"));
    EXPECT_THAT(refused(start + R"({"do": "borrow", "request": "C", "lane": 1, "from": 0})"),
                HasSubstr("found the boundary 96 of request A on lane 0, expected the 64 of C"));
    EXPECT_THAT(
        refused(start + R"({"do": "run", "lanes": [0]}, {"do": "borrow", "request": "B", "lane": 1, "from": 0})"),
        HasSubstr("beyond its boundary on lane 0"));
    const std::string saved =
        start + R"({"do": "materialise", "lane": 0}, {"do": "save", "lane": 0, "snapshot": "s"}, )";
    const auto tiered = parse(saved + R"({"do": "restore", "request": "A", "lane": 1, "snapshot": "s",
        "inject": ["rows-unwritten=all"], "inject_tier": "disk"})");
    ASSERT_TRUE(tiered.ok()) << tiered.status().message();
    EXPECT_EQ(tiered->steps[3].inject_tier, "disk");
    EXPECT_THAT(
        refused(saved + R"({"do": "restore", "request": "A", "lane": 1, "snapshot": "s", "inject_tier": "host"})"),
        HasSubstr("expected memory or disk"));
}

TEST(Plan, refuses_documents_that_are_no_plan) {
    const auto corrupt = [](const std::string& text) { return error_of(text, StatusCode::corrupt); };
    EXPECT_THAT(corrupt("[]"), HasSubstr("found array, expected an object"));
    EXPECT_THAT(corrupt("{\"format\": \"x\"}"), HasSubstr("found the format \"x\""));
    EXPECT_THAT(corrupt("{\"format\": 3"), HasSubstr("p.json"));
    EXPECT_THAT(error_of(R"({"format": "draftprobe-plan", "version": 2})", StatusCode::mismatch),
                HasSubstr("plan version 2, this program reads version 1"));
    const std::string run = R"({"do": "start", "request": "A", "lane": 0}, {"do": "run", "lanes": [0]})";
    EXPECT_TRUE(parse_plan(plan_of(run), "p.json").ok());
    EXPECT_THAT(corrupt(plan_of(R"({"do": "run", "lanes": [0], "width": 3})")),
                HasSubstr("found the member \"width\""));
    EXPECT_THAT(corrupt(plan_of(R"({"do": "rum", "lanes": [0]})")), HasSubstr("expected one of start, materialise"));
    EXPECT_THAT(corrupt(plan_of(R"({"do": "run", "lanes": []})")), HasSubstr("found none"));
    const auto with_request = [&](std::string_view request) { return plan_of(run, fmt::format("[{}]", request)); };
    EXPECT_THAT(corrupt(with_request(R"({"name": "../x", "prompt": {"ids": [1]}, "prefix_tokens": 32, "cycles": 1})")),
                HasSubstr("found the name"));
    EXPECT_THAT(
        corrupt(with_request(R"({"name": "A", "prompt": {"ids_file": "../x"}, "prefix_tokens": 32, "cycles": 1})")),
        HasSubstr("expected a relative path without '..'"));
    EXPECT_THAT(corrupt(with_request(
                    R"({"name": "A", "prompt": {"text_file": "/etc/passwd"}, "prefix_tokens": 32, "cycles": 1})")),
                HasSubstr("expected a relative path"));
    EXPECT_THAT(corrupt(with_request(R"({"name": "A", "prompt": {"ids": [-1]}, "prefix_tokens": 32, "cycles": 1})")),
                HasSubstr("ids"));
    EXPECT_THAT(corrupt(with_request(R"({"name": "A", "prompt": {"ids": [1]}, "prefix_tokens": 33, "cycles": 1})")),
                HasSubstr("found 33, expected a multiple of the page"));
    EXPECT_THAT(corrupt(with_request(
                    R"({"name": "A", "prompt": {"ids": [1], "ids_file": "x"}, "prefix_tokens": 32, "cycles": 1})")),
                HasSubstr("found 2 members"));
    EXPECT_THAT(error_of(plan_of(run, kRequests, 17), StatusCode::corrupt), HasSubstr("lanes"));
}

}  // namespace
}  // namespace draftprobe::study
