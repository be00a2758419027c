#include "compare/series.h"

#include <algorithm>

namespace draftprobe {
namespace {

void fold(SeriesPoint& into, const SeriesPoint& point) {
    into.pairs += point.pairs;
    into.draft_drift = std::max(into.draft_drift, point.draft_drift);
    into.target_drift = std::max(into.target_drift, point.target_drift);
    into.confidence_change = std::max(into.confidence_change, point.confidence_change);
    into.verified_control += point.verified_control;
    into.verified_treated += point.verified_treated;
    into.retained_control += point.retained_control;
    into.retained_treated += point.retained_treated;
    into.exposure += point.exposure;
}

}  // namespace

void Series::add(const SeriesPoint& pair) {
    if (!points_.empty() && points_.back().pairs < pairs_per_point_) {
        fold(points_.back(), pair);
        return;
    }
    if (points_.size() == kPoints) {
        for (std::size_t i = 0; i < kPoints / 2; ++i) {
            points_[i] = points_[2 * i];
            fold(points_[i], points_[2 * i + 1]);
        }
        points_.resize(kPoints / 2);
        pairs_per_point_ *= 2;
    }
    points_.push_back(pair);
}

}  // namespace draftprobe
