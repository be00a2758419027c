// What a model needs from its checkpoint, tensor by tensor, judged from headers: names, shapes, storage and size. No
// element is read, so a checkpoint of any size is judged in the time its headers take to parse.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/model_config.h"

namespace draftprobe::model {

// One required tensor. An affine matrix is one of these, and three stored tensors.
struct PlannedTensor {
    std::string name;                  // canonical, as stored: "layers.0.mlp.up_proj.weight"
    std::vector<std::uint64_t> shape;  // logical
    DType dtype = DType::bf16;         // of the elements; of the scales when affine
    std::optional<AffineScheme> affine;
    std::uint64_t stored_bytes = 0;  // all its parts
    bool expert = false;             // holds routed experts: a token uses experts_per_token of them

    std::uint64_t parameters() const;
    std::size_t stored_tensors() const { return affine ? 3 : 1; }
};

// How the routed experts of a mixture are stored: Hugging Face's two 3-D tensors a layer, one module an expert, or
// MLX's three 3-D modules a layer.
enum class ExpertForm { none, stacked, per_expert, switch_mlp };
std::string_view expert_form_name(ExpertForm form);

struct TensorPlan {
    std::vector<PlannedTensor> tensors;  // in the order of the forward pass
    ExpertForm experts = ExpertForm::none;
    std::vector<std::string> unused;  // canonical names in the checkpoint that the model does not read

    std::size_t stored_tensors = 0;
    std::uint64_t stored_bytes = 0;
    std::uint64_t parameters = 0;
    std::uint64_t active_parameters = 0;  // that one token's forward multiplies with; a tied table counts as the head
};

// Errors name tensor, file, found and expected: not_found (a required tensor, or experts in no known form), mismatch (a
// shape, an override's bits, a head beside tied embeddings, experts in two forms), corrupt, unsupported (a dtype).
Result<TensorPlan> plan_target(const Checkpoint& checkpoint, const TargetConfig& config);
Result<TensorPlan> plan_draft(const Checkpoint& checkpoint, const DraftConfig& config);

}  // namespace draftprobe::model
