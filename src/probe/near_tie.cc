#include "probe/near_tie.h"

#include <algorithm>
#include <cmath>

#include "decode/ranking.h"
#include "instrument/observer.h"

namespace draftprobe::probe {

namespace {

struct Cycle {
    std::vector<TokenId> proposals;
    std::vector<Decision> selector;                // per position; empty without a selector
    std::vector<std::vector<TokenId>> candidates;  // per position, ascending
    std::vector<float> candidate_margins;          // per position, the last one's over the next
    std::vector<Decision> target;                  // per verified row
    ControlCycle committed;
};

// The decisions of one decoded prompt. The first token's stands before the cycles.
struct Decisions {
    Decision first_token;
    std::vector<Cycle> cycles;
};

Decision decision(std::span<const float> logits) {
    const auto best = decode::top_logits(logits, 2);
    return {best[0].token, best[0].logit - best[1].logit};
}

class DecisionSink final : public instrument::CycleSink {
public:
    void on_forward(decode::ForwardKind, const state::Lane&, Position, std::size_t) override {}
    void on_anchor(const state::Lane&, std::span<const float> logits) override { seen.first_token = decision(logits); }
    void on_propose(const state::Lane&, const decode::DraftChoice& choice, numerics::ConstRows) override {
        Cycle& cycle = seen.cycles.emplace_back();
        cycle.proposals = choice.proposals;
        for (std::size_t t = 0; t < choice.proposals.size() && !choice.scores.empty(); ++t) {
            const std::span<const float> scores(choice.scores.data() + t * choice.top_k, choice.top_k);
            cycle.selector.push_back({choice.proposals[t], decision(scores).margin});
            const auto first = choice.candidates.begin() + static_cast<std::ptrdiff_t>(t * choice.top_k);
            std::vector<TokenId>& set =
                cycle.candidates.emplace_back(first, first + static_cast<std::ptrdiff_t>(choice.top_k));
            std::sort(set.begin(), set.end());
            cycle.candidate_margins.push_back(choice.unary[(t + 1) * choice.top_k - 1] - choice.next_unary[t]);
        }
    }
    void on_verify(const decode::VerifyView& view) override {
        Cycle& cycle = seen.cycles.back();
        for (std::size_t r = 0; r < view.logits.rows; ++r)
            cycle.target.push_back(decision({view.logits.row(r), view.logits.cols}));
        cycle.committed = {{view.committed.begin(), view.committed.end()}, view.next_anchor};
    }
    void on_commit(const state::Lane&, const decode::CycleResult&, const budget::Controller*) override {}

