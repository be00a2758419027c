// One line at the end says how many instruction-set tests ran and how many this CPU cannot run: a skipped ISA must
// not read as a tested one.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "numerics/test_support.h"

namespace draftprobe::numerics::testing_support {
namespace {

class IsaReport : public ::testing::EmptyTestEventListener {
    void OnTestEnd(const ::testing::TestInfo& test) override {
        if (std::string(test.test_suite_name()).rfind("EveryIsa/", 0) != 0) return;
        if (test.result()->Skipped())
            ++skipped_;
        else if (test.result()->Passed())
            ++passed_;
        else
            ++failed_;
    }
    void OnTestProgramEnd(const ::testing::UnitTest&) override {
        std::string missing;
        for (const Isa isa : kEveryIsa)
            if (!isa_supported(isa)) missing += (missing.empty() ? "" : ", ") + std::string(isa_name(isa));
        std::printf("instruction sets: %d passed, ", passed_);
        if (failed_ > 0) std::printf("%d failed, ", failed_);
        std::printf("%d skipped%s%s\n", skipped_, missing.empty() ? "" : ": CPU lacks ", missing.c_str());
        std::fflush(stdout);
    }
    int passed_ = 0;
    int skipped_ = 0;
    int failed_ = 0;
};

const bool kInstalled = [] {
    ::testing::UnitTest::GetInstance()->listeners().Append(new IsaReport);
    return true;
}();

TEST(IsaReport, names_and_support) {
    EXPECT_TRUE(kInstalled);
    EXPECT_EQ(isa_name(Isa::portable), "portable");
    EXPECT_EQ(isa_name(Isa::avx2), "avx2");
    EXPECT_EQ(isa_name(Isa::avx512), "avx512");
    EXPECT_TRUE(isa_supported(Isa::portable));
    EXPECT_TRUE(isa_supported(best_isa()));
    // An instruction set is never supported without the smaller one.
    EXPECT_TRUE(!isa_supported(Isa::avx512) || isa_supported(Isa::avx2));
}

}  // namespace
}  // namespace draftprobe::numerics::testing_support
