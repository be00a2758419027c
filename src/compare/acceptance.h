// Statistics of acceptance: per arm, over matched pairs, and over prompts. Inside compare/ only.
#pragma once

#include <string>
#include <unordered_map>
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

// Paired retained tokens by request, for the effect over prompts. Memory: one entry per request.
class PromptEffects {
public:
    void add(const StepRecord& control, const StepRecord& treated);
    std::int64_t prompts() const { return static_cast<std::int64_t>(order_.size()); }
    // Requires prompts() >= kPromptsForPopulation. 2000 bootstrap samples over prompts, fixed seed.
    PopulationEffect estimate() const;

private:
    struct Sums {
        double difference = 0;
        std::int64_t pairs = 0;
    };
    std::unordered_map<std::string, std::size_t> index_;
    std::vector<Sums> order_;
};

}  // namespace draftprobe
