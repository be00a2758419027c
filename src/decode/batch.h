// Serves many requests over the lanes of one engine: free lanes take the next request, and every step is one forward in
// which some lanes prefill and others decode. What a request emits depends on the request alone (docs/numerics.md), not
// on the number of lanes, the order of requests or their neighbours; an adaptive verify budget changes widths, never
// greedy tokens.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "decode/engine.h"

namespace draftprobe::decode {

struct BatchRequest {
    std::span<const TokenId> prompt;  // at least one token; lives as long as the run
    Request request;
};

struct BatchResult {
    std::vector<TokenId> tokens;  // emitted, in order; a stop token is the last
    bool stopped = false;         // by a stop token
    std::size_t cycles = 0;
    std::size_t verified = 0;  // rows beside the anchor's, over the cycles
    std::size_t retained = 0;  // over the cycles
};

// How far a run is, after a step.
struct BatchProgress {
    std::size_t finished = 0;   // requests
    std::size_t prefilled = 0;  // prompt tokens computed so far, all requests
    std::size_t emitted = 0;    // tokens so far, all requests
};

// Runs every request to its end and returns their results in the same order. `on_step(BatchProgress)` is called after
// every step. Each lane must hold its request (the engine's max_tokens). Errors: those of Engine::step, and then every
// request is given up.
template <class Observer, class OnStep>
Result<std::vector<BatchResult>> run_batch(Engine<Observer>& engine, std::span<const BatchRequest> requests,
                                           Drafter& drafter, OnStep&& on_step) {
    struct Active {
        std::size_t request = 0;
        std::span<const TokenId> rest;  // of the prompt
        bool busy = false;
    };
    std::vector<Active> lanes(static_cast<std::size_t>(engine.core().lane_count()));
    std::vector<BatchResult> results(requests.size());
    BatchProgress progress;
    std::size_t next = 0;

    const auto emit = [&](int lane, std::span<const TokenId> tokens, bool finished) {
        Active& active = lanes[static_cast<std::size_t>(lane)];
        const RequestLimits& limits = requests[active.request].request.limits;
        BatchResult& result = results[active.request];
        result.tokens.insert(result.tokens.end(), tokens.begin(), tokens.end());
        progress.emitted += tokens.size();
        const auto& stops = limits.stop_ids;
        result.stopped = std::find(stops.begin(), stops.end(), tokens.back()) != stops.end();
        if (!finished && !result.stopped && result.tokens.size() < limits.max_new_tokens) return;
        active.busy = false;
        ++progress.finished;
    };

    while (progress.finished < requests.size()) {
        std::vector<PrefillWork> prefills;
        std::vector<int> decoding;
        for (std::size_t i = 0; i < lanes.size(); ++i) {
            const int id = static_cast<int>(i);
            if (!lanes[i].busy && next < requests.size()) {
                lanes[i] = {next, requests[next].prompt, true};
                engine.begin_request(id, requests[next].request);
                ++next;
            }
            if (!lanes[i].busy) continue;
            if (lanes[i].rest.empty()) {
                decoding.push_back(id);
            } else {
                prefills.push_back({id, lanes[i].rest, 0, true});
            }
        }
        DP_ASSIGN_OR_RETURN(const StepResult done,
                            engine.step(prefills, decoding, &drafter, engine.core().settings().block));
        for (std::size_t i = 0; i < prefills.size(); ++i) {
            Active& active = lanes[static_cast<std::size_t>(prefills[i].lane)];
            active.rest = active.rest.subspan(done.prefilled[i]);
            progress.prefilled += done.prefilled[i];
            if (active.rest.empty()) emit(prefills[i].lane, {&engine.lane(prefills[i].lane).anchor, 1}, false);
        }
        for (const CycleResult& cycle : done.cycles) {
            BatchResult& result = results[lanes[static_cast<std::size_t>(cycle.lane)].request];
            ++result.cycles;
            result.verified += cycle.verified;
            result.retained += cycle.retained;
            emit(cycle.lane, cycle.emitted, cycle.finished);
        }
        on_step(progress);
    }
    return results;
}

}  // namespace draftprobe::decode
