// How far margins move when nothing but the schedule differs: what makes a flip a near-tie (capture.h, NearTie).
//
// Measured on other prompts than the one that is judged: rotations of it, each prefilled with the cut at the boundary
// and without it, and decoded; the second in lockstep with the first, so that no flip ends the measuring before shifts
// have grown as large as they get. Rows are paired as a comparison pairs them (equal context, equal proposals before
// the row); selector margins only where both chose among the same candidates, since what is a candidate is a decision
// of its own. Where the winner changed, the shift is the sum of both margins. Thresholds are the 99.9th percentiles,
// nearest rank: 1000 samples are the fewest that have one, and below that it is the largest shift. `samples` counts
// target rows; the width threshold is 0, since a full budget has no width to choose.
#pragma once

#include "probe/probe.h"

namespace draftprobe::probe {

inline constexpr std::size_t kNearTieSamples = 1000;    // of target rows, and of selector positions, aimed at
inline constexpr std::size_t kNearTieLeastPrompts = 8;  // rows of one prompt are alike: samples of several are wanted
inline constexpr std::size_t kNearTiePrompts = 32;      // rotations tried at most

// A decision between a best and a second choice.
struct Decision {
    TokenId winner = 0;
    float margin = 0;
};
// By how much the lead of a's winner moved from a to b. Where b has another winner it fell to b's margin below 0, at
// least; the difference of both margins would call small the very shifts that flip.
double margin_shift(const Decision& a, const Decision& b);

// Uses the request's prompt, boundary and cycles and the settings' engine. Errors: as run_arm; invalid_argument when
// sampling.
Result<NearTie> measure_near_tie(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings);

}  // namespace draftprobe::probe
