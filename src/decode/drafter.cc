#include "decode/drafter.h"

namespace draftprobe::decode {

void ScriptedDrafter::propose(std::span<state::Lane* const> lanes, DraftOutput& out) {
    out.hidden.clear();
    out.choices.clear();
    for (const state::Lane* lane : lanes) {
        DraftChoice choice;
        for (std::size_t t = 1; t < block_; ++t) choice.proposals.push_back(script_(*lane, t));
        choice.q.assign(block_ - 1, 1.0f);
        choice.prefix_confidence.assign(block_ - 1, 1.0f);
        out.choices.push_back(std::move(choice));
    }
}

}  // namespace draftprobe::decode
