#include "cli/capture_path.h"

#include <fmt/format.h>

namespace draftprobe::cli {

Status check_is_capture(const std::filesystem::path& path, std::string_view next) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) return {};
    for (const char* name : {"capture.json", "SHA256SUMS", "steps.jsonl", "steps.jsonl.zst"}) {
        if (std::filesystem::exists(path / name, error)) return {};
    }
    const bool output = std::filesystem::exists(path / "control" / "capture.json", error);
    return invalid_argument(
        fmt::format("{}: found {}, expected a capture directory (capture.json, steps.jsonl, SHA256SUMS); {}",
                    path.string(), output ? "the output of a probe" : "a directory without any file of a capture",
                    output ? next : "check the path"));
}

}  // namespace draftprobe::cli
