// Compares what the ledgers of two arms say about the state before the first and after the last cycle, and attributes a
// difference of draft context rows to a constant shift where one explains it. Inside compare/ only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "compare/findings.h"

namespace draftprobe {

struct LedgerVerdict {
    std::int64_t differences = 0;
    bool hard = false;  // some difference that no rounding explains
    std::optional<std::int64_t> shift_tokens;
    std::vector<std::string> warnings;
};

// Offers every difference to `findings`. Below level 2 there is no ledger, and nothing is compared.
LedgerVerdict compare_ledgers(const CaptureHeader& control, const CaptureHeader& treated, Findings& findings);

}  // namespace draftprobe
