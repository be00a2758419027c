// The whole program: finds the command, parses its words, runs it, and turns errors into messages and exit statuses.
#pragma once

#include <string>
#include <vector>

namespace draftprobe::cli {

// `words` are the program's arguments without its name. Returns the exit status.
int run(const std::vector<std::string>& words);

// From now on SIGINT, SIGTERM and SIGHUP remove partial output directories and end the process with 128 + signal. Call
// before any thread is started: a thread of its own waits for the signals, and every other one blocks them.
void remove_partial_output_on_signals();

}  // namespace draftprobe::cli
