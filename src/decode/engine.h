// The decode cycle: propose, verify, accept, commit, over one or more lanes in one batch.
//
// Engine is a template over an observer. Production code instantiates it with NoObserver, whose hooks are empty and
// whose kActive is false, so nothing is computed for an observer there; instrument/ instantiates it with a recorder.
// The decode logic is this one file either way.
//
// An observer has, besides `static constexpr bool kActive`:
//   on_forward(kind, lane, start, rows)      after a forward computed rows of a lane
//   on_anchor(lane, logits)                  after a prefill, with what its anchor was chosen by
//   on_propose(lane, choice, hidden)         after the draft ran, before anything moves
//   on_verify(view)                          after acceptance, before commit
//   on_commit(lane, result, controller)      after the lane's state moved and its controller learned
#pragma once

#include <algorithm>
#include <cassert>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "budget/controller.h"
#include "decode/acceptance.h"
#include "decode/drafter.h"
#include "decode/engine_core.h"
#include "decode/request.h"
#include "decode/request_record.h"

namespace draftprobe::decode {

enum class ForwardKind { prefill, verify, plain };

// One lane's verification as an observer sees it. Spans live during the call only.
struct VerifyView {
    const state::Lane& lane;  // not yet committed: lane.length is L, lane.anchor the consumed anchor
    const DraftChoice& choice;
    ProposalSource source;
    bool sampled;                             // by the rejection test, not by argmax
    std::span<const TokenId> rows;            // anchor and offered proposals, the verified rows
    std::span<const TokenId> target_choices;  // per row, see decode/acceptance.h
    numerics::ConstRows logits;               // [rows, V]
    numerics::ConstRows hidden;               // [rows, H] after the target's final norm, float32
    const budget::Controller* controller;     // before it learns from this cycle; null: every row is verified
    const CycleResult& result;                // what the lane's own choices say, forced or not
    std::span<const TokenId> committed;       // what becomes state: the retained rows, or the forced tokens
    TokenId next_anchor;
    bool forced;
};

// What a lockstep cycle commits in place of its own tokens: those that another arm retained. The lane proposes,
// verifies and is judged by its own target first. No tokens: the lane commits its own.
struct ForcedCommit {
    std::span<const TokenId> tokens;  // the first is the lane's anchor
    TokenId next_anchor = 0;
};

// A lane that is still prefilling: one chunk of `tokens` is computed in a step. With select_anchor the choice behind
// the last token becomes the pending anchor (the first emitted token).
struct PrefillWork {
    int lane = 0;
    std::span<const TokenId> tokens;  // what is left of the prompt, first at the lane's length
    Position stop = 0;                // a position that no chunk crosses; ignored when not ahead
    bool select_anchor = true;
};

struct StepResult {
    std::vector<std::size_t> prefilled;  // tokens committed, per PrefillWork
    std::vector<CycleResult> cycles;     // per decoding lane
};

struct NoObserver {
    static constexpr bool kActive = false;
    void on_forward(ForwardKind, const state::Lane&, Position, std::size_t) {}
    void on_anchor(const state::Lane&, std::span<const float>) {}
    void on_propose(const state::Lane&, const DraftChoice&, numerics::ConstRows) {}
    void on_verify(const VerifyView&) {}
    void on_commit(const state::Lane&, const CycleResult&, const budget::Controller*) {}
};

template <class Observer>
class Engine {
public:
    Engine(std::unique_ptr<EngineCore> core, Observer observer = {})
        : core_(std::move(core)),
          observer_(std::move(observer)),
          requests_(static_cast<std::size_t>(core_->lane_count())) {}

    EngineCore& core() { return *core_; }
    Observer& observer() { return observer_; }
    state::Lane& lane(int id) { return core_->lane(id); }

