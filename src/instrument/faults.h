// Fault injection: real defects of restoring engines, put into a lane's memory so that the engine really reads them.
//
// A fault changes bytes or indices that the draft or target uses afterwards. Nothing here edits a capture, a digest or
// a verdict: a lane's own bookkeeping says what it said in the broken engine. docs/faults.md shows what each one leads
// to.
//
// A fault acts at one of these places of a restored arm, in this order:
//   checkpoint   the snapshot, after it was taken                  FaultInjector
//   copy         the lane, between the copy and a ring rebuild     CopyFaults, called by the restore
//   restored     the lane, when the restore believes it is done    FaultInjector
//   prefill      the lane, when the rest of the prompt is computed FaultInjector
//   decode       around the draft and after a commit               FaultInjector
// Two act in an arm that should compute everything: cached-control and unreset-row.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "state/lane.h"
#include "state/ledger.h"
#include "state/restore_form.h"

namespace draftprobe::instrument {

struct FaultDescription {
    std::string_view name;
    std::string_view argument;  // what stands after '=', with its unit
    std::string_view text;      // one line
};
std::span<const FaultDescription> list_faults();

enum class FaultKind {
    context_shift,
    rows_unwritten,
    stale_occupant,
    stale_anchor,
    window_off_by_one,
    position_base,
    missing_component,
    mislabelled_checkpoint,
    double_quantisation,
    alias_snapshot,
    unwritten_cell,
    flip,
    empty_restore,
    cached_control,
    draft_nothing,
    checkpoint_inside_step,
    pending_row,
    unreset_row,
    prefix_again,
    suffix_unwritten,
    split_slots,
    unsaved_component,
};

// Whether the fault spoils an arm that should compute everything, and so none that restores.
constexpr bool spoils_computing_arm(FaultKind kind) {
    return kind == FaultKind::cached_control || kind == FaultKind::unreset_row;
}

// Whether the fault leaves a checkpoint that a sound restore would refuse, and so needs one that takes it as it is.
constexpr bool spoils_checkpoint(FaultKind kind) {
    return kind == FaultKind::mislabelled_checkpoint || kind == FaultKind::checkpoint_inside_step ||
           kind == FaultKind::alias_snapshot;
}

// What lies in slots that a restore claims and never wrote.
enum class UnwrittenContent { occupant, poison, zeros };

// What the first draft after a restore is paired with wrongly.
enum class StaleAnchor { token, row };

struct Fault {
    FaultKind kind = FaultKind::context_shift;
    Position number = 0;  // the number of the argument; 0 with `all`
    bool all = false;
    state::Component component = state::Component::target_kv;
    UnwrittenContent content = UnwrittenContent::occupant;
    StaleAnchor anchor = StaleAnchor::token;
    std::string spelling;  // "context-shift=32", as it is recorded in the capture
};

// "NAME=ARG". Fails with invalid_argument naming what was found and the faults that exist.
Result<Fault> parse_fault(std::string_view text);

// What decides whether a fault can act in a restored arm.
struct FaultRun {
    Position boundary = 0;
    Position prompt_length = 0;
    state::DraftRestore draft = state::DraftRestore::exact;
    state::TargetRestore target = state::TargetRestore::exact;
    bool move = true;  // into a lane that another request used
};

// Refuses a fault whose bytes nothing would read, or that has no bytes: what never acted must not look like a verdict.
// docs/faults.md has the table. Errors: invalid_argument naming the fault, what it needs and what was found.
Status check_faults(std::span<const Fault> faults, const state::StateShape& shape, const FaultRun& run);

// What a lane's slots held before a restore: the previous occupant's bytes.
struct LaneMemory {
    state::StoredRows rows;
    std::vector<state::StoredRows> keys;
    std::vector<state::StoredRows> values;
    state::RecurrentCell cell;
    std::vector<std::vector<std::byte>> pages;  // canonical bytes of the target's KV pages below the boundary
};

// The faults that act while a restore copies. Made before the lane is touched; a draft component means the context rows
// and the rings made from them, the rings alone are draft_ring.
class CopyFaults {
public:
    // Remembers the lane's memory below `boundary` when some fault needs it. Errors: those of KvPages::reserve.
    static Result<CopyFaults> before_restore(std::span<const Fault> faults, state::Lane& lane, Position boundary);

    // Call after the copy and before a rebuild of the rings. `rings`: the copy filled them too. Errors:
    // invalid_argument for a flip behind the component's end; every other fault has acted then.
    Status apply(state::Lane& lane, bool rings) const;

private:
    std::vector<Fault> faults_;
    LaneMemory before_;
    Position boundary_ = 0;
};

// Inverts the eight bits of byte `offset` of the canonical bytes of the lane's component; false behind their end.
bool flip_byte(state::Lane& lane, state::Component component, std::size_t offset);
// The byte that a flip fault names. Errors: invalid_argument behind the component's end.
Status flip_restored_byte(state::Lane& lane, const Fault& fault);

}  // namespace draftprobe::instrument
