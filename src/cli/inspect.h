// The views behind 'draftprobe inspect': each reads one thing and returns text or JSON. Inside cli/ only.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"

namespace draftprobe::cli {

enum class InspectForm { text, json };

// Configuration and tensor headers are read; weights are not. Errors: those of the format readers.
Result<std::string> inspect_target(const std::filesystem::path& path, InspectForm form);
Result<std::string> inspect_draft(const std::filesystem::path& path, InspectForm form);
// Every checksum and every step is checked. Errors: those of CaptureReader.
Result<std::string> inspect_capture(const std::filesystem::path& path, InspectForm form);

// "12.3 MiB", "640 bytes".
std::string bytes_text(std::uint64_t bytes);

}  // namespace draftprobe::cli
