#include "capture/line_source.h"

#include <fmt/format.h>
#include <zstd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace draftprobe {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 18;

}  // namespace

struct LineSource::State {
    std::string subject;
    std::FILE* file = nullptr;
    ZSTD_DStream* zstd = nullptr;
    std::string compressed;  // block read from the file, when zstd is in use
    ZSTD_inBuffer input{nullptr, 0, 0};
    bool frame_open = false;
    std::string buffer;  // text; the unread part is [begin, end)
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t scanned = 0;  // no LF in [begin, scanned)
    std::int64_t line = 0;
    bool at_end = false;

    ~State() {
        if (file != nullptr) std::fclose(file);
        if (zstd != nullptr) ZSTD_freeDStream(zstd);
    }

    Result<std::size_t> read_file(char* out, std::size_t capacity) {
        const std::size_t got = std::fread(out, 1, capacity, file);
        if (got == 0 && std::ferror(file) != 0) {
            return io_error(fmt::format("{}: cannot read: {}", subject, std::strerror(errno)));
        }
        return got;
    }

    // Text bytes into `out`; 0 at the end of the file.
    Result<std::size_t> read_text(char* out, std::size_t capacity) {
        if (zstd == nullptr) return read_file(out, capacity);
        ZSTD_outBuffer output{out, capacity, 0};
        while (output.pos == 0) {
            if (input.pos == input.size) {
                DP_ASSIGN_OR_RETURN(const std::size_t got, read_file(compressed.data(), compressed.size()));
                if (got == 0) {
                    if (frame_open) {
                        return corrupt(fmt::format("{}: the zstd frame is cut short; copy the file again", subject));
                    }
                    return std::size_t{0};
                }
                input = {compressed.data(), got, 0};
            }
            const std::size_t left = ZSTD_decompressStream(zstd, &output, &input);
            if (ZSTD_isError(left) != 0) {
                return corrupt(fmt::format("{}: damaged zstd data: {}", subject, ZSTD_getErrorName(left)));
            }
            frame_open = left != 0;
        }
        return output.pos;
    }

    Status refill() {
        if (begin > 0) {
            std::memmove(buffer.data(), buffer.data() + begin, end - begin);
            scanned -= begin;
            end -= begin;
            begin = 0;
        }
        if (end == buffer.size()) {
            if (buffer.size() >= kMaxLineBytes) {
                return corrupt(fmt::format("{}: line {} is longer than {} bytes, expected a step of a few kilobytes",
                                           subject, line + 1, kMaxLineBytes));
            }
            buffer.resize(buffer.size() * 2);
        }
        DP_ASSIGN_OR_RETURN(const std::size_t got, read_text(buffer.data() + end, buffer.size() - end));
        if (got == 0) at_end = true;
        end += got;
        return {};
    }
};

LineSource::LineSource(std::unique_ptr<State> state) : state_(std::move(state)) {}
LineSource::~LineSource() = default;
LineSource::LineSource(LineSource&&) noexcept = default;
LineSource& LineSource::operator=(LineSource&&) noexcept = default;

Result<LineSource> LineSource::open(const std::filesystem::path& path) {
    auto state = std::make_unique<State>();
    state->subject = path.string();
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
        return not_found(fmt::format("{}: no such file; is this a complete capture?", path.string()));
    }
    if (!std::filesystem::is_regular_file(path, error)) {
        return io_error(fmt::format("{}: not a regular file", path.string()));
    }
    state->file = std::fopen(path.c_str(), "rb");
    if (state->file == nullptr) {
        return io_error(fmt::format("{}: cannot open: {}", path.string(), std::strerror(errno)));
    }
    std::setvbuf(state->file, nullptr, _IONBF, 0);
    state->buffer.resize(kBlockBytes);
    if (path.extension() == ".zst") {
        state->zstd = ZSTD_createDStream();
        if (state->zstd == nullptr) return exhausted(fmt::format("{}: no memory for zstd", path.string()));
        state->compressed.resize(ZSTD_DStreamInSize());
    }
    return LineSource(std::move(state));
}

Result<bool> LineSource::next(std::string_view& line) {
    State& s = *state_;
    while (true) {
        const char* from = s.buffer.data() + s.scanned;
        const void* found = s.end > s.scanned ? std::memchr(from, '\n', s.end - s.scanned) : nullptr;
        if (found != nullptr) {
            const std::size_t at = static_cast<std::size_t>(static_cast<const char*>(found) - s.buffer.data());
            line = std::string_view(s.buffer).substr(s.begin, at - s.begin);
            s.begin = s.scanned = at + 1;
            ++s.line;
            return true;
        }
        s.scanned = s.end;
        if (s.at_end) {
            if (s.begin == s.end) return false;
            return corrupt(
                fmt::format("{}: line {} has no line feed at its end; the file is cut short", s.subject, s.line + 1));
        }
        DP_RETURN_IF_ERROR(s.refill());
    }
}

std::int64_t LineSource::line_number() const { return state_->line; }

}  // namespace draftprobe
