// Fault injection: real defects of restoring engines, put into a lane's memory so that the engine really reads them.
//
// A fault changes bytes that the draft or target uses afterwards. Nothing here edits a capture, a digest or a verdict.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "state/lane.h"

namespace draftprobe::instrument {

struct FaultDescription {
    std::string_view name;
    std::string_view argument;  // what stands after '=', with its unit
    std::string_view text;      // one line
};
std::span<const FaultDescription> list_faults();

enum class FaultKind { context_shift };

struct Fault {
    FaultKind kind = FaultKind::context_shift;
    Position shift = 0;    // context_shift: rows land this many positions too high (negative: too low), never 0
    std::string spelling;  // "context-shift=32", as it is recorded in the capture
};

// "NAME=ARG". Fails with invalid_argument naming what was found and the faults that exist.
Result<Fault> parse_fault(std::string_view text);

// The draft memory of a lane as it was before a restore: what the previous occupant left there.
struct DraftMemory {
    state::StoredRows rows;
    std::vector<state::StoredRows> keys;
    std::vector<state::StoredRows> values;
};
DraftMemory remember_draft_memory(const state::Lane& lane);

// context_shift: what a restore does that computes its destination with the wrong base. Every restored row is at
// position p + shift instead of p (lost when that is outside the claimed range), in the rings as well when `rings`;
// slots that no row landed on hold what was there before the restore (`before`). The lane's own bookkeeping keeps
// claiming what it claimed, as the broken engines' did. Call between restore_snapshot and the rebuilding of rings, if
// any.
void shift_context_rows(state::Lane& lane, const DraftMemory& before, Position shift, bool rings);

}  // namespace draftprobe::instrument
