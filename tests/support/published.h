// The published checkpoints that draftprobe serves, as their configurations and safetensors headers are: names, shapes
// and dtypes written down here from the published files, not taken from the code that reads them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "support/checkpoint_files.h"

namespace draftprobe::support {

// Routed experts: stacked as Hugging Face publishes them, or one module an expert, as some exports have them.
enum class Experts { stacked, per_expert };

struct PublishedTarget {
    std::uint64_t hidden = 0;
    std::uint64_t layers = 0;        // every fourth has full attention
    std::uint64_t intermediate = 0;  // 0: a mixture of 256 experts of 512, 8 a token, shared expert of 512
    std::uint64_t q_heads = 0;
    std::uint64_t kv_heads = 0;
    std::uint64_t value_heads = 0;
    bool tied = false;
    bool f32_delta_vectors = false;  // A_log and linear_attn.norm are F32
    std::size_t shards = 1;
    std::size_t mlx_shards = 1;
    bool state_layer_types = true;  // "layer_types", or the interval alone
    Experts experts = Experts::stacked;

    bool mixture() const { return intermediate == 0; }
};

extern const PublishedTarget kQwen35Small;    // Qwen3.5-0.8B
extern const PublishedTarget kQwen35Medium;   // Qwen3.5-4B
extern const PublishedTarget kQwen35Large;    // Qwen3.5-27B, Qwen3.6-27B, Qwen3.8-27B
extern const PublishedTarget kQwen35Mixture;  // Qwen3.5-35B-A3B, Qwen3.6-35B-A3B

// Hugging Face: BF16, with the parts that a text model leaves out (some mtp.* and vision tensors).
CheckpointFiles huggingface_target(const PublishedTarget& target);
// MLX affine, 4 bits in groups of 64; the mixture's router and shared gate have 8 bits by overrides.
CheckpointFiles mlx_target(const PublishedTarget& target);

struct PublishedDraft {
    bool second_version = true;  // DFlash2
    std::uint64_t hidden = 0;
    std::uint64_t intermediate = 0;
    std::uint64_t layers = 0;
    std::uint64_t q_heads = 32;
    std::uint64_t kv_heads = 8;
    std::uint64_t head_dim = 128;
    std::uint64_t vocab = 248320;
    std::uint64_t block = 8;
    std::uint64_t target_layers = 0;
    std::vector<std::uint64_t> taps;
    std::uint64_t mask_token = 0;
    std::vector<std::uint64_t> windows;  // one a layer; 0: full attention
    double rope_theta = 1e7;
    std::optional<bool> is_causal;
    bool block_at_top = false;  // block_size outside dflash_config, as old files have it
};

PublishedDraft draft_27b_second();  // Qwen3.8-27B-DFlash2
PublishedDraft draft_35b_second();  // Qwen3.6-35B-A3B-DFlash2
PublishedDraft draft_4b_first();    // Qwen3-4B-DFlash-b16
PublishedDraft draft_35b_first();   // Qwen3.6-35B-A3B-DFlash
PublishedDraft draft_for_small();   // made up: a DFlash2 draft that fits Qwen3.5-0.8B
CheckpointFiles draft_files(const PublishedDraft& draft);

}  // namespace draftprobe::support