    // Prepares a lane for a request: forgets what was there (bytes stay, as in a serving engine's slot).
    void begin_request(int id, Request request) {
        lane(id).reset();
        set_request(id, std::move(request));
    }
    // For a lane whose state was put there by a restore.
    void set_request(int id, Request request) { requests_[index(id)] = {std::move(request), 0}; }
    void set_controller(int id, std::optional<budget::Controller> controller) {
        requests_[index(id)].request.controller = std::move(controller);
    }
    // What a snapshot in the middle of the lane's request has to carry.
    state::RequestRecord request_record(int id) const {
        return to_record(requests_[index(id)].request, requests_[index(id)].emitted);
    }
    // For a lane whose state, anchor included, was restored from such a snapshot. Errors as from_record.
    Status resume_request(int id, const state::RequestRecord& record, std::shared_ptr<const budget::Seed> seed) {
        DP_ASSIGN_OR_RETURN(Request request, from_record(record, std::move(seed)));
        requests_[index(id)] = {std::move(request), static_cast<std::size_t>(record.emitted)};
        return {};
    }
    // Null when every row is verified.
    const budget::Controller* controller(int id) const {
        const auto& controller = requests_[index(id)].request.controller;
        return controller ? &*controller : nullptr;
    }

    // Computes and commits `tokens` after the lane's length, in chunks cut at absolute multiples of chunk_tokens and at
    // `stop`.
    Status prefill(int id, std::span<const TokenId> tokens, Position stop, bool select_anchor) {
        while (!tokens.empty()) {
            const PrefillWork work{id, tokens, stop, select_anchor};
            DP_ASSIGN_OR_RETURN(const StepResult done, step({&work, 1}, {}, nullptr, 0));
            tokens = tokens.subspan(done.prefilled[0]);
        }
        return {};
    }

    // One plain decoding step: the anchor's row alone. Returns the new anchor.
    Result<TokenId> plain_step(int id) {
        state::Lane& target = lane(id);
        assert(target.has_anchor);
        const TokenId token = target.anchor;
        const Segment segment{&target, {&token, 1}, LogitRows::all, false};
        DP_RETURN_IF_ERROR(core_->target_forward().run({&segment, 1}, forward_));
        observer_.on_forward(ForwardKind::plain, target, target.length, 1);
        core_->commit(target, {&token, 1}, 1, false, forward_, 0);
        select_anchor(id, forward_.logits);
        return target.anchor;
    }

    // One cycle of every listed lane (distinct, each with an anchor), batched. The anchor row and at most max_rows - 1
    // proposals are verified, fewer where a lane's budget says so.
    Result<std::vector<CycleResult>> cycle(std::span<const int> ids, Drafter& drafter, std::size_t max_rows) {
        DP_ASSIGN_OR_RETURN(StepResult done, step({}, ids, &drafter, max_rows));
        return std::move(done.cycles);
    }

    // One forward for everything: a chunk of each prefilling lane and a cycle of each decoding one. Lanes are distinct;
    // decoding lanes have an anchor. `drafter` may be null when no lane decodes. max_rows in 1..block. On an error no
    // lane has moved.
    //
    // `forced`: empty, or one entry per decoding lane. Forced tokens whose rows this cycle verified are committed from
    // it; the others are computed by one further forward per lane, which is an on_forward of kind prefill, and whose
    // error leaves lanes moved. Either way the state is that of plain decoding of those tokens. Errors also:
    // invalid_argument for forced tokens that do not start with the lane's anchor, before anything runs.
    Result<StepResult> step(std::span<const PrefillWork> prefills, std::span<const int> decoding, Drafter* drafter,
                            std::size_t max_rows, std::span<const ForcedCommit> forced = {}) {
        DP_RETURN_IF_ERROR(check_forced(decoding, forced));
        const auto start = std::chrono::steady_clock::now();
        std::vector<Segment> segments;
        StepResult done;
        for (const PrefillWork& work : prefills) {
            assert(!work.tokens.empty());
            const std::size_t count =
                next_chunk(lane(work.lane).length, work.tokens.size(), core_->settings().chunk_tokens, work.stop);
            const bool last = work.select_anchor && count == work.tokens.size();
            segments.push_back(
                {&lane(work.lane), work.tokens.first(count), last ? LogitRows::last : LogitRows::none, false});
            done.prefilled.push_back(count);
        }
        std::vector<std::vector<TokenId>> rows(decoding.size());
        std::vector<std::optional<double>> margins(decoding.size());
        if (!decoding.empty()) {
            propose(decoding, *drafter);
            for (std::size_t i = 0; i < decoding.size(); ++i) {
                const VerifyWidth width = verify_width(decoding[i], draft_.choices[i], max_rows);
                const std::vector<TokenId>& proposals = draft_.choices[i].proposals;
                rows[i].push_back(lane(decoding[i]).anchor);
                rows[i].insert(rows[i].end(), proposals.begin(),
                               proposals.begin() + static_cast<std::ptrdiff_t>(width.rows - 1));
                margins[i] = width.margin;
                segments.push_back({&lane(decoding[i]), rows[i], LogitRows::all, true});
            }
        }
        DP_RETURN_IF_ERROR(core_->target_forward().run(segments, forward_));

        std::size_t row = 0;
        std::size_t logit_row = 0;
        for (std::size_t i = 0; i < prefills.size(); ++i) {
            finish_prefill(prefills[i], segments[i], row, logit_row);
            row += segments[i].tokens.size();
            logit_row += segments[i].logits == LogitRows::last ? 1 : 0;
        }
        for (std::size_t i = 0; i < decoding.size(); ++i) {
            const ForcedCommit force = forced.empty() ? ForcedCommit() : forced[i];
            done.cycles.push_back(finish_cycle(decoding[i], draft_.choices[i], drafter->source(), rows[i], row,
                                               logit_row, margins[i], force));
            row += rows[i].size();
            logit_row += rows[i].size();
        }
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        for (std::size_t i = 0; i < forced.size(); ++i) {
            if (!forced[i].tokens.empty()) DP_RETURN_IF_ERROR(finish_forced(decoding[i], forced[i], rows[i]));
        }
        // A step that also prefills says nothing about the cost of a cycle.
        for (std::size_t i = 0; i < decoding.size(); ++i) {
            RequestState& request = requests_[index(decoding[i])];
            if (request.request.controller && prefills.empty())
                request.request.controller->observe_time(rows[i].size(), taken.count(), decoding.size());
            observer_.on_commit(lane(decoding[i]), done.cycles[i], controller(decoding[i]));
        }
        return done;
    }

private:
    struct RequestState {
        Request request;
        std::size_t emitted = 0;
    };
    struct VerifyWidth {
        std::size_t rows = 0;
        std::optional<double> margin;
    };

