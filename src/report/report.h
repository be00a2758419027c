// Views of a Comparison. The canonical JSON is the record (an archive recomputes it byte for byte); text and page are
// made from the same values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compare/comparison.h"
#include "report/page_section.h"

namespace draftprobe {

inline constexpr std::int64_t kReportVersion = 2;

// Stands near the start of every page.
inline constexpr std::string_view kPageMark = "<title>draftprobe comparison</title>";

// Canonical JSON: fixed key order, integers, other numbers at 6 significant digits; no token id, text, path, date, host
// or tool version. Ends with one LF.
std::string report_json(const Comparison& comparison);

// Where the captures lie and what their digests are: facts about files, outside the canonical report.
struct CaptureNames {
    std::string control;
    std::string treated;
};

// The same object with `captures.*.path`, `captures.*.digest` and, for a corrupt capture, `corruption`: what `--json`
// prints.
std::string report_json(const Comparison& comparison, const CaptureNames& names);

// For a terminal: verdict first, then why, then the facts. Plain ASCII, lines of at most 100 columns where words allow.
std::string report_text(const Comparison& comparison);

// One self-contained HTML page with inline SVG; no script, no network. Readable in light and dark. `sections` stand
// behind the facts of the comparison, in their order.
std::string report_html(const Comparison& comparison, const std::vector<PageSection>& sections = {});

}  // namespace draftprobe
