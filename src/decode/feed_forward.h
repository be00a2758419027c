// Feed-forward blocks of the target: dense, and mixture of experts (qwen35-hybrid.md section 6).
//
// A row's output is a function of that row and the weights alone: which rows share an expert, and with which rows of
// the batch, only decides what is computed together. H hidden, E experts, K experts per token.
#pragma once

#include <cstdint>
#include <span>

#include "model/target_model.h"
#include "numerics/compute.h"

namespace draftprobe::decode {

// out = down(silu(gate x) * (up x)). x and out [rows, H]; out may not alias x.
void feed_forward(const numerics::Compute& compute, const model::DenseFfn& ffn, numerics::ConstRows x,
                  numerics::Rows out);

// out = sum over the row's K experts of weight * expert(x), ids ascending, then + sigmoid(shared_gate x) * shared(x).
// Router and shared gate are computed in class f32 in every class.
void feed_forward(const numerics::Compute& compute, const model::MoeFfn& ffn, numerics::ConstRows x,
                  numerics::Rows out);

// The experts of one row: the K largest of `logits` [E], of equal ones the lowest ids. `experts` [K] receives their
// ids, ascending; `weights` [K] their softmax over the K. A NaN or an infinity anywhere in `logits` makes every weight
// NaN, and the ids are still distinct and below E. Requires 1 <= K <= E.
void route(std::span<const float> logits, std::span<std::uint32_t> experts, std::span<float> weights);

}  // namespace draftprobe::decode
