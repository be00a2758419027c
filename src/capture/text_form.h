// The two text forms of a capture in memory: capture.json and a line of steps.jsonl. Pure functions, also the entry
// points of the fuzzers. What parses is validated (capture/validate.h); formatting a parsed document gives its bytes.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "capture/capture.h"

namespace draftprobe {

// Two spaces of indent, one LF at the end. Requires derived digests to be set (finish_header).
std::string format_capture_header(const CaptureHeader& header);

// Errors: corrupt (syntax, key order, range, inconsistent content), mismatch (another version of the format),
// unsupported (another format).
Result<CaptureHeader> parse_capture_header(std::string_view text, std::string_view subject);

// One line, without its LF.
std::string format_step(const StepRecord& step, int level);

// Replaces `out`, reusing its storage. `header` gives level, block and candidates. Errors: corrupt.
Status parse_step(std::string_view line, std::string_view subject, const CaptureHeader& header, StepRecord& out);

}  // namespace draftprobe
