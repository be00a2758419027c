// What a capture holds, as plain structs: the evidence of one arm. docs/capture-format.md is the specification of the
// files; this header is the same thing in memory. Nothing here knows an engine: any engine can fill these structs.
//
// Ownership: plain values. Units: positions and lengths in tokens, sizes in bytes, scores in logits, probabilities
// in [0, 1]. Absent things are empty strings, empty vectors or empty optionals, never magic numbers unless said.
//
// Order of one cycle, which names the fields: drafted >= offered >= verified >= accepted; rows of the target forward
// = verified + 1 (the anchor row first); retained <= accepted + 1; emitted <= accepted + 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace draftprobe {

inline constexpr std::int64_t kCaptureVersion = 1;

// A token id; in a sanitised capture a keyed 64-bit word whose equality means something within one context only.
using CapturedId = std::uint64_t;

enum class Arm { fresh, restored, natural, uninterrupted, repeat };

// Where a row of state came from. `carried`: it stayed in the lane from before (same request, earlier turn).
// `none`: the position is claimed, and nobody wrote its row.
enum class RowSource { computed, restored, carried, none };

// Why a count is smaller than the one before it. `mismatch` belongs to `accepted` alone: the target chose otherwise.
// `no_draft` to `drafted`: the draft was not asked, or offered nothing.
enum class CutReason { none, budget, stop, limit, grammar, error, mismatch, no_draft };

enum class ForwardKind { prefill, verify, plain };

// Where a forward call stands in the arm's schedule. `scratch`: on a scratch lane, for the `recompute` restore form;
// its target state is dropped. `resume`: everything on the request's own lane after the boundary or the restore.
enum class ForwardPhase { materialise, scratch, resume };

std::string_view arm_name(Arm arm);
std::string_view row_source_name(RowSource source);
std::string_view cut_reason_name(CutReason reason);
std::string_view forward_kind_name(ForwardKind kind);
std::string_view forward_phase_name(ForwardPhase phase);

// Component names of the ledger. Other engines may add names; these have a place in the dataflow order.
inline constexpr std::string_view kTargetKv = "target_kv";
inline constexpr std::string_view kRecurrent = "recurrent";
inline constexpr std::string_view kConv = "conv";
inline constexpr std::string_view kDraftContext = "draft_context";  // the BF16 context rows
inline constexpr std::string_view kDraftRing = "draft_ring";        // K/V rings made from them
inline constexpr std::string_view kAnchor = "anchor";
inline constexpr std::string_view kController = "controller";

// ---------------------------------------------------------------------------------------------------------------
// Identity

// One identity group. `files` holds the declared file set as `<sha256 hex>  <name>` lines; the writer sorts them and
// sets `digest` to the SHA-256 over the lines (each ended by LF) when the list is not empty. A group without files
// (tokenizer built in, no seed) gives `digest` alone; an empty digest means: there is no such thing in this arm.
struct IdentityGroup {
    std::string digest;              // 64 hex digits or empty
    std::vector<std::string> files;  // may be empty
    bool cached = false;  // some file digest came from a cache keyed by device, inode, size and times of change
};

// How a chat became the prompt. Without a chat template all of it is empty.
struct TemplateIdentity {
    std::string digest;           // 64 hex digits
    std::string thinking;         // "on" | "off"
    std::string effort;           // 1 to 32 of a-z, 0-9, '_' and '-'; "" when not given
    std::string rendered_digest;  // SHA-256 of the rendered text in UTF-8; names the text as prompt_digest names the
                                  // ids, so a sanitised capture must not keep it as it is
};

struct Setting {
    std::string field;  // "draft.NAME" when the value was read from the draft and not chosen for the run
    std::string value;
};

// Such a setting belongs to the draft: it is not part of the non-draft input digest.
inline bool is_draft_setting(std::string_view field) { return field.starts_with("draft."); }

struct Identity {
    IdentityGroup target;
    IdentityGroup draft;
    IdentityGroup tokenizer;
    TemplateIdentity chat_template;
    std::string prompt_digest;    // set by the writer from CaptureHeader::requests
    std::string settings_digest;  // set by the writer from CaptureHeader::settings
    IdentityGroup budget_seed;
    IdentityGroup build;                 // another build is a warning, not a refusal
    std::string non_draft_input_digest;  // set by the writer: all groups but draft and build, less draft.* settings
};

