// Statistics of acceptance: per arm, over matched pairs, and over prompts. Inside compare/ only.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "compare/comparison.h"

namespace draftprobe {

inline constexpr std::int64_t kPromptsForPopulation = 10;

// Product-limit counts of one arm. Memory: one entry per position of the block.
class SurvivalCounter {
public:
    void add(const StepRecord& step);
    Survival estimate() const;

private:
    std::vector<std::int64_t> rejected_;  // [i]: ended after i matches
    std::vector<std::int64_t> censored_;  // [i]: known only to be at least i
};

void add_step(const StepRecord& step, ArmAcceptance& arm);
void add_pair(const StepRecord& control, const StepRecord& treated, PairedAcceptance& paired);

// Means by prompt of a value per pair. Memory: one entry per prompt.
class PromptMeans {
public:
    void add(std::size_t prompt, double value) {
        Sums& sums = prompts_[prompt];
        sums.value += value;
        ++sums.pairs;
    }
    // In the order of the prompts' numbers.
    std::vector<double> means() const;

private:
    struct Sums {
        double value = 0;
        std::int64_t pairs = 0;
    };
    std::map<std::size_t, Sums> prompts_;
};

// Requires at least kPromptsForPopulation means. 2000 bootstrap samples over prompts with a fixed seed; beyond
// kBootstrapPrompts prompts the normal approximation, which is then as good.
inline constexpr std::size_t kBootstrapPrompts = 10000;
PopulationEffect effect_over_prompts(const std::vector<double>& means);

}  // namespace draftprobe
