// The decode cycle: propose, verify, accept, commit, over one or more lanes in one batch.
//
// Engine is a template over an observer. Production code instantiates it with NoObserver, whose hooks are empty and
// whose kActive is false, so nothing is computed for an observer there; instrument/ instantiates it with a recorder.
// The decode logic is this one file either way.
//
// An observer has, besides `static constexpr bool kActive`:
//   on_forward(kind, lane, start, rows)      after a forward computed rows of a lane
//   on_propose(lane, choice, hidden)         after the draft ran, before anything moves
//   on_verify(view)                          after acceptance, before commit
//   on_commit(lane, result)                  after the lane's state moved
#pragma once

#include <algorithm>
#include <cassert>
#include <memory>
#include <span>
#include <vector>

#include "decode/drafter.h"
#include "decode/engine_core.h"
#include "decode/ranking.h"

namespace draftprobe::decode {

enum class ForwardKind { prefill, verify, plain };

// One lane's verification as an observer sees it. Spans live during the call only.
struct VerifyView {
    const state::Lane& lane;  // not yet committed: lane.length is L, lane.anchor the consumed anchor
    const DraftChoice& choice;
    ProposalSource source;
    std::span<const TokenId> rows;            // anchor and offered proposals, the verified rows
    std::span<const TokenId> target_choices;  // per row
    numerics::ConstRows logits;               // [rows, V]
    numerics::ConstRows hidden;               // [rows, H] after the target's final norm, float32
    const CycleResult& result;
};

struct NoObserver {
    static constexpr bool kActive = false;
    void on_forward(ForwardKind, const state::Lane&, Position, std::size_t) {}
    void on_propose(const state::Lane&, const DraftChoice&, numerics::ConstRows) {}
    void on_verify(const VerifyView&) {}
    void on_commit(const state::Lane&, const CycleResult&) {}
};

template <class Observer>
class Engine {
public:
    Engine(std::unique_ptr<EngineCore> core, Observer observer = {})
        : core_(std::move(core)),
          observer_(std::move(observer)),
          limits_(static_cast<std::size_t>(core_->lane_count())) {}

    EngineCore& core() { return *core_; }
    Observer& observer() { return observer_; }
    state::Lane& lane(int id) { return core_->lane(id); }

    // Prepares a lane for a request: forgets what was there (bytes stay, as in a serving engine's slot) and sets
    // limits.
    void begin_request(int id, RequestLimits limits) {
        lane(id).reset();
        set_limits(id, std::move(limits));
    }
    void set_limits(int id, RequestLimits limits) { limits_[static_cast<std::size_t>(id)] = {std::move(limits), 0}; }

    // Computes and commits `tokens` after the lane's length, in chunks cut at absolute multiples of chunk_tokens and at
    // `stop`. With select_anchor the last row's choice becomes the pending anchor (the first emitted token).
    Status prefill(int id, std::span<const TokenId> tokens, Position stop, bool select_anchor) {
        state::Lane& target = lane(id);
        while (!tokens.empty()) {
            const std::size_t count = next_chunk(target.length, tokens.size(), core_->settings().chunk_tokens, stop);
            const std::span<const TokenId> chunk = tokens.first(count);
            tokens = tokens.subspan(count);
            const bool want_logits = select_anchor && tokens.empty();
            const Segment segment{&target, chunk, false};
            DP_RETURN_IF_ERROR(core_->target_forward().run(
                {&segment, 1}, want_logits ? LogitRows::last_of_segment : LogitRows::none, forward_));
            observer_.on_forward(ForwardKind::prefill, target, target.length, count);
            core_->commit(target, chunk, count, false, forward_, 0);
            if (want_logits) {
                target.anchor = argmax(forward_.logits);
                target.has_anchor = true;
                limits_[static_cast<std::size_t>(id)].emitted = 1;
            }
        }
        return {};
    }

    // One plain decoding step: the anchor's row alone. Returns the new anchor.
    Result<TokenId> plain_step(int id) {
        state::Lane& target = lane(id);
        assert(target.has_anchor);
        const TokenId token = target.anchor;
        const Segment segment{&target, {&token, 1}, false};
        DP_RETURN_IF_ERROR(core_->target_forward().run({&segment, 1}, LogitRows::all, forward_));
        observer_.on_forward(ForwardKind::plain, target, target.length, 1);
        core_->commit(target, {&token, 1}, 1, false, forward_, 0);
        target.anchor = argmax(forward_.logits);
        ++limits_[static_cast<std::size_t>(id)].emitted;
        return target.anchor;
    }

