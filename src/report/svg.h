// Small inline SVG charts for the HTML page. Colours are CSS classes, so the page decides light and dark. Inside
// report/ only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compare/comparison.h"
#include "report/page_section.h"

namespace draftprobe {

// `&`, `<`, `>`, both quotes escaped; control characters and bytes that are not UTF-8 replaced.
std::string html_escape(std::string_view text);

// CSS class of a verdict.
std::string_view verdict_class(Verdict verdict);

struct ChartLine {
    std::string name;
    std::string css;                                // "c" control, "t" treated, "d" draft, "g" target, "e" other
    std::vector<std::pair<double, double>> points;  // x ascending; non-finite y are drawn at the top edge, hollow
    bool stepped = false;
};

struct Chart {
    std::string title;
    std::string x_label;
    std::string y_label;
    std::vector<ChartLine> lines;
    double y_max = 0;  // 0: from the data
    std::string note;  // below the drawing; may be empty
};

// A <figure> with caption, legend, axes and lines; a sentence instead of a drawing when there is no point.
std::string chart_figure(const Chart& chart);

// A strip as a <figure>; "" without points.
std::string strip_figure(const PageStrip& strip);

// Components of the ledger as bars over positions, one row per arm, event and component, coloured by source.
// `first` marks the row that the first difference names.
std::string ledger_figure(const std::vector<LedgerRow>& rows, const std::optional<FirstDifference>& first);

}  // namespace draftprobe
