#include "cli/inspect_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <system_error>

#include "cli/inspect.h"

namespace draftprobe::cli {

namespace {

struct Weights {
    std::uint64_t bytes = 0;
    std::size_t tensors = 0;
    std::map<std::string, std::uint64_t> bytes_by_type;
    std::size_t files = 0;
};

Weights count_weights(const Checkpoint& checkpoint) {
    Weights weights;
    for (const std::string& name : checkpoint.names()) {
        const TensorView* view = checkpoint.find(name);
        weights.bytes += view->bytes.size();
        weights.bytes_by_type[std::string(dtype_name(view->dtype))] += view->bytes.size();
        ++weights.tensors;
    }
    weights.files =
        static_cast<std::size_t>(std::count_if(checkpoint.files().begin(), checkpoint.files().end(),
                                               [](const std::string& name) { return name.ends_with(".safetensors"); }));
    return weights;
}

std::string count_text(std::uint64_t count) {
    const double value = static_cast<double>(count);
    if (count < 1'000'000) return fmt::format("{}", count);
    if (count < 1'000'000'000) return fmt::format("{:.1f} million", value / 1e6);
    return fmt::format("{:.2f} billion", value / 1e9);
}

std::string scheme_text(const AffineScheme& scheme) {
    return fmt::format("{} bits in groups of {}", scheme.bits, scheme.group_size);
}

}  // namespace

std::string view_line(std::string_view label, std::string_view text) { return fmt::format("{:<16}{}\n", label, text); }

std::vector<std::pair<std::string, std::uint64_t>> file_sizes(const Checkpoint& checkpoint) {
    std::vector<std::pair<std::string, std::uint64_t>> sizes;
    for (const std::string& name : checkpoint.files()) {
        std::error_code error;
        const std::uintmax_t bytes = std::filesystem::file_size(checkpoint.dir() / name, error);
        sizes.emplace_back(name, error ? 0 : bytes);
    }
    return sizes;
}

std::string files_text(const Checkpoint& checkpoint) {
    std::vector<std::string> parts;
    for (const auto& [name, bytes] : file_sizes(checkpoint)) {
        parts.push_back(fmt::format("{} {}", name, bytes_text(bytes)));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
}

void write_files(JsonWriter& json, const Checkpoint& checkpoint) {
    json.key("files").begin_array();
    for (const auto& [name, bytes] : file_sizes(checkpoint)) {
        json.begin_object().member("name", name).member("bytes", bytes).end_object();
    }
    json.end_array();
}

std::string weights_text(const Checkpoint& checkpoint) {
    const Weights weights = count_weights(checkpoint);
    std::string types;
    for (const auto& [type, bytes] : weights.bytes_by_type) {
        types += fmt::format("{}{} {}", types.empty() ? "" : ", ", type, bytes_text(bytes));
    }
    return fmt::format("{} in {} tensors, {} file{} ({})", bytes_text(weights.bytes), weights.tensors, weights.files,
                       weights.files == 1 ? "" : "s", types);
}

void write_weights(JsonWriter& json, const Checkpoint& checkpoint) {
    const Weights weights = count_weights(checkpoint);
    json.key("weights").begin_object().member("bytes", weights.bytes).member("tensors", weights.tensors);
    json.member("files", weights.files).key("bytes_by_type").begin_object();
    for (const auto& [type, bytes] : weights.bytes_by_type) json.member(type, bytes);
    json.end_object().end_object();
}

std::string parameters_text(const model::TensorPlan& plan) {
    return fmt::format("{}, {} a token", count_text(plan.parameters), count_text(plan.active_parameters));
}

void write_parameters(JsonWriter& json, const model::TensorPlan& plan) {
    json.key("parameters")
        .begin_object()
        .member("total", plan.parameters)
        .member("active", plan.active_parameters)
        .end_object();
    json.key("unused_tensors").begin_array();
    for (const std::string& name : plan.unused) json.value(name);
    json.end_array();
}

std::string unused_text(const model::TensorPlan& plan) {
    constexpr std::size_t kShown = 4;
    std::vector<std::string> shown(plan.unused.begin(),
                                   plan.unused.begin() + std::min<std::ptrdiff_t>(kShown, std::ssize(plan.unused)));
    if (plan.unused.size() > kShown) shown.push_back(fmt::format("and {} more", plan.unused.size() - kShown));
    return fmt::format("{}", fmt::join(shown, ", "));
}

std::string quantisation_text(const std::optional<QuantisationConfig>& quantisation, const model::TensorPlan& plan) {
    if (!quantisation) return "none";
    // By scheme: how many matrices, and the first of them.
    std::map<std::string, std::pair<std::size_t, std::string>> others;
    for (const model::PlannedTensor& tensor : plan.tensors) {
        if (!tensor.affine || *tensor.affine == quantisation->global) continue;
        auto& [count, first] = others[scheme_text(*tensor.affine)];
        if (count++ == 0) first = tensor.name;
    }
    std::string text = "affine " + scheme_text(quantisation->global);
    for (const auto& [scheme, found] : others) {
        text += fmt::format("; {} matrices of {}, first {}", found.first, scheme, found.second);
    }
    return text;
}

void write_quantisation(JsonWriter& json, const std::optional<QuantisationConfig>& quantisation) {
    json.key("quantisation");
    if (!quantisation) {
        json.null();
        return;
    }
    json.begin_object()
        .member("mode", "affine")
        .member("bits", quantisation->global.bits)
        .member("group_size", quantisation->global.group_size)
        .member("overrides", quantisation->overrides.size());
    json.key("modules").begin_array();
    for (const auto& [module, scheme] : quantisation->overrides) {
        json.begin_object().member("module", module).member("quantised", scheme.has_value());
        if (scheme) json.member("bits", scheme->bits).member("group_size", scheme->group_size);
        json.end_object();
    }
    json.end_array().end_object();
}

ManifestState manifest_state(const Checkpoint& checkpoint) {
    ManifestState state;
    Result<std::optional<Manifest>> manifest = read_manifest(checkpoint.dir());
    if (!manifest.ok()) {
        state.status = manifest.status();
        return state;
    }
    state.manifest = std::move(manifest).value();
    if (state.manifest) state.status = check_manifest_sizes(*state.manifest, checkpoint.dir(), checkpoint.files());
    return state;
}

std::string manifest_text(const ManifestState& state) {
    if (!state.status.ok()) return "does not hold: " + state.status.message();
    if (!state.manifest) return "none";
    const Manifest& m = *state.manifest;
    return fmt::format(
        "{} files of the listed sizes (contents are hashed when the draft is loaded); run {}, seed {}, {} steps; "
        "template {}, thinking {}, effort {}; target {} in {}",
        m.files.size(), m.training.run, m.training.seed, m.training.steps, m.conditions.template_digest,
        m.conditions.thinking, m.conditions.effort, m.target_name, m.conditions.target_precision);
}

void write_manifest(JsonWriter& json, const ManifestState& state) {
    json.key("manifest").begin_object();
    json.member("state", !state.status.ok() ? "does not hold" : state.manifest ? "sizes hold" : "none");
    json.key("problem");
    if (state.status.ok()) {
        json.null();
    } else {
        json.value(state.status.message());
    }
    if (state.manifest) {
        const Manifest& m = *state.manifest;
        json.member("files", m.files.size());
        json.key("training").begin_object().member("run", m.training.run).member("seed", m.training.seed);
        json.member("steps", m.training.steps).member("objective", m.training.objective);
        json.member("data", m.training.data).end_object();
        json.key("template").begin_object().member("digest", m.conditions.template_digest);
        json.member("thinking", m.conditions.thinking).member("effort", m.conditions.effort).end_object();
        json.key("target").begin_object().member("precision", m.conditions.target_precision);
        json.member("name", m.target_name).end_object();
    }
    json.end_object();
}

}  // namespace draftprobe::cli
