#include "probe/restore.h"

#include <fmt/format.h>

namespace draftprobe::probe {

using state::DraftRestore;

Status restore_request(instrument::ObservedEngine& engine, const state::Snapshot& snapshot, const std::string& identity,
                       const RestoreTreatment& treatment, int lane_id) {
    if (treatment.target != state::TargetRestore::exact || treatment.tier != state::Tier::memory) {
        return unsupported(fmt::format("restore: target form {}, tier {}; served are exact and memory",
                                       state::target_restore_name(treatment.target), state::tier_name(treatment.tier)));
    }
    state::Lane& lane = engine.lane(lane_id);
    DP_ASSIGN_OR_RETURN(const instrument::CopyFaults faults,
                        instrument::CopyFaults::before_restore(treatment.faults, lane, snapshot.length));
    DP_RETURN_IF_ERROR(state::restore_snapshot(snapshot, identity, treatment.draft, lane));
    faults.apply(lane, treatment.draft == DraftRestore::exact);
    if (treatment.draft == DraftRestore::rows) engine.core().draft_forward()->rebuild_rings(lane);
    return {};
}

}  // namespace draftprobe::probe
