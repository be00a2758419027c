// The draft's view of the committed tokens: context rows (hidden_norm(fc(taps)), one per position) and the K/V rings
// that each draft layer makes from them (dflash2.md section 3).
//
// Both are rings over absolute positions: position p lives in slot p % capacity. Rows are visited by absolute position,
// never by slot. [first, end) is the range that the engine *claims* to hold; `written` counts the rows in it whose slot
// was really written for that position, so a claim over rows that nobody wrote is visible in the ledger. Invariants: 0
// <= first <= end, end - first <= capacity, end <= the lane's committed length.
#pragma once

#include <cstdint>
#include <vector>

#include "base/hash.h"
#include "state/stored_rows.h"

namespace draftprobe::state {

enum class RowSource { none, computed, restored, carried };

struct SourceRange {
    Position first = 0;  // inclusive
    Position last = 0;   // exclusive
    RowSource source = RowSource::none;
    bool operator==(const SourceRange&) const = default;
};

// The target row that a context row was made from. `request`: the number that DraftContext::request() had then, so
// another one is a request that was in the lane before.
struct RowOrigin {
    Position position = -1;
    std::uint64_t request = 0;
    bool operator==(const RowOrigin&) const = default;
};

// Appends [first, last) and merges it with a preceding adjacent range of the same source.
void append_source(std::vector<SourceRange>& ranges, Position first, Position last, RowSource source);

class DraftContext {
public:
    DraftContext() = default;
    DraftContext(const StateShape& shape, bool poison);

    std::size_t capacity() const { return capacity_; }
    Position first() const { return first_; }
    Position end() const { return end_; }
    std::size_t slot(Position position) const { return static_cast<std::size_t>(position) % capacity_; }

    // Forgets every row; bytes stay as they are.
    void reset();
    // Claims rows up to `end`; rows that fall out of the ring leave the claimed range. Sources before the new first are
    // dropped. Call after the rows were written.
    void advance(Position end, RowSource source);
    // Declares the claimed range without writing anything (restore).
    void claim(Position first, Position end, RowSource source);

    StoredRows& rows() { return rows_; }
    const StoredRows& rows() const { return rows_; }
    StoredRows& keys(std::size_t layer) { return keys_[layer]; }
    const StoredRows& keys(std::size_t layer) const { return keys_[layer]; }
    StoredRows& values(std::size_t layer) { return values_[layer]; }
    const StoredRows& values(std::size_t layer) const { return values_[layer]; }
    std::size_t layers() const { return keys_.size(); }

    // Marks that the context row (`ring` false) or the K/V rows of every layer (`ring` true) of `position` were
    // written.
    void mark_written(Position position, bool ring) {
        (ring ? ring_stamp_ : row_stamp_)[slot(position)] = position;
        if (!ring) origins_[slot(position)] = {position, request_};
    }
    bool row_written(Position position) const { return row_stamp_[slot(position)] == position; }
    bool ring_written(Position position) const { return ring_stamp_[slot(position)] == position; }

    // Which target row the context row in the slot of `position` came from. Writing a row names its own position; who
    // moves bytes otherwise says so.
    RowOrigin origin(Position position) const { return origins_[slot(position)]; }
    void set_origin(Position position, RowOrigin origin) { origins_[slot(position)] = origin; }
    // Counts the requests that were in the lane: every reset starts another one.
    std::uint64_t request() const { return request_; }

    // SHA-256 of the context rows of positions 32 * page .. 32 * page + 31, which must all be claimed. Made once and
    // kept until one of those rows is written.
    Sha256Digest page_digest(Position page) const;
    std::size_t pages_hashed() const { return pages_hashed_; }

    std::size_t rows_written() const;   // context rows in [first, end) written for their position
    std::size_t rings_written() const;  // the same for the K/V rings
    std::size_t rows_claimed() const { return static_cast<std::size_t>(end_ - first_); }
    const std::vector<SourceRange>& sources() const { return sources_; }

private:
    std::size_t capacity_ = 0;
    bool poison_ = false;
    StoredRows rows_;                 // [capacity][hidden]
    std::vector<StoredRows> keys_;    // per layer [capacity][draft_kv_heads * draft_head_dim], normalised and rotated
    std::vector<StoredRows> values_;  // per layer, same shape
    std::vector<Position> row_stamp_;
    std::vector<Position> ring_stamp_;
    std::vector<RowOrigin> origins_;
    std::uint64_t request_ = 0;
    Position first_ = 0;
    Position end_ = 0;
    std::vector<SourceRange> sources_;

    struct PageDigest {
        Position page = -1;
        std::uint64_t writes = 0;  // sum over the page's rows: grows with every write to one of them
        Sha256Digest digest{};
    };
    mutable std::vector<PageDigest> page_digests_;  // page p in entry p % size
    mutable std::size_t pages_hashed_ = 0;
};

}  // namespace draftprobe::state
