#include "base/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

namespace draftprobe {
namespace {

namespace fs = std::filesystem;

class Descriptor {
public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&&) = delete;
    int get() const { return fd_; }
    int release() { return std::exchange(fd_, -1); }

private:
    int fd_;
};

std::string reason(int error) { return std::generic_category().message(error); }

Status system_failure(const fs::path& path, std::string_view action, int error) {
    std::string message = fmt::format("{}: cannot {}: {}", path.string(), action, reason(error));
    if (error == ENOENT || error == ENOTDIR) return not_found(message + "; check the path");
    if (error == ENOSPC || error == EDQUOT) return exhausted(message + "; free some space and run again");
    return io_error(std::move(message));
}

std::string_view kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a FIFO";
    if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
    if (S_ISSOCK(mode)) return "a socket";
    return "not a regular file";
}

struct OpenedFile {
    Descriptor descriptor;
    std::uint64_t size;
};

// O_NONBLOCK keeps open() from waiting for the other end of a FIFO; it has no effect on regular files.
Result<OpenedFile> open_regular(const fs::path& path) {
    Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.get() < 0) return system_failure(path, "open for reading", errno);
    struct stat info {};
    if (::fstat(file.get(), &info) != 0) return system_failure(path, "inspect", errno);
    if (!S_ISREG(info.st_mode)) {
        return io_error(
            fmt::format("{}: found {}, expected a regular file; name a file", path.string(), kind_of(info.st_mode)));
    }
    return OpenedFile{std::move(file), static_cast<std::uint64_t>(info.st_size)};
}

// Bytes read, 0 at the end, -1 with errno.
ssize_t read_some(int fd, void* buffer, std::size_t size) {
    ssize_t got = 0;
    do {
        got = ::read(fd, buffer, size);
    } while (got < 0 && errno == EINTR);
    return got;
}

Status sync_path(const fs::path& path, bool directory) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (directory ? O_DIRECTORY : 0)));
    if (file.get() < 0) return system_failure(path, "open for syncing", errno);
    // Some file systems have no sync for directories and say EINVAL; the rename is then as durable as they can make it.
    if (::fsync(file.get()) != 0 && !(directory && errno == EINVAL)) return system_failure(path, "sync", errno);
    return {};
}

Status sync_tree(const fs::path& root) {
    std::error_code error;
    std::vector<fs::path> directories = {root};
    for (auto it = fs::recursive_directory_iterator(root, error); !error && it != fs::recursive_directory_iterator();
         it.increment(error)) {
        const fs::file_status status = it->symlink_status(error);
        if (error) break;
        if (fs::is_directory(status)) {
            directories.push_back(it->path());
        } else if (fs::is_regular_file(status)) {
            DP_RETURN_IF_ERROR(sync_path(it->path(), false));
        }
    }
    if (error) return system_failure(root, "list", error.value());
    for (const fs::path& directory : directories) DP_RETURN_IF_ERROR(sync_path(directory, true));
    return {};
}

Result<std::string> random_suffix() {
    std::uint64_t bits = 0;
    if (::getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) {
        return io_error("the system gave no random bytes for a temporary name: " + reason(errno));
    }
    return fmt::format("{:016x}", bits);
}

// "dir/" and "dir/." name the same entry as "dir".
fs::path without_trailing_separator(fs::path path) {
    path = path.lexically_normal();
    if (!path.has_filename() && path.has_relative_path()) path = path.parent_path();
    return path;
}

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

int rename_with(const fs::path& from, const fs::path& to, unsigned int flags) {
    return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags);
}

// Some file systems know no rename flags.
bool flags_unsupported(int error) { return error == EINVAL || error == ENOSYS || error == ENOTSUP; }

Status target_exists(const fs::path& path) {
    return invalid_argument(fmt::format(
        "{}: already exists, expected a new path; choose another path, or --force to replace it", path.string()));
}

constexpr std::size_t kPageStart = 1024;  // bytes in which a page's mark stands

bool is_page(const fs::path& path, std::string_view mark) {
    const Result<OpenedFile> file = open_regular(path);
    if (!file.ok()) return false;
    std::string start(kPageStart, '\0');
    const ssize_t got = read_some(file->descriptor.get(), start.data(), start.size());
    return got > 0 && start.find(mark) < static_cast<std::size_t>(got);
}

bool is_known(const fs::path& path, const ReplaceRule& rule) {
    const std::string name = path.filename().string();
    for (const std::string_view entry : rule.known) {
        if (name == entry) return true;
        if (entry.starts_with('*') && name.ends_with(entry.substr(1)) && is_page(path, rule.page_mark)) return true;
    }
    return false;
}

