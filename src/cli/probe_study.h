// Studies of the probe: what --factors, --minimize and --sweep add to one pair of arms.
#pragma once

#include <optional>
#include <string>

#include "base/files.h"
#include "cli/arguments.h"
#include "cli/arms.h"
#include "cli/console.h"
#include "report/page_section.h"
#include "study/sweep.h"

namespace draftprobe::cli {

// What a study adds to the output: the member `key` of --json, a file of --out, and text behind the report.
struct StudyOutput {
    std::string key;
    std::string json;
    std::string file;  // name in --out
    std::string file_text;
    std::string text;
    PageSection page;  // of --report
};

// Options that make no sense together. Errors: invalid_argument naming both.
Status check_study_options(const Arguments& arguments);

// Runs the sweep of --sweep and makes `item` the case that stands for it.
Result<StudyOutput> run_sweep_study(const Arguments& arguments, const probe::Assembly& assembly, study::Case& item,
                                    const AtomicDirectory& directory, Console& console);

// --factors and --minimize, behind the pair that was asked for; nothing when neither is given.
Result<std::optional<StudyOutput>> run_pair_study(const Arguments& arguments, const probe::Assembly& assembly,
                                                  const study::Case& item, const AtomicDirectory& directory,
                                                  Console& console);

// The command line that probes `prompt` in place of the one given: every option that reaches the arms is repeated.
std::string probe_command_line(const Arguments& arguments, const std::string& prompt, const study::Case& item);

}  // namespace draftprobe::cli
