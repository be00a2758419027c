// Exit statuses are a contract with scripts and with git bisect.
#include "compare/verdict.h"

#include <gtest/gtest.h>

namespace draftprobe {
namespace {

TEST(VerdictExit, FollowsTheContract) {
    EXPECT_EQ(verdict_exit(Verdict::same), 0);
    EXPECT_EQ(verdict_exit(Verdict::changed), 1);
    EXPECT_EQ(verdict_exit(Verdict::drift), 3);
    EXPECT_EQ(verdict_exit(Verdict::not_comparable), 4);
    EXPECT_EQ(verdict_exit(Verdict::not_restored), 4);
    EXPECT_EQ(verdict_exit(Verdict::contaminated), 4);
    EXPECT_EQ(verdict_exit(Verdict::corrupt), 5);
    EXPECT_EQ(verdict_exit(Verdict::insufficient), 6);
    EXPECT_EQ(verdict_bisect_exit(Verdict::same, BisectDrift::undecided), 0);
    EXPECT_EQ(verdict_bisect_exit(Verdict::changed, BisectDrift::good), 1);
    EXPECT_EQ(verdict_bisect_exit(Verdict::drift, BisectDrift::undecided), 125);
    EXPECT_EQ(verdict_bisect_exit(Verdict::drift, BisectDrift::good), 0);
    EXPECT_EQ(verdict_bisect_exit(Verdict::drift, BisectDrift::bad), 1);
    EXPECT_EQ(verdict_bisect_exit(Verdict::insufficient, BisectDrift::bad), 125);
    EXPECT_EQ(verdict_bisect_exit(Verdict::corrupt, BisectDrift::good), 125);
}

}  // namespace
}  // namespace draftprobe
