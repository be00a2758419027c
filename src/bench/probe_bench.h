// How long a probe takes: fresh arm, restored arm and their comparison, repeated. The verdict is the correctness check,
// and it comes first: only SAME is measured.
#pragma once

#include <filesystem>
#include <vector>

#include "bench/statistics.h"
#include "compare/comparison.h"
#include "probe/probe.h"

namespace draftprobe::bench {

struct ProbeTimes {
    std::vector<double> total;  // seconds, one per repeat
    std::vector<double> fresh;
    std::vector<double> restored;
    std::vector<double> compare;
    Comparison comparison;   // of the last repeat; when its verdict is not SAME, times are incomplete
    std::size_t cycles = 0;  // run in the fresh arm
};

// Runs `repeats` probes one after the other, with captures in a directory of its own under `scratch` that is removed
// afterwards. Stops at the first verdict other than SAME. Errors: those of the arms and of compare_captures; io.
Result<ProbeTimes> measure_probe(const probe::Assembly& assembly, const probe::ProbeRequest& request,
                                 const probe::ProbeSettings& settings, std::size_t repeats,
                                 const std::filesystem::path& scratch);

}  // namespace draftprobe::bench
