#include "state/snapshot.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/hash.h"
#include "state/lossy.h"

namespace draftprobe::state {

namespace {

std::vector<CanonicalPage> pages_of(const Snapshot& snapshot, const SnapshotComponent& part) {
    return canonical_pages(snapshot.shape, part.component, part.first, part.last);
}

std::span<const std::byte> bytes_of(const SnapshotComponent& part, const CanonicalPage& page) {
    return part.bytes.view(page.offset, page.bytes);
}

// Complete KV pages are what prefixes of one text have in common, so they are cut into blocks that may be shared one by
// one: whole pages, at least this many bytes, that a block's own structures stay small beside it.
constexpr std::size_t kLeastBlock = std::size_t{16} << 10;

std::size_t block_bytes(const StateShape& shape, Component component, std::size_t bytes) {
    if (component != Component::target_kv || shape.kv_page_bytes() == 0) return std::max<std::size_t>(bytes, 1);
    std::size_t block = shape.kv_page_bytes();
    while (block < kLeastBlock) block *= 2;
    return block;
}

// Two lanes may differ in how much they can hold, not in what a row is.
StateShape row_shape(StateShape shape) {
    shape.max_tokens = 0;
    shape.context_capacity = 0;
    return shape;
}

Position oldest_context_row(const StateShape& shape, Position length) {
    return std::max<Position>(0, length - static_cast<Position>(shape.context_capacity));
}

// The first position that the component has to start at, and the last one it may.
struct FirstRange {
    Position earliest = 0;
    Position latest = 0;
};

FirstRange allowed_first(const Snapshot& snapshot, Component component) {
    switch (component) {
        case Component::target_kv:
        case Component::recurrent_matrix: return {0, 0};
        case Component::recurrent_conv: {
            const Position first =
                std::max<Position>(0, snapshot.length - static_cast<Position>(snapshot.shape.conv_rows));
            return {first, first};
        }
        // A lane that was restored `masked` holds fewer rows than its window.
        case Component::draft_context:
        case Component::draft_rings: return {oldest_context_row(snapshot.shape, snapshot.length), snapshot.length};
    }
    return {};
}

Status check_range(const Snapshot& snapshot, Component component) {
    const SnapshotComponent* part = snapshot.find(component);
    if (part == nullptr) {
        return corrupt(fmt::format("snapshot: component {} is missing, expected all of target{}",
                                   component_name(component), snapshot.shape.draft_layers > 0 ? " and draft" : ""));
    }
    const FirstRange allowed = allowed_first(snapshot, component);
    if (part->last == snapshot.length && part->first >= allowed.earliest && part->first <= allowed.latest) return {};
    return corrupt(fmt::format("snapshot: component {} covers [{}, {}), expected [{}, {}) as the label says",
                               component_name(component), part->first, part->last, allowed.earliest, snapshot.length));
}

Status check_component(const Snapshot& snapshot, Component component, bool with_checksums) {
    const SnapshotComponent* part = snapshot.find(component);
    const std::uint64_t expected = canonical_size(snapshot.shape, component, part->first, part->last);
    if (part->bytes.size() != expected) {
        return corrupt(fmt::format("snapshot: component {} holds {} bytes, expected {} for [{}, {})",
                                   component_name(component), part->bytes.size(), expected, part->first, part->last));
    }
    if (component == Component::target_kv && part->bytes.blocks().size() > 1 &&
        part->bytes.block_bytes() % snapshot.shape.kv_page_bytes() != 0) {
        return corrupt(
            fmt::format("snapshot: component target_kv is cut into blocks of {} bytes, expected whole pages "
                        "of {}",
                        part->bytes.block_bytes(), snapshot.shape.kv_page_bytes()));
    }
    if (!with_checksums || part->checksums.empty()) return {};
    const std::vector<CanonicalPage> pages = pages_of(snapshot, *part);
    if (part->checksums.size() != pages.size()) {
        return corrupt(fmt::format("snapshot: component {} has {} page checksums, expected {}",
                                   component_name(component), part->checksums.size(), pages.size()));
    }
    for (const CanonicalPage& page : pages) {
        const std::uint64_t found = xxh3_64(bytes_of(*part, page));
        if (found == part->checksums[page.index]) continue;
        return corrupt(
            fmt::format("snapshot: page {} of component {} (positions [{}, {})) has checksum {}, expected {}; its "
                        "bytes were changed after it was made",
                        page.index, component_name(component), page.first, page.last, hex64(found),
                        hex64(part->checksums[page.index])));
    }
    return {};
}

// Everything but what `of_component` checks of each component.
template <class OfComponent>
Status check_parts(const Snapshot& snapshot, const OfComponent& of_component) {
    const bool aligned = snapshot.request.has_value() || snapshot.length % kPageTokens == 0;
    if (snapshot.length < 0 || snapshot.tokens.size() != static_cast<std::size_t>(snapshot.length) || !aligned ||
        static_cast<std::size_t>(snapshot.length) > snapshot.shape.max_tokens) {
        return corrupt(fmt::format(
            "snapshot: labelled {} positions and holds {} tokens; expected one token a position, {}at most {}",
            snapshot.length, snapshot.tokens.size(),
            snapshot.request ? "" : fmt::format("a multiple of {}, ", kPageTokens), snapshot.shape.max_tokens));
    }
    std::size_t expected = 0;
    for (const Component component : kComponents) {
        if (!has_component(snapshot.shape, component)) continue;
        ++expected;
        DP_RETURN_IF_ERROR(of_component(component));
    }
    if (snapshot.components.size() != expected) {
        return corrupt(fmt::format("snapshot: holds {} components, expected each of {} once",
                                   snapshot.components.size(), expected));
    }
    if (snapshot.shape.draft_layers == 0) return {};
    const SnapshotComponent& rows = *snapshot.find(Component::draft_context);
    const SnapshotComponent& rings = *snapshot.find(Component::draft_rings);
    if (rows.first == rings.first) return {};
    return corrupt(fmt::format("snapshot: component draft_ring covers [{}, {}), expected [{}, {}) as draft_context",
                               rings.first, rings.last, rows.first, rows.last));
}

// Snapshots of the draft's context may hold more rows than the lane keeps.
Position first_kept(const Snapshot& snapshot, const Lane& lane) {
    const Position first = snapshot.find(Component::draft_context)->first;
    return std::max(first, oldest_context_row(lane.shape(), snapshot.length));
}

void write_component(const Snapshot& snapshot, Component component, Lane& lane) {
    const SnapshotComponent& part = *snapshot.find(component);
    for (const CanonicalPage& page : pages_of(snapshot, part)) {
        write_canonical(lane, component, page, bytes_of(part, page));
    }
}

void round_rows_to_q4(Position first, Position last, Lane& lane) {
    StoredRows& rows = lane.draft.rows();
    std::vector<float> row(rows.cols());
    for (Position p = first; p < last; ++p) {
        const std::size_t slot = lane.draft.slot(p);
        rows.read(slot, row.data());
        through_q4(row);
        rows.write(slot, row.data());
    }
}

void restore_target(const Snapshot& snapshot, TargetRestore form, Lane& lane) {
    append_source(lane.target_sources, 0, snapshot.length, RowSource::restored);
    lane.target_rows_written = static_cast<std::size_t>(snapshot.length);
    for (const Component component : {Component::target_kv, Component::recurrent_matrix, Component::recurrent_conv}) {
        write_component(snapshot, component, lane);
    }
    lane.recurrent.current().consumed = snapshot.find(Component::recurrent_matrix)->consumed;
    if (form != TargetRestore::int8_state) return;
    for (std::vector<float>& matrix : lane.recurrent.current().matrix) {
        through_int8_rows(matrix, snapshot.shape.value_dim);
    }
}

void restore_draft(const Snapshot& snapshot, DraftRestore form, Lane& lane) {
    if (form == DraftRestore::masked || form == DraftRestore::recompute) {
        lane.draft.claim(snapshot.length, snapshot.length, RowSource::none);
        return;
    }
    const Position first = first_kept(snapshot, lane);
    lane.draft.claim(first, snapshot.length, form == DraftRestore::none ? RowSource::none : RowSource::restored);
    if (form == DraftRestore::none) return;
    // Ascending, so that of rows that share a slot the newest stays.
    write_component(snapshot, Component::draft_context, lane);
    for (Position p = first; p < snapshot.length; ++p) lane.draft.mark_written(p, false);
    if (form == DraftRestore::rows_q4) round_rows_to_q4(first, snapshot.length, lane);
    if (form != DraftRestore::exact) return;
    write_component(snapshot, Component::draft_rings, lane);
    for (Position p = first; p < snapshot.length; ++p) lane.draft.mark_written(p, true);
}

// The page's bytes where reading them again is cheapest: a large copy went past the caches, but its source did not, if
// it lies in the lane as it is.
std::span<const std::byte> fresh_in_cache(const Lane& lane, Component component, const CanonicalPage& page,
                                          const std::byte* copy) {
    if (component == Component::target_kv && page.last - page.first == kPageTokens)
        return lane.kv.page_bytes(static_cast<std::size_t>(page.first / kPageTokens));
    if (component == Component::recurrent_matrix)
        return std::as_bytes(std::span<const float>(lane.recurrent.current().matrix[page.index]));
    return {copy, page.bytes};
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

Result<Snapshot> take_snapshot(const Lane& lane, StateIdentity identity, TakeOptions options) {
    if (!options.request && (lane.length % kPageTokens != 0 || lane.has_anchor)) {
        return invalid_argument(
            fmt::format("snapshot of lane {}: committed length {} {}; expected a multiple of {} and no "
                        "pending anchor; materialise to a page boundary first, or give the request's record",
                        lane.id(), lane.length, lane.has_anchor ? "with an anchor" : "without anchor", kPageTokens));
    }
    if (options.request && !lane.has_anchor) {
        return invalid_argument(fmt::format(
            "snapshot of lane {}: a request's record without a pending anchor; expected one to go on from", lane.id()));
    }
    Snapshot snapshot;
    snapshot.identity = std::move(identity);
    snapshot.shape = lane.shape();
    snapshot.length = lane.length;
    snapshot.tokens = lane.tokens;
    snapshot.request = std::move(options.request);
    if (snapshot.request) snapshot.request->anchor = lane.anchor;
    for (const LedgerEntry& entry : lane_ledger(lane, false)) {
        if (entry.rows_written < entry.rows_claimed) {
            return invalid_argument(
                fmt::format("snapshot of lane {}: component {} claims {} rows and {} of them were written; expected "
                            "all, as a restore would make the rest look right",
                            lane.id(), component_name(entry.component), entry.rows_claimed, entry.rows_written));
        }
        SnapshotComponent& part = snapshot.components.emplace_back();
        part.component = entry.component;
        part.first = entry.first;
        part.last = entry.last;
        part.base = entry.base;
        part.sources = entry.sources;
        if (is_recurrent_component(entry.component)) part.consumed = lane.recurrent.current().consumed;
    }
    make_room(snapshot);
    for (SnapshotComponent& part : snapshot.components) {
        for (const CanonicalPage& page : pages_of(snapshot, part)) {
            std::byte* target = part.bytes.fill(page.offset, page.bytes).data();
            read_canonical(lane, part.component, page, target);
            if (options.checksums)
                part.checksums.push_back(xxh3_64(fresh_in_cache(lane, part.component, page, target)));
        }
    }
    return snapshot;
}

void make_room(Snapshot& snapshot) {
    std::vector<Payload::Size> sizes;
    for (const SnapshotComponent& part : snapshot.components) {
        const std::size_t bytes = canonical_size(snapshot.shape, part.component, part.first, part.last);
        sizes.push_back({bytes, block_bytes(snapshot.shape, part.component, bytes)});
    }
    std::vector<Payload> payloads = Payload::unwritten(sizes);
    for (std::size_t i = 0; i < payloads.size(); ++i) snapshot.components[i].bytes = std::move(payloads[i]);
}

void reseal(Snapshot& snapshot) {
    for (SnapshotComponent& part : snapshot.components) {
        part.checksums.clear();
        for (const CanonicalPage& page : pages_of(snapshot, part))
            part.checksums.push_back(xxh3_64(bytes_of(part, page)));
    }
}

std::vector<Sha256Digest> page_digests(const Snapshot& snapshot, const SnapshotComponent& part) {
    std::vector<Sha256Digest> digests;
    for (const CanonicalPage& page : pages_of(snapshot, part)) {
        Sha256 hash;
        hash.update(bytes_of(part, page));
        digests.push_back(hash.finish());
    }
    return digests;
}

std::string snapshot_digest(const Snapshot& snapshot, Component component) {
    return merkle_root(page_digests(snapshot, *snapshot.find(component)));
}

Status check_layout(const Snapshot& snapshot) {
    return check_parts(snapshot, [&](Component component) { return check_range(snapshot, component); });
}

Status check_snapshot(const Snapshot& snapshot, bool with_checksums) {
    return check_parts(snapshot, [&](Component component) -> Status {
        DP_RETURN_IF_ERROR(check_range(snapshot, component));
        return check_component(snapshot, component, with_checksums);
    });
}

Status check_restore(const Snapshot& snapshot, const StateIdentity& identity, const Lane& lane, Label label) {
    const std::vector<std::string> differences = identity_differences(snapshot.identity, identity);
    if (!differences.empty()) {
        return mismatch(
            fmt::format("snapshot: made by another {}; nothing was restored; make it again with what runs now",
                        fmt::join(differences, ", ")));
    }
    if (row_shape(snapshot.shape) != row_shape(lane.shape())) {
        return mismatch(
            fmt::format("snapshot: its state shape differs from lane {}'s (another model, KV format or row format); "
                        "nothing was restored",
                        lane.id()));
    }
    DP_RETURN_IF_ERROR(check_snapshot(snapshot, true).with_context("nothing was restored"));
    for (const SnapshotComponent& part : snapshot.components) {
        if (label == Label::trusted || !is_recurrent_component(part.component) || part.consumed == snapshot.length)
            continue;
        return corrupt(
            fmt::format("snapshot: component {} consumed {} tokens, expected {} as the label says; nothing "
                        "was restored; it would apply tokens twice or leave some out: make it again",
                        component_name(part.component), part.consumed, snapshot.length));
    }
    if (static_cast<std::size_t>(snapshot.length) > lane.shape().max_tokens) {
        return exhausted(fmt::format("snapshot: {} positions, lane {} holds at most {}; nothing was restored",
                                     snapshot.length, lane.id(), lane.shape().max_tokens));
    }
    // A smaller window kept fewer rows than this lane's draft can see.
    if (snapshot.shape.draft_layers > 0 && snapshot.shape.context_capacity < lane.shape().context_capacity &&
        oldest_context_row(snapshot.shape, snapshot.length) > oldest_context_row(lane.shape(), snapshot.length)) {
        return mismatch(fmt::format("snapshot: kept {} context rows, lane {}'s draft sees {}; nothing was restored",
                                    snapshot.shape.context_capacity, lane.id(), lane.shape().context_capacity));
    }
    return {};
}

Status restore_snapshot(const Snapshot& snapshot, const StateIdentity& identity, DraftRestore draft, Lane& lane,
                        TargetRestore target, Label label) {
    DP_RETURN_IF_ERROR(check_restore(snapshot, identity, lane, label));
    if (snapshot.length > 0) DP_RETURN_IF_ERROR(lane.kv.reserve(snapshot.length - 1));

    // Nothing below can fail.
    lane.reset();
    lane.length = snapshot.length;
    lane.tokens = snapshot.tokens;
    lane.has_anchor = snapshot.request.has_value();
    lane.anchor = snapshot.request ? snapshot.request->anchor : 0;
    restore_target(snapshot, target, lane);
    if (snapshot.shape.draft_layers > 0) restore_draft(snapshot, draft, lane);
    return {};
}

}  // namespace draftprobe::state
