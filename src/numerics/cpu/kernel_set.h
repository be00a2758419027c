// What one instruction set provides. Private to numerics.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numerics/compute.h"

namespace draftprobe::numerics {

// Rows of one matrix product that share each decoded weight. A block has max_row_block rows, or any count up to
// min(8, max_row_block).
// Blocking never reaches the bits: every output has its own chains.
struct MatmulBlock {
    WeightKind kind;
    const std::uint8_t* packed;
    const float* scales;
    const float* biases;
    std::size_t in;
    std::size_t out;
    std::size_t first_panel;
    std::size_t last_panel;  // one past
    int rows;
    // f32: x [in][rows]; sums [groups][rows], affine only.
    const float* x;
    const float* sums;
    // i8dot: xq [in / 4][rows], four int8 of one row per word; x_scales and x_sums [groups][rows].
    const std::uint32_t* xq;
    const float* x_scales;
    const float* x_sums;
    float* y;
    std::size_t y_stride;
};

// Four queries that see the same keys of a page.
struct AttentionQueries {
    const float* q[4];
    float* running_max[4];
    float* running_sum[4];
    float* out[4];
};

struct IsaKernels {
    Kernels ops;
    int max_row_block;
    // Multiply-adds below which a product stays on the calling thread: waking the pool would cost more.
    std::size_t inline_work;
    // Kernels::attention_page for four queries: the same bits, each key and value loaded once.
    void (*attention_page4)(const AttentionQueries& queries, const float* keys_t, const float* values, int begin,
                            int end, float scale, std::size_t d);
    // Column-major copies of `rows` rows, so that the broadcasts of one column share a cache line whatever the stride.
    // packed may be null (one row is its own packed form), and so may sums: per group, (chain of adds over columns
    // 0..31) + (chain over 32..63), each from 0.
    void (*pack_f32)(const float* x, std::size_t stride, int rows, std::size_t in, float* packed, float* sums);
    void (*pack_i8)(const float* x, std::size_t stride, int rows, std::size_t in, std::uint32_t* packed, float* scales,
                    float* sums);
    void (*matmul_f32)(const MatmulBlock& block);
    void (*matmul_i8)(const MatmulBlock& block);
};

// Constant-initialised tables: nothing of an instruction set runs before it is chosen.
extern const IsaKernels kPortableKernels;
extern const IsaKernels kAvx2Kernels;
extern const IsaKernels kAvx512Kernels;

const IsaKernels& isa_kernels(Isa isa);

}  // namespace draftprobe::numerics
