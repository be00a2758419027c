// Where --report goes, and how a verdict becomes an exit status. Shared by probe and compare.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "compare/comparison.h"
#include "report/page_section.h"

namespace draftprobe::cli {

// Checks --report before any work: its name ends in .html and its directory is there (or is `out`, which the run
// makes). Errors: invalid_argument, not_found.
Status check_report_path(const Arguments& arguments, const std::filesystem::path& out);

// Whether --report names a file directly inside `out`.
bool report_inside(const Arguments& arguments, const std::filesystem::path& out);

// Writes the page to `path` in one step: readers see the old file or the new one.
Status write_report_page(const std::filesystem::path& path, const Comparison& comparison,
                         const std::vector<PageSection>& sections = {});

// The verdict's exit status, or what --bisect makes of it, which is then said on stderr.
int exit_of(const Arguments& arguments, Verdict verdict, Console& console);

// `json`, an object, with one more member at its end. `value` is serialised JSON.
std::string with_member(const std::string& json, std::string_view key, std::string_view value);

}  // namespace draftprobe::cli
