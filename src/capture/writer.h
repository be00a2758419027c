// Writes one capture directory. It needs neither a model nor an engine: fill the structs of capture/capture.h.
//
// The directory is built under a temporary name and renamed into place by finish(): a killed process leaves nothing
// that looks complete. Steps go to disk as they come; memory does not grow with their number. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/status.h"
#include "capture/capture.h"

namespace draftprobe {

struct CaptureShape {
    int level = 1;
    std::int64_t block = 8;
    std::int64_t candidates = 16;
    std::int64_t hidden = 0;  // required at level 3, ignored below
    bool sanitised = false;
};

class CaptureWriter {
public:
    // Errors: invalid_argument (exists without force, bad shape), not_found (parent), io. The marker that lets --force
    // replace a directory is capture.json.
    static Result<CaptureWriter> create(const std::filesystem::path& final_path, bool force, const CaptureShape& shape);

    ~CaptureWriter();  // without finish(): removes what was written
    CaptureWriter(CaptureWriter&&) noexcept;
    CaptureWriter& operator=(CaptureWriter&&) noexcept;

    // Adds one lane-cycle at every level (level 0 only counts it; fields above the level are dropped). At level 3 both
    // tensors are required: draft_hidden has drafted x hidden elements, target_hidden (verified + 1) x hidden; they are
    // copied. Errors: invalid_argument naming the field that breaks capture-format.md; io.
    Status add_step(const StepRecord& step, const StepTensors& tensors = {});

    // Optional; creates timing.jsonl and TIMING.SHA256.
    Status add_timing(const StepTiming& timing);

    // Sets the shape, the derived identity digests and the step totals of `header`, writes the rest, and renames.
    // Returns the capture digest (SHA-256 of SHA256SUMS). Afterwards the writer is spent. Errors: invalid_argument, io.
    Result<std::string> finish(CaptureHeader header);

private:
    struct State;
    explicit CaptureWriter(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace draftprobe
