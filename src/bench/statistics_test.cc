#include "bench/statistics.h"

#include <gtest/gtest.h>

#include "bench/host.h"

namespace draftprobe::bench {
namespace {

TEST(statistics, takes_median_and_spread) {
    const Summary odd = summarise({3.0, 1.0, 2.0});
    EXPECT_DOUBLE_EQ(odd.median, 2.0);
    EXPECT_DOUBLE_EQ(odd.spread(), 1.0);
    EXPECT_TRUE(odd.inconclusive());
    EXPECT_DOUBLE_EQ(summarise({4.0, 1.0, 2.0, 3.0}).median, 2.5);
}

TEST(statistics, is_inconclusive_only_above_a_fifth) {
    EXPECT_FALSE(summarise({10.0, 9.5, 11.0}).inconclusive());
    EXPECT_TRUE(summarise({10.0, 9.5, 11.6}).inconclusive());
    EXPECT_FALSE(summarise({5.0}).inconclusive());
}

TEST(host, knows_this_machine) {
    EXPECT_GE(hardware_threads(), 1u);
    EXPECT_GT(peak_rss_bytes(), 1u << 20);
    EXPECT_FALSE(cpu_name().empty());
}

}  // namespace
}  // namespace draftprobe::bench
