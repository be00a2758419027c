#include "probe/lockstep.h"

#include <fmt/format.h>

#include <limits>

#include "capture/reader.h"

namespace draftprobe::probe {

Result<ControlTokens> read_control_tokens(const std::filesystem::path& capture, const std::string& request) {
    DP_ASSIGN_OR_RETURN(CaptureReader reader, CaptureReader::open(capture));
    if (reader.header().sanitised) {
        return mismatch(fmt::format("{}: a sanitised capture, expected one with token ids: lockstep commits its tokens",
                                    capture.string()));
    }
    ControlTokens tokens;
    StepRecord step;
    while (true) {
        DP_ASSIGN_OR_RETURN(const bool more, reader.next(step));
        if (!more) return tokens;
        if (step.request != request) continue;
        ControlCycle cycle;
        for (const CapturedId id : step.committed) {
            if (id > std::numeric_limits<TokenId>::max()) {
                return corrupt(fmt::format("{}: step {} commits id {}, expected a token id below 2^32",
                                           capture.string(), reader.step_index(), id));
            }
            cycle.committed.push_back(static_cast<TokenId>(id));
        }
        if (cycle.committed.empty()) {
            return corrupt(fmt::format("{}: step {} commits nothing, expected at least the anchor", capture.string(),
                                       reader.step_index()));
        }
        cycle.next_anchor = static_cast<TokenId>(step.next_anchor);
        tokens.cycles.push_back(std::move(cycle));
    }
}

}  // namespace draftprobe::probe
