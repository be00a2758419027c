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
        if (!state::is_recurrent_component(part.component)) continue;
        take_bytes(lane, part);
        part.consumed = lane.recurrent.current().consumed;
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

// Shows the draft one token or row of the past in the place of the newest; afterwards nobody can tell.
class FaultInjector::StaleDrafter final : public decode::Drafter {
public:
    StaleDrafter(FaultInjector& injector, decode::Drafter& inner) : injector_(injector), inner_(inner) {}

    decode::ProposalSource source() const override { return inner_.source(); }

    void propose(std::span<Lane* const> lanes, std::span<const decode::LaneSampling> sampling,
                 decode::DraftOutput& out) override {
        if (injector_.anchor_done_) return inner_.propose(lanes, sampling, out);
        Lane& lane = *lanes[0];
        const TokenId anchor = lane.anchor;
        if (const Fault* pending = injector_.find(FaultKind::pending_row)) injector_.read_pending_row(lane, *pending);
        if (const Fault* stale = injector_.find(FaultKind::stale_anchor)) show_past(lane, *stale);
        inner_.propose(lanes, sampling, out);
        lane.anchor = anchor;
    }

private:
    void show_past(Lane& lane, const Fault& fault) {
        const Position reach =
            fault.anchor == StaleAnchor::token ? lane.length : lane.draft.end() - lane.draft.first() - 1;
        // One row can only be replaced by one other.
        if (fault.number > reach || (fault.anchor == StaleAnchor::row && injector_.right_row_)) {
            injector_.anchor_idle_ = true;
        } else if (fault.anchor == StaleAnchor::token) {
            const TokenId anchor = lane.anchor;
            lane.anchor = lane.tokens[static_cast<std::size_t>(lane.length - fault.number)];
            injector_.anchor_idle_ = lane.anchor == anchor;
        } else {
            const Position newest = lane.draft.end() - 1;
            injector_.right_row_ = injector_.draft_row(lane, newest);
            injector_.put_draft_row(lane, newest, injector_.draft_row(lane, newest - fault.number));
        }
    }

    FaultInjector& injector_;
    decode::Drafter& inner_;
};

// Offers nothing while the fault lasts, as an engine that finds no draft state and says nothing about it.
class FaultInjector::SilentDrafter final : public decode::Drafter {
public:
    SilentDrafter(FaultInjector& injector, decode::Drafter& inner) : injector_(injector), inner_(inner) {}

    decode::ProposalSource source() const override { return inner_.source(); }

    void propose(std::span<Lane* const> lanes, std::span<const decode::LaneSampling> sampling,
                 decode::DraftOutput& out) override {
        const Fault& fault = *injector_.find(FaultKind::draft_nothing);
        if (!fault.all && injector_.silent_cycles_ >= fault.number) return inner_.propose(lanes, sampling, out);
        ++injector_.silent_cycles_;
        out.hidden.clear();
        out.choices.assign(lanes.size(), decode::DraftChoice());
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
        if (fault.kind == FaultKind::checkpoint_inside_step) {
            DP_RETURN_IF_ERROR(stop_inside_step(fault, from, next, snapshot));
            continue;
        }
        if (fault.kind == FaultKind::unsaved_component) {
            for (state::SnapshotComponent& part : snapshot.components) {
                if (part.component == fault.component) std::ranges::fill(part.bytes.writable(), std::byte{0xff});
            }
            state::reseal(snapshot);
            continue;
        }
        const bool mislabelled = fault.kind == FaultKind::mislabelled_checkpoint;
        if (!mislabelled && fault.kind != FaultKind::alias_snapshot) continue;
        const std::span<const TokenId> tokens = mislabelled ? next : other;
        const auto count = static_cast<std::size_t>(fault.number);
        const Lane& lane = engine_.lane(from);
        const std::size_t room = lane.shape().max_tokens - static_cast<std::size_t>(lane.length);
        if (count > std::min(tokens.size(), room)) {
            note_idle(
                invalid_argument(fmt::format("--inject {}: found {} tokens to go on with, expected {}; give a longer "
                                             "prompt or a smaller number",
                                             fault.spelling, tokens.size(), count)));
            continue;
        }
        DP_RETURN_IF_ERROR(go_on(from, tokens.first(count)));
        take_recurrent_state(lane, snapshot);
        if (!mislabelled) take_draft_slots(lane, snapshot);
        state::reseal(snapshot);
    }
    return {};
}

