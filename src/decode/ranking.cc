#include "decode/ranking.h"

#include <algorithm>
#include <cmath>

namespace draftprobe::decode {

namespace {
bool ranks_before(const RankedLogit& a, const RankedLogit& b) {
    const bool a_nan = std::isnan(a.logit);
    const bool b_nan = std::isnan(b.logit);
    if (a_nan != b_nan) return b_nan;
    if (!a_nan && a.logit != b.logit) return a.logit > b.logit;
    return a.token < b.token;
}
}  // namespace

std::vector<RankedLogit> top_logits(std::span<const float> logits, std::size_t count) {
    count = std::min(count, logits.size());
    // A heap of the best so far, worst on top: one pass, and few logits get past the first comparison.
    std::vector<RankedLogit> best;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const RankedLogit entry{static_cast<TokenId>(i), logits[i]};
        if (best.size() < count) {
            best.push_back(entry);
            std::push_heap(best.begin(), best.end(), ranks_before);
        } else if (count > 0 && ranks_before(entry, best.front())) {
            std::pop_heap(best.begin(), best.end(), ranks_before);
            best.back() = entry;
            std::push_heap(best.begin(), best.end(), ranks_before);
        }
    }
    std::sort(best.begin(), best.end(), ranks_before);
    return best;
}

TokenId argmax(std::span<const float> logits) {
    RankedLogit best{0, logits[0]};
    for (std::size_t i = 1; i < logits.size(); ++i) {
        const RankedLogit entry{static_cast<TokenId>(i), logits[i]};
        if (ranks_before(entry, best)) best = entry;
    }
    return best.token;
}

}  // namespace draftprobe::decode
