// Whole files in and out, read-only maps, and directories that appear complete or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace draftprobe {

// Content of a regular file of at most max_bytes. Errors: not_found, io (also for directories, FIFOs and devices,
// without blocking on them), exhausted (larger than max_bytes; nothing is read).
Result<std::string> read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes);

// Hands the content of a regular file to `sink` in blocks of about a megabyte, in order, without mapping it. Errors as
// read_text_file without the bound; the sink may then have seen some blocks.
Status read_file_blocks(const std::filesystem::path& path, const std::function<void(std::span<const std::byte>)>& sink);

// A file written in order, for content that is not in memory at once. Owns the descriptor. Content is complete and
// synced only after finish(); every error names the path. One thread.
class FileWriter {
public:
    // Creates or empties the file (mode 0666 less umask).
    static Result<FileWriter> create(const std::filesystem::path& path);

    ~FileWriter();
    FileWriter(FileWriter&& other) noexcept;
    FileWriter& operator=(FileWriter&& other) noexcept;

    // Unbuffered: callers collect small pieces first.
    Status write(std::span<const std::byte> bytes);
    Status write(std::string_view text);
    // Syncs and closes. Afterwards only destruction and assignment are allowed.
    Status finish();

private:
    FileWriter() = default;

    std::filesystem::path path_;
    int descriptor_ = -1;
};

// Replaces the content of `path` (created with mode 0666 less umask) and syncs it to disk. Not atomic; see
// AtomicDirectory.
Status write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
Status write_file(const std::filesystem::path& path, std::string_view text);

// Writes the whole content under a temporary sibling name, `.<name>.partial-<16 hex digits>`, syncs it and renames it
// into place: readers see nothing, the old file or the new one. Without `force` an existing path of any kind is
// invalid_argument before anything is written, also when it appears meanwhile. Errors also: not_found, io, exhausted.
Status write_file_atomically(const std::filesystem::path& path, std::string_view text, bool force);

// The same for content that lies in several pieces: they are written one after the other.
Status write_file_atomically(const std::filesystem::path& path, std::span<const std::span<const std::byte>> parts,
                             bool force);

// A regular file read in order, for content that is checked while it comes. Owns the descriptor. One thread.
class FileReader {
public:
    // Errors: not_found, io (directory, FIFO, device, or refused by the system).
    static Result<FileReader> open(const std::filesystem::path& path);

    ~FileReader();
    FileReader(FileReader&& other) noexcept;
    FileReader& operator=(FileReader&& other) noexcept;

    std::uint64_t size() const { return size_; }  // when it was opened
    // Fills `out`. Errors: corrupt when the file ends before that, io.
    Status read(std::span<std::byte> out);

private:
    FileReader() = default;

    std::filesystem::path path_;
    int descriptor_ = -1;
    std::uint64_t size_ = 0;
    std::uint64_t position_ = 0;
};

// A read-only private map of a regular file; an empty file maps to an empty span. Owns the map; moving keeps data().
// The file must not be truncated while mapped (the operating system then kills the process with SIGBUS).
class MappedFile {
public:
    // Errors: not_found, io (directory, FIFO, device, or refused by the system).
    static Result<MappedFile> open(const std::filesystem::path& path);

    MappedFile() = default;
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;

    const std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }
    std::span<const std::byte> bytes() const { return {data_, size_}; }

private:
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

// Which directory may be replaced: one that is empty, or that holds an entry `marker` and nothing but names in `known`
// ("*.html" stands for every regular file with that ending which has `page_mark` near its start), and in directories
// below only directories and regular files named in `known_below`; so that --force cannot delete what the program did
// not make. Without a marker every directory may be. All must outlive the AtomicDirectory (string literals do).
struct ReplaceRule {
    std::string_view marker;
    std::span<const std::string_view> known;
    std::span<const std::string_view> known_below = {};
    std::string_view page_mark = {};
};

// Builds a directory under a temporary sibling name, `.<name>.partial-<16 hex digits>`, and renames it into place when
// it is complete. A process killed at any point leaves at most that sibling, never a half-written `final_path`; an
// existing target is not touched before commit(). One thread.
class AtomicDirectory {
public:
    // Without `force` an existing final_path (of any kind) is invalid_argument before anything is written. With `force`
    // it may be an existing directory that `rule` lets go, which commit() replaces; another kind of file is still
    // refused. The parent directory must exist. Errors: invalid_argument, not_found, io.
    static Result<AtomicDirectory> create(const std::filesystem::path& final_path, bool force,
                                          const ReplaceRule& rule = {});
    ~AtomicDirectory();  // removes the temporary directory unless committed
    AtomicDirectory(AtomicDirectory&& other) noexcept;
    AtomicDirectory& operator=(AtomicDirectory&& other) noexcept;

    // Path of an entry inside the temporary directory; `name` is a plain name without '/'.
    std::filesystem::path file(std::string_view name) const;
    const std::filesystem::path& path() const { return temporary_; }
    const std::filesystem::path& final_path() const { return final_; }

    // Syncs every file and directory inside, renames into place and syncs the parent. Afterwards the object is spent.
    // On error the old target is still (or again) in place and the temporary is removed by the destructor. A target
    // that appeared since create() is an error without force.
    Status commit();

private:
    AtomicDirectory() = default;

    std::filesystem::path temporary_;  // empty once committed or moved from
    std::filesystem::path final_;
    ReplaceRule rule_;
    bool force_ = false;
};

// Removes the temporary directories of every AtomicDirectory of this process that is neither committed nor gone, and
// the temporary files of write_file_atomically: what a program does before it ends on a signal. Their owners must not
// be used afterwards.
void remove_partial_directories();

}  // namespace draftprobe
