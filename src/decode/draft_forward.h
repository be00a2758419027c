// The draft's forward pass: context rows and rings from taps, the block pass, and the choice of proposals (dflash2.md
// 3-6): version 2 walks the candidate selector, version 1 decides each position on its own.
//
// The block always runs all B rows; limits cut after acceptance, because block rows see each other. Lanes are
// independent rows of one batch. DraftForward borrows models and compute; one caller at a time.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "decode/sampling.h"
#include "model/draft_model.h"
#include "numerics/attention.h"
#include "numerics/compute.h"
#include "state/lane.h"

namespace draftprobe::decode {

// What was proposed for one lane. Arrays run over positions t = 1..B-1 in order (index t-1). Everything but
// `distributions` is at temperature 1, whatever the proposals were drawn with.
struct DraftChoice {
    std::size_t top_k = 0;
    std::vector<TokenId> candidates;  // [B-1][top_k], order: unary score descending, id ascending
    std::vector<float> unary;         // [B-1][top_k], the candidates' logits
    std::vector<float> next_unary;    // [B-1], logit of rank top_k + 1 (for the candidate margin)
    std::vector<float> scores;        // [B-1][top_k], selector scores along the chosen path; empty without a selector
    std::vector<TokenId> proposals;   // [B-1]; sampled without a selector: not necessarily among the candidates
    std::vector<float> q;  // [B-1], probability of the proposal given the path: softmax over the candidates' scores, or
                           // over the whole vocabulary without a selector
    std::vector<float> prefix_confidence;  // [B-1], product of q up to and including this position
    // [B-1] when sampled, what each proposal was drawn from; empty when greedy.
    std::vector<TokenDistribution> distributions;
};

struct DraftOutput {
    std::vector<float> hidden;         // [lanes, B-1, H], rows 1..B-1 after the draft's final norm, float32
    std::vector<DraftChoice> choices;  // per lane
};

class DraftForward {
public:
    DraftForward(const model::DraftModel& draft, const model::TargetModel& target, const numerics::Compute& compute);

    std::size_t block() const { return static_cast<std::size_t>(draft_.config().block); }
    bool has_selector() const { return draft_.selector().has_value(); }

    // Appends context rows for positions first .. first+rows-1 from their taps ([rows, n*H]) and moves lane.draft's end
    // behind them. Rows that the ring could not keep are not computed. Requires first == lane.draft.end().
    void append_context(state::Lane& lane, Position first, numerics::ConstRows taps, state::RowSource source);

    // Rebuilds every ring row of [draft.first, draft.end) from the stored context rows (restore form `rows`).
    void rebuild_rings(state::Lane& lane);

    // Runs the block of every lane (each has an anchor) and chooses proposals. `sampling`: one per lane, or empty: all
    // greedy. A proposal for absolute position p is drawn with the number of (p, RandomStream::draft).
    void run(std::span<state::Lane* const> lanes, std::span<const LaneSampling> sampling, DraftOutput& out);

    // Single stages, for comparison with references on their own inputs; run() is made of exactly these.
    void context_rows(numerics::ConstRows taps, numerics::Rows out) const;  // c_p, before storing
    void embed_block(std::span<state::Lane* const> lanes, numerics::Rows out) const;
    void layer(std::size_t index, std::span<state::Lane* const> lanes, numerics::Rows hidden) const;  // in place
    void final_norm(numerics::ConstRows hidden, numerics::Rows out) const;
    void logits(numerics::ConstRows normed, numerics::Rows out) const;
    // hidden [B-1, H], logits [B-1, V] of one lane, of which anchor and length are read. sampling: null is greedy.
    DraftChoice choose(const state::Lane& lane, numerics::ConstRows hidden, numerics::ConstRows logits,
                       const LaneSampling* sampling) const;

private:
    void write_rings(state::Lane& lane, Position first, numerics::ConstRows context);
    void convolve(const model::DynamicConv& conv, int side, numerics::ConstRows delta, numerics::ConstRows x,
                  numerics::Rows out) const;
    // hidden += inner(normalised hidden), with the convolutions around `inner` when there are any.
    template <class Inner>
    void sublayer(const std::vector<float>& norm, const std::optional<model::DynamicConv>& conv, numerics::Rows hidden,
                  const Inner& inner) const;
    void attention(std::size_t index, std::span<state::Lane* const> lanes, numerics::ConstRows x,
                   numerics::Rows out) const;
    void feed_forward(const model::DraftLayerWeights& weights, numerics::ConstRows x, numerics::Rows out) const;
    // Normalises and rotates the heads of one row in place.
    void turn_heads(float* row, std::size_t heads, const std::vector<float>& norm, Position position) const;
    void rank_candidates(numerics::ConstRows logits, DraftChoice& choice) const;
    void walk_selector(const state::Lane& lane, numerics::ConstRows hidden, const LaneSampling* sampling,
                       DraftChoice& choice) const;
    void choose_apart(const state::Lane& lane, numerics::ConstRows logits, const LaneSampling* sampling,
                      DraftChoice& choice) const;

    const model::DraftModel& draft_;
    const model::TargetModel& target_;
    const numerics::Compute& compute_;
};

}  // namespace draftprobe::decode
