// Linear weights, repacked once at load so that outputs sit in SIMD lanes (docs/numerics.md, "matmul").
//
// A Matrix is immutable and owns its packed bytes; any number of threads may read it. Logical shape [out, in], as in
// y = x W^T; source rows are outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace draftprobe::numerics {

inline constexpr int kGroupColumns = 64;  // affine group, and the unit of every reduction over `in`
inline constexpr int kPanelOutputs = 16;  // outputs per packed panel; the last panel is zero-padded

enum class WeightKind { f32, bf16, affine4, affine8 };

// Storage on a cache-line boundary, so that no packed block straddles two lines, and on huge pages where it is large
// and the system grants them.
void* allocate_packed(std::size_t bytes);
void release_packed(void* p, std::size_t bytes);

template <typename T>
struct PackedAllocator {
    using value_type = T;
    PackedAllocator() = default;
    template <typename U>
    PackedAllocator(const PackedAllocator<U>&) {}  // NOLINT: implicit by the allocator protocol
    T* allocate(std::size_t n) { return static_cast<T*>(allocate_packed(n * sizeof(T))); }
    void deallocate(T* p, std::size_t n) { release_packed(p, n * sizeof(T)); }
    friend bool operator==(const PackedAllocator&, const PackedAllocator&) { return true; }
};
template <typename T>
using AlignedVector = std::vector<T, PackedAllocator<T>>;

// MLX affine parts of one matrix. weight: packed little-endian words, row-major [out, in*bits/32];
// scales, biases: float32 [out, in/64] (already widened from the stored dtype; widening is exact).
// w[o][c] = scales[o][c/64] * q[o][c] + biases[o][c/64], q unsigned. Scales may be negative.
struct AffineParts {
    std::span<const std::uint32_t> weight;
    std::span<const float> scales;
    std::span<const float> biases;
    int bits = 4;  // 4 or 8
};

// One matrix quantised by quantise_affine4; owns what AffineParts views. Scales and biases are BF16 values.
struct Affine4 {
    std::vector<std::uint32_t> words;  // [out, in/8]
    std::vector<float> scales;         // [out, in/64]
    std::vector<float> biases;         // [out, in/64]

    AffineParts parts() const { return {words, scales, biases, 4}; }
};

// MLX affine quantisation, 4 bits in groups of 64, as MLX's GPU kernels do it (mlx-affine-quant.md section 2): the end
// of a group's range with the larger magnitude is exact, codes round half away from zero against the unrounded scale
// and bias, and the range of a group without a positive value reaches up to 0. data: row-major [out, in], finite.
// Errors: unsupported (in is not a positive multiple of 64), corrupt (a group's scale or bias is not finite in BF16).
Result<Affine4> quantise_affine4(std::span<const float> data, std::size_t out, std::size_t in);

class Matrix {
public:
    Matrix() = default;

    // data: row-major [out, in]. Any in >= 1 (a last partial group is allowed for dense kinds).
    static Matrix from_f32(std::span<const float> data, std::size_t out, std::size_t in);
    static Matrix from_bf16(std::span<const Bf16> data, std::size_t out, std::size_t in);
    // Requires in % 64 == 0 and bits 4 or 8; fails with unsupported or invalid_argument naming found and expected.
    static Result<Matrix> from_affine(const AffineParts& parts, std::size_t out, std::size_t in);

    WeightKind kind() const { return kind_; }
    bool quantised() const { return kind_ == WeightKind::affine4 || kind_ == WeightKind::affine8; }
    std::size_t out() const { return out_; }
    std::size_t in() const { return in_; }
    std::size_t bytes() const;

    // The float32 value of one source row (embedding lookup): exact for f32 and bf16, fma(scale, q, bias) for affine.
    void dequantise_row(std::size_t row, float* values) const;

    // Packed storage, for kernels in numerics/cpu only. Layouts are described in numerics/cpu/packed_layout.h.
    const std::uint8_t* packed() const { return packed_.data(); }
    const float* packed_scales() const { return scales_.data(); }
    const float* packed_biases() const { return biases_.data(); }

private:
    WeightKind kind_ = WeightKind::f32;
    std::size_t out_ = 0;
    std::size_t in_ = 0;
    AlignedVector<std::uint8_t> packed_;  // packed_layout.h
    AlignedVector<float> scales_;         // affine: [panel][group][16]
    AlignedVector<float> biases_;         // affine: [panel][group][16]
};

}  // namespace draftprobe::numerics
