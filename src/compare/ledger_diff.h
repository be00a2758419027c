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
    std::string unwritten;  // first component of the treated arm that claims rows nobody wrote
    std::vector<std::string> blind_spots;
    std::vector<std::string> first_token_differs;  // requests whose pending anchors differ behind the prompt
};

// "192 rows claimed, 64 written", with where and, for an empty component, its logical offset.
std::string unwritten_text(std::int64_t claimed, std::int64_t written, Position last, Position first,
                           const std::vector<SourceRange>& sources);

// Rank, among the ledger's differences of one stage, of a component whose content differs and nothing more is known.
int ledger_content_rank(std::string_view component);

// Offers every difference to `findings`. Below level 2 there is no ledger, and nothing is compared.
LedgerVerdict compare_ledgers(const CaptureHeader& control, const CaptureHeader& treated, Findings& findings);

}  // namespace draftprobe
