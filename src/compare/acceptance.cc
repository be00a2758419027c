#include "compare/acceptance.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace draftprobe {
namespace {

constexpr std::uint64_t kBootstrapSeed = 0x64726166747072ULL;
constexpr std::size_t kBootstrapSamples = 2000;
// 80 % power at 5 % two-sided: 0.8416 + 1.9600 standard errors.
constexpr double kDetectableErrors = 2.8016;
constexpr double kIntervalErrors = 1.9600;

void count(std::vector<std::int64_t>& counts, std::int64_t at) {
    const auto index = static_cast<std::size_t>(at);
    if (counts.size() <= index) counts.resize(index + 1);
    ++counts[index];
}

std::uint64_t splitmix64(std::uint64_t& state) {
    state += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

}  // namespace

void SurvivalCounter::add(const StepRecord& step) {
    const ObservedAcceptance seen = observed_acceptance(step);
    if (!seen.at_risk) return;
    count(seen.rejected ? rejected_ : censored_, seen.length);
}

// Position i (from 1) is at risk when the first i - 1 matched and the i-th was seen: sequences that were rejected at i
// or later, and those censored after i or more.
Survival SurvivalCounter::estimate() const {
    Survival result;
    const auto at = [](const std::vector<std::int64_t>& counts, std::size_t i) {
        return i < counts.size() ? counts[i] : 0;
    };
    const std::size_t last = std::max(rejected_.size() + 1, censored_.size());
    std::int64_t rejected_later = 0;
    std::int64_t censored_later = 0;
    for (std::int64_t n : rejected_) rejected_later += n;
    for (std::int64_t n : censored_) censored_later += n;
    double survival = 1.0;
    for (std::size_t position = 1; position < last; ++position) {
        censored_later -= at(censored_, position - 1);
        if (position >= 2) rejected_later -= at(rejected_, position - 2);
        const std::int64_t at_risk = rejected_later + censored_later;
        if (at_risk == 0) break;
        const std::int64_t rejected = at(rejected_, position - 1);
        survival *= 1.0 - static_cast<double>(rejected) / static_cast<double>(at_risk);
        result.at_risk.push_back(at_risk);
        result.rejected.push_back(rejected);
        result.survival.push_back(survival);
    }
    return result;
}

void add_step(const StepRecord& step, ArmAcceptance& arm) {
    ++arm.lane_cycles;
    arm.drafted += step.drafted;
    arm.verified += step.verified;
    arm.accepted += step.accepted;
    arm.retained += step.retained;
    // A forced step's tokens are the control's: how many there were says nothing about this arm's output.
    arm.forced_cycles += step.forced;
    if (!step.forced) arm.emitted += step.emitted;
}

void add_pair(const StepRecord& control, const StepRecord& treated, PairedAcceptance& paired) {
    paired.retained_control += control.retained;
    paired.retained_treated += treated.retained;
    const ObservedAcceptance c = observed_acceptance(control);
    const ObservedAcceptance t = observed_acceptance(treated);
    // Position i is at risk where it was seen: after i - 1 matches, rejected or matched, not censored before.
    const auto seen = [](const ObservedAcceptance& o) { return o.at_risk ? o.length + (o.rejected ? 1 : 0) : 0; };
    const std::int64_t both = std::min(seen(c), seen(t));
    for (std::int64_t i = 0; i < both; ++i) {
        count(paired.at_risk, i);
        if (c.length > i) count(paired.accepted_control, i);
        if (t.length > i) count(paired.accepted_treated, i);
    }
    paired.accepted_control.resize(paired.at_risk.size());
    paired.accepted_treated.resize(paired.at_risk.size());
}

std::vector<double> PromptMeans::means() const {
    std::vector<double> result;
    for (const auto& [prompt, sums] : prompts_) result.push_back(sums.value / static_cast<double>(sums.pairs));
    return result;
}

PopulationEffect effect_over_prompts(const std::vector<double>& means) {
    const std::size_t n = means.size();
    assert(n >= static_cast<std::size_t>(kPromptsForPopulation));
    PopulationEffect effect;
    effect.prompts = static_cast<std::int64_t>(n);
    for (double mean : means) effect.difference += mean;
    effect.difference /= static_cast<double>(n);
    double squares = 0;
    for (double mean : means) squares += (mean - effect.difference) * (mean - effect.difference);
    const double error = std::sqrt(squares / static_cast<double>(n - 1) / static_cast<double>(n));
    effect.minimum_detectable = kDetectableErrors * error;
    if (n > kBootstrapPrompts) {
        effect.low = effect.difference - kIntervalErrors * error;
        effect.high = effect.difference + kIntervalErrors * error;
        effect.p_value = error > 0 ? std::erfc(std::fabs(effect.difference) / error / std::sqrt(2.0))
                                   : (effect.difference == 0 ? 1.0 : 0.0);
        return effect;
    }
    std::vector<double> samples(kBootstrapSamples);
    std::uint64_t state = kBootstrapSeed;
    std::int64_t below = 0;
    std::int64_t above = 0;
    for (double& sample : samples) {
        double sum = 0;
        for (std::size_t i = 0; i < n; ++i) sum += means[splitmix64(state) % n];
        sample = sum / static_cast<double>(n);
        below += sample <= 0;
        above += sample >= 0;
    }
    std::sort(samples.begin(), samples.end());
    effect.low = samples[kBootstrapSamples * 25 / 1000];
    effect.high = samples[kBootstrapSamples * 975 / 1000];
    effect.p_value = std::min(1.0, 2.0 * double(std::min(below, above) + 1) / double(kBootstrapSamples + 1));
    return effect;
}

}  // namespace draftprobe
