#include "model/weights.h"

#include <fmt/format.h>

#include <cstring>

namespace draftprobe::model {

using numerics::AffineParts;
using numerics::Matrix;

Result<Matrix> load_matrix(const Checkpoint& checkpoint, std::string_view module, std::size_t out, std::size_t in) {
    const std::uint64_t shape[] = {out, in};
    if (checkpoint.is_affine(module)) {
        DP_ASSIGN_OR_RETURN(const AffineTensor tensor, checkpoint.affine(module, shape));
        if (tensor.scheme.group_size != numerics::kGroupColumns ||
            (tensor.scheme.bits != 4 && tensor.scheme.bits != 8)) {
            return unsupported(
                fmt::format("{}: {}-bit weights in groups of {}; served are 4 and 8 bits in groups of {}",
                            checkpoint.where(std::string(module) + ".weight"), tensor.scheme.bits,
                            tensor.scheme.group_size, numerics::kGroupColumns));
        }
        return Matrix::from_affine(AffineParts{tensor.words, tensor.scales, tensor.biases, tensor.scheme.bits}, out,
                                   in);
    }
    const std::string name = std::string(module) + ".weight";
    DP_ASSIGN_OR_RETURN(const TensorView* view, checkpoint.require(name, shape));
    if (view->dtype == DType::bf16) {
        // Checked for NaN and infinity through the widening reader; the packed form keeps the bf16 bits.
        DP_ASSIGN_OR_RETURN(const std::vector<float> checked, checkpoint.require_f32(name, shape));
        std::vector<Bf16> bits(checked.size());
        std::memcpy(bits.data(), view->bytes.data(), view->bytes.size());
        return Matrix::from_bf16(bits, out, in);
    }
    DP_ASSIGN_OR_RETURN(const std::vector<float> values, checkpoint.require_f32(name, shape));
    return Matrix::from_f32(values, out, in);
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
