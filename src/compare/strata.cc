#include "compare/strata.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace draftprobe {
namespace {

enum Dimension { kExposure, kDistance, kTier };
constexpr std::string_view kDimensions[] = {"exposure", "distance", "tier"};

// Positions at which the outcome of a step is known: the matches, and the rejection behind them.
std::int64_t seen_positions(const ObservedAcceptance& o) { return o.at_risk ? o.length + (o.rejected ? 1 : 0) : 0; }

template <typename Item>
void holm(std::vector<Item*> items) {
    std::sort(items.begin(), items.end(),
              [](const Item* a, const Item* b) { return a->effect->p_value < b->effect->p_value; });
    double highest = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
        const double scaled = items[i]->effect->p_value * static_cast<double>(items.size() - i);
        highest = std::max(highest, std::min(1.0, scaled));
        items[i]->adjusted_p = highest;
    }
}

std::size_t bucket_of(float confidence) {
    const double scaled = std::floor(static_cast<double>(confidence) * kConfidenceBuckets);
    return static_cast<std::size_t>(std::clamp(scaled, 0.0, double(kConfidenceBuckets - 1)));
}

}  // namespace

std::string_view exposure_band(const StepRecord& step, Position window) {
    const Position spanned = window == 0 ? step.length : std::min(step.length, std::max<Position>(1, window - 1));
    const std::int64_t seen = step.exposure.total;
    if (seen == 0 || spanned == 0) return "0 %";
    if (4 * seen <= spanned) return "1-25 %";
    if (2 * seen <= spanned) return "26-50 %";
    if (4 * seen <= 3 * spanned) return "51-75 %";
    return "76-100 %";
}

std::string_view distance_band(Position length, Position boundary) {
    const Position distance = length - boundary;
    if (distance < 32) return "0-31";
    if (distance < 128) return "32-127";
    if (distance < 512) return "128-511";
    return "512 or more";
}

void adjust_by_holm(std::vector<Cell>& cells) {
    for (std::string_view dimension : kDimensions) {
        std::vector<Cell*> family;
        for (Cell& cell : cells) {
            if (cell.dimension == dimension && cell.effect) family.push_back(&cell);
        }
        holm(std::move(family));
    }
}

void adjust_by_holm(std::vector<PositionEffect>& cells) {
    std::vector<PositionEffect*> family;
    for (PositionEffect& cell : cells) {
        if (cell.effect) family.push_back(&cell);
    }
    holm(std::move(family));
}

void PositionEffects::add(std::size_t prompt, const StepRecord& control, const StepRecord& treated) {
    const ObservedAcceptance c = observed_acceptance(control);
    const ObservedAcceptance t = observed_acceptance(treated);
    const auto both = static_cast<std::size_t>(std::min(seen_positions(c), seen_positions(t)));
    if (both == 0) return;
    if (prompts_.size() <= prompt) prompts_.resize(prompt + 1);
    Sums& sums = prompts_[prompt];
    if (sums.at_risk.size() < both) {
        sums.at_risk.resize(both);
        sums.difference.resize(both);
    }
    for (std::size_t i = 0; i < both; ++i) {
        ++sums.at_risk[i];
        const auto position = static_cast<std::int64_t>(i);
        sums.difference[i] += int(t.length > position) - int(c.length > position);
    }
}

std::vector<PositionEffect> PositionEffects::estimate() const {
    std::vector<PositionEffect> result;
    for (std::size_t position = 0;; ++position) {
        std::vector<double> means;
        for (const Sums& sums : prompts_) {
            if (position >= sums.at_risk.size()) continue;
            means.push_back(static_cast<double>(sums.difference[position]) / double(sums.at_risk[position]));
        }
        if (means.empty()) break;
        PositionEffect effect;
        effect.position = static_cast<std::int64_t>(position) + 1;
        effect.prompts = static_cast<std::int64_t>(means.size());
        if (effect.prompts >= kPromptsForPopulation) effect.effect = effect_over_prompts(means);
        result.push_back(std::move(effect));
    }
    adjust_by_holm(result);
    return result;
}

void StrataCounter::add(std::size_t prompt, const StepRecord& control, const StepRecord& treated,
                        const CapturedRequest& request, const std::string& tier, bool differs) {
    const std::pair<int, std::string> keys[] = {
        {kExposure, std::string(exposure_band(treated, request.window))},
        {kDistance, std::string(distance_band(treated.length, request.boundary))},
        {kTier, tier}};
    const ObservedAcceptance c = observed_acceptance(control);
    const ObservedAcceptance t = observed_acceptance(treated);
    const std::int64_t both = std::min(seen_positions(c), seen_positions(t));
    for (const auto& key : keys) {
        Counted& counted = cells_[key];
        Cell& cell = counted.cell;
        cell.dimension = kDimensions[static_cast<std::size_t>(key.first)];
        cell.band = key.second;
        ++cell.pairs;
        cell.differing += differs;
        cell.at_risk += both;
        cell.accepted_control += std::min(c.length, both);
        cell.accepted_treated += std::min(t.length, both);
        cell.retained_control += control.retained;
        cell.retained_treated += treated.retained;
        counted.means.add(prompt, static_cast<double>(treated.retained - control.retained));
    }
}

