#include "cli/report_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/files.h"
#include "base/json_writer.h"
#include "report/report.h"

namespace draftprobe::cli {

namespace fs = std::filesystem;

namespace {

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

// A directory's name without the slash that may end it.
fs::path bare(const fs::path& path) {
    const fs::path normal = (path / "").lexically_normal();
    return normal.parent_path();
}

}  // namespace

bool report_inside(const Arguments& arguments, const fs::path& out) {
    return arguments.given("report") && !out.empty() && bare(parent_of(arguments.text("report"))) == bare(out);
}

Status check_report_path(const Arguments& arguments, const fs::path& out) {
    if (!arguments.given("report")) return {};
    const fs::path path = arguments.text("report");
    if (path.extension() != ".html") {
        return invalid_argument(
            fmt::format("--report {}: found a name that ends in '{}', expected one that ends in .html", path.string(),
                        path.extension().string()));
    }
    std::error_code error;
    if (fs::is_directory(path, error)) {
        return invalid_argument(fmt::format("--report {}: found a directory, expected a file name", path.string()));
    }
    const fs::path parent = parent_of(path);
    if (report_inside(arguments, out) || fs::is_directory(parent, error)) return {};
    return not_found(fmt::format("--report {}: {} is not a directory, expected one that exists; create it first",
                                 path.string(), parent.string()));
}

Status write_report_page(const fs::path& path, const Comparison& comparison, const std::vector<PageSection>& sections) {
    fs::path partial = path;
    partial += fmt::format(".partial-{}", ::getpid());
    Status status = write_file(partial, report_html(comparison, sections));
    std::error_code error;
    if (status.ok()) {
        fs::rename(partial, path, error);
        if (error)
            status =
                io_error(fmt::format("{}: {}, expected to write the report there", path.string(), error.message()));
    }
    if (!status.ok()) fs::remove(partial, error);
    return status.with_context("--report");
}

int exit_of(const Arguments& arguments, Verdict verdict, Console& console) {
    if (!arguments.given("bisect")) return verdict_exit(verdict);
    const std::string drift = arguments.text("bisect");
    const int exit = verdict_bisect_exit(verdict, drift == "drift-ok"    ? BisectDrift::good
                                                  : drift == "drift-bad" ? BisectDrift::bad
                                                                         : BisectDrift::undecided);
    const std::string_view drift_ends = verdict != Verdict::drift ? ""
                                        : exit == kExitUndecided
                                            ? ", which decides nothing unless drift-ok or drift-bad does"
                                        : drift == "drift-ok" ? ", which drift-ok calls good"
                                                              : ", which drift-bad calls bad";
    const std::string_view other = verdict != Verdict::drift && exit == kExitUndecided ? ", which decides nothing" : "";
    console.note(fmt::format("--bisect: {} (exit {}): the verdict is {}{}{}",
                             exit == 0                ? "good"
                             : exit == kExitUndecided ? "skip"
                                                      : "bad",
                             exit, verdict_name(verdict), drift_ends, other));
    return exit;
}

std::string with_member(const std::string& json, std::string_view key, std::string_view value) {
    const std::size_t end = json.find_last_not_of(" \n", json.rfind('}') - 1) + 1;
    return fmt::format("{},\n  \"{}\": {}\n}}\n", json.substr(0, end), key, value);
}

}  // namespace draftprobe::cli
