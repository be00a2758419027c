// Target distributions, rejection decisions and residuals against the authors' dflash package and transformers' warpers
// (tests/golden/sampling).
#include <gtest/gtest.h>

#include "decode/golden_fixture.h"
#include "decode/sampling.h"

namespace draftprobe::decode {
namespace {

class SamplingParity : public ::testing::Test {
protected:
    SamplingParity() : stages_("sampling") {}

    // Row r of a [rows, cols] tensor.
    std::vector<float> row(const std::string& name, std::size_t r, std::size_t cols) const {
        const std::vector<float> all = stages_.floats(name);
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(r * cols);
        return {first, first + static_cast<std::ptrdiff_t>(cols)};
    }
    static void expect_dense(const TokenDistribution& found, const std::vector<float>& expected) {
        for (std::size_t token = 0; token < expected.size(); ++token) {
            const double p = found.probability(static_cast<TokenId>(token));
            // The kept sets agree exactly; float32 references round their probabilities.
            EXPECT_EQ(p > 0, expected[token] > 0) << "token " << token;
            EXPECT_NEAR(p, static_cast<double>(expected[token]), 1e-6) << "token " << token;
        }
    }

    Stages stages_;
    static constexpr std::size_t kVocab = 64;
};

TEST_F(SamplingParity, FilteredDistributionsEqualTheReferences) {
    const std::vector<float> settings = stages_.floats("settings");
    ASSERT_EQ(settings.size() % 4, 0u);
    ASSERT_GE(settings.size() / 4, 9u);
    for (std::size_t number = 0; number < settings.size() / 4; ++number) {
        SamplingSettings s;
        s.temperature = settings[number * 4];
        s.top_k = static_cast<std::int64_t>(settings[number * 4 + 1]);
        s.top_p = settings[number * 4 + 2];
        s.min_p = settings[number * 4 + 3];
        for (std::size_t r = 0; r < 6; ++r) {
            SCOPED_TRACE(sampling_text(s) + ", row " + std::to_string(r));
            expect_dense(target_distribution(row("logits", r, kVocab), s),
                         row("probabilities." + std::to_string(number), r, kVocab));
        }
    }
}

TEST_F(SamplingParity, RejectionAcceptsAndCorrectsAsTheReferenceDoes) {
    constexpr std::size_t kGamma = 7;
    constexpr std::size_t kCandidates = 16;
    SamplingSettings s;
    s.temperature = 1;
    std::vector<TokenDistribution> p;
    std::vector<TokenDistribution> q;
    const std::vector<TokenId> ids = stages_.ids("rejection.candidate_ids");
    for (std::size_t j = 0; j <= kGamma; ++j) {
        p.push_back(target_distribution(row("rejection.target_logits", j, kVocab), s));
        if (j == kGamma) break;
        q.push_back(candidate_distribution(std::span(ids).subspan(j * kCandidates, kCandidates),
                                           row("rejection.candidate_scores", j, kCandidates), 1));
    }
    const std::vector<TokenId> tokens = stages_.ids("rejection.tokens");
    const std::vector<TokenId> expected = stages_.ids("rejection.accepted");
    ASSERT_EQ(tokens.size(), expected.size() * kGamma);
    for (std::size_t c = 0; c < expected.size(); ++c) {
        SCOPED_TRACE("case " + std::to_string(c));
        const std::vector<float> uniforms = row("rejection.uniforms", c, kGamma);
        std::size_t accepted = 0;
        while (accepted < kGamma && accepts(p[accepted], q[accepted], tokens[c * kGamma + accepted],
                                            static_cast<double>(uniforms[accepted]))) {
            ++accepted;
        }
        ASSERT_EQ(accepted, expected[c]);
        const TokenDistribution& last = p[accepted];
        expect_dense(accepted == kGamma ? last : residual_distribution(last, q[accepted]),
                     row("rejection.final", c, kVocab));
    }
}

}  // namespace
}  // namespace draftprobe::decode