    static std::size_t index(int id) { return static_cast<std::size_t>(id); }
    std::size_t vocab() const { return static_cast<std::size_t>(core_->models().target->config().vocab); }
    std::size_t hidden_width() const { return static_cast<std::size_t>(core_->models().target->config().hidden); }

    void select_anchor(int id, std::span<const float> logits) {
        RequestState& request = requests_[index(id)];
        lane(id).anchor = choose_next(logits, request.request.sampling, lane(id).length);
        lane(id).has_anchor = true;
        ++request.emitted;
    }

    void propose(std::span<const int> ids, Drafter& drafter) {
        std::vector<state::Lane*> lanes;
        std::vector<LaneSampling> sampling;
        for (const int id : ids) {
            assert(lane(id).has_anchor);
            lanes.push_back(&lane(id));
            sampling.push_back(requests_[index(id)].request.sampling);
        }
        drafter.propose(lanes, sampling, draft_);
        if constexpr (Observer::kActive) {
            for (std::size_t i = 0; i < ids.size(); ++i)
                observer_.on_propose(*lanes[i], draft_.choices[i], draft_hidden(i));
        }
    }

    numerics::ConstRows draft_hidden(std::size_t lane_index) const {
        const std::size_t positions = core_->settings().block - 1;
        const std::size_t width = hidden_width();
        if (draft_.hidden.empty()) return {nullptr, 0, width, width};
        return {draft_.hidden.data() + lane_index * positions * width, positions, width, width};
    }

    VerifyWidth verify_width(int id, const DraftChoice& choice, std::size_t max_rows) const {
        assert(max_rows >= 1 && max_rows <= core_->settings().block);
        const Request& request = requests_[index(id)].request;
        // A drafter may offer nothing; then the anchor's row alone is verified.
        if (choice.proposals.empty()) return {1, std::nullopt};
        // A width that depends on the confidence of the proposals drawn would condition the test on the draw: biased.
        if (!request.sampling.settings.greedy()) return {core_->settings().block, std::nullopt};
        if (!request.controller) return {max_rows, std::nullopt};
        const budget::Decision decision = request.controller->decide(choice.prefix_confidence);
        return {std::min(decision.rows, max_rows), decision.margin};
    }

