// What must hold in a restored arm whatever the control says: made again, apart from the arm's own path, from what it
// depends on. A lossy restore form leaves nothing that equals the control, and these are what a fault is told from
// rounding by. Recorded beside what the arm holds (capture.h: expected, Witness); nothing here changes the arm.
#pragma once

#include <vector>

#include "capture/capture.h"
#include "decode/engine.h"
#include "probe/restore.h"

namespace draftprobe::probe {

// Adds to the ledger event of `snapshot` what the treatment's restore forms have to make of it, from the snapshot's
// bytes alone: the recurrent state under int8-state, context rows under rows-q4, rings under both forms that rebuild
// them. Call before any fault touches the snapshot, at level 2 and above.
void add_expected_restore(const state::Snapshot& snapshot, const RestoreTreatment& treatment, decode::EngineCore& core,
                          LedgerEvent& event);

// Adds to a ledger event of the lane the rings that its own context rows make, where all of both were written.
void add_expected_rings(const state::Lane& lane, decode::EngineCore& core, LedgerEvent& event);

// Hash of the float32 hidden rows that the draft makes of the lane as it stands.
std::uint64_t expected_draft_rows(state::Lane& lane, decode::EngineCore& core);
std::uint64_t hash_of_rows(numerics::ConstRows rows);

// The state of one head of every delta layer across a cycle: whatever a commit adopts without writing shows in any
// head, and one costs next to nothing.
class CommitWitness {
public:
    // Before the commit of the first `retained` of `rows` verified rows.
    void before(const state::Lane& lane, std::size_t rows, std::size_t retained);
    // The lane behind it; nothing without delta layers.
    std::optional<Witness> after(const state::Lane& lane) const;

private:
    std::vector<std::vector<float>> heads_;  // as they must be after the commit
};

}  // namespace draftprobe::probe
