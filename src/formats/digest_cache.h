// Digests of large files from earlier runs, so that a checkpoint of many gigabytes is hashed once and not once a run.
//
// A digest stands for (device, inode, size, modification time, change time). Size and modification time alone would not
// do: both can be put back after an edit (touch -d, cp -p, rsync -t). The change time is set by the kernel at every
// write and every such touch, and only a wrong clock puts it back. What is left: a file that is written through a
// memory map shortly after it was hashed, on a file system that stamps such writes late. So captures say when a digest
// came from here, and --no-digest-cache hashes everything.
//
// The cache is one JSON file. Whatever is wrong with it (absent, cut short, another version, another owner, an entry
// that does not fit its own check) costs hashing again and is never an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace draftprobe {

// Smaller files are hashed in less time than a look-up would be worth explaining: 64 MiB take about 50 ms with SHA
// instructions, 200 ms without.
inline constexpr std::uint64_t kMinCachedFileBytes = 64u << 20;

// Entries that the file keeps, newest last: some dozens of checkpoints, and below 512 KiB of JSON.
inline constexpr std::size_t kMaxCachedDigests = 1024;

// A file that changed less than this before it was hashed may change again within the same tick of its time stamps.
inline constexpr std::int64_t kSettledNanoseconds = 2'000'000'000;

// What names one content of one file. Times in nanoseconds since 1970.
struct FileStamp {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::uint64_t size = 0;
    std::int64_t modified = 0;
    std::int64_t changed = 0;
    auto operator<=>(const FileStamp&) const = default;
};

// The stamp of a regular file (symbolic links are followed); nullopt when it cannot be read.
std::optional<FileStamp> file_stamp(const std::filesystem::path& path);

// True when a digest taken from `now` on may be kept for this stamp: its last change is kSettledNanoseconds ago.
bool settled(const FileStamp& stamp, std::int64_t now);

// The entries of one cache file. One thread; several processes may use one file: each save() replaces it whole, with
// what the file held then and what is new. Of two saves at once one may lose its entries, which costs hashing again.
class DigestCache {
public:
    // `file` need not exist; an empty path is a cache that keeps nothing. `min_bytes`: smaller files are not kept.
    static DigestCache open(const std::filesystem::path& file, std::uint64_t min_bytes = kMinCachedFileBytes);

    bool takes(const FileStamp& stamp) const { return !file_.empty() && stamp.size >= min_bytes_; }
    std::optional<std::string> find(const FileStamp& stamp) const;
    // Remembers it for save(). Requires takes(stamp) and 64 hexadecimal digits.
    void add(const FileStamp& stamp, std::string sha256);
    // Writes what was added, if anything. A failure leaves the old file; it is returned for those who want to say so.
    Status save();

private:
    struct Entry {
        FileStamp stamp;
        std::string sha256;
    };

    static std::vector<Entry> read(const std::filesystem::path& file);
    static const Entry* find_in(const std::vector<Entry>& entries, const FileStamp& stamp);
    static std::string entry_check(const Entry& entry);
    static std::string text_of(const std::vector<Entry>& entries);

    std::filesystem::path file_;
    std::uint64_t min_bytes_ = kMinCachedFileBytes;
    std::vector<Entry> entries_;  // as read, then as added
    std::vector<Entry> added_;
};

// digests.json in $DRAFTPROBE_CACHE, else in draftprobe/ of $XDG_CACHE_HOME, else in ~/.cache/draftprobe. Relative
// directories are ignored, as the XDG rules say. Empty when there is none of them.
std::filesystem::path default_digest_cache_file();

}  // namespace draftprobe
