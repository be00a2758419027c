#include "model/weights.h"

#include <fmt/format.h>

#include <cassert>
#include <cstring>

namespace draftprobe::model {

using numerics::AffineParts;
using numerics::Matrix;

namespace {

// An affine module of this shape in a scheme that Matrix serves.
Result<AffineTensor> load_affine(const Checkpoint& checkpoint, std::string_view module,
                                 std::span<const std::uint64_t> shape) {
    DP_ASSIGN_OR_RETURN(AffineTensor tensor, checkpoint.affine(module, shape));
    if (tensor.scheme.group_size != numerics::kGroupColumns || (tensor.scheme.bits != 4 && tensor.scheme.bits != 8)) {
        return unsupported(fmt::format("{}: {}-bit weights in groups of {}; served are 4 and 8 bits in groups of {}",
                                       checkpoint.where(std::string(module) + ".weight"), tensor.scheme.bits,
                                       tensor.scheme.group_size, numerics::kGroupColumns));
    }
    return tensor;
}

Result<Matrix> affine_rows(const AffineTensor& tensor, std::size_t first_row, std::size_t out, std::size_t in) {
    const std::size_t words = in * static_cast<std::size_t>(tensor.scheme.bits) / 32;
    const std::size_t groups = in / numerics::kGroupColumns;
    const AffineParts parts{tensor.words.subspan(first_row * words, out * words),
                            std::span(tensor.scales).subspan(first_row * groups, out * groups),
                            std::span(tensor.biases).subspan(first_row * groups, out * groups), tensor.scheme.bits};
    return Matrix::from_affine(parts, out, in);
}

}  // namespace

Matrix dense_rows(const TensorView& view, std::size_t first_row, std::size_t out, std::size_t in) {
    const std::size_t row_bytes = in * dtype_bytes(view.dtype);
    const TensorView rows{view.dtype, {out, in}, view.bytes.subspan(first_row * row_bytes, out * row_bytes)};
    if (rows.dtype == DType::bf16) {
        std::vector<Bf16> bits(out * in);
        std::memcpy(bits.data(), rows.bytes.data(), rows.bytes.size());
        return Matrix::from_bf16(bits, out, in);
    }
    std::vector<float> values(out * in);
    [[maybe_unused]] const Status read = load_f32(rows, values);
    assert(read.ok());
    return Matrix::from_f32(values, out, in);
}

Result<Matrix> load_matrix(const Checkpoint& checkpoint, std::string_view module, std::size_t out, std::size_t in) {
    const std::uint64_t shape[] = {out, in};
    if (checkpoint.is_affine(module)) {
        DP_ASSIGN_OR_RETURN(const AffineTensor tensor, load_affine(checkpoint, module, shape));
        return affine_rows(tensor, 0, out, in);
    }
    DP_ASSIGN_OR_RETURN(const TensorView* view, checkpoint.require(std::string(module) + ".weight", shape));
    return dense_rows(*view, 0, out, in);
}

Result<std::vector<Matrix>> load_stack(const Checkpoint& checkpoint, std::string_view module, std::size_t count,
                                       std::size_t out, std::size_t in) {
    const std::uint64_t shape[] = {count, out, in};
    std::vector<Matrix> matrices;
    matrices.reserve(count);
    if (checkpoint.is_affine(module)) {
        DP_ASSIGN_OR_RETURN(const AffineTensor tensor, load_affine(checkpoint, module, shape));
        for (std::size_t i = 0; i < count; ++i) {
            DP_ASSIGN_OR_RETURN(Matrix matrix, affine_rows(tensor, i * out, out, in));
            matrices.push_back(std::move(matrix));
        }
        return matrices;
    }
    DP_ASSIGN_OR_RETURN(const TensorView* view, checkpoint.require(std::string(module) + ".weight", shape));
    for (std::size_t i = 0; i < count; ++i) matrices.push_back(dense_rows(*view, i * out, out, in));
    return matrices;
}

Result<Matrix> load_matrix_affine4(const Checkpoint& checkpoint, std::string_view module, std::size_t out,
                                   std::size_t in) {
    if (checkpoint.is_affine(module) || in % numerics::kGroupColumns != 0) {
        return load_matrix(checkpoint, module, out, in);
    }
    const std::string name = std::string(module) + ".weight";
    const std::uint64_t shape[] = {out, in};
    DP_ASSIGN_OR_RETURN(const std::vector<float> values, checkpoint.require_f32(name, shape));
    const Result<numerics::Affine4> quantised = numerics::quantise_affine4(values, out, in);
    if (!quantised.ok()) return quantised.status().with_context(checkpoint.where(name));
    return Matrix::from_affine(quantised->parts(), out, in);
}

Result<std::vector<float>> load_vector(const Checkpoint& checkpoint, std::string_view name,
                                       std::initializer_list<std::uint64_t> shape) {
    return checkpoint.require_f32(name, std::span<const std::uint64_t>(shape.begin(), shape.size()));
}

}  // namespace draftprobe::model
