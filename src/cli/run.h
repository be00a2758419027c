// The whole program: finds the command, parses its words, runs it, and turns errors into messages and exit statuses.
#pragma once

#include <string>
#include <vector>

namespace draftprobe::cli {

// `words` are the program's arguments without its name. Returns the exit status.
int run(const std::vector<std::string>& words);

}  // namespace draftprobe::cli
