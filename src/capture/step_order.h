// The order that steps of a capture keep: cycles never fall, and within a request the length never falls (it stays the
// same only when a context is repeated). Readers that pair two captures rely on it to forget what cannot match any
// more. Memory: one entry per request. Inside capture/ only.
#pragma once

#include <string>
#include <unordered_map>

#include "base/status.h"
#include "capture/capture.h"

namespace draftprobe {

class StepOrder {
public:
    // Errors: corrupt, naming the request and both lengths.
    Status check(const StepRecord& step);
    // Every request seen is declared. Errors: corrupt.
    Status check_requests(const CaptureHeader& header) const;

private:
    std::unordered_map<std::string, Position> lengths_;
    std::int64_t cycle_ = 0;
};

}  // namespace draftprobe
