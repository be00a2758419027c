// Lossless sampling by exact enumeration on small vocabularies, and the random numbers behind it.
#include "decode/sampling.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace draftprobe::decode {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Random, PhiloxMatchesThePublishedAnswers) {
    // Known answers of the Random123 distribution for philox4x32, 10 rounds.
    EXPECT_THAT(philox4x32({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
    EXPECT_THAT(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
                ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
    EXPECT_THAT(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
                ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Random, EverythingInTheKeyMattersAndNothingElse) {
    std::set<double> seen;
    for (const std::uint64_t seed : {0ull, 1ull, 1ull << 40}) {
        for (const std::uint64_t request : {0ull, 1ull, 1ull << 40}) {
            for (const Position position : {Position{0}, Position{1}, Position{1} << 20, Position{1} << 33}) {
                for (const RandomStream stream : {RandomStream::draft, RandomStream::accept, RandomStream::residual}) {
                    const double u = uniform(seed, request, position, stream);
                    EXPECT_TRUE(u >= 0 && u < 1);
                    EXPECT_EQ(u, uniform(seed, request, position, stream));
                    seen.insert(u);
                }
            }
        }
    }
    EXPECT_EQ(seen.size(), 3u * 3u * 4u * 3u);
}

TEST(Random, StreamsAreUncorrelated) {
    // Means of products of centred uniforms over 40,000 positions: standard deviation 1/12/sqrt(n) = 4.2e-4 if
    // independent.
    constexpr int kCount = 40000;
    const RandomStream streams[] = {RandomStream::draft, RandomStream::accept, RandomStream::residual};
    for (int a = 0; a < 3; ++a) {
        for (int b = a + 1; b < 3; ++b) {
            double sum = 0;
            for (int i = 0; i < kCount; ++i)
                sum += (uniform(7, 3, i, streams[a]) - 0.5) * (uniform(7, 3, i, streams[b]) - 0.5);
            EXPECT_LT(std::abs(sum / kCount), 4 * 4.2e-4);
        }
    }
}

SamplingSettings settings(float temperature, std::int64_t top_k = 0, float top_p = 1, float min_p = 0) {
    SamplingSettings s;
    s.temperature = temperature;
    s.top_k = top_k;
    s.top_p = top_p;
    s.min_p = min_p;
    return s;
}

// Logits whose softmax at temperature 1 is {.4, .3, .2, .1} for tokens 2, 0, 3, 1.
std::vector<float> known_logits() { return {std::log(0.3f), std::log(0.1f), std::log(0.4f), std::log(0.2f)}; }

void expect_distribution(const TokenDistribution& found, const std::map<TokenId, double>& expected) {
    ASSERT_EQ(found.ids.size(), expected.size());
    ASSERT_EQ(found.probabilities.size(), expected.size());
    std::size_t i = 0;
    for (const auto& [token, probability] : expected) {  // a map: ascending, as the ids must be
        EXPECT_EQ(found.ids[i], token);
        EXPECT_NEAR(found.probabilities[i], probability, 1e-6) << "token " << token;
        ++i;
    }
}

TEST(TargetDistribution, FiltersInTheOrderTopKTopPMinP) {
    const std::vector<float> logits = known_logits();
    expect_distribution(target_distribution(logits, settings(1)), {{0, .3}, {1, .1}, {2, .4}, {3, .2}});
    expect_distribution(target_distribution(logits, settings(1, 3)), {{0, 3. / 9}, {2, 4. / 9}, {3, 2. / 9}});
    // Mass before: 0, .4, .7, .9. The token that crosses the threshold is kept.
    expect_distribution(target_distribution(logits, settings(1, 0, .5f)), {{0, 3. / 7}, {2, 4. / 7}});
    expect_distribution(target_distribution(logits, settings(1, 0, .75f)), {{0, 3. / 9}, {2, 4. / 9}, {3, 2. / 9}});
    expect_distribution(target_distribution(logits, settings(1, 0, 1e-6f)), {{2, 1.}});
    // Mass that equals top-p exactly is enough.
    expect_distribution(target_distribution(std::vector<float>{1.f, 1.f}, settings(1, 0, .5f)), {{0, 1.}});
    // Top-p works on what top-k left: of {4, 3} / 7 the first already reaches 0.5.
    expect_distribution(target_distribution(logits, settings(1, 2, .5f)), {{2, 1.}});
    // 0.2 / 0.4 is the bound: half as likely as the best.
    expect_distribution(target_distribution(logits, settings(1, 0, 1, .45f)), {{0, 3. / 9}, {2, 4. / 9}, {3, 2. / 9}});
    expect_distribution(target_distribution(logits, settings(1, 0, .95f, .3f)),
                        {{0, 3. / 9}, {2, 4. / 9}, {3, 2. / 9}});
    // Temperature 0.5 squares the odds.
    expect_distribution(target_distribution(logits, settings(.5f)),
                        {{0, .09 / .3}, {1, .01 / .3}, {2, .16 / .3}, {3, .04 / .3}});
}

TEST(TargetDistribution, TiesKeepTheLowestIdsAndPoisonedRowsStillDraw) {
    const std::vector<float> tied(6, 1.5f);
    expect_distribution(target_distribution(tied, settings(1, 2)), {{0, .5}, {1, .5}});
    const float nan = std::nanf("");
    expect_distribution(target_distribution(std::vector<float>{nan, 0.f, nan, 0.f}, settings(1)), {{1, .5}, {3, .5}});
    expect_distribution(target_distribution(std::vector<float>{nan, nan}, settings(1, 1, .5f)), {{0, 1.}});
    const std::vector<TokenId> ids{9, 4};
    expect_distribution(candidate_distribution(ids, std::vector<float>{nan, nan}, 1), {{9, 1.}});
    expect_distribution(candidate_distribution(ids, std::vector<float>{0.f, nan}, 1), {{9, 1.}});
}

TEST(TargetDistribution, ALargeNucleusIsFoundWhereverItEnds) {
    // 1000 equal tokens behind 10 dear ones: the nucleus ends far behind the part that is ranked first.
    std::vector<float> logits(1010, 0.f);
    for (std::size_t i = 0; i < 10; ++i) logits[101 * i] = 3.f;
    const double total = 1000 + 10 * std::exp(3.);
    for (const double top_p : {.05, .2, .5, .9, .999}) {
        const auto kept = target_distribution(logits, settings(1, 0, static_cast<float>(top_p)));
        const double dear = 10 * std::exp(3.) / total;
        const double expected =
            top_p <= dear ? std::ceil(top_p * total / std::exp(3.)) : 10 + std::ceil((top_p - dear) * total);
        EXPECT_NEAR(static_cast<double>(kept.ids.size()), expected, 1) << top_p;
        EXPECT_TRUE(std::is_sorted(kept.ids.begin(), kept.ids.end()));
    }
    const float infinity = std::numeric_limits<float>::infinity();
    expect_distribution(target_distribution(std::vector<float>{0.f, infinity}, settings(1, 1)), {{1, 1.}});
}

TEST(Draw, InvertsTheCumulativeSum) {
    const TokenDistribution d{{3, 5, 8}, {.25, .5, .25}};
    EXPECT_EQ(draw(d, 0), 3u);
    EXPECT_EQ(draw(d, .2499), 3u);
    EXPECT_EQ(draw(d, .25), 5u);
    EXPECT_EQ(draw(d, .7499), 5u);
    EXPECT_EQ(draw(d, .75), 8u);
    EXPECT_EQ(draw({{3, 5}, {.5, .5 - 1e-16}}, 1 - 0x1p-53), 5u);  // a sum below u
}

// Exact output marginal of one position: proposals from q, the rejection test, the residual. The probability that the
// test accepts is found from `accepts` itself, by bisection over u.
std::vector<double> output_marginal(const TokenDistribution& p, const TokenDistribution& q, std::size_t vocab) {
    std::vector<double> marginal(vocab, 0);
    const TokenDistribution residual = residual_distribution(p, q);
    for (std::size_t i = 0; i < q.ids.size(); ++i) {
        const TokenId token = q.ids[i];
        double low = 0, high = 1;
        if (!accepts(p, q, token, low)) high = 0;
        if (accepts(p, q, token, 1 - 0x1p-53)) low = 1;
        for (int step = 0; step < 60 && low < high; ++step) {
            const double middle = (low + high) / 2;
            (accepts(p, q, token, middle) ? low : high) = middle;
        }
        marginal[token] += q.probabilities[i] * high;
        for (std::size_t j = 0; j < residual.ids.size(); ++j)
            marginal[residual.ids[j]] += q.probabilities[i] * (1 - high) * residual.probabilities[j];
    }
    return marginal;
}

TEST(Lossless, TheOutputMarginalIsTheTargetsWhateverTheDraftProposes) {
    const TokenDistribution p{{0, 1, 2}, {.5, .3, .2}};
    const TokenDistribution cases[] = {
        {{0, 1}, {.7, .3}},           // interior, and token 2 is never drafted
        {{0, 1, 2}, {.5, .3, .2}},    // q = p: everything accepted, no residual
        {{2}, {1.}},                  // a point mass
        {{3, 4}, {.5, .5}},           // the target gives the drafted tokens nothing
        {{0, 3}, {.6, .4}},           // half of it
        {{0, 1, 2}, {.1, .1, .8}},    // interior, too much on an unlikely token
        {{1, 2}, {1 - 1e-12, 1e-12}}  // nearly a point
    };
    for (const TokenDistribution& q : cases) {
        const std::vector<double> marginal = output_marginal(p, q, 5);
        for (TokenId token = 0; token < 5; ++token) EXPECT_NEAR(marginal[token], p.probability(token), 1e-12);
    }
    // The worked example of the specification.
    EXPECT_TRUE(accepts(p, cases[0], 0, 5. / 7 - 1e-9));
    EXPECT_FALSE(accepts(p, cases[0], 0, 5. / 7 + 1e-9));
    expect_distribution(residual_distribution(p, cases[0]), {{2, 1.}});
    expect_distribution(residual_distribution(p, p), {{0, .5}, {1, .3}, {2, .2}});
    EXPECT_FALSE(accepts(p, cases[3], 3, 0));  // no mass in the target: never accepted, not even by u = 0
}

TEST(Lossless, RandomDistributionsOverFiveTokens) {
    std::uint64_t counter = 0;
    const auto random = [&counter] { return uniform(99, 0, static_cast<Position>(counter++), RandomStream::draft); };
    for (int round = 0; round < 500; ++round) {
        TokenDistribution d[2];
        for (TokenDistribution& distribution : d) {
            double total = 0;
            for (TokenId token = 0; token < 5; ++token) {
                if (random() < 0.3 && !(token == 4 && distribution.ids.empty())) continue;
                distribution.ids.push_back(token);
                distribution.probabilities.push_back(random() + 1e-3);
                total += distribution.probabilities.back();
            }
            for (double& probability : distribution.probabilities) probability /= total;
        }
        const std::vector<double> marginal = output_marginal(d[0], d[1], 5);
        for (TokenId token = 0; token < 5; ++token) ASSERT_NEAR(marginal[token], d[0].probability(token), 1e-12);
    }
}

TEST(CheckSampling, NamesTheSetting) {
    EXPECT_TRUE(check_sampling(settings(0)).ok());
    EXPECT_TRUE(check_sampling(settings(1, 20, .95f, .05f)).ok());
    EXPECT_THAT(check_sampling(settings(-1)).message(), HasSubstr("temperature is -1"));
    EXPECT_THAT(check_sampling(settings(std::nanf(""))).message(), HasSubstr("temperature"));
    EXPECT_THAT(check_sampling(settings(1, -2)).message(), HasSubstr("top-k is -2"));
    EXPECT_THAT(check_sampling(settings(1, 0, 0)).message(), HasSubstr("top-p is 0"));
    EXPECT_THAT(check_sampling(settings(1, 0, 1, 1)).message(), HasSubstr("min-p is 1"));
    EXPECT_TRUE(settings(1e-6f).greedy());
    EXPECT_TRUE(settings(std::nanf("")).greedy());
    EXPECT_FALSE(settings(.1f).greedy());
}

}  // namespace
}  // namespace draftprobe::decode
