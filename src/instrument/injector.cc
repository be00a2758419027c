#include "instrument/injector.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "formats/checkpoint.h"

namespace draftprobe::instrument {

using state::Component;
using state::Lane;
using state::StoredRows;

namespace {

// Calls body(rows) for the context rows and every ring of the lane.
template <class LaneType, class Body>
void each_draft_block(LaneType& lane, const Body& body) {
    body(lane.draft.rows());
    for (std::size_t layer = 0; layer < lane.draft.layers(); ++layer) {
        body(lane.draft.keys(layer));
        body(lane.draft.values(layer));
    }
}

// Makes `part` hold what the lane holds now: its label stays.
void take_bytes(const Lane& lane, state::SnapshotComponent& part) {
    const state::ComponentRange range = state::component_range(lane, part.component);
    const std::span<std::byte> bytes = part.bytes.writable();
    for (const auto& page : state::canonical_pages(lane.shape(), part.component, range.first, range.last))
        state::read_canonical(lane, part.component, page, bytes.data() + page.offset);
}

void take_recurrent_state(const Lane& lane, state::Snapshot& snapshot) {
    for (state::SnapshotComponent& part : snapshot.components) {
        if (part.component == Component::recurrent_matrix || part.component == Component::recurrent_conv)
            take_bytes(lane, part);
    }
}

// Rings that were lent and written into: the slots of the snapshot's positions, whatever they hold by now.
void take_draft_slots(const Lane& lane, state::Snapshot& snapshot) {
    Lane view(lane.id(), lane.shape(), false);
    view.draft = lane.draft;
    for (state::SnapshotComponent& part : snapshot.components) {
        if (part.component != Component::draft_context && part.component != Component::draft_rings) continue;
        view.draft.claim(part.first, part.last, state::RowSource::restored);
        take_bytes(view, part);
    }
}

}  // namespace

// Shows the draft one token of the past as its anchor; afterwards nobody can tell.
class FaultInjector::StaleDrafter final : public decode::Drafter {
public:
    StaleDrafter(FaultInjector& injector, decode::Drafter& inner) : injector_(injector), inner_(inner) {}

    decode::ProposalSource source() const override { return inner_.source(); }

    void propose(std::span<Lane* const> lanes, std::span<const decode::LaneSampling> sampling,
                 decode::DraftOutput& out) override {
        const Fault& fault = *injector_.find(FaultKind::stale_anchor);
        if (injector_.anchor_done_) return inner_.propose(lanes, sampling, out);
        Lane& lane = *lanes[0];
        const TokenId anchor = lane.anchor;
        if (fault.anchor == StaleAnchor::token) {
            lane.anchor = lane.tokens[static_cast<std::size_t>(lane.length - fault.number)];
        } else if (lane.draft.end() - lane.draft.first() > fault.number) {
            const Position newest = lane.draft.end() - 1;
            injector_.right_row_ = injector_.draft_row(lane, newest);
            injector_.put_draft_row(lane, newest, injector_.draft_row(lane, newest - fault.number));
        }
        inner_.propose(lanes, sampling, out);
        lane.anchor = anchor;
    }

private:
    FaultInjector& injector_;
    decode::Drafter& inner_;
};

const Fault* FaultInjector::find(FaultKind kind) const {
    const auto at = std::find_if(faults_.begin(), faults_.end(), [kind](const Fault& f) { return f.kind == kind; });
    return at == faults_.end() ? nullptr : &*at;
}

Status FaultInjector::go_on(int lane, std::span<const TokenId> tokens) {
    // What a fault computes is no part of the arm's schedule.
    CycleSink* const sink = engine_.observer().sink();
    engine_.observer().set_sink(nullptr);
    Status status = engine_.prefill(lane, tokens, 0, false);
    engine_.observer().set_sink(sink);
    return status;
}

Status FaultInjector::at_snapshot(int from, std::span<const TokenId> next, std::span<const TokenId> other,
                                  state::Snapshot& snapshot) {
    for (const Fault& fault : faults_) {
        const bool mislabelled = fault.kind == FaultKind::mislabelled_checkpoint;
        if (!mislabelled && fault.kind != FaultKind::alias_snapshot) continue;
        const std::span<const TokenId> tokens = mislabelled ? next : other;
        const auto count = static_cast<std::size_t>(fault.number);
        if (count > tokens.size()) {
            return invalid_argument(
                fmt::format("--inject {}: found {} tokens to go on with, expected {}; give a longer "
                            "prompt or a smaller number",
                            fault.spelling, tokens.size(), count));
        }
        DP_RETURN_IF_ERROR(go_on(from, tokens.first(count)));
        const Lane& lane = engine_.lane(from);
        take_recurrent_state(lane, snapshot);
        if (!mislabelled) take_draft_slots(lane, snapshot);
        state::reseal(snapshot);
    }
    return {};
}

Status FaultInjector::after_restore(int lane_id, const std::filesystem::path& draft_dir) {
    Lane& lane = engine_.lane(lane_id);
    for (const Fault& fault : faults_) {
        switch (fault.kind) {
            case FaultKind::flip:
                if (fault.component != Component::draft_context)
                    flip_byte(lane, fault.component, static_cast<std::size_t>(fault.number));
                break;
            case FaultKind::empty_restore: lane.reset(); break;
            case FaultKind::position_base: restored_end_ = renumbered_end_ = lane.length; break;
            case FaultKind::window_off_by_one: {
                const model::DraftModel& draft = *engine_.core().models().draft;
                DraftConfig config = draft.config();
                for (DraftLayer& layer : config.layer_attention) {
                    if (layer.window > 0) layer.window += fault.number;
                }
                DP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(draft_dir));
                DP_ASSIGN_OR_RETURN(other_window_, model::DraftModel::load(checkpoint, config, draft.precision()));
                other_window_forward_ = std::make_unique<decode::DraftForward>(
                    *other_window_, *engine_.core().models().target, engine_.core().compute());
                break;
            }
            default: break;
        }
    }
    return {};
}