// ---------------------------------------------------------------------------------------------------------------
// Arm, treatment, requests

// What the arm did to the request's state. A fresh arm leaves the defaults. In a restored one the draft forms `masked`
// (no rows below the boundary) and `none` (rows that are claimed and not written) both declare that the draft sees less
// context than the control's.
struct Treatment {
    std::string restore_target = "none";      // none | exact | int8-state
    std::string restore_draft = "none";       // none | exact | rows | rows-q4 | recompute | masked
    std::string tier = "none";                // none | memory | disk | process
    std::int32_t lane_from = 0;               // lane that materialised
    std::int32_t lane_to = 0;                 // lane that decoded
    std::optional<Position> recompute_start;  // S of the `recompute` form
    bool lockstep = false;
    std::vector<std::string> faults;  // injected faults, as NAME=ARG; empty in a healthy arm
};

// One run of one request. `key` is unique in the capture (a second run of the same prompt has its own key); it is a
// label such as "r0", never text of the prompt. Both arms of a comparison use the same key for the same request.
struct CapturedRequest {
    std::string key;
    std::string prompt_digest;           // SHA-256 over the ids as u32le; the writer sets it when ids are given
    std::vector<CapturedId> prompt_ids;  // absent in a sanitised capture
    Position prompt_length = 0;          // P
    Position boundary = 0;               // B; 0 when the arm had no boundary
    Position window = 0;                 // W of the draft; 0 when the draft sees everything
};

// ---------------------------------------------------------------------------------------------------------------
// Ledger and schedule (O(requests); per-cycle facts belong to StepRecord)

// Rows of [first, last) came from `source`. Ranges are ascending and do not overlap.
struct SourceRange {
    Position first = 0;
    Position last = 0;
    RowSource source = RowSource::none;
};

struct LedgerComponent {
    std::string component;
    Position first = 0;  // covered [first, last); a recurrent state that consumed n tokens covers [0, n)
    Position last = 0;
    Position base = 0;              // position that the component's row 0 stands for
    std::int64_t rows_claimed = 0;  // rows that the component says it has
    std::int64_t rows_written = 0;  // rows that somebody wrote
    std::vector<SourceRange> sources;
    std::string tier;  // "" in a lane; memory | disk | process for what came from or went to a store
    std::uint64_t bytes = 0;
    std::string digest;  // hex of the canonical content of [first, last); empty when not taken
    // The digest that is due. In "snapshot": what the restore form has to leave in the lane, where that is not the
    // snapshot's own content. In any other event: this component made again from what it depends on. Empty: not made.
    std::string expected;
};

// Event names: "materialise" (state at B, before any snapshot), "snapshot" (what the snapshot holds), "restore" (the
// lane after restoring), "prefill" (the lane before its first decode cycle), "end" (after its last cycle). Others may
// be added; they are reported, not compared.
struct LedgerEvent {
    std::string event;
    std::string request;
    std::int32_t lane = 0;
    Position position = 0;  // the length that the event is labelled with
    std::vector<LedgerComponent> components;

    // Draft context rows by absolute position: row_digests[i] belongs to position row_first + i. 0 means: no row there.
    Position row_first = 0;
    std::vector<std::uint64_t> row_digests;

    // In "snapshot": the row digests that the restore form has to leave in the lane, where they are others. By absolute
    // position from expected_row_first on.
    Position expected_row_first = 0;
    std::vector<std::uint64_t> expected_row_digests;

    // Of the pending anchor in "prefill": the best minus the second logit it was chosen by.
    std::optional<float> anchor_margin;

    // What the lane held before this request: digest of its committed tokens (empty: clean or poisoned) and how many
    // leading tokens it shares with this request's prompt. Stale rows under shared tokens are the right rows.
    std::string previous_occupant;
    Position previous_shared_tokens = 0;

    // Of a restore out of state that another request of the same engine was still making: the engine step in which it
    // was read and the one in which the last of it was written. Steps count from 1; 0: not recorded, or never written.
    std::int64_t read_step = 0;
    std::int64_t written_step = 0;
};

// One target forward outside the decode cycles (a cycle's verify call is its StepRecord: start L, verified + 1 rows).
struct ForwardCall {
    ForwardKind kind = ForwardKind::prefill;
    ForwardPhase phase = ForwardPhase::resume;
    std::string request;
    std::int32_t lane = 0;
    Position start = 0;
    std::int64_t rows = 0;
    std::string numerics_class;  // "f32", "i8dot", "rows", "prefill", "schedule-sensitive"
};

