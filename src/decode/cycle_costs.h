// What a cycle costs at each verify width: the measured table that a verify budget divides by.
#pragma once

#include <span>
#include <vector>

#include "decode/drafter.h"
#include "decode/engine_core.h"

namespace draftprobe::decode {

// Seconds of one cycle of `lanes` (distinct, each with an anchor) at widths 1..block, entry r - 1 for r rows: the draft
// and a verification of r rows per lane, batched, without a commit. Each entry is the median of `repeats` runs, widths
// interleaved so that a slow moment does not fall on one width alone. Committed state is not touched: a verification
// writes scratch rows and the idle cell only. Errors: those of TargetForward::run;
// invalid_argument for a drafter that offers fewer proposals than a block holds.
Result<std::vector<double>> measure_cycle_costs(EngineCore& core, std::span<const int> lanes, Drafter& drafter,
                                                std::size_t repeats);

}  // namespace draftprobe::decode
