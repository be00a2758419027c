#include "probe/near_tie.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "decode/ranking.h"
#include "instrument/observer.h"

namespace draftprobe::probe {

namespace {

struct Margins {
    std::vector<TokenId> tokens;  // committed, then the anchor
    std::vector<TokenId> proposals;
    std::vector<float> selector;  // per position
    std::vector<float> target;    // per verified row
};

float top_margin(std::span<const float> values) {
    const auto best = decode::top_logits(values, 2);
    return best[0].logit - best[1].logit;
}

// Margins of every cycle, by committed length.
class MarginSink final : public instrument::CycleSink {
public:
    void on_forward(decode::ForwardKind, const state::Lane&, Position, std::size_t) override {}
    void on_propose(const state::Lane& lane, const decode::DraftChoice& choice, numerics::ConstRows) override {
        Margins& cycle = cycles[lane.length];
        cycle.tokens = lane.tokens;
        cycle.tokens.push_back(lane.anchor);
        cycle.proposals = choice.proposals;
        for (std::size_t t = 0; t < choice.proposals.size() && !choice.scores.empty(); ++t)
            cycle.selector.push_back(top_margin({choice.scores.data() + t * choice.top_k, choice.top_k}));
    }
    void on_verify(const decode::VerifyView& view) override {
        Margins& cycle = cycles[view.lane.length];
        for (std::size_t r = 0; r < view.logits.rows; ++r)
            cycle.target.push_back(top_margin({view.logits.row(r), view.logits.cols}));
    }
    void on_commit(const state::Lane&, const decode::CycleResult&, const budget::Controller*) override {}

    std::map<Position, Margins> cycles;
};

Result<std::map<Position, Margins>> decode_with_cut(instrument::ObservedEngine& engine, const ProbeRequest& request,
                                                    const std::vector<TokenId>& prompt, Position cut) {
    MarginSink sink;
    const std::size_t block = engine.core().settings().block;
    engine.observer().set_sink(nullptr);
    engine.begin_request(0, {{request.cycles * block + 2, {}}});
    if (cut > 0)
        DP_RETURN_IF_ERROR(engine.prefill(0, std::span(prompt).first(static_cast<std::size_t>(cut)), cut, false));
    DP_RETURN_IF_ERROR(engine.prefill(0, std::span(prompt).subspan(static_cast<std::size_t>(cut)), 0, true));
    engine.observer().set_sink(&sink);
    decode::ModelDrafter drafter(*engine.core().draft_forward());
    const int lane = 0;
    for (std::size_t cycle = 0; cycle < request.cycles; ++cycle) {
        auto result = engine.cycle({&lane, 1}, drafter, block);
        if (!result.ok()) return result.status();
    }
    engine.observer().set_sink(nullptr);
    return std::move(sink.cycles);
}

void add_shifts(const Margins& a, const Margins& b, std::vector<double>& target, std::vector<double>& selector) {
    if (a.tokens != b.tokens) return;
    std::size_t agreed = 0;
    while (agreed < a.proposals.size() && a.proposals[agreed] == b.proposals[agreed]) ++agreed;
    const auto shift = [](float x, float y) { return std::fabs(static_cast<double>(x) - y); };
    // The selector's score at a position reads the proposals before it; a target row too.
    for (std::size_t t = 0; t < std::min({agreed + 1, a.selector.size(), b.selector.size()}); ++t)
        selector.push_back(shift(a.selector[t], b.selector[t]));
    for (std::size_t r = 0; r < std::min({agreed + 1, a.target.size(), b.target.size()}); ++r)
        target.push_back(shift(a.target[r], b.target[r]));
}

double high_percentile(std::vector<double> shifts) {
    if (shifts.empty()) return 0;
    const auto rank = static_cast<std::size_t>(std::ceil(0.999 * static_cast<double>(shifts.size())));
    const auto at = shifts.begin() + static_cast<std::ptrdiff_t>(rank - 1);
    std::nth_element(shifts.begin(), at, shifts.end());
    return *at;
}

}  // namespace

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

    std::vector<double> target;
    std::vector<double> selector;
    const std::size_t length = request.prompt.size();
    const std::size_t prompts = std::min(kNearTiePrompts, length - 1);
    for (std::size_t i = 1; i <= prompts && target.size() < kNearTieSamples; ++i) {
        std::vector<TokenId> prompt = request.prompt;
        std::rotate(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(i * length / (prompts + 1)),
                    prompt.end());
        if (prompt == request.prompt) continue;
        DP_ASSIGN_OR_RETURN(const auto cut, decode_with_cut(engine, request, prompt, request.boundary));
        DP_ASSIGN_OR_RETURN(const auto whole, decode_with_cut(engine, request, prompt, 0));
        for (const auto& [position, margins] : cut) {
            const auto other = whole.find(position);
            if (other != whole.end()) add_shifts(margins, other->second, target, selector);
        }
    }
    NearTie result;
    result.samples = static_cast<std::int64_t>(target.size());
    result.target = high_percentile(std::move(target));
    result.selector = high_percentile(std::move(selector));
    return result;
}

}  // namespace draftprobe::probe
