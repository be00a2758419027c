// Lockstep: what the control's capture says was committed, for other arms to commit in place of their own tokens.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace draftprobe::probe {

struct ControlCycle {
    std::vector<TokenId> committed;  // at least one; the first is the anchor
    TokenId next_anchor = 0;
};

// One request of a control, in order. Contexts are equal by construction: cycle n starts at the prompt's length plus
// all that cycles before it committed.
struct ControlTokens {
    std::vector<ControlCycle> cycles;  // none: the control did not decode

    // The token that the control chose behind the prompt; nothing without cycles.
    const TokenId* first_anchor() const { return cycles.empty() ? nullptr : &cycles.front().committed.front(); }
};

// Reads the steps of `request` from a capture. Memory: one token per token retained. Errors: those of CaptureReader;
// mismatch for a sanitised capture, whose ids are no tokens.
Result<ControlTokens> read_control_tokens(const std::filesystem::path& capture, const std::string& request);

}  // namespace draftprobe::probe
