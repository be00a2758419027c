// A DFlash draft, version 1 or 2: weights bound to named fields, in layer order (spec: dflash2.md). It shares the
// target's embedding and head. Version 2 adds dynamic convolutions and the candidate selector.
//
// Owns its weights; immutable after load. H hidden (the target's), n taps, D head_dim, Nq/Nkv heads, I FFN width, K
// taps and G groups of the dynamic convolution, R selector rank, V vocabulary rows.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
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

// What the draft's linear maps are computed with: as the checkpoint stores them, or quantised to affine 4 bits in
// groups of 64 at load. Codebooks, norms and convolution bases keep their stored values either way.
enum class DraftPrecision { stored, affine4 };

// Rows of a [V, R] table that is only ever looked up: BF16 where the checkpoint has BF16 (half the memory; widening is
// exact), float32 where it has another float. A table stored in affine form becomes the BF16 rows that MLX's own
// lookup gives.
class Codebook {
public:
    // `name` without ".weight". Errors: as load_matrix.
    static Result<Codebook> load(const Checkpoint& checkpoint, std::string_view name, std::size_t rows,
                                 std::size_t cols);

    std::size_t bytes() const { return narrow_.size() * sizeof(Bf16) + wide_.size() * sizeof(float); }
    // Writes the row's values, exactly widened, to `values` (R floats).
    void read(TokenId token, float* values) const;

private:
    std::size_t cols_ = 0;
    std::vector<Bf16> narrow_;  // [V][R], or empty
    std::vector<float> wide_;   // [V][R], or empty
};

// The candidate selector (dflash2.md section 5).
struct Selector {
    numerics::Matrix hidden_projection;  // [R, H]
    Codebook predecessor;                // [V, R], by the previous token
    Codebook successor;                  // [V, R], by the candidate
};

struct DraftLayerWeights {
    std::vector<float> input_norm;              // [H], plain weight
    std::vector<float> post_attention_norm;     // [H], plain weight
    numerics::Matrix q_proj;                    // [Nq*D, H]
    numerics::Matrix k_proj;                    // [Nkv*D, H]
    numerics::Matrix v_proj;                    // [Nkv*D, H]
    numerics::Matrix o_proj;                    // [H, Nq*D]
    std::vector<float> q_norm;                  // [D], plain weight
    std::vector<float> k_norm;                  // [D]
    std::optional<DynamicConv> attention_conv;  // both set exactly for version 2
    std::optional<DynamicConv> mlp_conv;
    numerics::Matrix gate_proj;  // [I, H]
    numerics::Matrix up_proj;    // [I, H]
    numerics::Matrix down_proj;  // [H, I]
};

class DraftModel {
public:
    // Errors: unsupported (head_dim % 16 != 0), and whatever Checkpoint says about a tensor; with affine4 corrupt for
    // weights whose range BF16 scales cannot hold.
    static Result<std::shared_ptr<const DraftModel>> load(const Checkpoint& checkpoint, const DraftConfig& config,
                                                          DraftPrecision precision = DraftPrecision::stored);

    const DraftConfig& config() const { return config_; }
    const std::vector<DraftLayerWeights>& layers() const { return layers_; }
    const numerics::Matrix& fc() const { return fc_; }                      // [H, n*H]
    const std::vector<float>& hidden_norm() const { return hidden_norm_; }  // [H], plain weight
    const std::vector<float>& norm() const { return norm_; }                // [H], plain weight
    const std::optional<Selector>& selector() const { return selector_; }   // set exactly for version 2
    DraftPrecision precision() const { return precision_; }
    // Linear maps that precision affine4 left as stored, because `in` is not a multiple of 64: module names, load
    // order.
    const std::vector<std::string>& kept_stored() const { return kept_stored_; }
    const std::vector<float>& inverse_frequencies() const { return inverse_frequencies_; }
    // Largest window of any layer; 0 when some layer is unlimited.
    std::size_t window() const { return window_; }

private:
    DraftConfig config_;
    numerics::Matrix fc_;
    std::vector<float> hidden_norm_;
    std::vector<float> norm_;
    std::vector<DraftLayerWeights> layers_;
    std::optional<Selector> selector_;
    DraftPrecision precision_ = DraftPrecision::stored;
    std::vector<std::string> kept_stored_;
    std::vector<float> inverse_frequencies_;
    std::size_t window_ = 0;
};

// Whether the draft fits the target: hidden size, vocabulary rows, taps within depth, stated target depth, mask token.
// Fails with mismatch naming the field, the draft's value and the target's.
Status check_pair(const TargetConfig& target, const DraftConfig& draft);

}  // namespace draftprobe::model
