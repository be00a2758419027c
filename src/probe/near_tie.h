// How far margins move when nothing but the schedule differs: what makes a flip a near-tie (capture.h, NearTie).
//
// Measured on other prompts than the one that is judged: rotations of it, each prefilled with the cut at the boundary
// and without it, and decoded. Rows are paired as a comparison pairs them (equal context, equal proposals before the
// row). Thresholds are the 99.9th percentiles, nearest rank: below 1000 samples the largest shift. `samples` counts
// target rows; the width threshold is 0, since a full budget has no width to choose.
#pragma once

#include "probe/probe.h"

namespace draftprobe::probe {

inline constexpr std::size_t kNearTieSamples = 1000;  // target rows aimed at
inline constexpr std::size_t kNearTiePrompts = 32;    // rotations tried at most

// Uses the request's prompt, boundary and cycles and the settings' engine. Errors: as run_arm; invalid_argument when
// sampling.
Result<NearTie> measure_near_tie(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings);

}  // namespace draftprobe::probe