    // One cycle of every listed lane (distinct, each with an anchor), batched. `verify_rows` in 1..block: the anchor
    // row and the first verify_rows - 1 proposals are verified.
    Result<std::vector<CycleResult>> cycle(std::span<const int> ids, Drafter& drafter, std::size_t verify_rows) {
        std::vector<state::Lane*> lanes;
        for (const int id : ids) {
            assert(lane(id).has_anchor);
            lanes.push_back(&lane(id));
        }
        assert(verify_rows >= 1 && verify_rows <= core_->settings().block);
        drafter.propose(lanes, {}, draft_);

        std::vector<std::vector<TokenId>> rows(ids.size());
        std::vector<Segment> segments;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const DraftChoice& choice = draft_.choices[i];
            if constexpr (Observer::kActive) observer_.on_propose(*lanes[i], choice, draft_hidden(i));
            rows[i].push_back(lanes[i]->anchor);
            rows[i].insert(rows[i].end(), choice.proposals.begin(),
                           choice.proposals.begin() + static_cast<std::ptrdiff_t>(verify_rows - 1));
            segments.push_back({lanes[i], rows[i], true});
        }
        DP_RETURN_IF_ERROR(core_->target_forward().run(segments, LogitRows::all, forward_));

        const auto vocab = static_cast<std::size_t>(core_->models().target->config().vocab);
        const auto width = static_cast<std::size_t>(core_->models().target->config().hidden);
        std::vector<CycleResult> results;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            state::Lane& target = *lanes[i];
            const std::size_t first_row = i * verify_rows;
            const numerics::ConstRows logits{forward_.logits.data() + first_row * vocab, verify_rows, vocab, vocab};
            std::vector<TokenId> choices;
            for (std::size_t j = 0; j < verify_rows; ++j) choices.push_back(argmax({logits.row(j), vocab}));
            const CycleResult result = accept(ids[i], draft_.choices[i], rows[i], choices);
            observer_.on_forward(ForwardKind::verify, target, target.length, verify_rows);
            if constexpr (Observer::kActive) {
                observer_.on_verify(VerifyView{target,
                                               draft_.choices[i],
                                               drafter.source(),
                                               rows[i],
                                               choices,
                                               logits,
                                               {forward_.hidden.data() + first_row * width, verify_rows, width, width},
                                               result});
            }
            core_->commit(target, rows[i], result.retained, true, forward_, first_row);
            target.anchor = result.emitted.back();
            limits_[static_cast<std::size_t>(ids[i])].emitted += result.emitted.size();
            observer_.on_commit(target, result);
            results.push_back(result);
        }
        return results;
    }

private:
    struct RequestState {
        RequestLimits limits;
        std::size_t emitted = 0;
    };

    numerics::ConstRows draft_hidden(std::size_t index) const {
        const std::size_t positions = core_->settings().block - 1;
        const auto width = static_cast<std::size_t>(core_->models().target->config().hidden);
        if (draft_.hidden.empty()) return {nullptr, 0, width, width};
        return {draft_.hidden.data() + index * positions * width, positions, width, width};
    }

    // Greedy acceptance: the longest prefix of proposals that equals the target's own choices, plus the target's next
    // token; then the cuts. Rows retained equal tokens emitted: each emitted token but the last has its row committed
    // already, and the consumed anchor's row takes the last one's place.
    CycleResult accept(int id, const DraftChoice& choice, std::span<const TokenId> rows,
                       std::span<const TokenId> choices) {
        const RequestState& request = limits_[static_cast<std::size_t>(id)];
        CycleResult result;
        result.lane = id;
        result.drafted = choice.proposals.size();
        result.offered = rows.size() - 1;
        result.verified = rows.size() - 1;
        while (result.accepted < result.verified && rows[result.accepted + 1] == choices[result.accepted])
            ++result.accepted;
        for (std::size_t j = 0; j < result.accepted; ++j) result.emitted.push_back(rows[j + 1]);
        result.emitted.push_back(choices[result.accepted]);
        const std::vector<TokenId>& stops = request.limits.stop_ids;
        for (std::size_t j = 0; j < result.emitted.size(); ++j) {
            if (std::find(stops.begin(), stops.end(), result.emitted[j]) == stops.end()) continue;
            if (j + 1 < result.emitted.size()) result.cut = Cut::stop;
            result.emitted.resize(j + 1);
            result.finished = true;
            break;
        }
        const std::size_t room =
            request.limits.max_new_tokens - std::min(request.emitted, request.limits.max_new_tokens);
        if (result.emitted.size() >= room && room > 0) {
            if (result.emitted.size() > room) {
                result.emitted.resize(room);
                result.cut = Cut::limit;
            }
            result.finished = true;
        }
        result.retained = result.emitted.size();
        return result;
    }

    std::unique_ptr<EngineCore> core_;
    Observer observer_;
    std::vector<RequestState> limits_;
    DraftOutput draft_;
    ForwardOutput forward_;
};

extern template class Engine<NoObserver>;
using ProductionEngine = Engine<NoObserver>;

}  // namespace draftprobe::decode
