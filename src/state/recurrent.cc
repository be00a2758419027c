#include "state/recurrent.h"

#include <algorithm>
#include <limits>

namespace draftprobe::state {

RecurrentCell::RecurrentCell(const StateShape& shape) {
    for (std::size_t layer = 0; layer < shape.delta_layers; ++layer) {
        matrix.emplace_back(shape.matrix_floats(), 0.0f);
        conv.emplace_back(shape.conv_rows, shape.conv_channels, shape.row_format);
    }
}

void RecurrentCell::clear() {
    consumed = 0;
    for (auto& layer : matrix) std::fill(layer.begin(), layer.end(), 0.0f);
    for (auto& rows : conv) {
        const std::vector<float> zeros(rows.cols(), 0.0f);
        for (std::size_t row = 0; row < rows.rows(); ++row) rows.write(row, zeros.data());
    }
}

void RecurrentCell::poison() {
    for (auto& layer : matrix) std::fill(layer.begin(), layer.end(), std::numeric_limits<float>::quiet_NaN());
    for (auto& rows : conv) rows.poison();
}

}  // namespace draftprobe::state
