// The draft's forward pass: context rows and rings from taps, the block pass, and the candidate selector (dflash2.md
// 3-5).
//
// The block always runs all B rows; limits cut after acceptance, because block rows see each other. Lanes are
// independent rows of one batch. DraftForward borrows models and compute; one caller at a time.
#pragma once

#include <span>
#include <vector>

#include "model/draft_model.h"
#include "numerics/attention.h"
#include "numerics/compute.h"
#include "state/lane.h"

namespace draftprobe::decode {

// What the selector decided for one lane. Arrays run over positions t = 1..B-1 in order (index t-1).
struct DraftChoice {
    std::size_t top_k = 0;
    std::vector<TokenId> candidates;  // [B-1][top_k], order: unary score descending, id ascending
    std::vector<float> unary;         // [B-1][top_k], the candidates' logits
    std::vector<float> next_unary;    // [B-1], logit of rank top_k + 1 (for the candidate margin)
    std::vector<float> scores;        // [B-1][top_k], selector scores along the walked path
    std::vector<TokenId> proposals;   // [B-1]
    std::vector<float> q;  // [B-1], conditional probability of the proposal, softmax over candidates, temperature 1
    std::vector<float> prefix_confidence;  // [B-1], product of q up to and including this position
};

struct DraftOutput {
    std::vector<float> hidden;         // [lanes, B-1, H], rows 1..B-1 after the draft's final norm, float32
    std::vector<DraftChoice> choices;  // per lane
};

class DraftForward {
public:
    DraftForward(const model::DraftModel& draft, const model::TargetModel& target, const numerics::Compute& compute);

    std::size_t block() const { return static_cast<std::size_t>(draft_.config().block); }

    // Appends context rows for positions first .. first+rows-1 from their taps ([rows, n*H]) and moves lane.draft's end
    // behind them. Rows that the ring could not keep are not computed. Requires first == lane.draft.end().
    void append_context(state::Lane& lane, Position first, numerics::ConstRows taps, state::RowSource source);

    // Rebuilds every ring row of [draft.first, draft.end) from the stored context rows (restore form `rows`).
    void rebuild_rings(state::Lane& lane);

    // Runs the block of every lane (each has an anchor) and chooses proposals.
    void run(std::span<state::Lane* const> lanes, DraftOutput& out);

    // Single stages, for comparison with references on their own inputs; run() is made of exactly these.
    void context_rows(numerics::ConstRows taps, numerics::Rows out) const;  // c_p, before storing
    void embed_block(std::span<state::Lane* const> lanes, numerics::Rows out) const;
    void layer(std::size_t index, std::span<state::Lane* const> lanes, numerics::Rows hidden) const;  // in place
    void final_norm(numerics::ConstRows hidden, numerics::Rows out) const;
    void logits(numerics::ConstRows normed, numerics::Rows out) const;
    // hidden [B-1, H], logits [B-1, V] of one lane.
    DraftChoice choose(TokenId anchor, numerics::ConstRows hidden, numerics::ConstRows logits) const;

private:
    void write_rings(state::Lane& lane, Position first, numerics::ConstRows context);
    void convolve(const model::DynamicConv& conv, int side, numerics::ConstRows delta, numerics::ConstRows x,
                  numerics::Rows out) const;

    const model::DraftModel& draft_;
    const model::TargetModel& target_;
    const numerics::Compute& compute_;
};

}  // namespace draftprobe::decode
