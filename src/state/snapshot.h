// A snapshot: an immutable copy of a lane's composite state at a page-aligned boundary, with the identity of what made
// it.
//
// A snapshot owns its bytes; restoring copies out of it, so a borrower can never write into it. Restore checks
// identity, shape, sizes and every component digest *before* it touches the lane: a refused restore leaves the lane
// bit-identical.
#pragma once

#include <string>
#include <vector>

#include "state/ledger.h"
#include "state/restore_form.h"

namespace draftprobe::state {

struct SnapshotComponent {
    Component component = Component::target_kv;
    Position first = 0;  // valid range
    Position last = 0;
    std::vector<std::byte> bytes;  // canonical layout
    std::string digest;            // as in the ledger
};

struct Snapshot {
    std::string identity;  // digest over every group that state depends on: target, draft, tokenizer, settings
    StateShape shape;
    Position length = 0;
    std::vector<TokenId> tokens;  // 0 .. length-1
    std::vector<SnapshotComponent> components;

    const SnapshotComponent* find(Component component) const;
    std::size_t bytes() const;
};

// Requires a page-aligned committed length and no pending anchor; fails with invalid_argument naming what was found.
Result<Snapshot> take_snapshot(const Lane& lane, std::string identity);

// Puts the snapshot into `lane`, whatever that lane held. `identity` is the running engine's own.
// Fails with mismatch (identity, shape), corrupt (sizes, digests) or unsupported (a form other than exact and rows);
// the lane is untouched then. After `rows` the rings are unwritten and must be rebuilt (decode/draft_forward.h).
Status restore_snapshot(const Snapshot& snapshot, const std::string& identity, DraftRestore form, Lane& lane);

}  // namespace draftprobe::state
