// What a request asks of its lane.
#pragma once

#include <optional>

#include "budget/controller.h"
#include "decode/acceptance.h"
#include "decode/sampling.h"

namespace draftprobe::decode {

struct Request {
    RequestLimits limits = {};
    LaneSampling sampling = {};
    // Sets the verify rows of greedy cycles; none: all of them. Sampled requests verify all rows whatever it says.
    std::optional<budget::Controller> controller = {};
};

}  // namespace draftprobe::decode
