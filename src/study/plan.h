// A plan: a sequence over several requests and lanes, as docs/plan-format.md describes it. This file reads and checks
// one; study/plan_run.h runs it.
//
// A plan that parses makes sense from its first step to its last: lanes, requests and snapshots are known where they
// are used, snapshots are taken at boundaries, and something runs to its end. Nothing is run before that is known.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "probe/restore.h"

namespace draftprobe::study {

inline constexpr std::uint64_t kMaxPlanBytes = 64u << 20;
inline constexpr std::size_t kMaxPlanRequests = 64;
inline constexpr std::size_t kMaxPlanSteps = 1000;
inline constexpr int kMaxPlanLanes = 16;
inline constexpr std::int64_t kMaxPlanStore = std::int64_t{1} << 50;

// Where a request's tokens are: here, or in a file beside the plan.
struct PlanPrompt {
    enum class Kind { ids, ids_file, text_file };
    Kind kind = Kind::ids;
    std::vector<TokenId> ids;
    std::filesystem::path file;  // relative to the plan's directory, below it
};

struct PlanRequest {
    std::string name;  // 1 to 32 of A-Z, a-z, 0-9, '_' and '-'
    PlanPrompt prompt;
    Position boundary = 0;  // B, whole pages
    std::size_t cycles = 0;
};

//   start        the request begins in the lane, which keeps the bytes of whoever was there; nothing is computed
//   materialise  computes the prefix [0, B) and stops there
//   save         takes a snapshot of a lane that stands at its boundary
//   restore      begins the request in the lane from a snapshot; with `refused`, that has to fail and leave the lane
//                alone
//   borrow       begins the request in the lane with what another lane holds for [0, B), written or not yet
//   evict        drops a snapshot from memory; one saved to disk is read again by the next restore
//   spoil        damages one byte of a snapshot in memory
//   run          the lanes go on together: every engine step is one forward with a prefill chunk of each lane that
//                still has prompt left and a cycle of each other one; up to `cycles` cycles a lane, or to the end
enum class PlanVerb { start, materialise, save, restore, evict, spoil, run, borrow };
std::string_view plan_verb_name(PlanVerb verb);

struct PlanStep {
    PlanVerb verb = PlanVerb::run;
    std::size_t request = 0;            // start, restore, borrow: index
    int lane = 0;                       // start, materialise, save, restore, borrow
    int from = 0;                       // borrow: the lane that lends
    std::string snapshot;               // save, restore, evict, spoil
    bool to_disk = false;               // save
    probe::RestoreTreatment treatment;  // restore; move is not used
    std::string inject_tier;            // restore: faults act only on what comes from this tier; empty: always
    bool refused = false;               // restore
    std::vector<int> lanes;             // run, distinct
    std::optional<std::size_t> cycles;  // run
};

struct Plan {
    std::string subject;  // where it comes from, for messages: its file
    int lanes = 2;
    // Budget of the prefix store that holds snapshots of tier memory; absent: no bound.
    std::optional<std::size_t> store_bytes;
    std::vector<PlanRequest> requests;
    std::vector<PlanStep> steps;
};

// Errors: corrupt (not JSON, or a member is missing, unknown, or of another type), mismatch (another format version),
// invalid_argument (steps that make no sense: step, found, expected), exhausted (above a limit).
Result<Plan> parse_plan(std::string_view text, std::string_view subject);
// The same for a file. Errors also: not_found, io.
Result<Plan> read_plan(const std::filesystem::path& path);

}  // namespace draftprobe::study
