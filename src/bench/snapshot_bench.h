// What snapshots cost, each beside a bound measured in the same run on the same bytes: taking and restoring in memory
// against memcpy, files against copying and hashing, ledger digests against plain SHA-256, and restoring a prefix
// against computing it. Correctness comes first: what is timed was seen to come back byte for byte.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/statistics.h"
#include "decode/engine_core.h"

namespace draftprobe::bench {

// One operation and its bound; seconds, one entry a repeat, measured in turn.
struct BoundedTimes {
    std::string name;
    std::string bound_name;
    std::vector<double> seconds;
    std::vector<double> bound;
    // Bound over time of each repeat, ascending: what slows both down falls out. 1 is as fast as the bound.
    std::vector<double> ratios() const;
    double ratio() const { return summarise(ratios()).median; }
    // Quartiles of the ratios: half of them lie between.
    std::pair<double, double> middle_half() const;
    // Whether the middle half is wider than kMaxSpread of the median.
    bool inconclusive() const;
};

struct SnapshotTimes {
    std::size_t bytes = 0;           // of the synthetic state
    Position positions = 0;          // it covers
    std::size_t memory_repeats = 0;  // of the operations in memory, which are short
    std::vector<BoundedTimes> operations;
};

// A synthetic lane of at least `bytes` bytes (BF16 KV, recurrent cells, draft context), random bytes. Files go to a
// directory of their own under `scratch`. Errors: internal when something does not come back as it was; io, exhausted.
Result<SnapshotTimes> measure_snapshots(std::size_t bytes, std::size_t repeats, const std::filesystem::path& scratch);

struct PrefixTimes {
    Position tokens = 0;
    std::size_t bytes = 0;
    BoundedTimes restore;  // the bound is computing the prefix
};
// Computes a prefix of `tokens` random tokens once a repeat and restores it into another lane. Errors: those of the
// engine; internal when the restored lane differs.
Result<PrefixTimes> measure_prefix(const decode::ModelPair& models, decode::EngineSettings settings, Position tokens,
                                   std::size_t repeats);

}  // namespace draftprobe::bench
