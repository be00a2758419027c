#include "probe/restore.h"

#include <algorithm>

#include "state/snapshot_file.h"

namespace draftprobe::probe {

using state::DraftRestore;

Status check_treatment_faults(const RestoreTreatment& treatment, const state::StateShape& shape, Position boundary,
                              std::size_t prompt_length) {
    if (treatment.idle_faults) return {};
    return instrument::check_faults(
        treatment.faults, shape,
        {boundary, static_cast<Position>(prompt_length), treatment.draft, treatment.target, treatment.move});
}

Result<std::optional<RecomputeCost>> restore_request(instrument::ObservedEngine& engine,
                                                     const state::Snapshot& snapshot,
                                                     const state::StateIdentity& identity,
                                                     const RestoreTreatment& treatment, int lane_id,
                                                     const state::Snapshot* base) {
    decode::EngineCore& core = engine.core();
    state::Lane& lane = engine.lane(lane_id);
    DP_ASSIGN_OR_RETURN(const instrument::CopyFaults faults,
                        instrument::CopyFaults::before_restore(treatment.faults, lane, snapshot.length));
    decode::Recomputed recomputed;
    const bool recompute = treatment.draft == DraftRestore::recompute;
    if (recompute) {
        DP_ASSIGN_OR_RETURN(recomputed, core.recompute_context(snapshot, identity, base));
    }
    const bool trusted = treatment.trusts_label || std::any_of(treatment.faults.begin(), treatment.faults.end(),
                                                               [](const instrument::Fault& fault) {
                                                                   return instrument::spoils_checkpoint(fault.kind);
                                                               });
    DP_RETURN_IF_ERROR(state::restore_snapshot(snapshot, identity, treatment.draft, lane, treatment.target,
                                               trusted ? state::Label::trusted : state::Label::verified));
    if (recompute) core.adopt_context(recomputed, lane);
    const Status applied = faults.apply(lane, treatment.draft == DraftRestore::exact || recompute);
    if (!applied.ok() && !treatment.idle_faults) return applied;
    if (state::rebuilds_rings(treatment.draft)) core.draft_forward()->rebuild_rings(lane);
    if (!recompute) return std::optional<RecomputeCost>();
    return std::optional<RecomputeCost>({recomputed.start, std::move(recomputed.calls)});
}

Result<state::Snapshot> through_disk(const state::Snapshot& snapshot, const std::filesystem::path& path, bool force) {
    DP_RETURN_IF_ERROR(state::write_snapshot(snapshot, path, force));
    return state::read_snapshot(path);
}

Position latest_recompute_start(Position boundary, std::size_t window) {
    if (window == 0) return 0;
    return std::max<Position>(0, boundary - static_cast<Position>(window) + 1);
}

}  // namespace draftprobe::probe
