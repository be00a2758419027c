#include "numerics/matrix.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <new>
#include <string>

#include "base/float_bits.h"
#include "numerics/cpu/packed_layout.h"

namespace draftprobe::numerics {

namespace {

// [out, in] -> [panel][column][16], zero past `out`.
template <typename T>
void pack_dense(const T* source, std::size_t out, std::size_t in, std::uint8_t* packed) {
    for (std::size_t o = 0; o < out; ++o) {
        std::uint8_t* lane = packed + (o / kPanelOutputs * in * kPanelOutputs + o % kPanelOutputs) * sizeof(T);
        for (std::size_t c = 0; c < in; ++c)
            std::memcpy(lane + c * kPanelOutputs * sizeof(T), source + o * in + c, sizeof(T));
    }
}

// Codes of one block of one output are consecutive in the source word stream, so both kinds move whole words.
void pack_affine4(const std::uint32_t* words, std::size_t out, std::size_t in, std::uint8_t* packed) {
    const std::size_t row_words = in / 8;
    for (std::size_t o = 0; o < out; ++o) {
        std::uint8_t* lane = packed + o / kPanelOutputs * panel_bytes(WeightKind::affine4, in) + o % kPanelOutputs * 4;
        for (std::size_t k = 0; k < row_words; ++k) {
            const std::uint32_t word = words[o * row_words + k];
            for (std::uint32_t j = 0; j < 4; ++j) {
                const std::uint32_t low = (word >> (4 * j)) & 15u;
                const std::uint32_t high = (word >> (16 + 4 * j)) & 15u;
                lane[k * 64 + j] = static_cast<std::uint8_t>(low | high << 4);
            }
        }
    }
}

void pack_affine8(const std::uint32_t* words, std::size_t out, std::size_t in, std::uint8_t* packed) {
    const std::size_t row_words = in / 4;
    for (std::size_t o = 0; o < out; ++o) {
        std::uint8_t* lane = packed + o / kPanelOutputs * panel_bytes(WeightKind::affine8, in) + o % kPanelOutputs * 4;
        for (std::size_t k = 0; k < row_words; ++k) {
            const std::uint32_t word = words[o * row_words + k];
            for (std::uint32_t j = 0; j < 4; ++j) lane[k * 64 + j] = static_cast<std::uint8_t>(word >> (8 * j));
        }
    }
}

void pack_group_values(std::span<const float> source, std::size_t out, std::size_t groups, float* packed) {
    for (std::size_t o = 0; o < out; ++o)
        for (std::size_t g = 0; g < groups; ++g)
            packed[(o / kPanelOutputs * groups + g) * kPanelOutputs + o % kPanelOutputs] = source[o * groups + g];
}

Status wrong_length(const char* part, std::size_t found, std::size_t expected, std::size_t out, std::size_t in) {
    return invalid_argument("affine matrix [" + std::to_string(out) + ", " + std::to_string(in) + "]: " + part +
                            " has " + std::to_string(found) + " elements, expected " + std::to_string(expected));
}

// Half away from zero for -1/2 < x < 2^23, where x minus its integer part is exact.
int round_half_up(float x) {
    const int whole = static_cast<int>(x);
    return whole + (x - static_cast<float>(whole) >= 0.5f ? 1 : 0);
}

constexpr int kMaxCode4 = 15;
constexpr float kMinScale = 1e-7f;

struct GroupScale {
    float scale = 0;
    float bias = 0;
};

GroupScale group_scale(const float* values) {
    float highest = 0;  // a group of negative values reaches up to 0
    float lowest = values[0];
    for (int i = 0; i < kGroupColumns; ++i) {
        highest = std::max(highest, values[i]);
        lowest = std::min(lowest, values[i]);
    }
    const float step = std::max((highest - lowest) / static_cast<float>(kMaxCode4), kMinScale);
    const bool low_end = std::fabs(lowest) > std::fabs(highest);
    const float scale = low_end ? step : -step;
    const float edge = low_end ? lowest : highest;
    const float steps = std::round(edge / scale);  // exact in every libm, and large where the range is narrow
    if (steps == 0) return {scale, 0};
    return {edge / steps, edge};
}

// The quotient is between -1/2 and twice the largest code: the scale is at least half the range's fifteenth.
std::uint32_t code4(float value, const GroupScale& group) {
    const int code = round_half_up((value - group.bias) / group.scale);
    return static_cast<std::uint32_t>(std::clamp(code, 0, kMaxCode4));
}

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::align_val_t alignment(std::size_t bytes) { return std::align_val_t{bytes >= 2 * kHugePage ? kHugePage : kLine}; }

}  // namespace

void* allocate_packed(std::size_t bytes) {
    void* p = ::operator new(bytes, alignment(bytes));
#if defined(__linux__)
    // Streaming through 4 KiB pages cost about a tenth of the read bandwidth. Only advice: failure changes nothing.
    if (bytes >= 2 * kHugePage) (void)madvise(p, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
    return p;
}

void release_packed(void* p, std::size_t bytes) { ::operator delete(p, alignment(bytes)); }

Matrix Matrix::from_f32(std::span<const float> data, std::size_t out, std::size_t in) {
    assert(in >= 1 && data.size() == out * in);
    Matrix m;
    m.kind_ = WeightKind::f32;
    m.out_ = out;
    m.in_ = in;
    m.packed_.resize(panel_count(out) * panel_bytes(m.kind_, in));
    pack_dense(data.data(), out, in, m.packed_.data());
    return m;
}

Matrix Matrix::from_bf16(std::span<const Bf16> data, std::size_t out, std::size_t in) {
    assert(in >= 1 && data.size() == out * in);
    Matrix m;
    m.kind_ = WeightKind::bf16;
    m.out_ = out;
    m.in_ = in;
    m.packed_.resize(panel_count(out) * panel_bytes(m.kind_, in));
    pack_dense(data.data(), out, in, m.packed_.data());
    return m;
}

Result<Matrix> Matrix::from_affine(const AffineParts& parts, std::size_t out, std::size_t in) {
    if (parts.bits != 4 && parts.bits != 8)
        return unsupported("affine matrix [" + std::to_string(out) + ", " + std::to_string(in) + "]: found " +
                           std::to_string(parts.bits) + " bits, expected 4 or 8");
    if (in == 0 || in % kGroupColumns != 0)
        return unsupported("affine matrix [" + std::to_string(out) + ", " + std::to_string(in) + "]: found " +
                           std::to_string(in) + " columns, expected a positive multiple of " +
                           std::to_string(kGroupColumns));
    const std::size_t groups = in / kGroupColumns;
    const std::size_t words = out * (in * static_cast<std::size_t>(parts.bits) / 32);
    if (parts.weight.size() != words) return wrong_length("weight", parts.weight.size(), words, out, in);
    if (parts.scales.size() != out * groups) return wrong_length("scales", parts.scales.size(), out * groups, out, in);
    if (parts.biases.size() != out * groups) return wrong_length("biases", parts.biases.size(), out * groups, out, in);

    Matrix m;
    m.kind_ = parts.bits == 4 ? WeightKind::affine4 : WeightKind::affine8;
    m.out_ = out;
    m.in_ = in;
    m.packed_.resize(panel_count(out) * panel_bytes(m.kind_, in));
    m.scales_.resize(panel_count(out) * groups * kPanelOutputs);
    m.biases_.resize(panel_count(out) * groups * kPanelOutputs);
    if (parts.bits == 4)
        pack_affine4(parts.weight.data(), out, in, m.packed_.data());
    else
        pack_affine8(parts.weight.data(), out, in, m.packed_.data());
    pack_group_values(parts.scales, out, groups, m.scales_.data());
    pack_group_values(parts.biases, out, groups, m.biases_.data());
    return m;
}

Result<Affine4> quantise_affine4(std::span<const float> data, std::size_t out, std::size_t in) {
    assert(data.size() == out * in);
    if (in == 0 || in % kGroupColumns != 0) {
        return unsupported("affine matrix [" + std::to_string(out) + ", " + std::to_string(in) + "]: found " +
                           std::to_string(in) + " columns, expected a positive multiple of " +
                           std::to_string(kGroupColumns));
    }
    const std::size_t groups = out * in / kGroupColumns;
    Affine4 result;
    result.words.resize(out * in / 8);
    result.scales.resize(groups);
    result.biases.resize(groups);
    for (std::size_t g = 0; g < groups; ++g) {
        const float* values = data.data() + g * kGroupColumns;
        const GroupScale group = group_scale(values);
        result.scales[g] = round_to_bf16(group.scale);
        result.biases[g] = round_to_bf16(group.bias);
        if (!std::isfinite(result.scales[g]) || !std::isfinite(result.biases[g])) {
            return corrupt("affine matrix [" + std::to_string(out) + ", " + std::to_string(in) + "]: row " +
                           std::to_string(g * kGroupColumns / in) +
                           " spans a range that BF16 cannot hold, expected weights below 1e38");
        }
        for (std::size_t c = 0; c < kGroupColumns; ++c) {
            result.words[(g * kGroupColumns + c) / 8] |= code4(values[c], group) << (4 * (c % 8));
        }
    }
    return result;
}

std::size_t Matrix::bytes() const { return packed_.size() + (scales_.size() + biases_.size()) * sizeof(float); }

void Matrix::dequantise_row(std::size_t row, float* values) const {
    assert(row < out_);
    const std::size_t panel = row / kPanelOutputs;
    const std::size_t lane = row % kPanelOutputs;
    const std::uint8_t* base = packed_.data() + panel * panel_bytes(kind_, in_);
    const std::size_t groups = group_count(in_);
    for (std::size_t c = 0; c < in_; ++c) {
        if (kind_ == WeightKind::f32) {
            std::memcpy(values + c, base + (c * kPanelOutputs + lane) * sizeof(float), sizeof(float));
        } else if (kind_ == WeightKind::bf16) {
            Bf16 bits;
            std::memcpy(&bits, base + (c * kPanelOutputs + lane) * sizeof(Bf16), sizeof(Bf16));
            values[c] = bf16_to_f32(bits);
        } else {
            std::uint32_t code;
            if (kind_ == WeightKind::affine4) {
                const std::uint32_t byte = base[c / 8 * 64 + lane * 4 + c % 4];
                code = c % 8 < 4 ? byte & 15u : byte >> 4;
            } else {
                code = base[c / 4 * 64 + lane * 4 + c % 4];
            }
            const std::size_t at = (panel * groups + c / kGroupColumns) * kPanelOutputs + lane;
            values[c] = std::fma(scales_[at], static_cast<float>(code), biases_[at]);
        }
    }
}

}  // namespace draftprobe::numerics
