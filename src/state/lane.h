// A lane: one slot of mutable composite state, enough for one request to go on.
//
// Ownership: a lane owns all its bytes. Nothing in it is shared with another lane or with a snapshot.
// Inequality chain: 0 <= draft.end() <= length; tokens.size() == length; KV rows exist for [0, length) and, during a
// verification, for scratch rows past it.
//   forward      writes scratch KV rows past `length`, the idle recurrent cell and its operands
//   commit       moves `length` forward by the retained rows and makes them state
//   restore      replaces everything (state/snapshot.h)
//   reset        forgets the request; bytes stay (or are poisoned), as in a serving engine's slot reuse
#pragma once

#include <vector>

#include "state/draft_context.h"
#include "state/kv_pages.h"
#include "state/recurrent.h"

namespace draftprobe::state {

class Lane {
public:
    // `poison`: fresh storage is filled with NaN patterns instead of zeros.
    Lane(int id, const StateShape& shape, bool poison);

    int id() const { return id_; }
    const StateShape& shape() const { return shape_; }

    // Forgets the request that is here. The recurrent cell is cleared (it is read at position 0); KV pages and draft
    // rings keep the previous occupant's bytes, as slots of serving engines do, so that a missing write shows.
    void reset();

    Position length = 0;          // L: tokens whose state is in the target cache
    std::vector<TokenId> tokens;  // the committed tokens, positions 0 .. length-1
    bool has_anchor = false;
    TokenId anchor = 0;  // selected, not yet consumed; will be written at position `length`

    KvPages kv;
    RecurrentState recurrent;
    DraftContext draft;

    // Where target rows of [0, length) came from; the draft context keeps its own list.
    std::vector<SourceRange> target_sources;
    std::size_t target_rows_written = 0;  // KV rows below length that commit or restore really wrote

    // SHA-256 over the u32le tokens that the previous request left here; empty before the second request.
    std::string previous_occupant;

private:
    int id_;
    StateShape shape_;
};

}  // namespace draftprobe::state
