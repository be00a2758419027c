// A Qwen3.5-family text model: weights bound to named fields, in layer order (spec: qwen35-hybrid.md).
//
// Owns its packed weights; immutable after load; any number of engines may share one. H hidden, V vocabulary rows, I
// FFN width, E experts, D head_dim, Nq/Nkv query and KV heads, Hk/Hv key and value heads of the delta net, C
// convolution channels.
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/model_config.h"
#include "numerics/matrix.h"

namespace draftprobe::model {

struct DeltaMixer {
    numerics::Matrix in_proj_qkv;   // [C, H]; rows: q [Hk*Dk], k [Hk*Dk], v [Hv*Dv]
    numerics::Matrix in_proj_z;     // [Hv*Dv, H]
    numerics::Matrix in_proj_b;     // [Hv, H]
    numerics::Matrix in_proj_a;     // [Hv, H]
    numerics::Matrix out_proj;      // [H, Hv*Dv]
    std::vector<float> conv;        // [kernel][C], tap-major; the last tap is the current row
    std::vector<float> decay_rate;  // [Hv], exp(A_log): g = -decay_rate * softplus(a + dt_bias)
    std::vector<float> dt_bias;     // [Hv]
    std::vector<float> norm;        // [Dv], plain weight, shared by all heads
};

struct AttentionMixer {
    numerics::Matrix q_proj;    // [2*Nq*D, H]; per head D query rows, then D gate rows
    numerics::Matrix k_proj;    // [Nkv*D, H]
    numerics::Matrix v_proj;    // [Nkv*D, H]
    numerics::Matrix o_proj;    // [H, Nq*D]
    std::vector<float> q_norm;  // [D], factor (1 + w already applied for Hugging Face checkpoints)
    std::vector<float> k_norm;  // [D]
};

struct DenseFfn {
    numerics::Matrix gate_proj;  // [I, H]
    numerics::Matrix up_proj;    // [I, H]
    numerics::Matrix down_proj;  // [H, I]
};

// Mixture of experts (qwen35-hybrid.md section 6). I is the experts' width, S the shared expert's.
struct MoeFfn {
    numerics::Matrix router;            // [E, H], "mlp.gate"
    std::vector<DenseFfn> experts;      // E of width I, in order of their ids
    DenseFfn shared;                    // of width S
    numerics::Matrix shared_gate;       // [1, H], "mlp.shared_expert_gate"
    std::size_t experts_per_token = 0;  // 1..E
};

struct TargetLayer {
    std::vector<float> input_norm;           // [H], factor
    std::vector<float> post_attention_norm;  // [H], factor
    std::variant<DeltaMixer, AttentionMixer> mixer;
    std::size_t state_index = 0;  // position among the layers of its kind
    std::variant<DenseFfn, MoeFfn> ffn;
};

class TargetModel {
public:
    // Errors: unsupported (head_dim % 16 != 0), and whatever Checkpoint says about a tensor.
    static Result<std::shared_ptr<const TargetModel>> load(const Checkpoint& checkpoint, const TargetConfig& config);

    const TargetConfig& config() const { return config_; }
    const std::vector<TargetLayer>& layers() const { return layers_; }
    const numerics::Matrix& embedding() const { return embedding_; }
    const numerics::Matrix& head() const { return config_.tied_embeddings ? embedding_ : head_; }
    const std::vector<float>& final_norm() const { return final_norm_; }
    // Rotary inverse frequencies of the leading rotary_dim / 2 pairs.
    const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }
    std::size_t weight_bytes() const { return weight_bytes_; }

private:
    TargetConfig config_;
    numerics::Matrix embedding_;  // [V, H]
    numerics::Matrix head_;       // [V, H], empty when tied
    std::vector<float> final_norm_;
    std::vector<float> inverse_frequencies_;
    std::vector<TargetLayer> layers_;
    std::size_t weight_bytes_ = 0;
};

}  // namespace draftprobe::model