std::vector<Cell> StrataCounter::estimate() const {
    std::vector<Cell> cells;
    for (const auto& [key, counted] : cells_) {
        cells.push_back(counted.cell);
        const std::vector<double> means = counted.means.means();
        cells.back().prompts = static_cast<std::int64_t>(means.size());
        if (cells.back().prompts >= kPromptsForPopulation) cells.back().effect = effect_over_prompts(means);
    }
    adjust_by_holm(cells);
    return cells;
}

void ReliabilityCounter::add(const StepRecord& step, Position window) {
    const ObservedAcceptance seen = observed_acceptance(step);
    if (!seen.at_risk || step.prefix_confidence.empty()) return;
    const std::string_view band = exposure_band(step, window);
    auto found = bands_.find(band);
    if (found == bands_.end()) found = bands_.emplace(std::string(band), Reliability{}).first;
    Reliability& r = found->second;
    r.exposure = band;
    r.buckets.resize(kConfidenceBuckets);
    double predicted = 1;
    for (std::int64_t p = 0; p < step.verified; ++p) {
        const float confidence = step.prefix_confidence[static_cast<std::size_t>(p)];
        if (!(confidence >= 0 && confidence <= 1)) return;
        predicted += confidence;
        // A rejection settles its position and all behind it; what was censored is not known.
        if (!seen.rejected && p >= seen.length) break;
        const bool matched = p < seen.length;
        ReliabilityBucket& bucket = r.buckets[bucket_of(confidence)];
        ++bucket.positions;
        bucket.matched += matched;
        bucket.confidence += confidence;
        ++r.positions;
        r.squared_error += (confidence - matched) * (confidence - matched);
    }
    if (!seen.rejected && seen.length < step.verified) return;  // cut: its length at this width is not known
    WidthPrediction& width = r.widths[step.verified];
    ++width.cycles;
    width.predicted += predicted;
    width.realised += static_cast<double>(step.accepted + 1);
}

std::vector<Reliability> ReliabilityCounter::take(const std::string& arm) const {
    std::vector<Reliability> result;
    for (const auto& [band, reliability] : bands_) {
        result.push_back(reliability);
        result.back().arm = arm;
    }
    return result;
}

void HazardCounter::add(const StepRecord& step) {
    if (step.prefix_confidence.empty() || step.drafted == 0) return;
    strata_.resize(kConfidenceBuckets);
    const auto stratum = [&](std::int64_t p) -> Hazard* {
        const float confidence = step.prefix_confidence[static_cast<std::size_t>(p)];
        return confidence >= 0 && confidence <= 1 ? &strata_[bucket_of(confidence)] : nullptr;
    };
    const ObservedAcceptance seen = observed_acceptance(step);
    for (std::int64_t p = 0; p < seen_positions(seen); ++p) {
        if (Hazard* h = stratum(p)) {
            ++h->known;
            h->matched += p < seen.length;
        }
    }
    if (seen.rejected || seen.length >= step.drafted) return;
    if (Hazard* h = stratum(seen.length)) ++h->unknown;
}

std::vector<Hazard> HazardCounter::take() const {
    std::vector<Hazard> result;
    for (std::size_t i = 0; i < strata_.size(); ++i) {
        Hazard h = strata_[i];
        const double all = static_cast<double>(h.known + h.unknown);
        if (all == 0) continue;
        h.stratum = static_cast<std::int64_t>(i);
        h.low = static_cast<double>(h.matched) / all;
        h.high = static_cast<double>(h.matched + h.unknown) / all;
        result.push_back(h);
    }
    return result;
}

void TrendCounter::add(const StepRecord& step) {
    if (step.verified == 0) return;
    const auto [entry, inserted] = index_.try_emplace(step.request, requests_.size());
    if (inserted) requests_.emplace_back();
    Sums& sums = requests_[entry->second];
    sums.accepted += step.accepted;
    ++sums.cycles;
}

std::optional<Trend> TrendCounter::estimate() const {
    const auto n = static_cast<std::int64_t>(requests_.size());
    if (n < Trend::kRequests) return std::nullopt;
    const double count = static_cast<double>(n);
    const double middle = (count - 1) / 2;
    double mean = 0;
    for (const Sums& s : requests_) mean += double(s.accepted) / double(s.cycles);
    mean /= count;
    double xx = 0;
    double xy = 0;
    double yy = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        const Sums& s = requests_[static_cast<std::size_t>(i)];
        const double x = static_cast<double>(i) - middle;
        const double y = double(s.accepted) / double(s.cycles) - mean;
        xx += x * x;
        xy += x * y;
        yy += y * y;
    }
    Trend trend;
    trend.requests = n;
    const double slope = xy / xx;
    trend.first = mean - slope * middle;
    trend.last = mean + slope * middle;
    const double residual = std::max(0.0, yy - slope * xy);
    const double error = std::sqrt(residual / (count - 2) / xx);
    // A line that fits exactly has no error; rounding may leave a trace of one.
    trend.t = error > 1e-12 * std::fabs(slope) ? slope / error : slope == 0 ? 0 : std::copysign(1e6, slope);
    trend.flagged = std::fabs(trend.t) >= Trend::kErrors &&
                    std::fabs(trend.last - trend.first) >= Trend::kShare * std::max(std::fabs(mean), 1e-9);
    return trend;
}

}  // namespace draftprobe
