// The views behind 'draftprobe inspect': each reads one thing and returns text or JSON. Inside cli/ only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"

namespace draftprobe::cli {

enum class InspectForm { text, json };

// Configuration and tensor headers are read and checked against each other; weights are not read. `tokens`: the context
// for which a lane's memory is stated. Errors: those of the format readers and of the tensor plan.
Result<std::string> inspect_target(const std::filesystem::path& path, InspectForm form, std::uint64_t tokens);
Result<std::string> inspect_draft(const std::filesystem::path& path, InspectForm form, std::uint64_t tokens);
// Every checksum and every step is checked. Errors: those of CaptureReader.
Result<std::string> inspect_capture(const std::filesystem::path& path, InspectForm form);

// Every page is checked. Errors: those of read_snapshot.
Result<std::string> inspect_snapshot(const std::filesystem::path& path, InspectForm form);

// "12.3 MiB", "640 bytes".
std::string bytes_text(std::uint64_t bytes);

}  // namespace draftprobe::cli
