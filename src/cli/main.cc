#include <string>
#include <vector>

#include "cli/run.h"

int main(int argc, char** argv) {
    draftprobe::cli::remove_partial_output_on_signals();
    return draftprobe::cli::run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
