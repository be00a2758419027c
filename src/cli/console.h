// Everything the program prints goes through one Console: results to stdout; warnings, notes, errors and progress to
// stderr. A closed stdout (broken pipe) is not an error; another failure to write is, and is kept until finish().
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace draftprobe::cli {

class Console {
public:
    Console();
    ~Console() { clear_progress(); }
    Console(const Console&) = delete;
    Console& operator=(const Console&) = delete;

    void out(std::string_view text);
    // Whether anything was given to out().
    bool printed() const { return printed_; }
    // One paragraph each, after "draftprobe: ", "draftprobe: warning: ", "draftprobe: ".
    void error(std::string_view message);
    void warning(std::string_view message);
    void note(std::string_view message);

    // A line that replaces itself, on a terminal only.
    void progress(std::string_view label, std::string_view phase, std::size_t done, std::size_t total);
    void clear_progress();

    // What a command that fails from now on ends with, in place of kExitUsage.
    void set_failure_exit(int exit) { failure_exit_ = exit; }
    std::optional<int> failure_exit() const { return failure_exit_; }

    // Error: io, when stdout could not be written for a reason other than a closed pipe.
    const Status& output_status() const { return output_status_; }

private:
    void paragraph(std::string_view prefix, std::string_view message);

    bool terminal_ = false;  // stderr
    bool line_open_ = false;
    bool printed_ = false;
    bool closed_ = false;  // nobody reads stdout
    std::chrono::steady_clock::time_point last_progress_;
    Status output_status_;
    std::optional<int> failure_exit_;
};

}  // namespace draftprobe::cli
