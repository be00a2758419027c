// Where proposals come from: the DFlash2 draft, or a script with planted acceptance (tests and scenarios).
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "decode/draft_forward.h"
#include "state/lane.h"

namespace draftprobe::decode {

enum class ProposalSource { draft, script };

class Drafter {
public:
    virtual ~Drafter() = default;
    virtual ProposalSource source() const = 0;
    // Fills out.choices, one per lane with block - 1 proposals each. Must not change any lane.
    virtual void propose(std::span<state::Lane* const> lanes, DraftOutput& out) = 0;
};

class ModelDrafter final : public Drafter {
public:
    explicit ModelDrafter(DraftForward& forward) : forward_(forward) {}
    ProposalSource source() const override { return ProposalSource::draft; }
    void propose(std::span<state::Lane* const> lanes, DraftOutput& out) override { forward_.run(lanes, out); }

private:
    DraftForward& forward_;
};

// Proposes what `script(lane, t)` returns for positions t = 1..block-1 (absolute position lane.length + t).
// Probabilities are 1 and hidden rows are absent: a script has no distribution.
class ScriptedDrafter final : public Drafter {
public:
    using Script = std::function<TokenId(const state::Lane& lane, std::size_t t)>;
    ScriptedDrafter(std::size_t block, Script script) : block_(block), script_(std::move(script)) {}
    ProposalSource source() const override { return ProposalSource::script; }
    void propose(std::span<state::Lane* const> lanes, DraftOutput& out) override;

private:
    std::size_t block_;
    Script script_;
};

}  // namespace draftprobe::decode
