// Loading helpers shared by target and draft: one linear map or one vector from a checkpoint, whatever its stored
// format.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint.h"
#include "numerics/matrix.h"

namespace draftprobe::model {

// The linear map `module` ("layers.0.mlp.up_proj") of logical shape [out, in]: affine 4 or 8 bits with groups of 64, or
// plain bf16/f32 (f16 widens to f32). Errors name the tensor, its file, found and expected.
Result<numerics::Matrix> load_matrix(const Checkpoint& checkpoint, std::string_view module, std::size_t out,
                                     std::size_t in);

// The linear map as load_matrix gives it, quantised to affine 4 bits where it is dense and `in` is a multiple of 64
// (otherwise unchanged). Errors: as load_matrix, and corrupt for weights whose range BF16 scales cannot hold.
Result<numerics::Matrix> load_matrix_affine4(const Checkpoint& checkpoint, std::string_view module, std::size_t out,
                                             std::size_t in);

// `count` maps of shape [out, in] stacked in one module of logical shape [count, out, in] (MLX "switch_mlp"), in order.
Result<std::vector<numerics::Matrix>> load_stack(const Checkpoint& checkpoint, std::string_view module,
                                                 std::size_t count, std::size_t out, std::size_t in);

// Rows first_row .. first_row+out-1 of an unquantised tensor whose last dimension is `in`, with all others flattened.
// Requires a view that Checkpoint::require gave, and the rows in range.
numerics::Matrix dense_rows(const TensorView& view, std::size_t first_row, std::size_t out, std::size_t in);

// A float vector (or flattened tensor) widened to float32.
Result<std::vector<float>> load_vector(const Checkpoint& checkpoint, std::string_view name,
                                       std::initializer_list<std::uint64_t> shape);

}  // namespace draftprobe::model
