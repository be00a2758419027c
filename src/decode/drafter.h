// Where proposals come from: the draft model, or a script with planted acceptance (tests and scenarios).
#pragma once

#include <functional>
#include <span>

#include "decode/draft_forward.h"
#include "state/lane.h"

namespace draftprobe::decode {

// selector: the draft's candidate selector (DFlash2); argmax: each position on its own (DFlash v1).
enum class ProposalSource { selector, argmax, script };

class Drafter {
public:
    virtual ~Drafter() = default;
    virtual ProposalSource source() const = 0;
    // Fills out.choices, one per lane with block - 1 proposals each, or none. `sampling`: one per lane, or empty: all
    // greedy. Must not change any lane.
    virtual void propose(std::span<state::Lane* const> lanes, std::span<const LaneSampling> sampling,
                         DraftOutput& out) = 0;
};

class ModelDrafter final : public Drafter {
public:
    explicit ModelDrafter(DraftForward& forward) : forward_(forward) {}
    ProposalSource source() const override {
        return forward_.has_selector() ? ProposalSource::selector : ProposalSource::argmax;
    }
    void propose(std::span<state::Lane* const> lanes, std::span<const LaneSampling> sampling,
                 DraftOutput& out) override {
        forward_.run(lanes, sampling, out);
    }

private:
    DraftForward& forward_;
};

// Proposes what `script(lane, t)` returns for positions t = 1..block-1 (absolute position lane.length + t).
// Probabilities are 1 and hidden rows are absent; where a lane samples, the distributions are point masses.
class ScriptedDrafter final : public Drafter {
public:
    using Script = std::function<TokenId(const state::Lane& lane, std::size_t t)>;
    ScriptedDrafter(std::size_t block, Script script) : block_(block), script_(std::move(script)) {}
    ProposalSource source() const override { return ProposalSource::script; }
    void propose(std::span<state::Lane* const> lanes, std::span<const LaneSampling> sampling,
                 DraftOutput& out) override;

private:
    std::size_t block_;
    Script script_;
};

}  // namespace draftprobe::decode
