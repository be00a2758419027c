// What a prefix store's accounting is worth: a store is filled until it evicts, and what it counts is set beside the
// memory that the process really has more of.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace draftprobe::bench {

struct StoreMemory {
    std::size_t budget = 0;
    std::size_t counted = 0;   // usage().bytes at the end
    std::size_t resident = 0;  // growth of the process's anonymous resident memory; 0 where the system does not say
    double worst_ratio = 0;    // resident over counted, the furthest from 1 after any put
    double worst_budget = 0;   // resident over budget, the largest after any put
    std::size_t put = 0;       // snapshots
    std::size_t entries = 0;   // kept at the end
    std::size_t evictions = 0;
    std::size_t apart = 0;  // what the kept ones would take without sharing
};

// Puts snapshots of a synthetic lane, of several lengths of many conversations, about three times the budget. Errors:
// internal when a kept snapshot is not what was put; those of the store.
Result<StoreMemory> measure_store(std::size_t budget);

}  // namespace draftprobe::bench
