// Compares one matched pair of lane-cycles, field by field, and only where the inputs were equal in both arms:
// draft rows and candidates always (their input is the context), proposals and selector margins at position p if
// proposals 1..p-1 agree, q and confidence if p itself agrees too (they belong to the proposal), target row j if
// proposals 1..j agree. Raw target logits are not compared: sanitising removes them, and the margins carry what
// decides. Inside compare/ only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "capture/capture.h"
#include "compare/comparison.h"
#include "compare/findings.h"
#include "compare/matcher.h"

namespace draftprobe {

// Order inside the draft and select stages, and inside a commit.
enum DraftRank { kContextRank, kHiddenRank, kCandidateRank, kProposalRank, kConfidenceRank };
enum CommitRank { kOutputRank, kStateRank };

struct PairOptions {
    bool scores = true;       // compare unary candidate scores
    std::int64_t hidden = 0;  // width of the tensors; 0 without
    std::int64_t candidates = 16;
    std::optional<NearTie> near_tie;
    bool width_declared = false;         // the number of verified rows is declared, or follows times: no finding
    bool masked_by_declaration = false;  // the treated arm declared that its draft sees less context
};

struct PairOutcome {
    bool different = false;
    bool hard = false;  // a difference that no rounding explains
    bool proposals = false;
    bool width = false;
    bool acceptance = false;
    bool output = false;
    bool target_choice = false;
    std::int64_t first_proposal_difference = -1;  // position from 0
    double draft_drift = 0;
    double target_drift = 0;
    double confidence_change = 0;
};

// Counts a flipped decision, and says whether the control's margin at it is a near-tie.
Weight count_flip(std::optional<double> margin, double NearTie::*threshold, const std::optional<NearTie>& near_tie,
                  Flips& flips);

// Whether an error cut any count of the step, so that nothing is known about what would have followed.
bool has_error(const StepRecord& step);

// What the step says of a context row that was made from another target row than its own; nothing where `control`'s
// step is paired alike.
std::optional<std::string> wrong_pairing(const StepRecord& step, const StepRecord* control = nullptr);

// Adds to drift and flips, offers differences to `findings`, and returns what this pair showed.
PairOutcome compare_pair(const HeldStep& control, const HeldStep& treated, const PairOptions& options,
                         Findings& findings, RowDrift& draft_drift, RowDrift& target_drift, Flips& flips);

}  // namespace draftprobe