    void finish_prefill(const PrefillWork& work, const Segment& segment, std::size_t row, std::size_t logit_row) {
        state::Lane& target = lane(work.lane);
        observer_.on_forward(ForwardKind::prefill, target, target.length, segment.tokens.size());
        core_->commit(target, segment.tokens, segment.tokens.size(), false, forward_, row);
        if (segment.logits != LogitRows::last) return;
        const std::span<const float> logits(forward_.logits.data() + logit_row * vocab(), vocab());
        select_anchor(work.lane, logits);
        observer_.on_anchor(target, logits);
    }

    CycleResult finish_cycle(int id, const DraftChoice& choice, ProposalSource source, std::span<const TokenId> rows,
                             std::size_t row, std::size_t logit_row, std::optional<double> margin,
                             const ForcedCommit& force) {
        state::Lane& target = lane(id);
        RequestState& request = requests_[index(id)];
        const numerics::ConstRows logits{forward_.logits.data() + logit_row * vocab(), rows.size(), vocab(), vocab()};
        const std::vector<TokenId> choices =
            target_choices(logits, rows, choice, request.request.sampling, target.length);
        CycleResult result = accept(choice.proposals.size(), rows, choices, request.request.limits, request.emitted);
        result.lane = id;
        result.width_margin = margin;
        observer_.on_forward(ForwardKind::verify, target, target.length, rows.size());
        const bool forced = !force.tokens.empty();
        const std::span<const TokenId> committed = forced ? force.tokens : rows.first(result.retained);
        const TokenId next_anchor = forced ? force.next_anchor : result.emitted.back();
        if constexpr (Observer::kActive) {
            const std::size_t width = hidden_width();
            observer_.on_verify(VerifyView{target,
                                           choice,
                                           source,
                                           !request.request.sampling.settings.greedy(),
                                           rows,
                                           choices,
                                           logits,
                                           {forward_.hidden.data() + row * width, rows.size(), width, width},
                                           controller(id),
                                           result,
                                           committed,
                                           next_anchor,
                                           forced});
        }
        core_->commit(target, rows, verified_prefix(committed, rows), true, forward_, row);
        target.anchor = next_anchor;
        request.emitted += committed.size();
        if (request.request.controller) {
            // What a cut threw away is not evidence: the positions that were given out all matched.
            const bool cut = result.cut != Cut::none;
            request.request.controller->observe(choice.prefix_confidence, cut ? result.retained : result.verified,
                                                cut ? result.retained : result.accepted);
        }
        return result;
    }

    // Leading tokens to commit whose rows were verified.
    static std::size_t verified_prefix(std::span<const TokenId> committed, std::span<const TokenId> rows) {
        const auto ends = std::mismatch(committed.begin(), committed.end(), rows.begin(), rows.end());
        return static_cast<std::size_t>(ends.first - committed.begin());
    }

    Status check_forced(std::span<const int> decoding, std::span<const ForcedCommit> forced) {
        assert(forced.empty() || forced.size() == decoding.size());
        for (std::size_t i = 0; i < forced.size(); ++i) {
            if (forced[i].tokens.empty() || forced[i].tokens.front() == lane(decoding[i]).anchor) continue;
            return invalid_argument(
                fmt::format("lockstep: the tokens to commit on lane {} start with id {}, expected the pending anchor "
                            "{}; the other arm is not at the same context",
                            decoding[i], forced[i].tokens.front(), lane(decoding[i]).anchor));
        }
        return {};
    }

    // Computes and commits the forced tokens that this cycle did not verify.
    Status finish_forced(int id, const ForcedCommit& force, std::span<const TokenId> rows) {
        const std::span<const TokenId> rest = force.tokens.subspan(verified_prefix(force.tokens, rows));
        if (rest.empty()) return {};
        state::Lane& target = lane(id);
        const Segment segment{&target, rest, LogitRows::none, false};
        DP_RETURN_IF_ERROR(core_->target_forward().run({&segment, 1}, forward_));
        observer_.on_forward(ForwardKind::prefill, target, target.length, rest.size());
        core_->commit(target, rest, rest.size(), false, forward_, 0);
        return {};
    }

    std::unique_ptr<EngineCore> core_;
    Observer observer_;
    std::vector<RequestState> requests_;
    DraftOutput draft_;
    ForwardOutput forward_;
};

extern template class Engine<NoObserver>;
using ProductionEngine = Engine<NoObserver>;

}  // namespace draftprobe::decode
