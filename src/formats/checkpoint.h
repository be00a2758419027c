// The tensors of one checkpoint directory under canonical names, whatever file split, prefix or layout stores them.
//
// Canonical names are the Hugging Face names without model prefix: "embed_tokens.weight", "norm.weight",
// "layers.0.self_attn.q_proj.weight", "lm_head.weight"; for a draft "fc.weight", "layers.0.attention_conv.base_kernel".
// Tensors of parts that are not the text model (mtp.*, visual, vision_tower) are left out. Values are the stored ones:
// in the MLX layout 1-D norms already hold 1+w, and conv1d.weight is [C, K, 1] (same memory order as [C, 1, K]).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/safetensors.h"
#include "base/status.h"
#include "formats/model_config.h"

namespace draftprobe {

enum class CheckpointLayout { huggingface, mlx };

// One affine-quantised matrix (or stack of them), checked. Move-only; `words` points into the checkpoint's map or into
// `copied_words`, so it lives as long as both the checkpoint and this object.
struct AffineTensor {
    std::vector<std::uint64_t> shape;  // logical [..., out, in]
    AffineScheme scheme;
    std::span<const std::uint32_t> words;     // [..., out, in*bits/32], little-endian bit stream per row
    std::vector<float> scales;                // [..., out, in/group_size], finite, may be negative
    std::vector<float> biases;                // [..., out, in/group_size], finite
    std::vector<std::uint32_t> copied_words;  // used only when the stored words are not 4-byte aligned

    AffineTensor() = default;
    AffineTensor(AffineTensor&&) = default;
    AffineTensor& operator=(AffineTensor&&) = default;
    AffineTensor(const AffineTensor&) = delete;
    AffineTensor& operator=(const AffineTensor&) = delete;

    std::uint64_t in() const { return shape.back(); }
    std::uint64_t rows() const;  // product of all dimensions but `in`
};

// Owns the maps of all its files. Immutable after open(); any number of threads may read.
class Checkpoint {
public:
    // Opens model.safetensors, or the shards of model.safetensors.index.json, and config.json's quantization part.
    // Checks the index against the shards, the prefix, the layout and that every quantised module is complete. Errors:
    // not_found, io, corrupt, unsupported, mismatch.
    static Result<Checkpoint> open(const std::filesystem::path& dir);

    // huggingface or mlx by the shape of conv1d.weight; without any conv1d (a draft) by the metadata's format.
    CheckpointLayout layout() const { return layout_; }
    const std::filesystem::path& dir() const { return dir_; }
    const std::string& prefix() const { return prefix_; }  // of stored names, e.g. "model.language_model."
    const std::optional<QuantisationConfig>& quantisation() const { return quantisation_; }

    // Null when there is none.
    const TensorView* find(std::string_view canonical_name) const;
    bool has(std::string_view canonical_name) const { return find(canonical_name) != nullptr; }
    // Canonical names, sorted bytewise.
    std::vector<std::string> names() const;
    // Those that start with `prefix`, in the same order.
    std::vector<std::string_view> names_under(std::string_view prefix) const;

    // A dense tensor of exactly this shape, with dtype bf16, f16 or f32 and finite elements (all of them are read). The
    // error names tensor, file, found and expected. Errors: not_found; mismatch (shape, or the module is quantised);
    // unsupported (dtype); corrupt (a NaN or infinity).
    Result<const TensorView*> require(std::string_view canonical_name, std::span<const std::uint64_t> shape) const;
    // The same from the header alone: no element is read.
    Result<const TensorView*> require_header(std::string_view canonical_name,
                                             std::span<const std::uint64_t> shape) const;
    // The same, widened to float32.
    Result<std::vector<float>> require_f32(std::string_view canonical_name, std::span<const std::uint64_t> shape) const;

    // True when `module` ("layers.0.mlp.up_proj") is stored as packed words with scales and biases.
    bool is_affine(std::string_view module) const;
    // The quantised module, whose logical shape must be `shape`. Errors: not_found, mismatch (shape, bits or group
    // against config.json), corrupt (parts that contradict each other, non-finite scale or bias), unsupported (bits or
    // group).
    Result<AffineTensor> affine(std::string_view module, std::span<const std::uint64_t> shape) const;

    // The scheme of such a module, from the headers alone. Errors as affine() without those of elements.
    Result<AffineScheme> require_affine_header(std::string_view module, std::span<const std::uint64_t> shape) const;

    // Where a canonical tensor is stored: its file and stored name, for messages.
    std::string where(std::string_view canonical_name) const;

    // Plain names of the files whose digests make the checkpoint's identity: weights, index, config.json and
    // generation_config.json as far as they exist; sorted bytewise.
    const std::vector<std::string>& files() const { return files_; }

private:
    struct Stored {
        const TensorView* view = nullptr;
        std::size_t shard = 0;
        std::string name;  // as stored
    };
    // The three parts of a quantised module after all checks that need no element.
    struct AffineHeader {
        const Stored* weight = nullptr;
        const Stored* scales = nullptr;
        const Stored* biases = nullptr;
        std::vector<std::uint64_t> shape;
        AffineScheme scheme;
    };

    Checkpoint() = default;
    Status find_files();
    Status check_index(const Json& index, const std::string& subject) const;
    Status resolve_names();
    Status resolve_layout();
    Status check_quantised_modules() const;
    const Stored* stored(std::string_view canonical_name) const;
    std::string where(const Stored& tensor) const;
    Result<AffineHeader> affine_header(std::string_view module) const;
    Result<AffineHeader> shaped_affine_header(std::string_view module, std::span<const std::uint64_t> shape) const;
    Result<AffineScheme> stated_scheme(const Stored& weight) const;

    std::filesystem::path dir_;
    std::vector<std::string> shard_names_;
    std::vector<SafetensorsFile> shards_;
    std::vector<std::string> files_;
    std::map<std::string, Stored, std::less<>> tensors_;  // by canonical name
    std::string prefix_;
    CheckpointLayout layout_ = CheckpointLayout::huggingface;
    std::optional<QuantisationConfig> quantisation_;
};

}  // namespace draftprobe
