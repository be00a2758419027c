// The ledger: for every component of a lane's composite state, what it covers, where its rows came from, how many rows
// are claimed and how many were really written, its size and its digest.
//
// Digests are over valid ranges in canonical layout (layer, head, ascending absolute position, little-endian): slot
// numbers, parity and scratch past the committed length do not enter. Paged components are hashed page by page (32
// absolute positions); their digest is SHA-256 over the concatenated page digests, so two lanes with equal state have
// equal digests whatever their history. Complete pages of KV and context rows keep their digest until they are written.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "state/canonical.h"

namespace draftprobe::state {

struct LedgerEntry {
    Component component = Component::target_kv;
    Position first = 0;  // covered range [first, last)
    Position last = 0;
    Position base = 0;  // absolute position of the component's row 0
    std::size_t rows_claimed = 0;
    std::size_t rows_written = 0;
    std::vector<SourceRange> sources;
    std::size_t bytes = 0;
    std::string digest;  // SHA-256 hex; empty when not asked for
};

// The covered range [first, last) of one component of a lane.
struct ComponentRange {
    Position first = 0;
    Position last = 0;
};
ComponentRange component_range(const Lane& lane, Component component);

// The root over page digests, as it stands in ledgers and snapshots.
std::string merkle_root(std::span<const Sha256Digest> pages);

std::string component_digest(const Lane& lane, Component component);
std::vector<LedgerEntry> lane_ledger(const Lane& lane, bool with_digests);

// XXH3-64 of each context row in [draft.first(), draft.end()), by absolute position: finds shifts by any number of
// rows.
std::vector<std::uint64_t> context_row_digests(const Lane& lane);

}  // namespace draftprobe::state
