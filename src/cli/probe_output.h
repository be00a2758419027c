// What every probe leaves: the output directory, report.json, the page, and what is printed.
#pragma once

#include <optional>
#include <string>

#include "base/files.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "cli/probe_study.h"
#include "compare/comparison.h"

namespace draftprobe::cli {

struct ProbeOutput {
    Comparison comparison;  // report.json, what is said, and the exit status unless `verdict` is set
    // Of a study that judges more than the comparison: the verdict, exit and why of --json too. report.json stays what
    // its two captures say.
    std::optional<Verdict> verdict;
    std::string why;                  // of that verdict
    std::string lead;                 // printed before the report; empty: nothing
    std::string control = "control";  // captures, below --out
    std::string treated = "treated";
    std::optional<StudyOutput> study;
};

// Whether --out, --force and --report can be served, before any work. Errors: invalid_argument, not_found.
Status check_probe_output(const Arguments& arguments);
Result<AtomicDirectory> create_probe_output(const Arguments& arguments);
// Writes the reports, commits the directory and prints. Returns the exit status.
Result<int> finish_probe_output(const Arguments& arguments, Console& console, AtomicDirectory directory,
                                const ProbeOutput& output);

}  // namespace draftprobe::cli