// The lane goes to the boundary again, the last tokens by decode steps: a drafter proposes the request's own tokens and
// each step commits N of them.
Status FaultInjector::stop_inside_step(const Fault& fault, int from, std::span<const TokenId> next,
                                       state::Snapshot& snapshot) {
    const auto step = static_cast<std::size_t>(fault.number);
    if (next.size() < step || snapshot.tokens.size() <= step + 1) {
        note_idle(invalid_argument(
            fmt::format("--inject {}: found {} tokens before the boundary and {} behind it, expected more than {} and "
                        "at least {}; give a longer prompt or a smaller number",
                        fault.spelling, snapshot.tokens.size(), next.size(), step + 1, step)));
        return {};
    }
    std::vector<TokenId> tokens = snapshot.tokens;
    tokens.insert(tokens.end(), next.begin(), next.begin() + static_cast<std::ptrdiff_t>(step));
    CycleSink* const sink = engine_.observer().sink();
    engine_.observer().set_sink(nullptr);
    Lane& lane = engine_.lane(from);
    const std::size_t start = snapshot.tokens.size() - 1 - step;
    engine_.begin_request(from, {{2 * (step + 1) + engine_.core().settings().block, {}}});
    DP_RETURN_IF_ERROR(engine_.prefill(from, std::span(tokens).first(start), 0, false));
    lane.anchor = tokens[start];
    lane.has_anchor = true;
    const std::size_t block = engine_.core().settings().block;
    decode::ScriptedDrafter drafter(block, [&tokens](const Lane& at, std::size_t t) {
        return tokens[std::min(static_cast<std::size_t>(at.length) + t, tokens.size() - 1)];
    });
    while (lane.length < snapshot.length) {
        const auto at = static_cast<std::size_t>(lane.length);
        const decode::ForcedCommit force{std::span(tokens).subspan(at, step), tokens[at + step]};
        DP_RETURN_IF_ERROR(engine_.step({}, {&from, 1}, &drafter, block, {&force, 1}).status());
    }
    engine_.observer().set_sink(sink);
    lane.has_anchor = false;
    take_recurrent_state(lane, snapshot);
    state::reseal(snapshot);
    return {};
}

std::vector<Component> FaultInjector::unsaved() const {
    std::vector<Component> components;
    for (const Fault& fault : faults_) {
        if (fault.kind == FaultKind::unsaved_component) components.push_back(fault.component);
    }
    return components;
}

void FaultInjector::before_request(int lane) {
    if (has(FaultKind::pending_row) || has(FaultKind::unreset_row)) occupant_ = engine_.lane(lane).draft;
}

