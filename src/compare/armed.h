// Whether the pair of arms is what it claims to be: the control computed its state, the restored arm restored its own.
// Inside compare/ only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capture/capture.h"
#include "compare/comparison.h"

namespace draftprobe {

struct ArmCheck {
    std::optional<Verdict> verdict;  // contaminated or not_restored; absent when nothing speaks against the arms
    Armed armed;                     // components and recomputed rows; `armed` and exposure are set later
    std::vector<std::string> warnings;
};

// Reads headers only: totals, schedule, ledger.
ArmCheck check_arms(const CaptureHeader& control, const CaptureHeader& treated);

// The setting that fixes how many rows are verified. Declared as the treatment, it makes widths no finding.
inline constexpr std::string_view kWidthSetting = "settings.verify_width";
bool is_width_declared(const std::vector<std::string>& declared);

// Whether both arms are declared to take their widths from measured times, which no treatment is behind. A declared
// budget is a treatment: its widths are what is asked about.
bool widths_follow_times(const std::vector<std::string>& declared);

// Numerics classes that promise equal bits for every schedule.
bool is_canonical_numerics(std::string_view numerics);

// An arm that computes everything itself.
bool is_computing_arm(const CaptureHeader& header);

// Whether every request has boundary 0: such a restore claims nothing, and a difference is another cause's.
bool restores_nothing(const CaptureHeader& header);

// Whether the arm declared that its draft sees less context.
bool shortens_context(const CaptureHeader& header);

// The differences that may explain drift, all of them: "" when nothing of the kind is recorded. `declared` are full
// field names.
std::string recorded_cause(const CaptureHeader& control, const CaptureHeader& treated,
                           const std::vector<std::string>& declared);

}  // namespace draftprobe
