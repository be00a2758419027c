// What a restored arm does to the request's state at the boundary: snapshot, tier, another lane, forms, faults.
#pragma once

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
};

// Puts `snapshot` into `lane` as the treatment says, faults included, so that the lane can go on. `identity` is the
// running engine's own. Errors: those of state::restore_snapshot; unsupported for a form or tier that is not served.
Status restore_request(instrument::ObservedEngine& engine, const state::Snapshot& snapshot, const std::string& identity,
                       const RestoreTreatment& treatment, int lane);

}  // namespace draftprobe::probe
