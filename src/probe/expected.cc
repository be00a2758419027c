#include "probe/expected.h"

#include <cstring>

#include "base/hash.h"
#include "numerics/compute.h"
#include "state/lossy.h"

namespace draftprobe::probe {

namespace {

using state::Component;

LedgerComponent* find(LedgerEvent& event, Component component) {
    for (LedgerComponent& part : event.components) {
        if (part.component == state::component_name(component)) return &part;
    }
    return nullptr;
}

// The recurrent matrices through int8, layer by layer.
std::string int8_state_digest(const state::Snapshot& snapshot) {
    const state::SnapshotComponent& part = *snapshot.find(Component::recurrent_matrix);
    std::vector<Sha256Digest> digests;
    for (const auto& page : state::canonical_pages(snapshot.shape, part.component, part.first, part.last)) {
        std::vector<float> matrix(page.bytes / sizeof(float));
        std::memcpy(matrix.data(), part.bytes.view(page.offset, page.bytes).data(), page.bytes);
        state::through_int8_rows(matrix, snapshot.shape.value_dim);
        Sha256 hash;
        hash.update(std::as_bytes(std::span<const float>(matrix)));
        digests.push_back(hash.finish());
    }
    return state::merkle_root(digests);
}

// Not the restore's own loop: what is checked must not share the path that it checks.
void rows_through_q4(state::DraftContext& draft) {
    std::vector<float> row(draft.rows().cols());
    for (Position p = draft.first(); p < draft.end(); ++p) {
        draft.rows().read(draft.slot(p), row.data());
        state::through_q4(row);
        draft.rows().write(draft.slot(p), row.data());
    }
}

}  // namespace

void add_expected_restore(const state::Snapshot& snapshot, const RestoreTreatment& treatment, decode::EngineCore& core,
                          LedgerEvent& event) {
    LedgerComponent* const recurrent = find(event, Component::recurrent_matrix);
    if (treatment.target == state::TargetRestore::int8_state && recurrent != nullptr)
        recurrent->expected = int8_state_digest(snapshot);
    LedgerComponent* const rings = find(event, Component::draft_rings);
    if (!state::rebuilds_rings(treatment.draft) || rings == nullptr) return;
    // Rows of a lane that nothing else is in: no KV page, no earlier occupant.
    const state::SnapshotComponent& part = *snapshot.find(Component::draft_context);
    state::Lane lane(core.lane_count(), core.shape(), false);
    lane.draft.claim(part.first, part.last, state::RowSource::restored);
    for (const auto& page : state::canonical_pages(snapshot.shape, part.component, part.first, part.last)) {
        state::write_canonical(lane, part.component, page, part.bytes.view(page.offset, page.bytes));
    }
    if (treatment.draft == state::DraftRestore::rows_q4) {
        rows_through_q4(lane.draft);
        find(event, Component::draft_context)->expected = state::component_digest(lane, Component::draft_context);
        event.expected_row_first = part.first;
        event.expected_row_digests = state::context_row_digests(lane);
    }
    core.draft_forward()->rebuild_rings(lane);
    rings->expected = state::component_digest(lane, Component::draft_rings);
}

void add_expected_rings(const state::Lane& lane, decode::EngineCore& core, LedgerEvent& event) {
    LedgerComponent* const rings = find(event, Component::draft_rings);
    const state::DraftContext& draft = lane.draft;
    const std::size_t claimed = draft.rows_claimed();
    if (rings == nullptr || draft.rows_written() < claimed || draft.rings_written() < claimed) return;
    state::Lane scratch(core.lane_count(), core.shape(), false);
    scratch.draft = draft;
    core.draft_forward()->rebuild_rings(scratch);
    rings->expected = state::component_digest(scratch, Component::draft_rings);
}

std::uint64_t hash_of_rows(numerics::ConstRows rows) {
    std::vector<std::uint64_t> hashes;
    for (std::size_t r = 0; r < rows.rows; ++r)
        hashes.push_back(xxh3_64(std::as_bytes(std::span<const float>(rows.row(r), rows.cols))));
    return xxh3_64(std::as_bytes(std::span<const std::uint64_t>(hashes)));
}

std::uint64_t expected_draft_rows(state::Lane& lane, decode::EngineCore& core) {
    decode::DraftOutput out;
    state::Lane* const lanes[] = {&lane};
    core.draft_forward()->run(lanes, {}, out);
    const std::size_t rows = core.draft_forward()->block() - 1;
    const std::size_t width = out.hidden.size() / rows;
    return hash_of_rows({out.hidden.data(), rows, width, width});
}

void CommitWitness::before(const state::Lane& lane, std::size_t rows, std::size_t retained) {
    const state::StateShape& shape = lane.shape();
    const std::size_t dk = shape.key_dim;
    const std::size_t dv = shape.value_dim;
    const auto& kernels = numerics::kernels(numerics::best_isa());
    const state::RecurrentState& recurrent = lane.recurrent;
    const state::DeltaOperands& operands = recurrent.operands;
    heads_.clear();
    for (std::size_t layer = 0; layer < shape.delta_layers; ++layer) {
        std::vector<float> head(dk * dv);
        // A forward that keeps every row leaves its own scan, in whatever order its class scans.
        const auto& source = retained == rows ? recurrent.idle() : recurrent.current();
        std::copy_n(source.matrix[layer].begin(), head.size(), head.begin());
        for (std::size_t i = 0; i < retained && retained < rows; ++i) {
            kernels.delta_step(head.data(), head.data(), nullptr, operands.key[layer].data() + i * shape.key_heads * dk,
                               operands.value[layer].data() + i * shape.value_heads * dv,
                               operands.decay[layer][i * shape.value_heads],
                               operands.beta[layer][i * shape.value_heads], dk, dv, nullptr);
        }
        heads_.push_back(std::move(head));
    }
}

std::optional<Witness> CommitWitness::after(const state::Lane& lane) const {
    if (heads_.empty()) return std::nullopt;
    std::vector<std::uint64_t> found;
    std::vector<std::uint64_t> expected;
    for (std::size_t layer = 0; layer < heads_.size(); ++layer) {
        const std::span<const float> head(lane.recurrent.current().matrix[layer].data(), heads_[layer].size());
        found.push_back(xxh3_64(std::as_bytes(head)));
        expected.push_back(xxh3_64(std::as_bytes(std::span<const float>(heads_[layer]))));
    }
    return Witness{std::string(kRecurrent), xxh3_64(std::as_bytes(std::span<const std::uint64_t>(found))),
                   xxh3_64(std::as_bytes(std::span<const std::uint64_t>(expected)))};
}

}  // namespace draftprobe::probe
