// What every engine has, observed or not: the model pair, arithmetic, lanes, forward passes and restores.
//
// Owns compute, lanes and scratch; shares the immutable models. One caller at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "decode/draft_forward.h"
#include "decode/target_forward.h"
#include "state/snapshot.h"

namespace draftprobe::decode {

struct ModelPair {
    std::shared_ptr<const model::TargetModel> target;
    std::shared_ptr<const model::DraftModel> draft;  // null: plain decoding or scripted drafts only
};

struct EngineSettings {
    numerics::NumericsClass numerics = numerics::NumericsClass::f32;
    numerics::Isa isa = numerics::Isa::portable;
    int threads = 1;
    int lanes = 1;
    state::KvFormat kv_format = state::KvFormat::bf16;
    state::RowFormat row_format = state::RowFormat::bf16;
    std::size_t max_tokens = 0;    // positions per lane
    std::size_t chunk_tokens = 0;  // prefill chunks are cut at absolute multiples of this
    std::size_t block = 0;         // rows of a verification, anchor included; the draft's block when there is a draft
    bool poison = false;           // fresh storage holds NaN patterns
};

// The target's part of a lane's state shape; the draft's part and max_tokens are left 0.
state::StateShape target_state_shape(const TargetConfig& target, state::KvFormat kv_format,
                                     state::RowFormat row_format);

// Draft context rows that were computed again, and what that took.
struct Recomputed {
    std::unique_ptr<state::Lane> scratch;
    Position start = 0;  // S
    struct Call {
        Position start = 0;
        std::size_t rows = 0;
    };
    std::vector<Call> calls;  // forward calls over [S, B): the cost
};

class EngineCore {
public:
    // Errors: invalid_argument for settings that make no sense, mismatch for a draft that does not fit, unsupported for
    // the instruction set.
    static Result<std::unique_ptr<EngineCore>> create(ModelPair models, const EngineSettings& settings);

    const EngineSettings& settings() const { return settings_; }
    const ModelPair& models() const { return models_; }
    const numerics::Compute& compute() const { return *compute_; }
    const state::StateShape& shape() const { return shape_; }
    // Draft window in positions (a draft row sees distances 0 .. window-1); max_tokens when unlimited, 0 without a
    // draft.
    std::size_t window() const { return window_; }

    int lane_count() const { return static_cast<int>(lanes_.size()); }
    state::Lane& lane(int id) { return *lanes_[static_cast<std::size_t>(id)]; }
    const state::Lane& lane(int id) const { return *lanes_[static_cast<std::size_t>(id)]; }

    TargetForward& target_forward() { return *target_forward_; }
    DraftForward* draft_forward() { return draft_forward_.get(); }  // null without a draft

    // Commits the first `retained` rows that the last forward computed for this lane (their taps start at row
    // `first_row` of `forward`), and appends their draft context.
    void commit(state::Lane& lane, std::span<const TokenId> tokens, std::size_t retained, bool kept_operands,
                const ForwardOutput& forward, std::size_t first_row);

    // Restores into a lane: rings are rebuilt or rows computed again where the form asks for it. Errors as
    // state::restore_snapshot and recompute_context; the lane is untouched then.
    Status restore(const state::Snapshot& snapshot, const state::StateIdentity& identity, state::DraftRestore form,
                   int lane, state::TargetRestore target = state::TargetRestore::exact);

    // The restore form `recompute`, first half: computes the context rows that the draft can still see at the
    // snapshot's length from its tokens, on a scratch lane that stands at S = `base`'s length (a snapshot of a prefix
    // of the same tokens, at least a window before the end) or, without one, at 0. The scratch lane's target state must
    // equal the snapshot's byte for byte, so a snapshot that its own tokens cannot explain is refused here. Errors:
    // mismatch (target state differs; base is no usable prefix), those of restore and of the forward pass.
    Result<Recomputed> recompute_context(const state::Snapshot& snapshot, const state::StateIdentity& identity,
                                         const state::Snapshot* base);
    // Second half: moves the rows into a lane that was restored from that snapshot. Their source is `computed`.
    void adopt_context(const Recomputed& recomputed, state::Lane& lane) const;

private:
    EngineCore() = default;

    ModelPair models_;
    EngineSettings settings_;
    state::StateShape shape_;
    std::size_t window_ = 0;
    std::unique_ptr<numerics::Compute> compute_;
    std::unique_ptr<TargetForward> target_forward_;
    std::unique_ptr<DraftForward> draft_forward_;
    std::vector<std::unique_ptr<state::Lane>> lanes_;
};

// The next chunk of a prefill that stands at `position` with `remaining` tokens to go: up to the next absolute multiple
// of chunk_tokens, never across `stop` (a boundary at which the schedule is cut; ignored when not ahead).
std::size_t next_chunk(Position position, std::size_t remaining, std::size_t chunk_tokens, Position stop);

}  // namespace draftprobe::decode
