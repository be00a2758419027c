// A snapshot: an immutable copy of a lane's composite state, with the identity of what made it.
//
// Prefix snapshots stand at a page-aligned boundary without an anchor. A snapshot of a request in progress (suspend)
// may stand anywhere; it carries the pending anchor and the rest of the request (RequestRecord).
//
// Restoring copies out of a snapshot, so a borrower can never write into it; copies of a snapshot share its bytes until
// one of them is changed.
// Restore checks identity, shape, ranges, sizes, the checksum of every page and what the recurrent state consumed
// *before* it touches the lane: a refused restore leaves the lane bit-identical.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "state/identity.h"
#include "state/ledger.h"
#include "state/payload.h"
#include "state/request_record.h"
#include "state/restore_form.h"

namespace draftprobe::state {

// One ledger entry with its payload. Every claimed row was written: take_snapshot sees to it.
struct SnapshotComponent {
    Component component = Component::target_kv;
    Position first = 0;  // covered range [first, last)
    Position last = 0;
    Position base = 0;                 // position of the component's row 0
    std::vector<SourceRange> sources;  // where the rows came from in the lane that was copied
    // Of the recurrent components: tokens that the state consumed. Another number than the label is refused by a
    // restore (Label), else passed on to the lane's ledger.
    Position consumed = 0;
    Payload bytes;  // canonical layout (state/canonical.h); every page lies in one block
    // XXH3-64 of each canonical page: finds changed memory at the speed of memory. Empty: taken without.
    std::vector<std::uint64_t> checksums;
};

struct Snapshot {
    StateIdentity identity;
    StateShape shape;
    Position length = 0;
    std::vector<TokenId> tokens;  // 0 .. length-1
    std::vector<SnapshotComponent> components;
    std::optional<RequestRecord> request;  // set exactly in the middle of a request: there is a pending anchor

    const SnapshotComponent* find(Component component) const;
    // Payload and tokens, in bytes.
    std::size_t bytes() const;
};

struct TakeOptions {
    bool checksums = true;
    // What the lane's request needs to go on; its anchor is replaced by the lane's.
    std::optional<RequestRecord> request;
};

// Without a request record: requires a page-aligned committed length and no pending anchor. With one: requires an
// anchor. Fails with invalid_argument naming what was found, also for a lane that claims rows nobody wrote, since a
// snapshot would make them look right.
Result<Snapshot> take_snapshot(const Lane& lane, StateIdentity identity, TakeOptions options = {});

// Gives every component unwritten bytes for the range it covers. Requires check_layout, and that the sizes fit memory.
void make_room(Snapshot& snapshot);

// Makes every checksum again from the bytes as they are now.
void reseal(Snapshot& snapshot);

// SHA-256 of the component's pages, and their root as it stands in ledgers. Made when asked for, at the speed of
// SHA-256.
std::vector<Sha256Digest> page_digests(const Snapshot& snapshot, const SnapshotComponent& part);
std::string snapshot_digest(const Snapshot& snapshot, Component component);

// Whether label, tokens and the ranges of all components agree, whatever bytes there are. Errors: corrupt.
Status check_layout(const Snapshot& snapshot);
// Whether the snapshot agrees with itself: label, tokens, ranges and sizes; checksums too when asked for. Errors:
// corrupt, naming component, found and expected.
Status check_snapshot(const Snapshot& snapshot, bool with_checksums);

// verified: the recurrent state consumed exactly the labelled tokens, else the snapshot is refused. trusted: the label
// is taken for granted, as in the engines whose defect this is; for instrument/ and what studies it alone.
enum class Label { verified, trusted };

// Everything that restore_snapshot checks before it touches the lane. Errors: mismatch (every identity group that
// differs; the shape), corrupt (check_snapshot; the label), exhausted (longer than the lane).
Status check_restore(const Snapshot& snapshot, const StateIdentity& identity, const Lane& lane,
                     Label label = Label::verified);

// Puts the snapshot into `lane`, whatever that lane held. `identity` is the running engine's own. Errors: those of
// check_restore; the lane is untouched then.
//   exact                all draft components
//   rows, rows_q4        context rows (through 4 bits); the rings are unwritten and must be rebuilt
//   recompute, masked    the draft context is empty and starts at the snapshot's length
//   none                 the rows are claimed and nothing is written
Status restore_snapshot(const Snapshot& snapshot, const StateIdentity& identity, DraftRestore draft, Lane& lane,
                        TargetRestore target = TargetRestore::exact, Label label = Label::verified);

}  // namespace draftprobe::state
