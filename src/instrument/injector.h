// The faults of one arm at work: a sink that stands between the engine and the recorder, and a drafter around the
// engine's own. Without faults it only passes on.
//
// Order of calls by a restored arm: at_snapshot, before_request, (CopyFaults by the restore), after_restore,
// before_prefill, after_prefill, then cycles with drafter(). A computing arm leaves out what belongs to the restore.
// Engine, recorder and tokens are borrowed and outlive it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "instrument/faults.h"
#include "instrument/observer.h"
#include "state/snapshot.h"

namespace draftprobe::instrument {

class FaultInjector final : public CycleSink {
public:
    // `sink` is shown everything, after a fault of that place has acted where it has to be seen.
    FaultInjector(std::vector<Fault> faults, ObservedEngine& engine, CycleSink& sink)
        : faults_(std::move(faults)), engine_(engine), sink_(sink) {}

    // Whether some fault has this kind.
    bool has(FaultKind kind) const { return find(kind) != nullptr; }

    // Checkpoint faults. `from` is the lane that the snapshot was taken of; it is not needed as it stands any more and
    // goes on. `next` are the request's own tokens behind the boundary, `other` those of another request. Errors: those
    // of prefill.
    Status at_snapshot(int from, std::span<const TokenId> next, std::span<const TokenId> other,
                       state::Snapshot& snapshot);
    // Components that the checkpoint was saved without.
    std::vector<state::Component> unsaved() const;
    // While the lane still holds its previous request.
    void before_request(int lane);
    // Faults of a restore that believes it is done. draft_dir: where the draft came from. Errors: those of loading the
    // draft again.
    Status after_restore(int lane, const std::filesystem::path& draft_dir);
    // Before and after the rest of the prompt is computed. `boundary`: where the restore ended.
    void before_prefill(int lane);
    void after_prefill(int lane, Position boundary);
    // Rows of a verification, anchor included.
    void set_verify_rows(std::size_t rows) { verify_rows_ = rows; }

    // What proposes: `healthy` or, for faults of the draft's inputs, something that wraps or replaces it.
    decode::Drafter& drafter(decode::Drafter& healthy);

    // Fails with invalid_argument when a fault waited for an event that did not come, or found nothing to act on.
    Status check_acted() const;

    void on_forward(decode::ForwardKind kind, const state::Lane& lane, Position start, std::size_t rows) override {
        sink_.on_forward(kind, lane, start, rows);
    }
    void on_anchor(const state::Lane& lane, std::span<const float> logits) override { sink_.on_anchor(lane, logits); }
    void on_propose(const state::Lane& lane, const decode::DraftChoice& choice, numerics::ConstRows hidden) override;
    void on_verify(const decode::VerifyView& view) override { sink_.on_verify(view); }
    void on_commit(const state::Lane& lane, const decode::CycleResult& result,
                   const budget::Controller* controller) override;

private:
    class StaleDrafter;
    class SilentDrafter;
    // One position's context row and ring rows, and the target row that they came from.
    struct DraftRow {
        std::vector<std::vector<std::byte>> parts;
        state::RowOrigin origin;
    };

    const Fault* find(FaultKind kind) const;
    void note_idle(const Status& reason);
    Status go_on(int lane, std::span<const TokenId> tokens);
    Status stop_inside_step(const Fault& fault, int lane, std::span<const TokenId> next, state::Snapshot& snapshot);
    void read_pending_row(state::Lane& lane, const Fault& fault);
    void leave_suffix_unwritten(state::Lane& lane, Position boundary, Position reached);
    void renumber_positions(state::Lane& lane);
    DraftRow draft_row(const state::Lane& lane, Position position) const;
    void put_draft_row(state::Lane& lane, Position position, const DraftRow& row) const;

    std::vector<Fault> faults_;
    ObservedEngine& engine_;
    CycleSink& sink_;
    std::shared_ptr<const model::DraftModel> other_window_;
    std::unique_ptr<decode::DraftForward> other_window_forward_;
    std::unique_ptr<decode::Drafter> wide_drafter_;
    std::unique_ptr<decode::Drafter> stale_drafter_;
    std::optional<Position> restored_end_;               // position_base: where the restore ended
    std::optional<Position> renumbered_end_;             // rows below it are done
    bool anchor_done_ = false;                           // stale_anchor
    bool anchor_idle_ = false;                           // stale_anchor found nothing wrong to show
    std::optional<DraftRow> right_row_;                  // what stale_anchor=row replaced
    Status idle_;                                        // of the first fault that cannot act in this arm
    std::set<FaultKind> acted_;                          // of those that may find nothing to act on
    std::optional<state::DraftContext> occupant_;        // pending_row, unreset_row: the request before
    std::optional<state::DraftContext> before_prefill_;  // suffix_unwritten
    std::size_t verify_rows_ = 0;                        // split_slots
    Position silent_cycles_ = 0;                         // draft_nothing
    std::unique_ptr<decode::Drafter> silent_drafter_;
    std::optional<state::RecurrentCell> idle_before_;
    Position full_rejects_ = 0;
};

}  // namespace draftprobe::instrument
