// The result of comparing two captures, as plain values: what report/ prints and what the archive recomputes. Nothing
// in it names a token id, a text, a path or a date, so the comparison of two sanitised captures equals that of their
// originals.
//
// Cycle numbers are the control's, lane numbers the treated arm's.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capture/capture.h"
#include "compare/verdict.h"

namespace draftprobe {

// One mismatch of identity or effective settings that no declared treatment covers.
struct Refusal {
    std::string field;  // "identity.target", "settings.kv_format", ...
    std::string control;
    std::string treated;
};

// The earliest difference in dataflow order: ledger at materialise, snapshot, restore, prefill; then by cycle, and
// within a cycle draft, select, width, verify, accept, commit; last the ledger at the end.
struct FirstDifference {
    std::string stage;
    std::string component;
    std::optional<std::int64_t> cycle;  // absent for ledger stages
    std::optional<std::int32_t> lane;
    std::string detail;
};

struct ArmedComponent {
    std::string component;
    ComponentRows control;
    ComponentRows treated;
};

struct Armed {
    bool armed = false;                          // false also where a fault was found before any cycle
    std::string reason;                          // why not; empty when armed
    std::string advice;                          // what to do about it
    std::optional<std::int64_t> draft_exposure;  // at the treated arm's first decode cycle; absent without steps
    Exposure draft_exposure_split;               // the same by where the rows came from; for the views only
    std::int64_t recomputed_rows = 0;  // rows below the boundary that the treated arm computed again after its restore
    std::vector<ArmedComponent> components;  // summed over requests
};

// Why steps of one arm found no partner.
struct UnmatchedReasons {
    std::int64_t cycle_boundaries = 0;  // the other arm has no cycle at this length
    std::int64_t context_differs = 0;   // it has one, after other tokens
    std::int64_t arm_ended = 0;         // it had stopped before
    std::int64_t request_missing = 0;
};

// An arm whose last step of a request was cut short by an error: what it had done until then is evidence, what would
// have followed is not known.
struct ArmStop {
    std::string stage;  // "draft" or "verify"
    std::int64_t cycle = 0;
    std::int32_t lane = 0;
};

// The draft's window at the first matched cycle of a request in which the treated arm has fewer rows in it.
struct WindowFill {
    std::int64_t rows = 0;     // written rows that the treated arm's draft sees
    std::int64_t control = 0;  // the same of the control
    std::int64_t window = 0;   // positions that the window spans
    std::int64_t cycle = 0;
};

struct Pairs {
    std::int64_t matched = 0;
    std::int64_t unmatched_control = 0;
    std::int64_t unmatched_treated = 0;
    std::int64_t duplicates_control = 0;  // repeated contexts, field-equal, counted once
    std::int64_t duplicates_treated = 0;
    std::int64_t differing = 0;                  // matched pairs in which anything compared differs
    std::optional<std::int64_t> last_differing;  // cycle of the last of them
    std::int64_t same_after = 0;                 // matched pairs behind it, all equal
    std::int64_t forced = 0;                     // matched pairs in which lockstep committed the control's tokens
    UnmatchedReasons control;
    UnmatchedReasons treated;
};

// Product-limit survival of acceptance length: survival[i] is the estimated probability of accepting at least i + 1.
struct Survival {
    std::vector<std::int64_t> at_risk;
    std::vector<std::int64_t> rejected;
    std::vector<double> survival;
};

struct ArmAcceptance {
    std::int64_t lane_cycles = 0;
    std::int64_t drafted = 0;
    std::int64_t verified = 0;
    std::int64_t accepted = 0;
    std::int64_t retained = 0;
    std::int64_t emitted = 0;        // of cycles that were not forced
    std::int64_t forced_cycles = 0;  // lockstep committed the control's tokens
    std::int64_t restored_rows = 0;  // summed over components and requests
    std::int64_t computed_rows = 0;
    std::optional<Survival> survival;  // only under a full budget
    double mean_accepted() const { return lane_cycles == 0 ? 0.0 : double(accepted) / double(lane_cycles); }
    double mean_retained() const { return lane_cycles == 0 ? 0.0 : double(retained) / double(lane_cycles); }
};

// Over matched pairs. Position p counts pairs in which p was verified in both arms and reached in both.
struct PairedAcceptance {
    std::vector<std::int64_t> at_risk;
    std::vector<std::int64_t> accepted_control;
    std::vector<std::int64_t> accepted_treated;
    std::int64_t retained_control = 0;
    std::int64_t retained_treated = 0;
    std::int64_t width_differs = 0;
    std::int64_t acceptance_differs = 0;
    std::vector<std::int64_t> first_proposal_difference;  // [position], pairs whose proposals differ first there
};

// A mean difference, treated minus control, over prompts. Absent under 10 prompts.
struct PopulationEffect {
    std::int64_t prompts = 0;
    double difference = 0;
    double low = 0;  // 95 % interval, percentile bootstrap over prompts
    double high = 0;
    double minimum_detectable = 0;  // 80 % power, 5 % two-sided
    double p_value = 1;             // two-sided, of the same bootstrap
    // "lower", "higher", or "insufficient" when the interval holds 0: then a difference below minimum_detectable may
    // well exist and not be seen.
    std::string_view claim() const { return high < 0 ? "lower" : low > 0 ? "higher" : "insufficient"; }
};

// Acceptance at one position, over prompts in which it was at risk in both arms.
struct PositionEffect {
    std::int64_t position = 0;  // from 1
    std::int64_t prompts = 0;
    std::optional<PopulationEffect> effect;  // of the match rate; absent under 10 prompts
    std::optional<double> adjusted_p;        // Holm, over the positions
};

// Matched pairs of one stratum of one dimension. Dimensions are not crossed; each partitions all pairs.
struct Cell {
    std::string dimension;  // "exposure", "distance", "tier"
    std::string band;
    std::int64_t pairs = 0;
    std::int64_t differing = 0;
    std::int64_t prompts = 0;
    std::int64_t at_risk = 0;  // positions seen in both arms
    std::int64_t accepted_control = 0;
    std::int64_t accepted_treated = 0;
    std::int64_t retained_control = 0;
    std::int64_t retained_treated = 0;
    std::optional<PopulationEffect> effect;  // of retained tokens a pair; absent under 10 prompts
    std::optional<double> adjusted_p;        // Holm, over the cells of the dimension
};

// Tenths of [0, 1].
inline constexpr std::int64_t kConfidenceBuckets = 10;

struct ReliabilityBucket {
    std::int64_t positions = 0;  // verified positions whose outcome is known
    std::int64_t matched = 0;    // with everything before them
    double confidence = 0;       // summed prefix confidence
};

struct WidthPrediction {
    std::int64_t cycles = 0;
    double predicted = 0;  // summed 1 + prefix confidences up to the width
    double realised = 0;   // summed accepted + 1
};

// Prefix confidence against what came of it, of one arm in one exposure band.
struct Reliability {
    std::string arm;  // "control" | "treated"
    std::string exposure;
    std::int64_t positions = 0;
    double squared_error = 0;                        // summed; the Brier score is its mean
    std::vector<ReliabilityBucket> buckets;          // [kConfidenceBuckets]
    std::map<std::int64_t, WidthPrediction> widths;  // by verified proposals
    double brier() const { return positions == 0 ? 0.0 : squared_error / static_cast<double>(positions); }
};

// Match rate of positions that were reached, in one stratum of prefix confidence. Under a budget that follows the
// confidence, which positions were verified is not by chance: `low` takes every unknown one as a miss, `high` as a
// match.
struct Hazard {
    std::int64_t stratum = 0;  // tenth of [0, 1]
    std::int64_t known = 0;
    std::int64_t matched = 0;
    std::int64_t unknown = 0;  // reached, not verified
    double low = 0;
    double high = 1;
};

// Accepted proposals a cycle over the order of requests, as a least-squares line. Flagged when there are at least
// kRequests, the slope is kErrors standard errors from 0, and the line moves by kShare of the mean.
struct Trend {
    static constexpr std::int64_t kRequests = 20;
    static constexpr double kErrors = 3;
    static constexpr double kShare = 0.02;
    std::int64_t requests = 0;
    double first = 0;  // the line at the first and at the last request
    double last = 0;
    double t = 0;  // slope in standard errors
    bool flagged = false;
};

struct RowDrift {
    std::optional<double> max_relative_l2;  // absent when no tensors were compared; infinite for non-finite rows
    double sum_relative_l2 = 0;
    std::int64_t rows = 0;  // rows with equal inputs, compared by digest or by tensor
    std::int64_t rows_different = 0;
    std::int64_t rows_input_differs = 0;  // not compared
    std::int64_t cycle = 0;               // where the maximum stands
    std::int64_t row = 0;
};

struct Flips {
    std::int64_t total = 0;
    std::int64_t near_ties = 0;
    std::int64_t widths = 0;               // of the total: flipped widths, whose margins are tokens per unit of cost
    std::optional<double> largest_margin;  // of the control at a flip that is no width; absent without recorded margins
};

// One point of the per-cycle series, or several cycles folded into one.
struct SeriesPoint {
    std::int64_t first_cycle = 0;
    std::int64_t pairs = 0;
    double draft_drift = 0;  // maxima
    double target_drift = 0;
    double confidence_change = 0;
    std::int64_t verified_control = 0;  // sums
    std::int64_t verified_treated = 0;
    std::int64_t retained_control = 0;
    std::int64_t retained_treated = 0;
    std::int64_t exposure = 0;
};

// Another control, judged against the fresh arm. report/recompute.h fills the list.
struct ControlVerdict {
    std::string arm;      // "repeat", "natural", "uninterrupted"
    std::string capture;  // its directory, below the report's; empty: not kept
    Verdict verdict = Verdict::insufficient;
    std::string why;
    std::int64_t matched = 0;
    std::string digest;  // of its capture; for the views only, never in canonical JSON
};

struct LedgerRow {
    std::string arm;  // "control" | "treated"
    std::string event;
    std::int32_t lane = 0;
    LedgerComponent component;
};

struct CaptureSummary {
    std::string arm;
    std::string restore_target;
    std::string restore_draft;
    std::string tier;
    int level = 0;
    std::string numerics;
    std::string budget;
    std::vector<std::string> faults;
    std::int64_t requests = 0;
    // For the views only, never in canonical JSON: sanitising changes them.
    std::string digest;
    std::string target;  // identity digests
    std::string draft;
    std::int64_t prompt_length = 0;
    std::int64_t boundary = 0;
    std::int64_t window = 0;
};

struct Comparison {
    Verdict verdict = Verdict::insufficient;
    std::string why;  // one sentence
    int level = 0;    // evidence compared: the lower of both captures
    bool sanitisable_evidence = false;
    bool proposals_changed = false;
    bool width_changed = false;
    bool acceptance_changed = false;
    bool output_changed = false;
    bool target_choices_changed = false;  // also in rows that nothing was accepted or emitted from
    std::optional<FirstDifference> first;
    std::optional<ArmStop> control_stop;
    std::optional<ArmStop> treated_stop;
    std::optional<WindowFill> window_fill;
    std::optional<std::int64_t> shift_tokens;  // rows landed this many positions too high (negative: too low)
    std::vector<Refusal> refusals;
    std::vector<std::string> declared;  // treatments that covered a real mismatch
    Armed armed;
    Pairs pairs;
    ArmAcceptance control;
    ArmAcceptance treated;
    std::string survival_refused;  // why there is no survival estimate; empty when there is
    PairedAcceptance paired;
    std::optional<PopulationEffect> population;
    std::string population_refused;
    std::vector<PositionEffect> positions;
    std::vector<Cell> cells;  // empty without a boundary
    std::vector<Reliability> reliability;
    std::vector<Hazard> control_hazards;  // not under a full budget: there the survival estimate says more
    std::vector<Hazard> treated_hazards;
    std::optional<Trend> control_trend;
    std::optional<Trend> treated_trend;
    RowDrift draft_drift;
    RowDrift target_drift;
    double max_confidence_change = 0;
    Flips flips;
    std::optional<NearTie> near_tie;
    std::string drift_explained_by;     // the recorded schedule or format difference; empty when there is none
    std::vector<std::string> warnings;  // blind spots first
    std::int64_t blind_spots = 0;       // how many of the warnings limit what a SAME can mean
    std::vector<ControlVerdict> controls;
    std::vector<std::string> notes;  // from the captures
    CaptureSummary control_capture;
    CaptureSummary treated_capture;
    std::vector<SeriesPoint> series;  // for the page
    std::vector<LedgerRow> ledger;    // for the page
    std::string corruption;           // message of the reader; names paths, so for the views only
    std::string corrupt_capture;      // "control" | "treated"
    std::string next_step;
};

// Whether most lane-cycles of an arm have no partner and lockstep would have given them one: means over all cycles are
// then means over different texts.
inline bool mostly_unmatched(const Comparison& c) {
    return c.pairs.forced == 0 && std::max(c.pairs.unmatched_control, c.pairs.unmatched_treated) > c.pairs.matched;
}

}  // namespace draftprobe
