// A DFlash2 draft: weights bound to named fields, in layer order (spec: dflash2.md). It shares the target's embedding
// and head.
//
// Owns its weights; immutable after load. H hidden (the target's), n taps, D head_dim, Nq/Nkv heads, I FFN width, K
// taps and G groups of the dynamic convolution, R selector rank, V vocabulary rows.
#pragma once

#include <memory>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/model_config.h"
#include "model/target_model.h"
#include "numerics/matrix.h"

namespace draftprobe::model {

// Grouped dynamic depthwise convolution before and after one sublayer (dflash2.md section 4).
struct DynamicConv {
    std::vector<float> base;             // [2][K][H]: side (pre, post), tap (self, previous, ...), channel
    numerics::Matrix kernel_projection;  // [2*K*G, H]: rows side*K*G + tap*G + g
};

struct DraftLayerWeights {
    std::vector<float> input_norm;           // [H], plain weight
    std::vector<float> post_attention_norm;  // [H], plain weight
    numerics::Matrix q_proj;                 // [Nq*D, H]
    numerics::Matrix k_proj;                 // [Nkv*D, H]
    numerics::Matrix v_proj;                 // [Nkv*D, H]
    numerics::Matrix o_proj;                 // [H, Nq*D]
    std::vector<float> q_norm;               // [D], plain weight
    std::vector<float> k_norm;               // [D]
    DynamicConv attention_conv;
    DynamicConv mlp_conv;
    numerics::Matrix gate_proj;  // [I, H]
    numerics::Matrix up_proj;    // [I, H]
    numerics::Matrix down_proj;  // [H, I]
};

class DraftModel {
public:
    // Errors: unsupported (DFlash v1, causal layers, head_dim % 16 != 0), and whatever Checkpoint says about a tensor.
    static Result<std::shared_ptr<const DraftModel>> load(const Checkpoint& checkpoint, const DraftConfig& config);

    const DraftConfig& config() const { return config_; }
    const std::vector<DraftLayerWeights>& layers() const { return layers_; }
    const numerics::Matrix& fc() const { return fc_; }                            // [H, n*H]
    const std::vector<float>& hidden_norm() const { return hidden_norm_; }        // [H], plain weight
    const std::vector<float>& norm() const { return norm_; }                      // [H], plain weight
    const numerics::Matrix& selector_hidden() const { return selector_hidden_; }  // [R, H]
    // Codebook rows, widened exactly: predecessor row of the previous token, successor row of a candidate; R floats.
    const float* predecessor(TokenId token) const { return predecessor_.data() + token * rank(); }
    const float* successor(TokenId token) const { return successor_.data() + token * rank(); }
    std::size_t rank() const { return static_cast<std::size_t>(config_.selector->rank); }
    const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }
    // Largest window of any layer; 0 when some layer is unlimited.
    std::size_t window() const { return window_; }

private:
    DraftConfig config_;
    numerics::Matrix fc_;
    std::vector<float> hidden_norm_;
    std::vector<float> norm_;
    std::vector<DraftLayerWeights> layers_;
    numerics::Matrix selector_hidden_;
    std::vector<float> predecessor_;  // [V][R]
    std::vector<float> successor_;    // [V][R]
    std::vector<float> inverse_frequencies_;
    std::size_t window_ = 0;
};

// Whether the draft fits the target: hidden size, vocabulary rows, taps within depth, stated target depth, mask token.
// Fails with mismatch naming the field, the draft's value and the target's.
Status check_pair(const TargetConfig& target, const DraftConfig& draft);

}  // namespace draftprobe::model
