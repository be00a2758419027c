// The tier `process` of the command line: the program runs itself again, with the words it was given, to go on with an
// arm that it suspended (probe/suspend.h). Internal: `resume-arm` is no command of the contract and may change.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "cli/console.h"

namespace draftprobe::cli {

inline constexpr std::string_view kResumeWord = "resume-arm";

// What ProbeSettings::resume_elsewhere does here: runs /proc/self/exe, waits for it, and passes on what it said when it
// failed. The new process ends with this one.
Status resume_in_new_process(const std::filesystem::path& suspended, const std::filesystem::path& capture, bool force);

// The new process: `words` are what follows kResumeWord: suspended directory, capture, "force" or "keep", then the
// words of the command that suspended.
Result<int> run_resumed_arm(std::span<const std::string> words, Console& console);

}  // namespace draftprobe::cli
