// Identity of a set of files: one digest that stock tools can reproduce.
//
//     (cd DIR && sha256sum FILE...) | LC_ALL=C sort | sha256sum
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace draftprobe {

struct FileDigest {
    std::string name;    // relative, '/' between parts, without control characters or backslash
    std::string sha256;  // 64 lower-case hexadecimal digits
    bool operator==(const FileDigest&) const = default;
};

// SHA-256 (hexadecimal) of the lines "sha256  name\n", sorted bytewise. Errors: invalid_argument for a repeated name, a
// name that sha256sum would escape, or a malformed digest.
Result<std::string> group_digest(std::span<const FileDigest> files);

// Digests of complete files in `dir`, in the order of `names`. Errors: not_found, io.
Result<std::vector<FileDigest>> digest_files(const std::filesystem::path& dir, std::span<const std::string> names);

}  // namespace draftprobe
