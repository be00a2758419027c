// Expert weights of one mixture-of-experts layer, whichever of three forms stores them:
//   stacked     mlp.experts.gate_up_proj [E, 2I, H], of each expert gate rows first, and mlp.experts.down_proj
//               [E, H, I]; unquantised, no ".weight" (Hugging Face)
//   per expert  mlp.experts.<e>.{gate,up,down}_proj, unquantised or affine
//   switch      mlp.switch_mlp.{gate,up,down}_proj [E, out, in], unquantised or affine (MLX)
// Source: qwen35-hybrid.md section 2.1, mlx-affine-quant.md section 6.
#pragma once

#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/model_config.h"
#include "model/target_model.h"

namespace draftprobe::model {

// The experts under `prefix` ("layers.0.mlp."), in order of their ids. All three forms give equal matrices for equal
// weights. Errors: not_found (an expert or a whole form), mismatch (two forms at once, a shape, a tensor that belongs
// to no expert of config.json), and whatever Checkpoint says about a tensor.
Result<std::vector<DenseFfn>> load_experts(const Checkpoint& checkpoint, const std::string& prefix,
                                           const MoeConfig& config, std::int64_t hidden);

}  // namespace draftprobe::model