    Decisions seen;
};

// Decodes the prompt, prefilled with a cut at `cut` (0: none). `follow`: another schedule's decisions, whose tokens are
// committed in place of its own, so that every cycle has the other's context; null: its own.
Result<Decisions> decode_with_cut(instrument::ObservedEngine& engine, const ProbeRequest& request,
                                  const std::vector<TokenId>& prompt, Position cut, const Decisions* follow) {
    DecisionSink sink;
    const std::size_t block = engine.core().settings().block;
    engine.observer().set_sink(&sink);
    engine.begin_request(0, {{request.cycles * block + 2, {}}});
    if (cut > 0)
        DP_RETURN_IF_ERROR(engine.prefill(0, std::span(prompt).first(static_cast<std::size_t>(cut)), cut, false));
    DP_RETURN_IF_ERROR(engine.prefill(0, std::span(prompt).subspan(static_cast<std::size_t>(cut)), 0, true));
    if (follow != nullptr) engine.lane(0).anchor = follow->first_token.winner;
    decode::ModelDrafter drafter(*engine.core().draft_forward());
    const int lane = 0;
    for (std::size_t cycle = 0; cycle < request.cycles; ++cycle) {
        decode::ForcedCommit force;
        if (follow != nullptr) {
            const ControlCycle& tokens = follow->cycles[cycle].committed;
            force = {tokens.committed, tokens.next_anchor};
        }
        auto result = engine.step({}, {&lane, 1}, &drafter, block, {&force, 1});
        if (!result.ok()) return result.status();
    }
    engine.observer().set_sink(nullptr);
    return std::move(sink.seen);
}

struct Shifts {
    std::vector<double> target;
    std::vector<double> selector;
    std::vector<double> candidate;
};

void add_draft_shifts(const Cycle& a, const Cycle& b, std::size_t comparable, Shifts& shifts) {
    for (std::size_t t = 0; t < std::min(a.selector.size(), b.selector.size()); ++t) {
        const bool same = a.candidates[t] == b.candidates[t];
        // Ties of the last place are a decision of their own: which candidate stands there is its winner.
        shifts.candidate.push_back(
            margin_shift({0, a.candidate_margins[t]}, {same ? TokenId{0} : TokenId{1}, b.candidate_margins[t]}));
        // Among other candidates another margin is another one, not a shift.
        if (t < comparable && same) shifts.selector.push_back(margin_shift(a.selector[t], b.selector[t]));
    }
}

void add_shifts(const Decisions& a, const Decisions& b, Shifts& shifts) {
    shifts.target.push_back(margin_shift(a.first_token, b.first_token));
    for (std::size_t cycle = 0; cycle < a.cycles.size(); ++cycle) {
        const Cycle& x = a.cycles[cycle];
        const Cycle& y = b.cycles[cycle];
        const auto ends = std::mismatch(x.proposals.begin(), x.proposals.end(), y.proposals.begin(), y.proposals.end());
        // The selector's score at a position reads the proposals before it; a target row too.
        const auto comparable = static_cast<std::size_t>(ends.first - x.proposals.begin()) + 1;
        add_draft_shifts(x, y, comparable, shifts);
        for (std::size_t r = 0; r < std::min({comparable, x.target.size(), y.target.size()}); ++r)
            shifts.target.push_back(margin_shift(x.target[r], y.target[r]));
    }
}

double high_percentile(std::vector<double> shifts) {
    if (shifts.empty()) return 0;
    const auto rank = static_cast<std::size_t>(std::ceil(0.999 * static_cast<double>(shifts.size())));
    const auto at = shifts.begin() + static_cast<std::ptrdiff_t>(rank - 1);
    std::nth_element(shifts.begin(), at, shifts.end());
    return *at;
}

}  // namespace

double margin_shift(const Decision& a, const Decision& b) {
    const double x = a.margin;
    const double y = b.margin;
    return a.winner == b.winner ? std::fabs(x - y) : x + y;
}

std::vector<Position> schedule_ends(const Schedule& schedule, Position length, Position chunk) {
    std::vector<Position> ends;
    for (Position at = chunk; at < length; at += chunk) ends.push_back(at);
    ends.push_back(length);
    if (schedule.cut > 0 && schedule.cut < length) ends.push_back(schedule.cut);
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    return ends;
}

SchedulePair near_tie_schedules(Position boundary, Position chunk) {
    SchedulePair pair;
    pair.first.cut = boundary;
    // The natural schedule ends a chunk at the boundary too: another one has to end elsewhere.
    if (boundary % chunk == 0) pair.second.cut = boundary - chunk / 2;
    return pair;
}

Result<NearTie> measure_near_tie(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings) {
    DP_RETURN_IF_ERROR(check_request(assembly, request));
    if (!settings.sampling.greedy())
        return invalid_argument("near-tie thresholds: found a sampling temperature, expected a greedy run");
    decode::EngineSettings engine_settings = settings.engine;
    engine_settings.lanes = 1;
    engine_settings.max_tokens =
        request.prompt.size() + (request.cycles + 3) * static_cast<std::size_t>(assembly.models.draft->config().block);
    DP_ASSIGN_OR_RETURN(auto core, decode::EngineCore::create(assembly.models, engine_settings));
    instrument::ObservedEngine engine(std::move(core));

    Shifts shifts;
    const auto chunk = static_cast<Position>(settings.engine.chunk_tokens);
    const SchedulePair schedules = near_tie_schedules(request.boundary, chunk);
    const auto tokens = static_cast<Position>(request.prompt.size());
    if (schedule_ends(schedules.first, tokens, chunk) == schedule_ends(schedules.second, tokens, chunk))
        return NearTie();
    const std::size_t length = request.prompt.size();
    const std::size_t prompts = std::min(kNearTiePrompts, length - 1);
    const bool selects = engine.core().draft_forward()->has_selector();
    const auto enough = [&] {
        return shifts.target.size() >= kNearTieSamples && (!selects || shifts.selector.size() >= kNearTieSamples);
    };
    for (std::size_t i = 1; i <= prompts && (i <= kNearTieLeastPrompts || !enough()); ++i) {
        std::vector<TokenId> prompt = request.prompt;
        std::rotate(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(i * length / (prompts + 1)),
                    prompt.end());
        if (prompt == request.prompt) continue;
        DP_ASSIGN_OR_RETURN(const Decisions cut,
                            decode_with_cut(engine, request, prompt, schedules.first.cut, nullptr));
        DP_ASSIGN_OR_RETURN(const Decisions other,
                            decode_with_cut(engine, request, prompt, schedules.second.cut, &cut));
        add_shifts(cut, other, shifts);
        if (settings.progress) settings.progress("measure near-ties", i, prompts);
    }
    NearTie result;
    result.samples = static_cast<std::int64_t>(shifts.target.size());
    result.target = high_percentile(std::move(shifts.target));
    result.selector = high_percentile(std::move(shifts.selector));
    result.candidate = high_percentile(std::move(shifts.candidate));
    return result;
}

}  // namespace draftprobe::probe
