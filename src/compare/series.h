// Per-cycle points for the page, folded so that memory stays bounded: when the list is full, neighbours are merged and
// each point stands for twice as many pairs. Inside compare/ only.
#pragma once

#include <cstddef>
#include <vector>

#include "compare/comparison.h"

namespace draftprobe {

class Series {
public:
    static constexpr std::size_t kPoints = 512;

    void add(const SeriesPoint& pair);
    std::vector<SeriesPoint> take() { return std::move(points_); }

private:
    std::vector<SeriesPoint> points_;
    std::int64_t pairs_per_point_ = 1;
};

}  // namespace draftprobe
