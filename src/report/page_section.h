// What a study adds to a page: plain values that report_html escapes and lays out. Report knows no study.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compare/verdict.h"

namespace draftprobe {

struct PageColumn {
    std::string title;
    bool number = false;  // aligned to the right
};

// Every row has as many cells as there are columns. A cell that is a verdict's name is coloured as one.
struct PageTable {
    std::string caption;
    std::vector<PageColumn> columns;
    std::vector<std::vector<std::string>> rows;  // none: the table is left out
};

// One value of a sweep.
struct StripPoint {
    std::int64_t value = 0;
    Verdict verdict = Verdict::insufficient;
    std::int64_t differing = 0;  // of the matched lane-cycles
    std::int64_t matched = 0;
};

// Differing lane-cycles as bars over the values, and below them a line of marks for every verdict that occurs.
struct PageStrip {
    std::string variable;
    std::vector<StripPoint> points;  // none: the strip is left out
};

struct PageSection {
    std::string title;
    std::vector<std::string> lead;  // sentences, a paragraph each
    PageStrip strip;
    std::vector<PageTable> tables;
    std::string command;  // a command line; may be empty
};

}  // namespace draftprobe
