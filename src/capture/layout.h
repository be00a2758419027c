// Names inside a capture directory. Inside capture/ only, but for kCaptureEntries: who replaces directories of captures
// has to know their files.
#pragma once

#include <string_view>

namespace draftprobe {

inline constexpr std::string_view kCaptureFileName = "capture.json";
inline constexpr std::string_view kStepsFileName = "steps.jsonl";
inline constexpr std::string_view kPackedStepsFileName = "steps.jsonl.zst";
inline constexpr std::string_view kTensorsFileName = "tensors.safetensors";
inline constexpr std::string_view kSumsFileName = "SHA256SUMS";
inline constexpr std::string_view kTimingFileName = "timing.jsonl";
inline constexpr std::string_view kTimingSumsFileName = "TIMING.SHA256";

// Everything a capture directory holds.
inline constexpr std::string_view kCaptureEntries[] = {kCaptureFileName,   kStepsFileName, kPackedStepsFileName,
                                                       kTensorsFileName,   kSumsFileName,  kTimingFileName,
                                                       kTimingSumsFileName};

// Tensors of level 3.
inline constexpr std::string_view kDraftHiddenName = "draft_hidden";    // BF16 [steps, block - 1, hidden]
inline constexpr std::string_view kTargetHiddenName = "target_hidden";  // BF16 [sum of verified + 1, hidden]
inline constexpr std::string_view kTargetRowsName = "target_rows";      // I64 [steps + 1], first row of each step

}  // namespace draftprobe
