// Checkpoint directories for tests: exact headers over zero bytes that take no disk, or over values that are computed
// while they are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/safetensors.h"
#include "base/status.h"

namespace draftprobe::support {

struct StoredTensor {
    std::string name;  // as stored
    DType dtype = DType::bf16;
    std::vector<std::uint64_t> shape;

    std::uint64_t elements() const;
    std::uint64_t bytes() const { return elements() * dtype_bytes(dtype); }
};

struct WeightFile {
    std::string name;
    std::vector<StoredTensor> tensors;
};

struct CheckpointFiles {
    Json config;
    std::optional<Json> generation;  // generation_config.json
    std::string format = "pt";       // of the metadata: "pt" or "mlx"
    std::vector<WeightFile> weights;
    std::optional<Json> index;  // model.safetensors.index.json

    StoredTensor* find(const std::string& name);  // null when there is none
    void remove(const std::string& name);         // from its file and from the index
    void add(StoredTensor tensor);                // to the last file and to the index
};

// One file, model.safetensors, without an index.
void put_in_one_file(CheckpointFiles& files, std::vector<StoredTensor> tensors);
// `count` files of about equal size, model-0000I-of-0000N.safetensors, and their index.
void put_in_shards(CheckpointFiles& files, std::vector<StoredTensor> tensors, std::size_t count);

// Everything in `dir`, which is created. Weights are zeros and take no room on disk.
Status write_sparse(const std::filesystem::path& dir, const CheckpointFiles& files);

// Bytes [offset, offset + block.size()) of a tensor. Blocks come in order and begin at multiples of 1 MiB.
using FillBlock = std::function<void(const StoredTensor& tensor, std::uint64_t offset, std::span<std::byte> block)>;
Status write_filled(const std::filesystem::path& dir, const CheckpointFiles& files, const FillBlock& fill);

}  // namespace draftprobe::support