Status FaultInjector::after_restore(int lane_id, const std::filesystem::path& draft_dir) {
    Lane& lane = engine_.lane(lane_id);
    for (const Fault& fault : faults_) {
        switch (fault.kind) {
            case FaultKind::flip:
                if (fault.component != Component::draft_context) note_idle(flip_restored_byte(lane, fault));
                break;
            case FaultKind::empty_restore: lane.reset(); break;
            case FaultKind::prefix_again:
                // All that says where the lane stands; what the restore brought stays.
                lane.length = 0;
                lane.tokens.clear();
                lane.draft.reset();
                lane.target_sources.clear();
                lane.target_rows_written = 0;
                break;
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

// The newest row, for this draft alone, is the one that the occupant had N positions further on.
void FaultInjector::read_pending_row(Lane& lane, const Fault& fault) {
    const Position newest = lane.draft.end() - 1;
    const Position wanted = newest + fault.number;
    const bool found = occupant_ && wanted < occupant_->end() && occupant_->row_written(wanted);
    if (!found || newest < lane.draft.first()) return;
    acted_.insert(FaultKind::pending_row);
    Lane before(lane.id(), lane.shape(), false);
    before.draft = *occupant_;
    right_row_ = draft_row(lane, newest);
    put_draft_row(lane, newest, draft_row(before, wanted));
}

// Positions [boundary, reached) get back what their slots held before the prefill, and say so.
void FaultInjector::leave_suffix_unwritten(Lane& lane, Position boundary, Position reached) {
    state::DraftContext& context = lane.draft;
    Lane before(lane.id(), lane.shape(), false);
    before.draft = *before_prefill_;
    const Position first = std::max(context.first(), before_prefill_->first());
    const Position end = context.end();
    for (Position p = std::max(first, boundary); p < reached; ++p) put_draft_row(lane, p, draft_row(before, p));
    const state::DraftContext written = context;
    context.reset();
    context.claim(first, std::max(first, boundary), state::RowSource::restored);
    context.advance(std::max(first, reached), state::RowSource::none);
    context.advance(end, state::RowSource::computed);
    for (Position p = first; p < end; ++p) {
        if (p >= boundary && p < reached) continue;
        if (written.row_written(p)) context.mark_written(p, false);
        if (written.ring_written(p)) context.mark_written(p, true);
    }
}

FaultInjector::DraftRow FaultInjector::draft_row(const Lane& lane, Position position) const {
    DraftRow row;
    row.origin = lane.draft.origin(position);
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
    lane.draft.set_origin(position, row.origin);
}

void FaultInjector::before_prefill(int lane) {
    if (has(FaultKind::suffix_unwritten)) before_prefill_ = engine_.lane(lane).draft;
}

void FaultInjector::after_prefill(int lane_id, Position boundary) {
    Lane& lane = engine_.lane(lane_id);
    renumber_positions(lane);
    if (const Fault* fault = find(FaultKind::suffix_unwritten)) {
        const Position reached = lane.length - fault->number;
        if (reached > boundary) {
            acted_.insert(FaultKind::suffix_unwritten);
            leave_suffix_unwritten(lane, boundary, reached);
        }
    }
    if (has(FaultKind::unreset_row) && occupant_ && occupant_->end() > occupant_->first() && lane.draft.first() == 0) {
        Lane before(lane.id(), lane.shape(), false);
        before.draft = *occupant_;
        put_draft_row(lane, 0, draft_row(before, occupant_->end() - 1));
        acted_.insert(FaultKind::unreset_row);
    }
}

decode::Drafter& FaultInjector::drafter(decode::Drafter& healthy) {
    decode::Drafter* drafter = &healthy;
    if (other_window_forward_ != nullptr) {
        wide_drafter_ = std::make_unique<decode::ModelDrafter>(*other_window_forward_);
        drafter = wide_drafter_.get();
    }
    if (has(FaultKind::draft_nothing)) {
        silent_drafter_ = std::make_unique<SilentDrafter>(*this, *drafter);
        drafter = silent_drafter_.get();
    }
    if (has(FaultKind::stale_anchor) || has(FaultKind::pending_row)) {
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
    const Fault* const split = find(FaultKind::split_slots);
    if (split != nullptr && verify_rows_ >= static_cast<std::size_t>(split->number)) {
        state::RecurrentState& recurrent = engine_.lane(lane.id()).recurrent;
        recurrent.current() = recurrent.idle();
        acted_.insert(FaultKind::split_slots);
    }
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

void FaultInjector::note_idle(const Status& reason) {
    if (idle_.ok()) idle_ = reason;
}

Status FaultInjector::check_acted() const {
    DP_RETURN_IF_ERROR(idle_);
    const Fault* const stale = find(FaultKind::stale_anchor);
    if (stale != nullptr && anchor_idle_) {
        return invalid_argument(
            fmt::format("--inject {}: found the right anchor's own token there, or no such row: the fault never acted; "
                        "give another number",
                        stale->spelling));
    }
    constexpr std::pair<FaultKind, std::string_view> kNeeds[] = {
        {FaultKind::pending_row, "a row that the lane's previous occupant left there; give a smaller number"},
        {FaultKind::unreset_row, "a prompt within the draft's window; give a shorter one"},
        {FaultKind::suffix_unwritten, "more tokens behind the boundary; give a smaller number"},
        {FaultKind::split_slots, "a verification of so many rows; give a smaller number"}};
    for (const auto& [kind, needs] : kNeeds) {
        const Fault* const fault = find(kind);
        if (fault == nullptr || acted_.contains(kind)) continue;
        return invalid_argument(fmt::format("--inject {}: the fault never acted, expected {}", fault->spelling, needs));
    }
    const Fault* const unwritten = find(FaultKind::unwritten_cell);
    if (unwritten == nullptr || full_rejects_ >= unwritten->number) return {};
    return invalid_argument(
        fmt::format("--inject {}: found {} cycles that rejected every proposal, expected at least "
                    "{}: the fault never acted; give more --cycles or another prompt",
                    unwritten->spelling, full_rejects_, unwritten->number));
}

}  // namespace draftprobe::instrument
