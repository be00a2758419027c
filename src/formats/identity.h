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
#include "formats/digest_cache.h"

namespace draftprobe {

struct FileDigest {
    std::string name;     // relative, '/' between parts, without control characters or backslash
    std::string sha256;   // 64 lower-case hexadecimal digits
    bool cached = false;  // it came from a DigestCache: the file was not read now
    bool operator==(const FileDigest&) const = default;
};

// SHA-256 (hexadecimal) of the lines "sha256  name\n", sorted bytewise. Errors: invalid_argument for a repeated name, a
// name that sha256sum would escape, or a malformed digest.
Result<std::string> group_digest(std::span<const FileDigest> files);

// Digests of complete files in `dir`, in the order of `names`. With a cache, large files that did not change since they
// were hashed are not read again, and new digests are added to it (the caller saves it): of files whose last change is
// long enough ago, and that did not change while they were hashed. Errors: not_found, io.
Result<std::vector<FileDigest>> digest_files(const std::filesystem::path& dir, std::span<const std::string> names,
                                             DigestCache* cache = nullptr);

}  // namespace draftprobe
