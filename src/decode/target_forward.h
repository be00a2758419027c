// The target's forward pass over lanes: rows of several requests in one batch, prefill chunks and verify rows alike.
//
// A forward computes rows for positions length .. length+rows-1 of each lane without moving any committed state: KV
// rows go to scratch past the lane's length, recurrent layers scan from the current cell into the idle one. `commit`
// then makes the first `retained` rows state. A row's value depends on its lane's tokens alone, never on batch, chunk
// or width (docs/numerics.md), so verify rows equal single rows bit for bit.
//
// TargetForward borrows model and compute (both outlive it) and owns scratch; one caller at a time.
#pragma once

#include <span>
#include <vector>

#include "model/target_model.h"
#include "numerics/attention.h"
#include "numerics/compute.h"
#include "state/lane.h"

namespace draftprobe::decode {

enum class LogitRows { none, last, all };

struct Segment {
    state::Lane* lane = nullptr;
    std::span<const TokenId> tokens;  // consecutive, first at lane->length
    LogitRows logits = LogitRows::none;
    // Operands are kept so that commit may retain fewer rows than were computed. Prefill chunks are always retained
    // whole and do not need them.
    bool keep_operands = false;
};

struct ForwardOutput {
    // Rows of all segments, concatenated in order.
    std::size_t rows = 0;
    std::vector<float> taps;              // [rows, taps * H], rounded to the row format; empty without taps
    std::vector<float> hidden;            // [rows, H] after the final norm, float32
    std::vector<std::size_t> logit_rows;  // row of `hidden` that each logits row belongs to, ascending
    std::vector<float> logits;            // [logit_rows, V], as the segments asked
};

class TargetForward {
public:
    // taps: 0-based layers whose outputs are collected (ascending). row_format: how taps are stored.
    TargetForward(const model::TargetModel& model, const numerics::Compute& compute, std::vector<std::int64_t> taps,
                  state::RowFormat row_format);

    // Computes the rows. Fails with exhausted when a lane cannot hold them, invalid_argument for an empty segment or a
    // token outside the vocabulary; no committed state changes either way.
    // Also corrupt for a row that is not finite, unless those were asked for.
    Status run(std::span<const Segment> segments, ForwardOutput& out);

    // Whether rows that are not finite are computed through like any other instead of ending the run: for looking at
    // what state that nobody wrote leads to. Off at first.
    void set_keep_non_finite(bool keep) { keep_non_finite_ = keep; }

    // Makes the first `retained` of the rows that the last run() computed for this lane committed state (0 is allowed).
    // Requires retained == rows unless operands were kept.
    void commit(state::Lane& lane, std::span<const TokenId> tokens, std::size_t retained, bool kept_operands);

    // Single stages, for comparison with references on their own inputs. run() is made of exactly these.
    void embed(std::span<const TokenId> tokens, numerics::Rows out) const;
    void layer(std::size_t index, std::span<const Segment> segments, numerics::Rows hidden);  // in place
    void final_norm(numerics::ConstRows hidden, numerics::Rows out) const;
    void logits(numerics::ConstRows normed, numerics::Rows out) const;

    const model::TargetModel& model() const { return model_; }

private:
    void attention_mixer(const model::AttentionMixer& mixer, std::size_t state_index, std::span<const Segment> segments,
                         numerics::ConstRows x, numerics::Rows out);
    void delta_mixer(const model::DeltaMixer& mixer, std::size_t state_index, std::span<const Segment> segments,
                     numerics::ConstRows x, numerics::Rows out);

    const model::TargetModel& model_;
    const numerics::Compute& compute_;
    std::vector<std::int64_t> taps_;
    state::RowFormat row_format_;
    bool keep_non_finite_ = false;
};

// Cosine and sine of position * inverse_frequency (the product rounded to float32), one per pair.
void rope_angles(std::span<const float> inverse_frequencies, Position position, std::vector<float>& cosine,
                 std::vector<float>& sine);

}  // namespace draftprobe::decode
