#include "capture/capture.h"

#include <algorithm>

#include "capture/names.h"

namespace draftprobe {

std::string_view arm_name(Arm arm) { return kArmNames[static_cast<std::size_t>(arm)]; }
std::string_view row_source_name(RowSource source) { return kRowSourceNames[static_cast<std::size_t>(source)]; }
std::string_view cut_reason_name(CutReason reason) { return kCutReasonNames[static_cast<std::size_t>(reason)]; }
std::string_view forward_kind_name(ForwardKind kind) { return kForwardKindNames[static_cast<std::size_t>(kind)]; }
std::string_view forward_phase_name(ForwardPhase phase) { return kForwardPhaseNames[static_cast<std::size_t>(phase)]; }

ObservedAcceptance observed_acceptance(const StepRecord& step) {
    if (step.verified == 0) return {};
    if (step.retained < step.accepted + 1) return {std::min(step.accepted, step.retained), false, true};
    // Only the target's own choice ends a sequence; anything else that cut it leaves the true length open.
    const bool open = step.accepted_cut != CutReason::none && step.accepted_cut != CutReason::mismatch;
    return {step.accepted, step.accepted < step.verified && !open, true};
}

}  // namespace draftprobe
