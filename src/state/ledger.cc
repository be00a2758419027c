#include "state/ledger.h"

#include <algorithm>

#include "base/hash.h"

namespace draftprobe::state {

std::string_view component_name(Component component) {
    switch (component) {
        case Component::target_kv: return "target_kv";
        case Component::recurrent_matrix: return "recurrent";
        case Component::recurrent_conv: return "conv";
        case Component::draft_context: return "draft_context";
        case Component::draft_rings: return "draft_ring";
    }
    return "unknown";
}

void for_each_canonical_page(const Lane& lane, Component component,
                             const std::function<void(std::span<const std::byte>)>& sink) {
    std::vector<std::byte> buffer;
    const auto append = [&buffer](std::span<const std::byte> bytes) {
        buffer.insert(buffer.end(), bytes.begin(), bytes.end());
    };
    const auto flush = [&] {
        sink(buffer);
        buffer.clear();
    };
    const RecurrentCell& cell = lane.recurrent.current();
    switch (component) {
        case Component::target_kv:
            for (Position first = 0; first < lane.length; first += kPageTokens) {
                const Position last = std::min(first + kPageTokens, lane.length);
                lane.kv.canonical_bytes(static_cast<std::size_t>(first / kPageTokens), first, last, buffer);
                flush();
            }
            break;
        case Component::recurrent_matrix:
            for (const auto& layer : cell.matrix) {
                append(std::as_bytes(std::span<const float>(layer)));
                flush();
            }
            break;
        case Component::recurrent_conv:
            for (const auto& rows : cell.conv) {
                for (std::size_t row = 0; row < rows.rows(); ++row) append(rows.bytes(row));
                flush();
            }
            break;
        case Component::draft_context:
            for (Position p = lane.draft.first(); p < lane.draft.end(); ++p) {
                append(lane.draft.rows().bytes(lane.draft.slot(p)));
                if ((p + 1) % kPageTokens == 0 || p + 1 == lane.draft.end()) flush();
            }
            break;
        case Component::draft_rings:
            for (std::size_t layer = 0; layer < lane.draft.layers(); ++layer) {
                for (const StoredRows* rows : {&lane.draft.keys(layer), &lane.draft.values(layer)}) {
                    for (Position p = lane.draft.first(); p < lane.draft.end(); ++p)
                        append(rows->bytes(lane.draft.slot(p)));
                }
                flush();
            }
            break;
    }
}

std::string component_digest(const Lane& lane, Component component) {
    Sha256 root;
    for_each_canonical_page(lane, component, [&root](std::span<const std::byte> page) {
        Sha256 leaf;
        leaf.update(page);
        const auto digest = leaf.finish();
        root.update(digest.data(), digest.size());
    });
    const auto digest = root.finish();
    return hex(digest);
}

std::vector<LedgerEntry> lane_ledger(const Lane& lane, bool with_digests) {
    std::vector<LedgerEntry> entries;
    const StateShape& shape = lane.shape();
    for (const Component component : kComponents) {
        LedgerEntry entry;
        entry.component = component;
        const auto rows = static_cast<std::size_t>(lane.length);
        switch (component) {
            case Component::target_kv:
                entry.last = lane.length;
                entry.rows_claimed = rows;
                entry.rows_written = lane.target_rows_written;
                entry.bytes = rows * shape.kv_token_bytes();
                entry.sources = lane.target_sources;
                break;
            case Component::recurrent_matrix:
                entry.last = lane.length;
                entry.rows_claimed = rows;
                entry.rows_written = lane.target_rows_written;
                entry.bytes = shape.delta_layers * shape.matrix_floats() * sizeof(float);
                entry.sources = lane.target_sources;
                break;
            case Component::recurrent_conv:
                entry.first = std::max<Position>(0, lane.length - static_cast<Position>(shape.conv_rows));
                entry.last = lane.length;
                entry.base = entry.first;
                entry.rows_claimed = static_cast<std::size_t>(entry.last - entry.first);
                entry.rows_written = std::min(entry.rows_claimed, lane.target_rows_written);
                entry.bytes =
                    shape.delta_layers * shape.conv_rows * shape.conv_channels * row_element_bytes(shape.row_format);
                entry.sources = lane.target_sources;
                break;
            case Component::draft_context:
                if (shape.draft_layers == 0) continue;
                entry.first = entry.base = lane.draft.first();
                entry.last = lane.draft.end();
                entry.rows_claimed = lane.draft.rows_claimed();
                entry.rows_written = lane.draft.rows_written();
                entry.bytes = entry.rows_claimed * lane.draft.rows().row_bytes();
                entry.sources = lane.draft.sources();
                break;
            case Component::draft_rings:
                if (shape.draft_layers == 0) continue;
                entry.first = entry.base = lane.draft.first();
                entry.last = lane.draft.end();
                entry.rows_claimed = lane.draft.rows_claimed();
                entry.rows_written = lane.draft.rings_written();
                entry.bytes = entry.rows_claimed * lane.draft.layers() * 2 * lane.draft.keys(0).row_bytes();
                entry.sources = lane.draft.sources();
                break;
        }
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
