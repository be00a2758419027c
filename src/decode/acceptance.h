// What the target says about verified rows, greedy or sampled, and what a request keeps of it.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "decode/draft_forward.h"
#include "decode/sampling.h"
#include "numerics/compute.h"

namespace draftprobe::decode {

// What a request allows. A cut happens after acceptance: proposals never depend on limits.
struct RequestLimits {
    std::size_t max_new_tokens = 0;  // the anchor chosen by prefill counts as the first
    std::vector<TokenId> stop_ids;
};

enum class Cut { none, stop, limit };

// One lane's cycle in the six counts of docs/glossary.md.
struct CycleResult {
    int lane = 0;
    std::size_t drafted = 0;
    std::size_t offered = 0;
    std::size_t verified = 0;  // rows minus the anchor row
    std::size_t accepted = 0;  // leading matches
    std::size_t retained = 0;  // rows committed
    std::vector<TokenId> emitted;
    Cut cut = Cut::none;    // why retained is below accepted + 1, or none
    bool finished = false;  // a stop token was emitted or the limit is reached
    // Objective of the verify budget at the width taken, less that of the next best one; absent under a full budget.
    std::optional<double> width_margin;
};

// The token that follows a committed row: argmax, or a draw from the target's distribution at `position`.
TokenId choose_next(std::span<const float> logits, const LaneSampling& sampling, Position position);

// The target's choice behind every verified row: entry j follows rows[j] and stands at position length + j + 1. Entries
// up to the first one that differs from rows[j + 1] decide; the ones behind it are the argmax of rows that nobody asked
// for. Greedy: argmax throughout. Sampled: rows[j + 1] where the rejection test accepts it, then one draw from the
// residual, or from the last row when everything was accepted. Logits [rows, V]; `drafted` holds q when sampled.
std::vector<TokenId> target_choices(numerics::ConstRows logits, std::span<const TokenId> rows,
                                    const DraftChoice& drafted, const LaneSampling& sampling, Position length);

// Leading proposals that equal the target's choices, plus the target's next token, then the request's cuts. `emitted`
// tokens were given out before. Rows retained equal tokens emitted: each emitted token but the last has its row
// committed already, and the consumed anchor's row takes the last one's place.
CycleResult accept(std::size_t drafted, std::span<const TokenId> rows, std::span<const TokenId> choices,
                   const RequestLimits& limits, std::size_t emitted);

}  // namespace draftprobe::decode
