// The whole program: finds the command, parses its words, runs it, and turns errors into messages and exit statuses.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/console.h"

namespace draftprobe::cli {

// `words` are the program's arguments without its name. Returns the exit status.
int run(const std::vector<std::string>& words);

// Says the failure on stderr, and with `json` as {"exit", "error": {"code", "message"}} on stdout, unless something was
// printed there already. Returns `exit`.
int fail(int exit, const Status& status, bool json, Console& console);

// From now on SIGINT, SIGTERM and SIGHUP remove partial output directories and end the process with 128 + signal. Call
// before any thread is started: a thread of its own waits for the signals, and every other one blocks them.
void remove_partial_output_on_signals();

}  // namespace draftprobe::cli