// The first thing below `directory` that the program does not make there; empty when there is none.
fs::path unknown_below(const fs::path& directory, std::span<const std::string_view> known, std::error_code& error) {
    for (fs::recursive_directory_iterator entry(directory, error), end; !error && entry != end;
         entry.increment(error)) {
        const fs::file_status status = entry->symlink_status(error);
        if (error || fs::is_directory(status)) continue;
        const std::string name = entry->path().filename().string();
        if (!fs::is_regular_file(status) || std::find(known.begin(), known.end(), name) == known.end())
            return entry->path();
    }
    return {};
}

Status check_replaceable(const fs::path& path, const ReplaceRule& rule) {
    std::error_code error;
    if (!fs::is_directory(fs::symlink_status(path, error))) {
        return invalid_argument(fmt::format(
            "{}: exists and is not a directory, expected a directory to replace; choose another path", path.string()));
    }
    if (rule.marker.empty()) return {};
    const bool has_marker = fs::exists(fs::symlink_status(path / rule.marker, error));
    if (!has_marker && !fs::is_empty(path, error)) {
        return invalid_argument(fmt::format(
            "{}: a directory without {} is not replaced, even with --force, because this program did not make it; "
            "choose another path or remove it yourself",
            path.string(), rule.marker));
    }
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
        fs::path foreign = is_known(entry->path(), rule) ? fs::path() : entry->path();
        if (foreign.empty() && entry->is_directory(error))
            foreign = unknown_below(entry->path(), rule.known_below, error);
        if (foreign.empty()) continue;
        return invalid_argument(
            fmt::format("{}: holds '{}', which this program does not make there; nothing is replaced, even with "
                        "--force; move it away or choose another path",
                        path.string(), foreign.lexically_relative(path).string()));
    }
    if (error) return system_failure(path, "list the directory", error.value());
    return {};
}

}  // namespace

Result<std::string> read_text_file(const fs::path& path, std::uint64_t max_bytes) {
    DP_ASSIGN_OR_RETURN(OpenedFile file, open_regular(path));
    const auto too_large = [&](std::uint64_t found) {
        return exhausted(fmt::format("{}: {} bytes, expected at most {}; this is not a file of the expected kind",
                                     path.string(), found, max_bytes));
    };
    if (file.size > max_bytes) return too_large(file.size);
    // Reads to the end rather than st_size: files of /proc say 0, and a file may grow meanwhile.
    std::string text;
    text.resize(file.size + 1);
    std::size_t used = 0;
    while (true) {
        if (used == text.size()) text.resize(text.size() + text.size() / 2 + 4096);
        const ssize_t got = read_some(file.descriptor.get(), text.data() + used, text.size() - used);
        if (got < 0) return system_failure(path, "read", errno);
        if (got == 0) break;
        used += static_cast<std::size_t>(got);
        if (used > max_bytes) return too_large(used);
    }
    text.resize(used);
    return text;
}

Status read_file_blocks(const fs::path& path, const std::function<void(std::span<const std::byte>)>& sink) {
    DP_ASSIGN_OR_RETURN(const OpenedFile file, open_regular(path));
    std::vector<std::byte> block(std::size_t{1} << 20);
    while (true) {
        const ssize_t got = read_some(file.descriptor.get(), block.data(), block.size());
        if (got < 0) return system_failure(path, "read", errno);
        if (got == 0) return {};
        sink(std::span<const std::byte>(block.data(), static_cast<std::size_t>(got)));
    }
}

Result<FileWriter> FileWriter::create(const fs::path& path) {
    FileWriter writer;
    writer.path_ = path;
    writer.descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (writer.descriptor_ < 0) return system_failure(path, "create", errno);
    return writer;
}

FileWriter::~FileWriter() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

FileWriter& FileWriter::operator=(FileWriter&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
}

