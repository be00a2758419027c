// Pairs the lane-cycles of two captures by (request key, context hash) while streaming both. Because lengths never fall
// within a request, a step is forgotten as soon as the other arm has passed it. Inside compare/ only.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "capture/reader.h"
#include "compare/comparison.h"

namespace draftprobe {

struct HeldStep {
    StepRecord step;
    std::span<const std::byte> draft_hidden;  // in the reader's map
    std::span<const std::byte> target_hidden;
};

// Watches every step of an arm, paired or not, in the order of the capture.
class StepSink {
public:
    virtual ~StepSink() = default;
    virtual Status on_step(bool treated, const StepRecord& step) = 0;
    virtual Status on_pair(const HeldStep& control, const HeldStep& treated) = 0;
    // Both arms have a cycle of this request at this length, after different tokens.
    virtual void on_context_differs(const StepRecord& control, const StepRecord& treated, bool first_of_request) = 0;
};

// Reads both to their end and counts into `pairs` (all but `differing`). Errors: those of the readers; corrupt with the
// arm's name when a repeated context is not field-equal.
class Matcher {
public:
    Matcher(CaptureReader& control, CaptureReader& treated, StepSink& sink, Pairs& pairs);
    Status run();
    // Which arm gave the error of run().
    bool failed_in_treated() const { return failed_in_treated_; }

private:
    struct ArmOfRequest {
        std::deque<HeldStep> waiting;
        std::optional<HeldStep> last;  // most recent step that left `waiting`
        Position length = -1;          // of the most recent step
        std::int64_t steps = 0;
    };
    struct Request {
        ArmOfRequest arms[2];
    };

    Result<bool> pull(int side);
    Status arrive(int side, HeldStep held);
    Result<bool> is_duplicate(int side, const ArmOfRequest& arm, const HeldStep& held) const;
    void forget(int side, ArmOfRequest& own, const ArmOfRequest& other, HeldStep held);
    void count_unmatched(int side, std::int64_t UnmatchedReasons::*reason);

    CaptureReader* readers_[2];
    StepSink& sink_;
    Pairs& pairs_;
    std::unordered_map<std::string, Request> requests_;
    std::vector<StepRecord> spare_;
    bool ended_[2] = {false, false};
    bool failed_in_treated_ = false;
};

}  // namespace draftprobe
