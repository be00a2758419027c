#include "formats/identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "base/hash.h"
#include "base/json.h"

namespace draftprobe {
namespace {

bool plain_name(std::string_view name) {
    return !name.empty() && std::none_of(name.begin(), name.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\';
    });
}

bool hex_digest(std::string_view text) {
    return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::int64_t now_nanoseconds() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

Result<FileDigest> digest_file(const std::filesystem::path& dir, const std::string& name, DigestCache* cache) {
    const std::filesystem::path path = dir / name;
    const std::optional<FileStamp> before = cache == nullptr ? std::nullopt : file_stamp(path);
    if (before) {
        if (std::optional<std::string> known = cache->find(*before)) return FileDigest{name, std::move(*known), true};
    }
    const std::int64_t begun = now_nanoseconds();
    DP_ASSIGN_OR_RETURN(std::string sha256, sha256_file(path));
    // A change that the stamps cannot show would be remembered for good: nothing fresh, nothing that moved meanwhile.
    if (before && cache->takes(*before) && settled(*before, begun) && file_stamp(path) == before) {
        cache->add(*before, sha256);
    }
    return FileDigest{name, std::move(sha256), false};
}

}  // namespace

Result<std::string> group_digest(std::span<const FileDigest> files) {
    std::set<std::string> names;
    std::vector<std::string> lines;
    for (const FileDigest& file : files) {
        if (!plain_name(file.name) || !names.insert(file.name).second) {
            return invalid_argument(
                fmt::format("file name {} in a digest group, expected each name once, without control "
                            "characters and backslashes",
                            quoted_excerpt(file.name)));
        }
        if (!hex_digest(file.sha256)) {
            return invalid_argument(fmt::format("digest {} of {}, expected 64 lower-case hexadecimal digits",
                                                quoted_excerpt(file.sha256), quoted_excerpt(file.name)));
        }
        lines.push_back(fmt::format("{}  {}\n", file.sha256, file.name));
    }
    std::sort(lines.begin(), lines.end());
    Sha256 hash;
    for (const std::string& line : lines) hash.update(std::string_view(line));
    return hex(hash.finish());
}

Result<std::vector<FileDigest>> digest_files(const std::filesystem::path& dir, std::span<const std::string> names,
                                             DigestCache* cache) {
    std::vector<FileDigest> digests;
    for (const std::string& name : names) {
        DP_ASSIGN_OR_RETURN(FileDigest digest, digest_file(dir, name, cache));
        digests.push_back(std::move(digest));
    }
    return digests;
}

}  // namespace draftprobe
