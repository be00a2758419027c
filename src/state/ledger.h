// The ledger: for every component of a lane's composite state, what it covers, where its rows came from, how many rows
// are claimed and how many were really written, its size and its digest.
//
// Digests are over valid ranges in canonical layout (layer, head, ascending absolute position, little-endian): slot
// numbers, parity and scratch past the committed length do not enter. Paged components are hashed page by page (32
// absolute positions); their digest is SHA-256 over the concatenated page digests, so two lanes with equal state have
// equal digests whatever their history.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "state/lane.h"

namespace draftprobe::state {

enum class Component { target_kv, recurrent_matrix, recurrent_conv, draft_context, draft_rings };
inline constexpr Component kComponents[] = {Component::target_kv, Component::recurrent_matrix,
                                            Component::recurrent_conv, Component::draft_context,
                                            Component::draft_rings};
std::string_view component_name(Component component);

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

// Canonical bytes of one component's valid range, in pages: calls sink(bytes) once per 32-position page for paged
// components (target_kv, draft_context) and once per layer otherwise. Bytes are valid during the call only.
void for_each_canonical_page(const Lane& lane, Component component,
                             const std::function<void(std::span<const std::byte>)>& sink);

std::string component_digest(const Lane& lane, Component component);
std::vector<LedgerEntry> lane_ledger(const Lane& lane, bool with_digests);

// XXH3-64 of each context row in [draft.first(), draft.end()), by absolute position: finds shifts by any number of
// rows.
std::vector<std::uint64_t> context_row_digests(const Lane& lane);

}  // namespace draftprobe::state
