#include "formats/digest_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"

namespace draftprobe {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kCacheVersion = 1;
constexpr std::uint64_t kMaxCacheBytes = 4u << 20;
constexpr std::size_t kCheckDigits = 16;

std::int64_t nanoseconds(const timespec& time) {
    return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

bool hex_digest(std::string_view text) {
    return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// A file that somebody else owns or may write could name any digest for our weights.
bool ours_alone(const fs::path& file) {
    struct stat info {};
    return ::lstat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid() &&
           (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// An absolute directory of the environment.
std::optional<fs::path> directory_of(const char* variable) {
    const char* value = std::getenv(variable);
    if (value == nullptr || value[0] != '/') return std::nullopt;
    return fs::path(value);
}

Status replace_file(const fs::path& file, std::string_view text) {
    std::string temporary = file.string() + ".XXXXXX";
    const int descriptor = ::mkstemp(temporary.data());
    if (descriptor < 0) {
        return io_error(fmt::format("{}: cannot create a file beside it: {}", file.string(), std::strerror(errno)));
    }
    ::close(descriptor);
    Status status = write_file(temporary, text);
    if (status.ok() && ::rename(temporary.c_str(), file.c_str()) != 0) {
        status = io_error(fmt::format("{}: cannot replace it: {}", file.string(), std::strerror(errno)));
    }
    if (!status.ok()) ::unlink(temporary.c_str());
    return status;
}

}  // namespace

std::optional<FileStamp> file_stamp(const fs::path& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
    return FileStamp{static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino),
                     static_cast<std::uint64_t>(info.st_size), nanoseconds(info.st_mtim), nanoseconds(info.st_ctim)};
}

bool settled(const FileStamp& stamp, std::int64_t now) {
    return std::max(stamp.modified, stamp.changed) <= now - kSettledNanoseconds;
}

DigestCache DigestCache::open(const fs::path& file, std::uint64_t min_bytes) {
    DigestCache cache;
    cache.file_ = file;
    cache.min_bytes_ = min_bytes;
    cache.entries_ = read(file);
    return cache;
}

// Everything in the file that keeps the rules; the rest is as if it were not there.
std::vector<DigestCache::Entry> DigestCache::read(const fs::path& file) {
    std::vector<Entry> entries;
    if (file.empty() || !ours_alone(file)) return entries;
    const Result<Json> json = parse_json_file(file, kMaxCacheBytes);
    if (!json.ok() || !json->is_object() || json->value("digest_cache_version", Json()) != kCacheVersion) {
        return entries;
    }
    const auto list = json->find("entries");
    if (list == json->end() || !list->is_array()) return entries;
    for (const Json& item : *list) {
        const auto word = [&item](const char* key) { return json_get_u64(item, key, "entry"); };
        const auto time = [&item](const char* key) { return json_get_i64(item, key, "entry"); };
        const auto device = word("device");
        const auto inode = word("inode");
        const auto size = word("size");
        const auto modified = time("modified");
        const auto changed = time("changed");
        const auto sha256 = json_get_string(item, "sha256", "entry");
        const auto check = json_get_string(item, "check", "entry");
        if (!device.ok() || !inode.ok() || !size.ok() || !modified.ok() || !changed.ok() || !sha256.ok() ||
            !check.ok() || !hex_digest(*sha256)) {
            continue;
        }
        Entry entry{{*device, *inode, *size, *modified, *changed}, *sha256};
        if (*check != entry_check(entry)) continue;
        entries.push_back(std::move(entry));
        if (entries.size() == kMaxCachedDigests) break;
    }
    return entries;
}

const DigestCache::Entry* DigestCache::find_in(const std::vector<Entry>& entries, const FileStamp& stamp) {
    const auto found =
        std::find_if(entries.rbegin(), entries.rend(), [&](const Entry& entry) { return entry.stamp == stamp; });
    return found == entries.rend() ? nullptr : &*found;
}

// Against bytes that rot on disk, not against an attacker: whoever may write the file is the user itself.
std::string DigestCache::entry_check(const Entry& entry) {
    const FileStamp& s = entry.stamp;
    return sha256_hex(fmt::format("digest {} {} {} {} {} {}\n", s.device, s.inode, s.size, s.modified, s.changed,
                                  entry.sha256))
        .substr(0, kCheckDigits);
}

std::string DigestCache::text_of(const std::vector<Entry>& entries) {
    JsonWriter json;
    json.begin_object().member("digest_cache_version", kCacheVersion).key("entries").begin_array();
    const std::size_t first = entries.size() > kMaxCachedDigests ? entries.size() - kMaxCachedDigests : 0;
    for (std::size_t i = first; i < entries.size(); ++i) {
        const FileStamp& s = entries[i].stamp;
        json.begin_object().member("device", s.device).member("inode", s.inode).member("size", s.size);
        json.member("modified", s.modified).member("changed", s.changed).member("sha256", entries[i].sha256);
        json.member("check", entry_check(entries[i])).end_object();
    }
    return json.end_array().end_object().take() + "\n";
}

std::optional<std::string> DigestCache::find(const FileStamp& stamp) const {
    if (!takes(stamp)) return std::nullopt;
    const Entry* found = find_in(entries_, stamp);
    return found == nullptr ? std::nullopt : std::optional(found->sha256);
}

void DigestCache::add(const FileStamp& stamp, std::string sha256) {
    assert(takes(stamp) && hex_digest(sha256));
    added_.push_back({stamp, std::move(sha256)});
    entries_.push_back(added_.back());
}

Status DigestCache::save() {
    if (added_.empty()) return {};
    std::error_code error;
    fs::create_directories(file_.parent_path(), error);
    if (error) return io_error(fmt::format("{}: cannot create: {}", file_.parent_path().string(), error.message()));
    // What other runs have saved since open() stays; a new stamp of a file replaces its older ones.
    std::vector<Entry> entries = read(file_);
    const auto replaced = [this](const Entry& old) {
        return std::any_of(added_.begin(), added_.end(), [&](const Entry& entry) {
            return entry.stamp.device == old.stamp.device && entry.stamp.inode == old.stamp.inode;
        });
    };
    entries.erase(std::remove_if(entries.begin(), entries.end(), replaced), entries.end());
    entries.insert(entries.end(), added_.begin(), added_.end());
    DP_RETURN_IF_ERROR(replace_file(file_, text_of(entries)));
    added_.clear();
    return {};
}

fs::path default_digest_cache_file() {
    constexpr std::string_view kName = "digests.json";
    if (const auto own = directory_of("DRAFTPROBE_CACHE")) return *own / kName;
    if (const auto xdg = directory_of("XDG_CACHE_HOME")) return *xdg / "draftprobe" / kName;
    if (const auto home = directory_of("HOME")) return *home / ".cache" / "draftprobe" / kName;
    return {};
}

}  // namespace draftprobe
