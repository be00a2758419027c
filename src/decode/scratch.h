// Row-major float32 scratch of one forward pass, and slices of rows. Inside decode/ only.
#pragma once

#include <cstddef>
#include <vector>

#include "numerics/compute.h"

namespace draftprobe::decode {

struct Scratch {
    std::vector<float> data;
    std::size_t cols;
    Scratch(std::size_t row_count, std::size_t col_count) : data(row_count * col_count), cols(col_count) {}
    numerics::Rows rows() { return {data.data(), data.size() / cols, cols, cols}; }
    float* row(std::size_t i) { return data.data() + i * cols; }
};

inline numerics::Rows slice(numerics::Rows rows, std::size_t first, std::size_t count) {
    return {rows.data + first * rows.stride, count, rows.cols, rows.stride};
}
inline numerics::ConstRows slice(numerics::ConstRows rows, std::size_t first, std::size_t count) {
    return {rows.data + first * rows.stride, count, rows.cols, rows.stride};
}

}  // namespace draftprobe::decode
