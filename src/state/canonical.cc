#include "state/canonical.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

#include "state/copy.h"

namespace draftprobe::state {

namespace {

constexpr std::uint64_t kTooLarge = std::numeric_limits<std::uint64_t>::max();

std::uint64_t product(std::initializer_list<std::uint64_t> factors) {
    std::uint64_t result = 1;
    for (const std::uint64_t factor : factors) {
        if (factor == 0) return 0;
        result = result > kTooLarge / factor ? kTooLarge : result * factor;
    }
    return result;
}

// Calls piece(slot, count, offset in rows) for the one or two stretches of a ring that hold [first, last).
template <class Piece>
void for_ring_pieces(const DraftContext& draft, Position first, Position last, const Piece& piece) {
    std::size_t done = 0;
    auto left = static_cast<std::size_t>(last - first);
    while (left > 0) {
        const std::size_t slot = draft.slot(first + static_cast<Position>(done));
        const std::size_t count = std::min(left, draft.capacity() - slot);
        piece(slot, count, done);
        done += count;
        left -= count;
    }
}

void read_ring(const DraftContext& draft, const StoredRows& rows, const CanonicalPage& page, std::byte* out) {
    for_ring_pieces(draft, page.first, page.last, [&](std::size_t slot, std::size_t count, std::size_t done) {
        const auto bytes = rows.bytes(slot, count);
        copy_bytes(out + done * rows.row_bytes(), bytes.data(), bytes.size());
    });
}

void write_ring(const DraftContext& draft, StoredRows& rows, const CanonicalPage& page, const std::byte* source) {
    for_ring_pieces(draft, page.first, page.last, [&](std::size_t slot, std::size_t count, std::size_t done) {
        rows.set_bytes(slot, count, {source + done * rows.row_bytes(), count * rows.row_bytes()});
    });
}

}  // namespace

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

std::uint64_t canonical_size(const StateShape& shape, Component component, Position first, Position last) {
    const auto rows = static_cast<std::uint64_t>(last - first);
    const std::uint64_t element = row_element_bytes(shape.row_format);
    switch (component) {
        case Component::target_kv: return product({rows, shape.kv_token_bytes()});
        case Component::recurrent_matrix:
            return product({shape.delta_layers, shape.value_heads, shape.key_dim, shape.value_dim, sizeof(float)});
        case Component::recurrent_conv:
            return product({shape.delta_layers, shape.conv_rows, shape.conv_channels, element});
        case Component::draft_context: return product({rows, shape.hidden, element});
        case Component::draft_rings:
            return product({rows, shape.draft_layers, 2, shape.draft_kv_heads, shape.draft_head_dim, element});
    }
    return kTooLarge;
}

std::vector<CanonicalPage> canonical_pages(const StateShape& shape, Component component, Position first,
                                           Position last) {
    std::vector<CanonicalPage> pages;
    const auto add = [&pages](Position begin, Position end, std::size_t bytes) {
        const std::size_t offset = pages.empty() ? 0 : pages.back().offset + pages.back().bytes;
        pages.push_back({pages.size(), begin, end, offset, bytes});
    };
    const std::uint64_t total = canonical_size(shape, component, first, last);
    if (component == Component::target_kv || component == Component::draft_context) {
        if (first == last) return pages;
        const std::size_t row = total / static_cast<std::uint64_t>(last - first);
        pages.reserve(static_cast<std::size_t>((last - first) / kPageTokens + 2));
        for (Position begin = first; begin < last;) {
            const Position end = std::min((begin / kPageTokens + 1) * kPageTokens, last);
            add(begin, end, static_cast<std::size_t>(end - begin) * row);
            begin = end;
        }
        return pages;
    }
    const std::size_t layers = component == Component::draft_rings ? shape.draft_layers : shape.delta_layers;
    for (std::size_t layer = 0; layer < layers; ++layer) add(first, last, total / layers);
    return pages;
}

void read_canonical(const Lane& lane, Component component, const CanonicalPage& page, std::byte* out) {
    const RecurrentCell& cell = lane.recurrent.current();
    switch (component) {
        case Component::target_kv:
            lane.kv.canonical_bytes(static_cast<std::size_t>(page.first / kPageTokens), page.first, page.last, out);
            return;
        case Component::recurrent_matrix:
            copy_bytes(out, reinterpret_cast<const std::byte*>(cell.matrix[page.index].data()), page.bytes);
            return;
        case Component::recurrent_conv: {
            const StoredRows& rows = cell.conv[page.index];
            std::memcpy(out, rows.bytes(0, rows.rows()).data(), page.bytes);
            return;
        }
        case Component::draft_context: read_ring(lane.draft, lane.draft.rows(), page, out); return;
        case Component::draft_rings:
            read_ring(lane.draft, lane.draft.keys(page.index), page, out);
            read_ring(lane.draft, lane.draft.values(page.index), page, out + page.bytes / 2);
            return;
    }
}

void write_canonical(Lane& lane, Component component, const CanonicalPage& page, std::span<const std::byte> bytes) {
    assert(bytes.size() == page.bytes);
    RecurrentCell& cell = lane.recurrent.current();
    switch (component) {
        case Component::target_kv:
            lane.kv.set_canonical_bytes(static_cast<std::size_t>(page.first / kPageTokens), page.first, page.last,
                                        bytes);
            return;
        case Component::recurrent_matrix:
            copy_bytes(reinterpret_cast<std::byte*>(cell.matrix[page.index].data()), bytes.data(), page.bytes);
            return;
        case Component::recurrent_conv: cell.conv[page.index].set_bytes(0, cell.conv[page.index].rows(), bytes); return;
        case Component::draft_context: write_ring(lane.draft, lane.draft.rows(), page, bytes.data()); return;
        case Component::draft_rings:
            write_ring(lane.draft, lane.draft.keys(page.index), page, bytes.data());
            write_ring(lane.draft, lane.draft.values(page.index), page, bytes.data() + page.bytes / 2);
            return;
    }
}

}  // namespace draftprobe::state
