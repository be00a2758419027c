#include "state/ledger.h"

#include <algorithm>

#include "base/hash.h"

namespace draftprobe::state {

namespace {

Sha256Digest page_digest(const Lane& lane, Component component, const CanonicalPage& page,
                         std::vector<std::byte>& buffer) {
    if (page.last - page.first == kPageTokens) {
        if (component == Component::target_kv)
            return lane.kv.page_digest(static_cast<std::size_t>(page.first / kPageTokens));
        if (component == Component::draft_context) return lane.draft.page_digest(page.first / kPageTokens);
    }
    buffer.resize(page.bytes);
    read_canonical(lane, component, page, buffer.data());
    Sha256 hash;
    hash.update(buffer);
    return hash.finish();
}

}  // namespace

ComponentRange component_range(const Lane& lane, Component component) {
    switch (component) {
        case Component::target_kv:
        case Component::recurrent_matrix: return {0, lane.length};
        case Component::recurrent_conv:
            return {std::max<Position>(0, lane.length - static_cast<Position>(lane.shape().conv_rows)), lane.length};
        case Component::draft_context:
        case Component::draft_rings: return {lane.draft.first(), lane.draft.end()};
    }
    return {};
}

std::string merkle_root(std::span<const Sha256Digest> pages) {
    Sha256 root;
    for (const Sha256Digest& page : pages) root.update(page.data(), page.size());
    return hex(root.finish());
}

std::string component_digest(const Lane& lane, Component component) {
    const ComponentRange range = component_range(lane, component);
    std::vector<std::byte> buffer;
    std::vector<Sha256Digest> digests;
    for (const CanonicalPage& page : canonical_pages(lane.shape(), component, range.first, range.last)) {
        digests.push_back(page_digest(lane, component, page, buffer));
    }
    return merkle_root(digests);
}

std::vector<LedgerEntry> lane_ledger(const Lane& lane, bool with_digests) {
    std::vector<LedgerEntry> entries;
    for (const Component component : kComponents) {
        if (!has_component(lane.shape(), component)) continue;
        LedgerEntry entry;
        entry.component = component;
        const ComponentRange range = component_range(lane, component);
        entry.first = range.first;
        entry.last = range.last;
        entry.rows_claimed = static_cast<std::size_t>(range.last - range.first);
        entry.bytes = canonical_size(lane.shape(), component, range.first, range.last);
        switch (component) {
            case Component::target_kv: entry.rows_written = lane.target_rows_written; break;
            // What went into the state, not what the lane's length says.
            case Component::recurrent_matrix:
            case Component::recurrent_conv:
                entry.last = lane.recurrent.current().consumed;
                entry.first = component == Component::recurrent_matrix
                                  ? 0
                                  : std::max<Position>(0, entry.last - static_cast<Position>(lane.shape().conv_rows));
                entry.rows_claimed = entry.rows_written = static_cast<std::size_t>(entry.last - entry.first);
                break;
            case Component::draft_context: entry.rows_written = lane.draft.rows_written(); break;
            case Component::draft_rings: entry.rows_written = lane.draft.rings_written(); break;
        }
        const bool whole = component == Component::target_kv || component == Component::recurrent_matrix;
        entry.base = whole ? 0 : entry.first;
        entry.sources = is_draft_component(component) ? lane.draft.sources() : lane.target_sources;
        if (with_digests) entry.digest = component_digest(lane, component);
        entries.push_back(std::move(entry));
    }
    return entries;
}

std::vector<std::uint64_t> context_row_digests(const Lane& lane) {
    std::vector<std::uint64_t> digests;
    for (Position p = lane.draft.first(); p < lane.draft.end(); ++p) {
        digests.push_back(xxh3_64(lane.draft.rows().bytes(lane.draft.slot(p))));
    }
    return digests;
}

}  // namespace draftprobe::state
