#include "study/minimise.h"

#include <gmock/gmock.h>

namespace draftprobe::study {
namespace {

Case numbered(std::size_t tokens, Position boundary, std::size_t cycles) {
    Case item;
    for (std::size_t i = 0; i < tokens; ++i) item.request.prompt.push_back(static_cast<TokenId>(i));
    item.request.boundary = boundary;
    item.request.cycles = cycles;
    return item;
}

TEST(Minimise, finds_the_smallest_request_that_one_token_needs) {
    std::size_t tried = 0;
    // The finding needs token 200 in the prefix, 3 tokens behind it and 5 cycles.
    const Holds holds = [&](const Case& c) -> Result<bool> {
        ++tried;
        const auto& p = c.request.prompt;
        const auto at = std::find(p.begin(), p.end(), TokenId{200});
        return at != p.end() && at - p.begin() < c.request.boundary &&
               static_cast<Position>(p.size()) - c.request.boundary >= 3 && c.request.cycles >= 5;
    };
    auto result = minimise_with(numbered(700, 640, 40), 200, holds);
    ASSERT_TRUE(result.ok());
    const probe::ProbeRequest& request = result.value().item.request;
    EXPECT_EQ(request.cycles, 5u);
    EXPECT_EQ(request.boundary, 32);
    EXPECT_EQ(request.prompt.size(), 35u);
    EXPECT_THAT(request.prompt, ::testing::Contains(200u));
    EXPECT_EQ(result.value().runs, tried);
    EXPECT_LT(tried, 60u);
    EXPECT_FALSE(result.value().bounded);
    auto again = minimise_with(numbered(700, 640, 40), 200, holds);
    EXPECT_EQ(again.value().item.request.prompt, request.prompt);
}

TEST(Minimise, keeps_what_cannot_shrink) {
    const Holds never = [](const Case&) -> Result<bool> { return false; };
    auto result = minimise_with(numbered(150, 96, 4), 200, never);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result.value().item.request.prompt.size(), 150u);
    EXPECT_EQ(result.value().item.request.boundary, 96);
    EXPECT_EQ(result.value().item.request.cycles, 4u);
}

TEST(Minimise, stops_at_the_bound_and_says_so) {
    std::size_t tried = 0;
    const Holds never = [&](const Case&) -> Result<bool> { return ++tried, false; };
    auto result = minimise_with(numbered(900, 640, 400), 7, never);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(tried, 7u);
    EXPECT_TRUE(result.value().bounded);
}

TEST(Minimise, a_finding_without_its_shift_is_another_finding) {
    CaseSummary finding;
    finding.verdict = Verdict::changed;
    finding.first = FirstDifference{"restore", "draft_context", {}, 1, "rows shifted by +8"};
    finding.shift_tokens = 8;
    CaseSummary smaller = finding;
    EXPECT_TRUE(same_finding(smaller, finding));
    smaller.shift_tokens.reset();
    EXPECT_FALSE(same_finding(smaller, finding));
    EXPECT_TRUE(same_finding(finding, smaller)) << "a shift that shows up later is no loss";
    smaller.shift_tokens = 5;
    EXPECT_FALSE(same_finding(smaller, finding));
    smaller = finding;
    smaller.first->component = "draft_ring";
    EXPECT_FALSE(same_finding(smaller, finding));
}

TEST(Minimise, passes_errors_on) {
    const Holds broken = [](const Case&) -> Result<bool> { return internal_error("broken"); };
    EXPECT_EQ(minimise_with(numbered(150, 96, 4), 200, broken).status().code(), StatusCode::internal);
}

}  // namespace
}  // namespace draftprobe::study
