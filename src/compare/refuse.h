// What makes two captures not comparable, or not parts of one calibration. For compare/ and replay/.
#pragma once

#include <string>
#include <vector>

#include "capture/capture.h"
#include "compare/comparison.h"

namespace draftprobe {

// Named where measured times decided how many rows an arm verified.
inline constexpr std::string_view kTimingField = "capture.timing_confounded";

struct Comparability {
    std::vector<Refusal> refusals;      // all of them, in the order of the header
    std::vector<std::string> declared;  // full field names of mismatches that a declared treatment covers
    std::vector<std::string> warnings;
    std::vector<std::string> unknown;  // declared treatments that name no field of these captures
};

Comparability check_comparable(const CaptureHeader& control, const CaptureHeader& treated,
                               const std::vector<std::string>& treat);

// The value of an effective setting, or "" when it is not recorded.
std::string_view setting_value(const CaptureHeader& header, std::string_view field);

}  // namespace draftprobe
