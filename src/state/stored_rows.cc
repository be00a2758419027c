#include "state/stored_rows.h"

#include <algorithm>
#include <cstring>

#include "state/copy.h"

namespace draftprobe::state {

StoredRows::StoredRows(std::size_t rows, std::size_t cols, RowFormat format)
    : rows_(rows), cols_(cols), format_(format), data_(rows * cols * row_element_bytes(format)), writes_(rows, 0) {}

void StoredRows::write(std::size_t row, const float* values) {
    std::byte* target = bytes(row).data();
    if (format_ == RowFormat::f32) {
        std::memcpy(target, values, cols_ * sizeof(float));
        return;
    }
    for (std::size_t i = 0; i < cols_; ++i) {
        const Bf16 bits = f32_to_bf16(values[i]);
        std::memcpy(target + i * sizeof(Bf16), &bits, sizeof(Bf16));
    }
}

void StoredRows::read(std::size_t row, float* values) const {
    const std::byte* source = data_.data() + row * row_bytes();
    if (format_ == RowFormat::f32) {
        std::memcpy(values, source, cols_ * sizeof(float));
        return;
    }
    for (std::size_t i = 0; i < cols_; ++i) {
        Bf16 bits;
        std::memcpy(&bits, source + i * sizeof(Bf16), sizeof(Bf16));
        values[i] = bf16_to_f32(bits);
    }
}

void StoredRows::set_bytes(std::size_t row, std::size_t count, std::span<const std::byte> bytes) {
    if (count == 0) return;
    copy_bytes(data_.data() + row * row_bytes(), bytes.data(), count * row_bytes());
    for (std::size_t i = 0; i < count; ++i) ++writes_[row + i];
}

void StoredRows::poison() {
    std::fill(data_.begin(), data_.end(), std::byte{0xff});
    for (std::uint32_t& count : writes_) ++count;
}

}  // namespace draftprobe::state
