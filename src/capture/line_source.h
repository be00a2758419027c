// Lines of a text file, plain or zstd-compressed (by the name's ending .zst), read in blocks: memory does not depend on
// the size of the file, only on its longest line (bounded). One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace draftprobe {

inline constexpr std::size_t kMaxLineBytes = std::size_t{16} << 20;

class LineSource {
public:
    // Errors: not_found, io.
    static Result<LineSource> open(const std::filesystem::path& path);
    ~LineSource();
    LineSource(LineSource&&) noexcept;
    LineSource& operator=(LineSource&&) noexcept;

    // The next line without its LF, valid until the next call; false at the end. Errors: corrupt (a last line without
    // LF, a line above kMaxLineBytes, a damaged zstd frame), io.
    Result<bool> next(std::string_view& line);

    std::int64_t line_number() const;  // of the line given last, from 1

private:
    struct State;
    explicit LineSource(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace draftprobe
