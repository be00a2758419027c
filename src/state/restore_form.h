// How state comes back from a snapshot, and where the snapshot was kept meanwhile. Each value is a treatment that a
// capture records; docs/restores.md says which are bit-exact and why.
#pragma once

#include <string_view>

#include "base/status.h"

namespace draftprobe::state {

// exact: bytes are copied. int8_state: the recurrent matrix went through int8 (lossy).
enum class TargetRestore { exact, int8_state };

// exact: context rows and rings are copied. rows: rows are copied, rings rebuilt from them. rows_q4: the rows went
// through 4 bits (lossy). recompute: the rows are computed again from the tokens on a scratch lane. masked: the lane
// declares that it has no rows before the boundary. none: the rows are claimed and nobody wrote them (a defect).
enum class DraftRestore { exact, rows, rows_q4, recompute, masked, none };

// memory: an immutable object of this process. disk: a file, verified while it is read. process: a file that another
// process resumes from.
enum class Tier { memory, disk, process };

// Whether the form leaves rings that have to be made from its context rows.
inline bool rebuilds_rings(DraftRestore form) { return form == DraftRestore::rows || form == DraftRestore::rows_q4; }

// Spellings of the command line and of captures: "exact", "int8-state", "rows-q4", ...
std::string_view target_restore_name(TargetRestore form);
std::string_view draft_restore_name(DraftRestore form);
std::string_view tier_name(Tier tier);

// invalid_argument naming what was found and what exists.
Result<TargetRestore> parse_target_restore(std::string_view name);
Result<DraftRestore> parse_draft_restore(std::string_view name);
Result<Tier> parse_tier(std::string_view name);

}  // namespace draftprobe::state
