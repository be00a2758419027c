#include "decode/cycle_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <chrono>

namespace draftprobe::decode {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace

Result<std::vector<double>> measure_cycle_costs(EngineCore& core, std::span<const int> ids, Drafter& drafter,
                                                std::size_t repeats) {
    assert(repeats >= 1 && !ids.empty());
    std::vector<state::Lane*> lanes;
    for (const int id : ids) lanes.push_back(&core.lane(id));
    const std::size_t block = core.settings().block;
    DraftOutput draft;
    ForwardOutput forward;
    std::vector<std::vector<double>> taken(block);
    // One run more than asked for: the first touches memory that the others find warm.
    for (std::size_t repeat = 0; repeat <= repeats; ++repeat) {
        for (std::size_t width = 1; width <= block; ++width) {
            const Clock::time_point start = Clock::now();
            drafter.propose(lanes, {}, draft);
            std::vector<std::vector<TokenId>> rows;
            std::vector<Segment> segments;
            for (std::size_t i = 0; i < lanes.size(); ++i) {
                const std::vector<TokenId>& proposals = draft.choices[i].proposals;
                if (proposals.size() + 1 < block)
                    return invalid_argument(fmt::format("cycle costs: found {} proposals on lane {}, expected {}",
                                                        proposals.size(), lanes[i]->id(), block - 1));
                rows.push_back({lanes[i]->anchor});
                rows[i].insert(rows[i].end(), proposals.begin(),
                               proposals.begin() + static_cast<std::ptrdiff_t>(width - 1));
            }
            for (std::size_t i = 0; i < lanes.size(); ++i)
                segments.push_back({lanes[i], rows[i], LogitRows::all, true});
            DP_RETURN_IF_ERROR(core.target_forward().run(segments, forward));
            if (repeat > 0) taken[width - 1].push_back(seconds_since(start));
        }
    }
    std::vector<double> costs;
    for (std::vector<double>& times : taken) costs.push_back(median(std::move(times)));
    return costs;
}

}  // namespace draftprobe::decode
