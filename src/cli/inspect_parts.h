// What the views of targets and drafts share. Inside cli/ only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_writer.h"
#include "base/status.h"
#include "formats/checkpoint.h"
#include "formats/manifest.h"
#include "model/tensor_plan.h"

namespace draftprobe::cli {

// "label           text\n".
std::string view_line(std::string_view label, std::string_view text);

// Names and sizes of the files that make the checkpoint's identity.
std::vector<std::pair<std::string, std::uint64_t>> file_sizes(const Checkpoint& checkpoint);
std::string files_text(const Checkpoint& checkpoint);
void write_files(JsonWriter& json, const Checkpoint& checkpoint);

// Stored bytes and tensors, by dtype; parameters; tensors that the model does not read.
std::string weights_text(const Checkpoint& checkpoint);
void write_weights(JsonWriter& json, const Checkpoint& checkpoint);
std::string parameters_text(const model::TensorPlan& plan);
void write_parameters(JsonWriter& json, const model::TensorPlan& plan);
std::string unused_text(const model::TensorPlan& plan);

// The scheme of config.json and how many modules really have which scheme.
std::string quantisation_text(const std::optional<QuantisationConfig>& quantisation, const model::TensorPlan& plan);
void write_quantisation(JsonWriter& json, const std::optional<QuantisationConfig>& quantisation);

// What selection.json says, and whether the files have the listed sizes; contents are not hashed.
struct ManifestState {
    std::optional<Manifest> manifest;
    Status status;  // of reading it and of the sizes
};
ManifestState manifest_state(const Checkpoint& checkpoint);
std::string manifest_text(const ManifestState& state);
void write_manifest(JsonWriter& json, const ManifestState& state);

}  // namespace draftprobe::cli
