// The rules a header and a step must keep beyond their syntax, and the digests that follow from other fields. The
// writer and the reader apply the same functions.
#pragma once

#include <string>

#include "base/status.h"
#include "capture/capture.h"

namespace draftprobe {

// SHA-256 over the sorted lines, each ended by LF.
std::string file_set_digest(std::vector<std::string> lines);

// SHA-256 over the ids as u32le. Requires ids below 2^32.
std::string prompt_ids_digest(const std::vector<CapturedId>& ids);

// Sorts file lines and sets every derived digest: groups with files, prompts with ids, prompt, settings, and
// non_draft_input. What has no source to derive from keeps its value.
void finish_identity(CaptureHeader& header);

// Errors: corrupt, naming the field, what was found and what was expected.
Status validate_header(const CaptureHeader& header);
// Rules of one step alone. That its request is in the header, and the order of steps, is checked where steps come in a
// row.
Status validate_step(const StepRecord& step, const CaptureHeader& header);

// Adds the step's six counts and one lane-cycle.
void add_to_totals(const StepRecord& step, CaptureTotals& totals);

}  // namespace draftprobe
