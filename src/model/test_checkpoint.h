// Test support: a checkpoint held in memory, edited and written again, and expert tensors in the other storage forms.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/safetensors.h"
#include "formats/checkpoint.h"
#include "model/target_model.h"

namespace draftprobe::model {

class EditableCheckpoint {
public:
    struct Tensor {
        DType dtype = DType::bf16;
        std::vector<std::uint64_t> shape;
        std::vector<std::byte> bytes;
    };

    // Of one weight file.
    explicit EditableCheckpoint(const std::filesystem::path& dir) {
        std::ifstream text(dir / "config.json");
        config.assign(std::istreambuf_iterator<char>(text), {});
        const auto file = SafetensorsFile::open(dir / "model.safetensors");
        EXPECT_TRUE(file.ok()) << file.status().message();
        for (const auto& [name, view] : file->tensors()) {
            tensors[name] = {view.dtype, view.shape, {view.bytes.begin(), view.bytes.end()}};
        }
    }

    void write(const std::filesystem::path& dir) const {
        EXPECT_TRUE(write_file(dir / "config.json", config).ok());
        SafetensorsWriter writer;
        for (const auto& [name, tensor] : tensors) {
            EXPECT_TRUE(writer.add(name, tensor.dtype, tensor.shape, tensor.bytes).ok()) << name;
        }
        EXPECT_TRUE(writer.write(dir / "model.safetensors").ok());
    }

    // Replaces every occurrence in config.json.
    void replace_in_config(std::string_view from, std::string_view to) {
        std::size_t at = config.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        for (; at != std::string::npos; at = config.find(from, at + to.size())) config.replace(at, from.size(), to);
    }

    std::string config;
    std::map<std::string, Tensor> tensors;  // by stored name
};

inline Result<std::shared_ptr<const TargetModel>> load_from(const std::filesystem::path& dir) {
    DP_ASSIGN_OR_RETURN(const TargetConfig config, read_target_config(dir));
    DP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(dir));
    return TargetModel::load(checkpoint, config);
}

// Rows first..first+count-1 of the middle dimension of every matrix of a stack [E, out, in].
inline EditableCheckpoint::Tensor middle_rows(const EditableCheckpoint::Tensor& stack, std::uint64_t first,
                                              std::uint64_t count) {
    const std::size_t matrix = stack.bytes.size() / stack.shape[0];
    const std::size_t row = matrix / stack.shape[1];
    EditableCheckpoint::Tensor result{stack.dtype, {stack.shape[0], count, stack.shape[2]}, {}};
    for (std::size_t e = 0; e < stack.shape[0]; ++e) {
        const auto begin = stack.bytes.begin() + static_cast<std::ptrdiff_t>(e * matrix + first * row);
        result.bytes.insert(result.bytes.end(), begin, begin + static_cast<std::ptrdiff_t>(count * row));
    }
    return result;
}

// "experts.gate_up_proj" and "experts.down_proj" as "switch_mlp.{gate,up,down}_proj.weight".
inline void stacked_to_switched(EditableCheckpoint& checkpoint) {
    const std::map<std::string, EditableCheckpoint::Tensor> all = checkpoint.tensors;
    for (const auto& [name, tensor] : all) {
        const std::size_t at = name.find("experts.");
        if (at == std::string::npos) continue;
        const std::string base = name.substr(0, at) + "switch_mlp.";
        checkpoint.tensors.erase(name);
        if (name.substr(at) == "experts.down_proj") {
            checkpoint.tensors[base + "down_proj.weight"] = tensor;
            continue;
        }
        const std::uint64_t inner = tensor.shape[1] / 2;
        checkpoint.tensors[base + "gate_proj.weight"] = middle_rows(tensor, 0, inner);
        checkpoint.tensors[base + "up_proj.weight"] = middle_rows(tensor, inner, inner);
    }
}

// "switch_mlp.gate_proj.weight" and the like as "experts.<e>.gate_proj.weight".
inline void switched_to_per_expert(EditableCheckpoint& checkpoint) {
    const std::map<std::string, EditableCheckpoint::Tensor> all = checkpoint.tensors;
    for (const auto& [name, tensor] : all) {
        constexpr std::string_view kSwitch = "switch_mlp.";
        const std::size_t at = name.find(kSwitch);
        if (at == std::string::npos) continue;
        checkpoint.tensors.erase(name);
        const std::size_t matrix = tensor.bytes.size() / tensor.shape[0];
        for (std::size_t e = 0; e < tensor.shape[0]; ++e) {
            const auto begin = tensor.bytes.begin() + static_cast<std::ptrdiff_t>(e * matrix);
            checkpoint.tensors[name.substr(0, at) + "experts." + std::to_string(e) + "." +
                               name.substr(at + kSwitch.size())] = {
                tensor.dtype, {tensor.shape[1], tensor.shape[2]}, {begin, begin + static_cast<std::ptrdiff_t>(matrix)}};
        }
    }
}

}  // namespace draftprobe::model
