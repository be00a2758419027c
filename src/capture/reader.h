// Reads a capture directory and trusts nothing in it. Opening checks SHA256SUMS and capture.json; steps are read one by
// one and checked on the way. Memory does not depend on the number of steps. One thread per reader.
//
// Errors everywhere: not_found, invalid_argument (something that is not a directory), io; corrupt (bytes break the
// format, digests differ, a rule of capture-format.md is broken), mismatch (another version), unsupported (another
// format), exhausted (capture.json above its size limit). Messages name file, line, byte, found and expected. After an
// error the reader gives that error again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "capture/capture.h"

namespace draftprobe {

class CaptureReader {
public:
    static Result<CaptureReader> open(const std::filesystem::path& path);
    ~CaptureReader();
    CaptureReader(CaptureReader&&) noexcept;
    CaptureReader& operator=(CaptureReader&&) noexcept;

    const CaptureHeader& header() const;
    const std::string& digest() const;  // the capture digest: SHA-256 of SHA256SUMS

    // Replaces `step` and reuses its storage; false after the last one, when the totals of capture.json agreed with the
    // steps. At level 0 there are none.
    Result<bool> next(StepRecord& step);

    // Level-3 rows of the step given last, BF16 little-endian at any alignment; empty below level 3.
    std::span<const std::byte> draft_hidden() const;   // drafted x hidden
    std::span<const std::byte> target_hidden() const;  // (verified + 1) x hidden
    // Position of the step given last among all steps, from 0.
    std::int64_t step_index() const;

    // Back to the first step.
    Status rewind();

private:
    struct State;
    explicit CaptureReader(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

// Checks timing.jsonl against TIMING.SHA256 when they are there. Timing is outside the capture digest.
Status check_timing(const std::filesystem::path& path);

}  // namespace draftprobe
