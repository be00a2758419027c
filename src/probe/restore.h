// What a restored arm does to the request's state at the boundary: snapshot, tier, another lane, forms, faults.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "instrument/faults.h"
#include "instrument/observer.h"
#include "state/restore_form.h"
#include "state/snapshot.h"

namespace draftprobe::probe {

// Each member can be switched alone; the defaults are the probe's usual treatment.
struct RestoreTreatment {
    bool move = true;  // into another lane, which another request left dirty; else back into the same lane
    state::TargetRestore target = state::TargetRestore::exact;
    state::DraftRestore draft = state::DraftRestore::exact;
    state::Tier tier = state::Tier::memory;
    std::vector<instrument::Fault> faults;
    // One run of a study that varies the treatment: a fault may be without effect in it. Else such a fault is refused.
    bool idle_faults = false;
    // The restore takes a snapshot's label for granted: a defect. Faults of the checkpoint imply it.
    bool trusts_label = false;
};

// Whether every fault can act under the treatment. Errors: those of check_faults.
Status check_treatment_faults(const RestoreTreatment& treatment, const state::StateShape& shape, Position boundary,
                              std::size_t prompt_length);

// What the form `recompute` did on its scratch lane.
struct RecomputeCost {
    Position start = 0;  // S
    std::vector<decode::Recomputed::Call> calls;
};

// Puts `snapshot` into `lane` as the treatment says, faults included, so that the lane can go on. `identity` is the
// running engine's own. `base`: for the draft form `recompute`, an exact snapshot of an earlier prefix, or null; its
// cost is returned. The tier is the caller's: `snapshot` is what came back from it. Errors: those of
// EngineCore::restore; the lane is untouched then.
Result<std::optional<RecomputeCost>> restore_request(instrument::ObservedEngine& engine,
                                                     const state::Snapshot& snapshot,
                                                     const state::StateIdentity& identity,
                                                     const RestoreTreatment& treatment, int lane,
                                                     const state::Snapshot* base = nullptr);

// The tier `disk`: writes the snapshot to `path` and reads it back, which checks every page. The file stays.
Result<state::Snapshot> through_disk(const state::Snapshot& snapshot, const std::filesystem::path& path, bool force);

// The length at which a base snapshot for `recompute` may stand at most: B - W + 1, or 0. Window 0 sees everything.
Position latest_recompute_start(Position boundary, std::size_t window);

}  // namespace draftprobe::probe
