#include "state/snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace draftprobe::state {

namespace {

// Splits canonical bytes into the pages that for_each_canonical_page produced, by size alone.
std::vector<std::span<const std::byte>> canonical_pages(const Snapshot& snapshot, const SnapshotComponent& part) {
    const StateShape& shape = snapshot.shape;
    std::vector<std::size_t> sizes;
    const std::size_t element = row_element_bytes(shape.row_format);
    switch (part.component) {
        case Component::target_kv:
        case Component::draft_context: {
            const std::size_t row =
                part.component == Component::target_kv ? shape.kv_token_bytes() : shape.hidden * element;
            for (Position first = part.first; first < part.last;) {
                const Position last = std::min((first / kPageTokens + 1) * kPageTokens, part.last);
                sizes.push_back(static_cast<std::size_t>(last - first) * row);
                first = last;
            }
            break;
        }
        case Component::recurrent_matrix:
            sizes.assign(shape.delta_layers, shape.matrix_floats() * sizeof(float));
            break;
        case Component::recurrent_conv:
            sizes.assign(shape.delta_layers, shape.conv_rows * shape.conv_channels * element);
            break;
        case Component::draft_rings:
            sizes.assign(shape.draft_layers,
                         static_cast<std::size_t>(part.last - part.first) * 2 * shape.draft_kv_floats() * element);
            break;
    }
    std::size_t total = 0;
    for (const std::size_t size : sizes) total += size;
    if (total != part.bytes.size()) return {};
    std::vector<std::span<const std::byte>> pages;
    std::size_t offset = 0;
    for (const std::size_t size : sizes) {
        pages.push_back(std::span<const std::byte>(part.bytes).subspan(offset, size));
        offset += size;
    }
    return pages;
}

std::string digest_of(const std::vector<std::span<const std::byte>>& pages) {
    Sha256 root;
    for (const auto page : pages) {
        Sha256 leaf;
        leaf.update(page);
        const auto digest = leaf.finish();
        root.update(digest.data(), digest.size());
    }
    return hex(root.finish());
}

Status validate(const Snapshot& snapshot, const std::string& identity, const Lane& lane) {
    if (snapshot.identity != identity) {
        return mismatch(
            fmt::format("snapshot: made by identity {}, this engine is {}; nothing was restored; make the "
                        "snapshot again with this target, draft and settings",
                        snapshot.identity.substr(0, 16), identity.substr(0, 16)));
    }
    if (snapshot.shape != lane.shape()) {
        return mismatch(
            fmt::format("snapshot: its state shape differs from lane {}'s (another model, KV format or window); "
                        "nothing was restored",
                        lane.id()));
    }
    if (snapshot.length < 0 || snapshot.tokens.size() != static_cast<std::size_t>(snapshot.length) ||
        snapshot.length % kPageTokens != 0 || static_cast<std::size_t>(snapshot.length) > snapshot.shape.max_tokens) {
        return corrupt(
            fmt::format("snapshot: covers {} positions with {} tokens; expected a multiple of {} within {} and one "
                        "token each; nothing was restored",
                        snapshot.length, snapshot.tokens.size(), kPageTokens, snapshot.shape.max_tokens));
    }
    for (const Component component : kComponents) {
        const bool draft = component == Component::draft_context || component == Component::draft_rings;
        if (draft && snapshot.shape.draft_layers == 0) continue;
        const SnapshotComponent* part = snapshot.find(component);
        if (part == nullptr) {
            return corrupt(
                fmt::format("snapshot: component {} is missing; nothing was restored", component_name(component)));
        }
        const Position first_allowed =
            draft ? std::max<Position>(0, snapshot.length - static_cast<Position>(snapshot.shape.context_capacity)) : 0;
        const Position expected_first = component == Component::recurrent_conv ? part->first : first_allowed;
        if (part->first != expected_first || part->last != snapshot.length || part->first > part->last) {
            return corrupt(
                fmt::format("snapshot: component {} covers [{}, {}), expected [{}, {}); nothing was restored",
                            component_name(component), part->first, part->last, expected_first, snapshot.length));
        }
        const auto pages = canonical_pages(snapshot, *part);
        if (pages.empty() && !part->bytes.empty()) {
            return corrupt(
                fmt::format("snapshot: component {} holds {} bytes, which does not fit its range [{}, {}); nothing was "
                            "restored",
                            component_name(component), part->bytes.size(), part->first, part->last));
        }
        const std::string found = digest_of(pages);
        if (found != part->digest) {
            return corrupt(
                fmt::format("snapshot: component {} has digest {}, expected {}; its bytes were changed after it was "
                            "made; nothing was restored",
                            component_name(component), found.substr(0, 16), part->digest.substr(0, 16)));
        }
    }
    return {};
}

}  // namespace

