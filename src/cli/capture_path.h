// A capture named on the command line.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/status.h"

namespace draftprobe::cli {

// A directory that does not even try to be a capture is the caller's mistake, not damage: invalid_argument, with `next`
// as the next step when it is the output of a probe. Everything else is left to the reader.
Status check_is_capture(const std::filesystem::path& path, std::string_view next);

}  // namespace draftprobe::cli