// ---------------------------------------------------------------------------------------------------------------
// Totals

// What the state read by the request's first decode cycle was made of, for one component, over positions [0, P).
// Recurrent state counts tokens consumed. Rows below the window that no draft can see may be left out.
struct ComponentRows {
    std::string request;
    std::string component;
    std::int64_t computed = 0;
    std::int64_t restored = 0;
    std::int64_t carried = 0;
    std::int64_t none = 0;
};

struct CaptureTotals {
    // Sums over the steps; the writer sets them.
    std::int64_t lane_cycles = 0;
    std::int64_t drafted = 0;
    std::int64_t offered = 0;
    std::int64_t verified = 0;
    std::int64_t accepted = 0;
    std::int64_t retained = 0;
    std::int64_t emitted = 0;
    // Set by whoever fills the capture.
    std::vector<ComponentRows> rows;
};

// Largest control margins at which a flip counts as a near-tie: the 99.9th percentiles of margin shifts between two
// controls that differ in schedule only. Measured before, never from the pair that is judged.
struct NearTie {
    double target = 0;    // target top-2, logits
    double selector = 0;  // selector top-2, scores
    double width = 0;     // best against second-best width, tokens per unit of cost
    std::int64_t samples = 0;
    // Last candidate against the next, logits: which candidates a selector chooses among.
    double candidate = 0;
};

struct CaptureHeader {
    int level = 1;  // 0 totals, 1 steps, 2 digests and ledger, 3 tensors
    Identity identity;
    std::vector<Setting> settings;     // effective settings, ordered, fields unique; compared one by one
    std::vector<Setting> environment;  // threads, isa, device name, ...: recorded, never compared
    Arm arm = Arm::fresh;
    Treatment treatment;
    std::vector<CapturedRequest> requests;
    std::vector<LedgerEvent> ledger;    // level >= 2
    std::vector<ForwardCall> schedule;  // every level
    CaptureTotals totals;
    std::optional<NearTie> near_tie;
    bool timing_confounded = false;  // a budget controller learned online from measured times
    bool sanitised = false;
    std::int64_t block = 8;          // anchor + drafted positions
    std::int64_t candidates = 16;    // candidates per position
    std::int64_t hidden = 0;         // hidden width of the level-3 tensors; 0 below level 3
    std::vector<std::string> notes;  // sentences every report repeats ("no effectiveness conclusion: ..."); no ids
};

// ---------------------------------------------------------------------------------------------------------------
// Steps

// Positions below the boundary that this cycle's draft can still see: B - max(0, L - W + 1), at least 0, split by
// where each row came from. In a fresh arm all of them are computed.
struct Exposure {
    std::int64_t total = 0;  // = computed + restored + carried + none
    std::int64_t computed = 0;
    std::int64_t restored = 0;
    std::int64_t carried = 0;
    std::int64_t none = 0;
};

// A context row that the draft read at position `row`, and the target row that it was made from. `request` is a key of
// CaptureHeader::requests, or empty: a request that was in the lane before.
struct RowPairing {
    Position row = 0;
    std::string request;
    Position position = 0;
    bool operator==(const RowPairing&) const = default;
};

// The context that the draft read. It claims [first_position, first_position + rows_claimed); a sound one ends at L.
struct DraftContextUse {
    std::int64_t rows_claimed = 0;
    std::int64_t rows_valid = 0;  // claimed rows that were written
    Position first_position = 0;
    std::vector<SourceRange> provenance;
    std::string digest;               // level >= 2, when digests are on
    std::vector<RowPairing> pairing;  // of the oldest and the newest claimed row, ascending; not of unwritten ones
};

// State of an adaptive budget rule: Beta counts per confidence bucket and cost per verify width.
struct ControllerState {
    std::vector<double> successes;
    std::vector<double> failures;
    std::vector<double> cost;
};

struct StateDigest {
    std::string component;
    std::string digest;
};

// What the arm has against what is made again, apart from its own path, of what went into it: the draft's rows from the
// lane as it stands, or state after a commit from the state before and the rows' operands. Hashes of any kind.
struct Witness {
    std::string component;  // "draft_hidden", "recurrent"
    std::uint64_t found = 0;
    std::uint64_t expected = 0;
};

