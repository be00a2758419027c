// Statistics that pool nothing silently: by exposure band, distance from the restore and tier; by position; by
// confidence; and over the order of requests. Each cell is its own population of prompts. Inside compare/ only.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture/capture.h"
#include "compare/acceptance.h"
#include "compare/comparison.h"

namespace draftprobe {

// Share of the draft's window that positions below the boundary take: "0 %", "1-25 %", "26-50 %", "51-75 %",
// "76-100 %". Without a window, of the committed length.
std::string_view exposure_band(const StepRecord& step, Position window);

// Committed tokens since the boundary: "0-31", "32-127", "128-511", "512 or more".
std::string_view distance_band(Position length, Position boundary);

// Holm's step-down adjustment within each dimension; cells without a p-value are left out of the count.
void adjust_by_holm(std::vector<Cell>& cells);
void adjust_by_holm(std::vector<PositionEffect>& cells);

// Acceptance at each position over prompts, at positions seen in both arms. Memory: prompts times block.
class PositionEffects {
public:
    void add(std::size_t prompt, const StepRecord& control, const StepRecord& treated);
    // One entry per position that was at risk, Holm-adjusted over them.
    std::vector<PositionEffect> estimate() const;

private:
    struct Sums {
        std::vector<std::int64_t> at_risk;
        std::vector<std::int64_t> difference;
    };
    std::vector<Sums> prompts_;
};

// Cells by exposure, distance and tier. Memory: prompts times cells.
class StrataCounter {
public:
    // `prompt` numbers the prompts; `differs`: anything compared in this pair does.
    void add(std::size_t prompt, const StepRecord& control, const StepRecord& treated, const CapturedRequest& request,
             const std::string& tier, bool differs);
    std::vector<Cell> estimate() const;

private:
    struct Counted {
        Cell cell;
        PromptMeans means;
    };
    std::map<std::pair<int, std::string>, Counted> cells_;
};

// Confidence against what came of it, per arm and exposure band.
class ReliabilityCounter {
public:
    void add(const StepRecord& step, Position window);
    std::vector<Reliability> take(const std::string& arm) const;

private:
    std::map<std::string, Reliability, std::less<>> bands_;
};

// Conditional match rates by stratum of prefix confidence. A position that was reached and not verified is unknown: the
// bounds take all of them as misses and as matches.
class HazardCounter {
public:
    void add(const StepRecord& step);
    std::vector<Hazard> take() const;

private:
    std::vector<Hazard> strata_;
};

// Least-squares line through the requests' mean accepted proposals a cycle, in order of their first cycle.
class TrendCounter {
public:
    void add(const StepRecord& step);
    std::optional<Trend> estimate() const;

private:
    struct Sums {
        std::int64_t accepted = 0;
        std::int64_t cycles = 0;
    };
    std::unordered_map<std::string, std::size_t> index_;
    std::vector<Sums> requests_;
};

}  // namespace draftprobe
