#include "decode/acceptance.h"

#include <algorithm>
#include <cassert>

#include "decode/ranking.h"

namespace draftprobe::decode {

TokenId choose_next(std::span<const float> logits, const LaneSampling& sampling, Position position) {
    if (sampling.settings.greedy()) return argmax(logits);
    return draw(target_distribution(logits, sampling.settings), uniform(sampling, position, RandomStream::residual));
}

std::vector<TokenId> target_choices(numerics::ConstRows logits, std::span<const TokenId> rows,
                                    const DraftChoice& drafted, const LaneSampling& sampling, Position length) {
    std::vector<TokenId> choices;
    bool decided = sampling.settings.greedy();
    for (std::size_t j = 0; j < rows.size(); ++j) {
        const std::span<const float> row(logits.row(j), logits.cols);
        if (decided) {
            choices.push_back(argmax(row));
            continue;
        }
        const Position position = length + static_cast<Position>(j) + 1;
        const TokenDistribution p = target_distribution(row, sampling.settings);
        const double residual = uniform(sampling, position, RandomStream::residual);
        if (j + 1 == rows.size()) {
            choices.push_back(draw(p, residual));
            continue;
        }
        const TokenDistribution& q = drafted.distributions[j];
        if (accepts(p, q, rows[j + 1], uniform(sampling, position, RandomStream::accept))) {
            choices.push_back(rows[j + 1]);
        } else {
            choices.push_back(draw(residual_distribution(p, q), residual));
            // Equal only when no residual mass was left and p itself was drawn from: then the position holds the
            // proposal after all, and the next one is judged as usual.
            decided = choices.back() != rows[j + 1];
        }
    }
    return choices;
}

CycleResult accept(std::size_t drafted, std::span<const TokenId> rows, std::span<const TokenId> choices,
                   const RequestLimits& limits, std::size_t emitted) {
    CycleResult result;
    result.drafted = drafted;
    result.offered = rows.size() - 1;
    result.verified = rows.size() - 1;
    while (result.accepted < result.verified && rows[result.accepted + 1] == choices[result.accepted])
        ++result.accepted;
    for (std::size_t j = 0; j < result.accepted; ++j) result.emitted.push_back(rows[j + 1]);
    result.emitted.push_back(choices[result.accepted]);
    for (std::size_t j = 0; j < result.emitted.size(); ++j) {
        if (std::find(limits.stop_ids.begin(), limits.stop_ids.end(), result.emitted[j]) == limits.stop_ids.end())
            continue;
        if (j + 1 < result.emitted.size()) result.cut = Cut::stop;
        result.emitted.resize(j + 1);
        result.finished = true;
        break;
    }
    const std::size_t room = limits.max_new_tokens - std::min(emitted, limits.max_new_tokens);
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

}  // namespace draftprobe::decode
