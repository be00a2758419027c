// Median and spread of a few repeated measurements.
#pragma once

#include <algorithm>
#include <cassert>
#include <vector>

namespace draftprobe::bench {

// Above this spread, differences between medians mean nothing.
inline constexpr double kMaxSpread = 0.20;

struct Summary {
    double median = 0;
    double min = 0;
    double max = 0;
    double spread() const { return median > 0 ? (max - min) / median : 0.0; }
    bool inconclusive() const { return spread() > kMaxSpread; }
};

// Requires at least one value.
inline Summary summarise(std::vector<double> values) {
    assert(!values.empty());
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    const double median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
    return {median, values.front(), values.back()};
}

}  // namespace draftprobe::bench
