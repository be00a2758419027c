// Spellings of the enumerations in the files, in the order of the enumerators. Shared by writer and reader.
#pragma once

#include <array>
#include <string_view>

namespace draftprobe {

inline constexpr std::array<std::string_view, 5> kArmNames = {"fresh", "restored", "natural", "uninterrupted",
                                                              "repeat"};
inline constexpr std::array<std::string_view, 4> kRowSourceNames = {"computed", "restored", "carried", "none"};
inline constexpr std::array<std::string_view, 8> kCutReasonNames = {"none",    "budget", "stop",     "limit",
                                                                    "grammar", "error",  "mismatch", "no-draft"};
inline constexpr std::array<std::string_view, 3> kForwardKindNames = {"prefill", "verify", "plain"};
inline constexpr std::array<std::string_view, 3> kForwardPhaseNames = {"materialise", "scratch", "resume"};

}  // namespace draftprobe
