// How far margins move when nothing but the schedule differs: what makes a flip a near-tie (capture.h, NearTie).
//
// Measured on other prompts than the one that is judged: rotations of it, each prefilled in two schedules and decoded:
// with a cut at the boundary, and without one, or, where chunks end at the boundary anyway, with a cut half a chunk
// before it; the second in lockstep with the first, so that no flip ends the measuring before shifts
// have grown as large as they get. Rows are paired as a comparison pairs them (equal context, equal proposals before
// the row); selector margins only where both chose among the same candidates, since what is a candidate is a decision
// of its own. Where the winner changed, the shift is the sum of both margins. Thresholds are the 99.9th percentiles,
// nearest rank: 1000 samples are the fewest that have one, and below that it is the largest shift. `samples` counts
// target rows; the width threshold is 0, since a full budget has no width to choose. With chunks of one token there is
// only one schedule: nothing is measured, and there are 0 samples.
#pragma once

#include <vector>

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

// A prefill whose chunks end at the multiples of --chunk-tokens and at `cut`.
struct Schedule {
    Position cut = 0;  // 0: none
};
struct SchedulePair {
    Schedule first;
    Schedule second;
};
// The two schedules that are measured; they differ unless chunk is 1. chunk >= 1.
SchedulePair near_tie_schedules(Position boundary, Position chunk);
// Where the chunks of a prompt of `length` tokens end, ascending, the last one at `length`.
std::vector<Position> schedule_ends(const Schedule& schedule, Position length, Position chunk);

// Uses the request's prompt, boundary and cycles and the settings' engine. Errors: as run_arm; invalid_argument when
// sampling.
Result<NearTie> measure_near_tie(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings);

}  // namespace draftprobe::probe