Status FileWriter::write(std::span<const std::byte> bytes) {
    assert(descriptor_ >= 0);
    while (!bytes.empty()) {
        const ssize_t put = ::write(descriptor_, bytes.data(), bytes.size());
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return system_failure(path_, "write", errno);
        bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
    return {};
}

Status FileWriter::write(std::string_view text) { return write(std::as_bytes(std::span(text))); }

Status FileWriter::finish() {
    assert(descriptor_ >= 0);
    // EINVAL: a pipe or device, which has nothing to sync.
    if (::fsync(descriptor_) != 0 && errno != EINVAL) return system_failure(path_, "sync", errno);
    // Some file systems report a failed write only when the file is closed.
    if (::close(std::exchange(descriptor_, -1)) != 0) return system_failure(path_, "close", errno);
    return {};
}

Status write_file(const fs::path& path, std::span<const std::byte> bytes) {
    DP_ASSIGN_OR_RETURN(FileWriter file, FileWriter::create(path));
    DP_RETURN_IF_ERROR(file.write(bytes));
    return file.finish();
}

Status write_file(const fs::path& path, std::string_view text) {
    return write_file(path, std::as_bytes(std::span(text)));
}

Result<FileReader> FileReader::open(const fs::path& path) {
    DP_ASSIGN_OR_RETURN(OpenedFile file, open_regular(path));
    FileReader reader;
    reader.path_ = path;
    reader.size_ = file.size;
    reader.descriptor_ = file.descriptor.release();
    return reader;
}

FileReader::~FileReader() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

FileReader::FileReader(FileReader&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      position_(other.position_) {}

FileReader& FileReader::operator=(FileReader&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(descriptor_, other.descriptor_);
    std::swap(size_, other.size_);
    std::swap(position_, other.position_);
    return *this;
}

Status FileReader::read(std::span<std::byte> out) {
    while (!out.empty()) {
        const ssize_t got = read_some(descriptor_, out.data(), out.size());
        if (got < 0) return system_failure(path_, "read", errno);
        if (got == 0) {
            return corrupt(fmt::format("{}: ends after {} bytes, expected {} more; the file was cut off",
                                       path_.string(), position_, out.size()));
        }
        out = out.subspan(static_cast<std::size_t>(got));
        position_ += static_cast<std::uint64_t>(got);
    }
    return {};
}

Result<MappedFile> MappedFile::open(const fs::path& path) {
    DP_ASSIGN_OR_RETURN(const OpenedFile file, open_regular(path));
    MappedFile map;
    if (file.size == 0) return map;
    void* address = ::mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.descriptor.get(), 0);
    if (address == MAP_FAILED) return system_failure(path, "map", errno);
    map.data_ = static_cast<const std::byte*>(address);
    map.size_ = file.size;
    return map;
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

namespace {

// Temporary directories that exist now, for remove_partial_directories.
struct PartialDirectories {
    std::mutex mutex;
    std::set<fs::path> paths;
};
PartialDirectories& partial_directories() {
    static PartialDirectories directories;
    return directories;
}

void note_partial(const fs::path& path, bool exists) {
    PartialDirectories& directories = partial_directories();
    const std::lock_guard<std::mutex> lock(directories.mutex);
    if (exists) {
        directories.paths.insert(path);
    } else {
        directories.paths.erase(path);
    }
}

}  // namespace

void remove_partial_directories() {
    PartialDirectories& directories = partial_directories();
    const std::lock_guard<std::mutex> lock(directories.mutex);
    std::error_code ignored;
    for (const fs::path& path : directories.paths) fs::remove_all(path, ignored);
    directories.paths.clear();
}

namespace {

// Renames a complete temporary into place, replacing nothing.
Status rename_new(const fs::path& temporary, const fs::path& path) {
    if (rename_with(temporary, path, RENAME_NOREPLACE) == 0) return {};
    if (errno == EEXIST) return target_exists(path);
    if (!flags_unsupported(errno)) return system_failure(path, "rename into place", errno);
    struct stat info {};
    if (::lstat(path.c_str(), &info) == 0) return target_exists(path);
    if (::rename(temporary.c_str(), path.c_str()) != 0) return system_failure(path, "rename into place", errno);
    return {};
}

Status write_and_rename(const fs::path& temporary, const fs::path& path,
                        std::span<const std::span<const std::byte>> parts, bool force) {
    DP_ASSIGN_OR_RETURN(FileWriter file, FileWriter::create(temporary));
    for (const std::span<const std::byte> part : parts) DP_RETURN_IF_ERROR(file.write(part));
    DP_RETURN_IF_ERROR(file.finish());
    if (!force) return rename_new(temporary, path);
    if (::rename(temporary.c_str(), path.c_str()) != 0) return system_failure(path, "rename into place", errno);
    return {};
}

}  // namespace

Status write_file_atomically(const fs::path& path, std::string_view text, bool force) {
    const std::span<const std::byte> whole = std::as_bytes(std::span(text));
    return write_file_atomically(path, {&whole, 1}, force);
}

Status write_file_atomically(const fs::path& path, std::span<const std::span<const std::byte>> parts, bool force) {
    const std::string name = path.filename().string();
    if (name.empty() || name == "." || name == "..") {
        return invalid_argument(fmt::format("'{}': no file name at its end; name the file to write", path.string()));
    }
    struct stat info {};
    if (!force && ::lstat(path.c_str(), &info) == 0) return target_exists(path);
    DP_ASSIGN_OR_RETURN(const std::string suffix, random_suffix());
    const fs::path temporary = parent_of(path) / fmt::format(".{}.partial-{}", name, suffix);
    note_partial(temporary, true);
    const Status written = write_and_rename(temporary, path, parts, force);
    note_partial(temporary, false);
    if (written.ok()) return sync_path(parent_of(path), true);
    std::error_code ignored;
    fs::remove(temporary, ignored);
    return written;
}

Result<AtomicDirectory> AtomicDirectory::create(const fs::path& final_path, bool force, const ReplaceRule& rule) {
    AtomicDirectory made;
    made.final_ = without_trailing_separator(final_path);
    made.force_ = force;
    made.rule_ = rule;
    const std::string name = made.final_.filename().string();
    if (name.empty() || name == "." || name == "..") {
        return invalid_argument(
            fmt::format("'{}': no directory name at its end; name the directory to write", final_path.string()));
    }
    const fs::path parent = parent_of(made.final_);
    struct stat info {};
    if (::stat(parent.c_str(), &info) != 0) return system_failure(parent, "find the parent directory", errno);
    if (::lstat(made.final_.c_str(), &info) == 0) {
        if (!force) return target_exists(made.final_);
        DP_RETURN_IF_ERROR(check_replaceable(made.final_, rule));
    }
    DP_ASSIGN_OR_RETURN(const std::string suffix, random_suffix());
    const fs::path temporary = parent / fmt::format(".{}.partial-{}", name, suffix);
    if (::mkdir(temporary.c_str(), 0777) != 0) return system_failure(temporary, "create the directory", errno);
    made.temporary_ = temporary;
    note_partial(temporary, true);
    return made;
}

AtomicDirectory::~AtomicDirectory() {
    if (temporary_.empty()) return;
    note_partial(temporary_, false);
    std::error_code ignored;  // nothing is lost: the name says that the content is partial
    fs::remove_all(temporary_, ignored);
}

AtomicDirectory::AtomicDirectory(AtomicDirectory&& other) noexcept
    : temporary_(std::exchange(other.temporary_, {})),
      final_(std::move(other.final_)),
      rule_(other.rule_),
      force_(other.force_) {}

AtomicDirectory& AtomicDirectory::operator=(AtomicDirectory&& other) noexcept {
    std::swap(temporary_, other.temporary_);
    std::swap(final_, other.final_);
    std::swap(rule_, other.rule_);
    std::swap(force_, other.force_);
    return *this;
}

fs::path AtomicDirectory::file(std::string_view name) const {
    assert(!temporary_.empty() && !name.empty() && name.find('/') == std::string_view::npos);
    return temporary_ / name;
}

Status AtomicDirectory::commit() {
    if (temporary_.empty()) return internal_error("AtomicDirectory::commit: nothing to commit");
    DP_RETURN_IF_ERROR(sync_tree(temporary_));

    struct stat info {};
    const bool occupied = ::lstat(final_.c_str(), &info) == 0;
    if (!occupied || !force_) {
        DP_RETURN_IF_ERROR(rename_new(temporary_, final_));
        note_partial(temporary_, false);
        temporary_.clear();
        return sync_path(parent_of(final_), true);
    }

    DP_RETURN_IF_ERROR(check_replaceable(final_, rule_));
    if (rename_with(temporary_, final_, RENAME_EXCHANGE) == 0) {
        // The temporary name now holds the old content.
        DP_RETURN_IF_ERROR(sync_path(parent_of(final_), true));
    } else {
        if (!flags_unsupported(errno)) return system_failure(final_, "exchange with the new directory", errno);
        const fs::path aside = temporary_.string() + "-old";
        if (::rename(final_.c_str(), aside.c_str()) != 0)
            return system_failure(final_, "move the old one aside", errno);
        if (::rename(temporary_.c_str(), final_.c_str()) != 0) {
            const int error = errno;
            if (::rename(aside.c_str(), final_.c_str()) != 0) {
                return io_error(fmt::format("{}: cannot rename into place: {}; the old directory is now {}",
                                            final_.string(), reason(error), aside.string()));
            }
            return system_failure(final_, "rename into place", error);
        }
        temporary_ = aside;
        DP_RETURN_IF_ERROR(sync_path(parent_of(final_), true));
    }
    std::error_code error;
    fs::remove_all(temporary_, error);
    note_partial(temporary_, false);
    const fs::path old = std::exchange(temporary_, {});
    if (error) {
        return io_error(fmt::format("{}: is complete, but the replaced directory {} cannot be removed: {}; remove it",
                                    final_.string(), old.string(), error.message()));
    }
    return {};
}

}  // namespace draftprobe
