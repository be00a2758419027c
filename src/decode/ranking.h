// Ranking of logits with a total order: value descending, then token id ascending; NaN ranks below everything.
#pragma once

#include <span>
#include <vector>

#include "base/types.h"

namespace draftprobe::decode {

struct RankedLogit {
    TokenId token = 0;
    float logit = 0;
};

// The first `count` tokens in rank order (fewer when there are fewer logits).
std::vector<RankedLogit> top_logits(std::span<const float> logits, std::size_t count);

// The first in rank order: ties go to the lowest id. Requires at least one logit.
TokenId argmax(std::span<const float> logits);

}  // namespace draftprobe::decode
