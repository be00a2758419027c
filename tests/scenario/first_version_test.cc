// A probe with a DFlash v1 draft (golden pair, block 16, mixed layers): captures say how proposals were made, restores
// are the same, and a fault is seen.
#include <gmock/gmock.h>

#include <filesystem>

#include "base/hash.h"
#include "base/safetensors.h"
#include "base/test_directory.h"
#include "capture/reader.h"
#include "compare/compare.h"
#include "probe/probe.h"

namespace draftprobe {
namespace {

class FirstVersionTest : public ::testing::TestWithParam<model::DraftPrecision> {
protected:
    FirstVersionTest() {
        const std::string golden = std::string(DRAFTPROBE_SOURCE_DIR) + "/tests/golden/";
        probe::AssemblyOptions options;
        options.draft_precision = GetParam();
        auto loaded = probe::load_assembly(golden + "target-r2-mlx4", golden + "draft-v1-mixed", true, options);
        EXPECT_TRUE(loaded.ok()) << loaded.status().message();
        assembly_ = std::move(loaded).value();
        request_.boundary = 96;
        request_.cycles = 6;
        for (TokenId i = 0; i < 130; ++i) request_.prompt.push_back(i * 37 % 240);
        settings_.engine.isa = numerics::best_isa();
        settings_.engine.numerics = numerics::NumericsClass::i8dot;
        settings_.engine.chunk_tokens = 64;
        settings_.build_digest = sha256_hex(std::string_view("scenario"));
        settings_.digest_every = 1;
    }
    std::filesystem::path arm(Arm which, const std::string& name) {
        auto result = probe::run_arm(assembly_, request_, settings_, which, dir_ / name, false);
        EXPECT_TRUE(result.ok()) << result.status().message();
        return dir_ / name;
    }
    static std::string verdict(const std::filesystem::path& control, const std::filesystem::path& treated) {
        auto comparison = compare_captures(control, treated, {});
        EXPECT_TRUE(comparison.ok()) << comparison.status().message();
        return std::string(verdict_name(comparison->verdict));
    }

    TestDirectory dir_;
    probe::Assembly assembly_;
    probe::ProbeRequest request_;
    probe::ProbeSettings settings_;
};

INSTANTIATE_TEST_SUITE_P(Precision, FirstVersionTest,
                         ::testing::Values(model::DraftPrecision::stored, model::DraftPrecision::affine4),
                         [](const auto& param_info) {
                             return param_info.param == model::DraftPrecision::stored ? "stored" : "affine4";
                         });

TEST_P(FirstVersionTest, StepsSayArgmaxAndHaveNoSelectorMargins) {
    auto reader = CaptureReader::open(arm(Arm::fresh, "control"));
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    EXPECT_EQ(reader->header().block, 16);
    EXPECT_EQ(reader->header().candidates, 16);
    StepRecord step;
    std::size_t steps = 0;
    for (auto more = reader->next(step); more.ok() && more.value(); more = reader->next(step)) {
        ++steps;
        EXPECT_EQ(step.proposal_source, "argmax");
        EXPECT_EQ(step.proposals.size(), 15u);
        EXPECT_EQ(step.candidate_ids.size(), 15u * 16u);
        EXPECT_TRUE(step.selector_margins.empty());
        EXPECT_EQ(step.candidate_margins.size(), 15u);
        // Greedy without a selector: the first candidate.
        for (std::size_t t = 0; t < 15; ++t) EXPECT_EQ(step.proposals[t], step.candidate_ids[t * 16]);
    }
    EXPECT_EQ(steps, 6u);
}

TEST_P(FirstVersionTest, RestoresAreTheSame) {
    const auto control = arm(Arm::fresh, "control");
    EXPECT_EQ(verdict(control, arm(Arm::repeat, "repeat")), "SAME");
    for (const auto form : {state::DraftRestore::exact, state::DraftRestore::rows}) {
        settings_.treatment.draft = form;
        const std::string name(state::draft_restore_name(form));
        EXPECT_EQ(verdict(control, arm(Arm::restored, name)), "SAME") << name;
    }
}

TEST_P(FirstVersionTest, ShiftedContextRowsChangeIt) {
    const auto control = arm(Arm::fresh, "control");
    settings_.treatment.faults.push_back(instrument::parse_fault("context-shift=32").value());
    EXPECT_EQ(verdict(control, arm(Arm::restored, "shifted")), "CHANGED");
}

}  // namespace
}  // namespace draftprobe
