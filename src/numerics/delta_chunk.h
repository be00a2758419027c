// The gated delta rule over a chunk of tokens at once (qwen35-hybrid.md section 5.2), as most engines compute it: the
// class `schedule-sensitive` alone. Its sums run from the chunk's first token, so the same token has other bits when a
// chunk starts elsewhere; that is what the class is for.
#pragma once

#include <cstddef>

#include "numerics/compute.h"

namespace draftprobe::numerics {

inline constexpr std::size_t kDeltaChunk = 64;

// One value head over rows 0 .. rows-1, in chunks of kDeltaChunk from row 0 on. Row i of query, key [dk] and value [dv]
// starts at i * stride; log_decay (g, at most 0) and beta of row i at i * scalar_stride; output row i [dv] at
// i * out_stride. state_in and state_out are [dk][dv] and may be equal.
struct DeltaRows {
    const float* query = nullptr;
    const float* key = nullptr;
    const float* value = nullptr;
    std::size_t stride = 0;
    const float* log_decay = nullptr;
    const float* beta = nullptr;
    std::size_t scalar_stride = 0;
    float* out = nullptr;
    std::size_t out_stride = 0;
    std::size_t rows = 0;
    std::size_t dk = 0;
    std::size_t dv = 0;
};

// Float32 throughout; products and sums round separately; order in docs/numerics.md. Same bits on every instruction
// set.
void delta_scan_chunked(const DeltaRows& rows, const float* state_in, float* state_out);

}  // namespace draftprobe::numerics
