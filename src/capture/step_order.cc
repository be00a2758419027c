#include "capture/step_order.h"

#include <fmt/format.h>

#include <unordered_set>

namespace draftprobe {

Status StepOrder::check(const StepRecord& step) {
    if (step.cycle < cycle_) {
        return corrupt(
            fmt::format("cycle: found {} after cycle {}, expected cycles that never fall", step.cycle, cycle_));
    }
    cycle_ = step.cycle;
    auto [entry, inserted] = lengths_.try_emplace(step.request, step.length);
    if (!inserted && step.length < entry->second) {
        return corrupt(
            fmt::format("request '{}': found length {} after length {}, expected lengths that never fall; a second "
                        "run of a request needs its own key",
                        step.request, step.length, entry->second));
    }
    entry->second = step.length;
    return {};
}

Status StepOrder::check_requests(const CaptureHeader& header) const {
    std::unordered_set<std::string_view> keys;
    for (const CapturedRequest& request : header.requests) keys.insert(request.key);
    for (const auto& [key, length] : lengths_) {
        if (!keys.contains(key)) {
            return corrupt(fmt::format("request '{}' has steps, expected it in the requests of capture.json", key));
        }
    }
    return {};
}

}  // namespace draftprobe
