// A fixed block of rows in their stored format. Every writer rounds here and every reader reads what was rounded, so a
// value has one set of bits from its birth on (docs/numerics.md, "round at birth").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/float_bits.h"
#include "state/shape.h"

namespace draftprobe::state {

class StoredRows {
public:
    StoredRows() = default;
    StoredRows(std::size_t rows, std::size_t cols, RowFormat format);

    std::size_t rows() const { return rows_; }
    std::size_t cols() const { return cols_; }
    RowFormat format() const { return format_; }
    std::size_t row_bytes() const { return cols_ * row_element_bytes(format_); }

    void write(std::size_t row, const float* values);  // rounds to nearest even
    void read(std::size_t row, float* values) const;   // exact

    // The stored bytes of one row, little-endian elements in feature order. Whoever takes the mutable span writes now.
    std::span<std::byte> bytes(std::size_t row) {
        ++writes_[row];
        return {data_.data() + row * row_bytes(), row_bytes()};
    }
    std::span<const std::byte> bytes(std::size_t row) const { return {data_.data() + row * row_bytes(), row_bytes()}; }

    // Bytes of `count` consecutive rows.
    std::span<const std::byte> bytes(std::size_t row, std::size_t count) const {
        return {data_.data() + row * row_bytes(), count * row_bytes()};
    }
    void set_bytes(std::size_t row, std::size_t count, std::span<const std::byte> bytes);

    // How often a row was handed out for writing: unequal counts mean that its bytes may differ.
    std::uint32_t writes(std::size_t row) const { return writes_[row]; }

    // Fills everything with a byte pattern that decodes to NaN, so that a row nobody wrote cannot look right.
    void poison();

private:
    std::size_t rows_ = 0;
    std::size_t cols_ = 0;
    RowFormat format_ = RowFormat::bf16;
    std::vector<std::byte> data_;
    std::vector<std::uint32_t> writes_;
};

}  // namespace draftprobe::state