// The rings of [renumbered_end_, end) made again from their rows, as if those stood at base, base + 1, ...: a scratch
// lane holds the rows at the wrong positions, and its rings are copied back to the right slots.
void FaultInjector::renumber_positions(Lane& lane) {
    const Fault* const fault = find(FaultKind::position_base);
    if (fault == nullptr || !renumbered_end_) return;
    state::DraftContext& context = lane.draft;
    const Position first = std::max(*renumbered_end_, context.first());
    const Position end = context.end();
    renumbered_end_ = end;
    if (first >= end) return;
    const Position shift = fault->number - *restored_end_;
    Lane scratch(lane.id(), lane.shape(), false);
    for (Position p = first; p < end; ++p) put_draft_row(scratch, p + shift, draft_row(lane, p));
    scratch.draft.claim(first + shift, end + shift, state::RowSource::computed);
    engine_.core().draft_forward()->rebuild_rings(scratch);
    for (Position p = first; p < end; ++p) put_draft_row(lane, p, draft_row(scratch, p + shift));
}

FaultInjector::DraftRow FaultInjector::draft_row(const Lane& lane, Position position) const {
    DraftRow row;
    const std::size_t slot = lane.draft.slot(position);
    each_draft_block(lane, [&](const StoredRows& block) {
        const auto bytes = block.bytes(slot);
        row.parts.emplace_back(bytes.begin(), bytes.end());
    });
    return row;
}

void FaultInjector::put_draft_row(Lane& lane, Position position, const DraftRow& row) const {
    const std::size_t slot = lane.draft.slot(position);
    std::size_t part = 0;
    each_draft_block(lane, [&](StoredRows& block) {
        std::memcpy(block.bytes(slot).data(), row.parts[part].data(), row.parts[part].size());
        ++part;
    });
}

void FaultInjector::after_prefill(int lane) { renumber_positions(engine_.lane(lane)); }

decode::Drafter& FaultInjector::drafter(decode::Drafter& healthy) {
    decode::Drafter* drafter = &healthy;
    if (other_window_forward_ != nullptr) {
        wide_drafter_ = std::make_unique<decode::ModelDrafter>(*other_window_forward_);
        drafter = wide_drafter_.get();
    }
    if (has(FaultKind::stale_anchor)) {
        stale_drafter_ = std::make_unique<StaleDrafter>(*this, *drafter);
        drafter = stale_drafter_.get();
    }
    return *drafter;
}

void FaultInjector::on_propose(const Lane& lane, const decode::DraftChoice& choice, numerics::ConstRows hidden) {
    // Shown first: the record holds the row that the draft read.
    sink_.on_propose(lane, choice, hidden);
    if (right_row_) put_draft_row(engine_.lane(lane.id()), lane.draft.end() - 1, *right_row_);
    right_row_.reset();
    anchor_done_ = true;
    if (has(FaultKind::unwritten_cell)) idle_before_ = engine_.lane(lane.id()).recurrent.idle();
}

void FaultInjector::on_commit(const Lane& lane, const decode::CycleResult& result,
                              const budget::Controller* controller) {
    Lane& mine = engine_.lane(lane.id());
    renumber_positions(mine);
    const Fault* const unwritten = find(FaultKind::unwritten_cell);
    if (unwritten != nullptr && result.accepted == 0 && ++full_rejects_ == unwritten->number)
        mine.recurrent.current() = *idle_before_;
    sink_.on_commit(lane, result, controller);
}

Status FaultInjector::check_acted() const {
    const Fault* const unwritten = find(FaultKind::unwritten_cell);
    if (unwritten == nullptr || full_rejects_ >= unwritten->number) return {};
    return invalid_argument(
        fmt::format("--inject {}: found {} cycles that rejected every proposal, expected at least "
                    "{}: the fault never acted; give more --cycles or another prompt",
                    unwritten->spelling, full_rejects_, unwritten->number));
}

}  // namespace draftprobe::instrument
