// Fuzz target: capture.json and step lines from memory. The first byte chooses which. What parses must format to text
// that parses to the same text again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "capture/text_form.h"

using namespace draftprobe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    if (data[0] % 2 == 0) {
        const Result<CaptureHeader> header = parse_capture_header(text, "fuzz");
        if (!header.ok()) return 0;
        const std::string once = format_capture_header(*header);
        const Result<CaptureHeader> again = parse_capture_header(once, "fuzz");
        if (!again.ok() || format_capture_header(*again) != once) std::abort();
        return 0;
    }
    CaptureHeader header;
    header.level = data[0] / 2 % 4;
    header.candidates = 4;  // as in test_capture.h, whose steps seed the corpus
    StepRecord step;
    if (!parse_step(text, "fuzz", header, step).ok()) return 0;
    const std::string once = format_step(step, header.level);
    StepRecord again;
    if (!parse_step(once, "fuzz", header, again).ok() || format_step(again, header.level) != once) std::abort();
    return 0;
}