const SnapshotComponent* Snapshot::find(Component component) const {
    for (const auto& part : components) {
        if (part.component == component) return &part;
    }
    return nullptr;
}

std::size_t Snapshot::bytes() const {
    std::size_t total = tokens.size() * sizeof(TokenId);
    for (const auto& part : components) total += part.bytes.size();
    return total;
}

Result<Snapshot> take_snapshot(const Lane& lane, std::string identity) {
    if (lane.length % kPageTokens != 0 || lane.has_anchor) {
        return invalid_argument(
            fmt::format("snapshot of lane {}: committed length {} {}; expected a multiple of {} and no "
                        "pending anchor; materialise to a page boundary first",
                        lane.id(), lane.length, lane.has_anchor ? "with an anchor" : "without anchor", kPageTokens));
    }
    Snapshot snapshot;
    snapshot.identity = std::move(identity);
    snapshot.shape = lane.shape();
    snapshot.length = lane.length;
    snapshot.tokens = lane.tokens;
    for (const LedgerEntry& entry : lane_ledger(lane, true)) {
        SnapshotComponent part;
        part.component = entry.component;
        part.first = entry.first;
        part.last = entry.last;
        part.digest = entry.digest;
        for_each_canonical_page(lane, entry.component, [&part](std::span<const std::byte> page) {
            part.bytes.insert(part.bytes.end(), page.begin(), page.end());
        });
        snapshot.components.push_back(std::move(part));
    }
    return snapshot;
}

Status restore_snapshot(const Snapshot& snapshot, const std::string& identity, DraftRestore form, Lane& lane) {
    if (form != DraftRestore::exact && form != DraftRestore::rows) {
        return unsupported(fmt::format("restore into lane {}: draft form {}; served are exact and rows", lane.id(),
                                       draft_restore_name(form)));
    }
    DP_RETURN_IF_ERROR(validate(snapshot, identity, lane));
    if (snapshot.length > 0) DP_RETURN_IF_ERROR(lane.kv.reserve(snapshot.length - 1));

    // Nothing below can fail.
    lane.reset();
    lane.length = snapshot.length;
    lane.tokens = snapshot.tokens;
    append_source(lane.target_sources, 0, snapshot.length, RowSource::restored);
    lane.target_rows_written = static_cast<std::size_t>(snapshot.length);

    const SnapshotComponent* kv = snapshot.find(Component::target_kv);
    const auto kv_pages = canonical_pages(snapshot, *kv);
    for (std::size_t page = 0; page < kv_pages.size(); ++page) {
        const Position first = static_cast<Position>(page) * kPageTokens;
        lane.kv.set_canonical_bytes(page, first, std::min(first + kPageTokens, snapshot.length), kv_pages[page]);
    }
    RecurrentCell& cell = lane.recurrent.current();
    const auto matrices = canonical_pages(snapshot, *snapshot.find(Component::recurrent_matrix));
    const auto convs = canonical_pages(snapshot, *snapshot.find(Component::recurrent_conv));
    for (std::size_t layer = 0; layer < snapshot.shape.delta_layers; ++layer) {
        std::memcpy(cell.matrix[layer].data(), matrices[layer].data(), matrices[layer].size());
        StoredRows& rows = cell.conv[layer];
        for (std::size_t row = 0; row < rows.rows(); ++row) {
            std::memcpy(rows.bytes(row).data(), convs[layer].data() + row * rows.row_bytes(), rows.row_bytes());
        }
    }
    if (snapshot.shape.draft_layers == 0) return {};

    const SnapshotComponent* rows = snapshot.find(Component::draft_context);
    const std::byte* source = rows->bytes.data();
    for (Position p = rows->first; p < rows->last; ++p) {
        const auto target = lane.draft.rows().bytes(lane.draft.slot(p));
        std::memcpy(target.data(), source, target.size());
        source += target.size();
        lane.draft.mark_written(p, false);
    }
    lane.draft.claim(rows->first, rows->last, RowSource::restored);
    if (form == DraftRestore::rows) return {};

    source = snapshot.find(Component::draft_rings)->bytes.data();
    for (std::size_t layer = 0; layer < snapshot.shape.draft_layers; ++layer) {
        for (StoredRows* ring : {&lane.draft.keys(layer), &lane.draft.values(layer)}) {
            for (Position p = rows->first; p < rows->last; ++p) {
                const auto target = ring->bytes(lane.draft.slot(p));
                std::memcpy(target.data(), source, target.size());
                source += target.size();
            }
        }
    }
    for (Position p = rows->first; p < rows->last; ++p) lane.draft.mark_written(p, true);
    return {};
}

}  // namespace draftprobe::state
