#include "decode/drafter.h"

namespace draftprobe::decode {

void ScriptedDrafter::propose(std::span<state::Lane* const> lanes, std::span<const LaneSampling> sampling,
                              DraftOutput& out) {
    out.hidden.clear();
    out.choices.clear();
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        DraftChoice choice;
        const bool sampled = !sampling.empty() && !sampling[i].settings.greedy();
        for (std::size_t t = 1; t < block_; ++t) {
            choice.proposals.push_back(script_(*lanes[i], t));
            if (sampled) choice.distributions.push_back(TokenDistribution::point(choice.proposals.back()));
        }
        choice.q.assign(block_ - 1, 1.0f);
        choice.prefix_confidence.assign(block_ - 1, 1.0f);
        out.choices.push_back(std::move(choice));
    }
}

}  // namespace draftprobe::decode
