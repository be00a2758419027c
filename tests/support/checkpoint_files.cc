#include "support/checkpoint_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "base/files.h"

namespace draftprobe::support {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBlockBytes = 1u << 20;

// The file's beginning: the 8-byte size, then the JSON header padded with spaces to a multiple of 8.
std::string header_of(const WeightFile& file, const std::string& format) {
    JsonWriter json;
    json.begin_object().key("__metadata__").begin_object().member("format", format).end_object();
    std::uint64_t offset = 0;
    for (const StoredTensor& tensor : file.tensors) {
        json.key(tensor.name).begin_object().member("dtype", dtype_name(tensor.dtype)).key("shape").begin_array();
        for (const std::uint64_t dimension : tensor.shape) json.value(dimension);
        json.end_array().key("data_offsets").begin_array().value(offset);
        offset += tensor.bytes();
        json.value(offset).end_array().end_object();
    }
    std::string text = json.end_object().take();
    text.append((8 - text.size() % 8) % 8, ' ');
    const std::uint64_t size = text.size();
    std::string out(sizeof size, '\0');
    std::memcpy(out.data(), &size, sizeof size);
    return out + text;
}

std::uint64_t tensor_bytes(const std::vector<StoredTensor>& tensors) {
    std::uint64_t bytes = 0;
    for (const StoredTensor& tensor : tensors) bytes += tensor.bytes();
    return bytes;
}

Status write_descriptions(const fs::path& dir, const CheckpointFiles& files) {
    std::error_code error;
    fs::create_directories(dir, error);
    if (error) return io_error(fmt::format("{}: {}", dir.string(), error.message()));
    DP_RETURN_IF_ERROR(write_file(dir / "config.json", files.config.dump(2)));
    if (files.generation) DP_RETURN_IF_ERROR(write_file(dir / "generation_config.json", files.generation->dump(2)));
    if (files.index) DP_RETURN_IF_ERROR(write_file(dir / "model.safetensors.index.json", files.index->dump()));
    return {};
}

}  // namespace

std::uint64_t StoredTensor::elements() const {
    std::uint64_t product = 1;
    for (const std::uint64_t dimension : shape) product *= dimension;
    return product;
}

StoredTensor* CheckpointFiles::find(const std::string& name) {
    for (WeightFile& file : weights) {
        for (StoredTensor& tensor : file.tensors) {
            if (tensor.name == name) return &tensor;
        }
    }
    return nullptr;
}

void CheckpointFiles::remove(const std::string& name) {
    for (WeightFile& file : weights) {
        std::erase_if(file.tensors, [&](const StoredTensor& tensor) { return tensor.name == name; });
    }
    if (index) (*index)["weight_map"].erase(name);
}

void CheckpointFiles::add(StoredTensor tensor) {
    if (index) (*index)["weight_map"][tensor.name] = weights.back().name;
    weights.back().tensors.push_back(std::move(tensor));
}

void put_in_one_file(CheckpointFiles& files, std::vector<StoredTensor> tensors) {
    files.weights = {{"model.safetensors", std::move(tensors)}};
    files.index.reset();
}

void put_in_shards(CheckpointFiles& files, std::vector<StoredTensor> tensors, std::size_t count) {
    const std::uint64_t total = tensor_bytes(tensors);
    Json map = Json::object();
    files.weights.clear();
    for (std::size_t i = 0; i < count; ++i) {
        files.weights.push_back({fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count), {}});
    }
    std::uint64_t before = 0;
    for (StoredTensor& tensor : tensors) {
        WeightFile& file =
            files.weights[std::min<std::size_t>(count - 1, before * count / std::max<std::uint64_t>(1, total))];
        before += tensor.bytes();
        map[tensor.name] = file.name;
        file.tensors.push_back(std::move(tensor));
    }
    files.index = Json{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
}

Status write_sparse(const fs::path& dir, const CheckpointFiles& files) {
    DP_RETURN_IF_ERROR(write_descriptions(dir, files));
    for (const WeightFile& file : files.weights) {
        const std::string header = header_of(file, files.format);
        DP_RETURN_IF_ERROR(write_file(dir / file.name, header));
        std::error_code error;
        fs::resize_file(dir / file.name, header.size() + tensor_bytes(file.tensors), error);
        if (error) return io_error(fmt::format("{}: {}", (dir / file.name).string(), error.message()));
    }
    return {};
}

Status write_filled(const fs::path& dir, const CheckpointFiles& files, const FillBlock& fill) {
    DP_RETURN_IF_ERROR(write_descriptions(dir, files));
    std::vector<std::byte> block;
    for (const WeightFile& file : files.weights) {
        DP_ASSIGN_OR_RETURN(FileWriter out, FileWriter::create(dir / file.name));
        DP_RETURN_IF_ERROR(out.write(header_of(file, files.format)));
        for (const StoredTensor& tensor : file.tensors) {
            for (std::uint64_t offset = 0; offset < tensor.bytes(); offset += block.size()) {
                block.resize(std::min(kBlockBytes, tensor.bytes() - offset));
                fill(tensor, offset, block);
                DP_RETURN_IF_ERROR(out.write(block));
            }
        }
        DP_RETURN_IF_ERROR(out.finish());
    }
    return {};
}

}  // namespace draftprobe::support