// One lane-cycle. Array lengths: D = drafted, K = CaptureHeader::candidates, R = verified + 1.
struct StepRecord {
    // Level >= 1.
    std::int64_t cycle = 0;  // counts from 0 in the arm; several lanes share a cycle
    std::int32_t lane = 0;
    std::string request;
    Position length = 0;  // L; ascending within a request (equal only for a repeated context)
    CapturedId anchor = 0;
    std::string context_hash;  // 64 hex digits, capture/context_hash.h
    bool forced = false;       // lockstep committed the control's tokens here

    Exposure exposure;
    DraftContextUse draft_context;

    std::vector<CapturedId> candidate_ids;  // [D * K], position-major, value descending then id ascending
    std::vector<float> candidate_scores;    // [D * K] unary scores; absent in a sanitised capture
    std::vector<CapturedId> proposals;      // [D]
    std::string proposal_source;            // "selector" | "argmax" | "scripted" | "sampled" | "none"
    std::vector<float> q;                   // [D] conditional probability of each proposal at temperature 1
    std::vector<float> prefix_confidence;   // [D]

    std::int64_t drafted = 0;
    std::int64_t offered = 0;
    std::int64_t verified = 0;
    std::int64_t accepted = 0;
    std::int64_t retained = 0;
    std::int64_t emitted = 0;
    CutReason drafted_cut = CutReason::none;   // fewer than block - 1
    CutReason offered_cut = CutReason::none;   // fewer than drafted
    CutReason verified_cut = CutReason::none;  // fewer than offered
    CutReason accepted_cut = CutReason::none;  // mismatch when fewer than verified
    CutReason retained_cut = CutReason::none;  // fewer than accepted + 1
    CutReason emitted_cut = CutReason::none;   // fewer than accepted + 1

    std::vector<CapturedId> target_choices;  // [R]
    std::vector<CapturedId> target_top2;     // [R * 2] ids, best first
    std::vector<float> target_top2_logits;   // [R * 2]; absent in a sanitised capture
    std::int64_t matches_beyond = 0;         // matches found in scratch rows that were not verified: not evidence
    bool censored = false;                   // the true acceptance length is only known to be at least what was seen

    std::vector<float> target_margins;     // [R] best minus second
    std::vector<float> selector_margins;   // [D] best minus second; absent without a selector
    std::vector<float> candidate_margins;  // [D] 16th minus 17th; absent when not taken
    std::optional<double> width_margin;    // absent under a full budget

    std::optional<ControllerState> controller_in;  // absent under a full budget
    std::optional<ControllerState> controller_out;

    std::vector<CapturedId> committed;  // [retained] tokens written at L..; committed[0] is the anchor
    CapturedId next_anchor = 0;

    // Level >= 2.
    std::vector<StateDigest> state_digests;            // after the commit; empty when not taken at this cycle
    std::vector<std::uint64_t> draft_hidden_digests;   // [D] xxh64/xxh3 of the float32 row before rounding
    std::vector<std::uint64_t> target_hidden_digests;  // [R]
    std::vector<Witness> witness;                      // of a restored arm; empty when not taken
};

// Level-3 rows of one step, borrowed for the call. draft_hidden: [D * hidden], rows 1..D after the draft's final norm.
// target_hidden: [R * hidden], after the target's final norm, the anchor row first.
struct StepTensors {
    const Bf16* draft_hidden = nullptr;
    const Bf16* target_hidden = nullptr;
};

// What one lane-cycle says about the true acceptance length: it ended after `length` matches (`rejected`), or it is
// only known to be at least `length` (censored: all verified proposals matched, or the sequence was cut by anything but
// the target's choice). Nothing
// was at risk when no proposal was verified; then length is 0 and `at_risk` is false.
struct ObservedAcceptance {
    std::int64_t length = 0;
    bool rejected = false;
    bool at_risk = false;
};
ObservedAcceptance observed_acceptance(const StepRecord& step);

// Wall-clock facts of one lane-cycle, for timing.jsonl: outside identity, digest and comparison.
struct StepTiming {
    std::int64_t cycle = 0;
    std::int32_t lane = 0;
    double draft_us = 0;
    double verify_us = 0;
    double commit_us = 0;
};

}  // namespace draftprobe
