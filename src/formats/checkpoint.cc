#include "formats/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "formats/config_fields.h"

namespace draftprobe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::uint64_t kMaxIndexBytes = 256u << 20;
constexpr std::size_t kMaxShards = 4096;

// Stored prefixes of the text model, longest first; the bare one is a draft's.
constexpr std::array<std::string_view, 4> kPrefixes = {"model.language_model.", "language_model.model.", "model.", ""};

// Parts that a text model does not use: multi-token prediction and vision.
constexpr std::array<std::string_view, 7> kOtherParts = {
    "mtp.", "model.mtp.", "language_model.mtp.", "model.visual.", "visual.", "vision_tower.", "model.vision_tower."};

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

bool ends_with(std::string_view text, std::string_view suffix) {
    return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

bool other_part(std::string_view name) {
    return std::any_of(kOtherParts.begin(), kOtherParts.end(),
                       [&](std::string_view p) { return starts_with(name, p); });
}

// A link to nothing counts: reading it fails then, instead of the file being taken for absent.
bool file_exists(const fs::path& path) {
    std::error_code error;
    return fs::exists(fs::symlink_status(path, error));
}

// A shard is a plain file name: nothing that leaves the directory.
bool plain_shard_name(std::string_view name) {
    return !name.empty() && name.size() <= 255 && name.front() != '.' && ends_with(name, ".safetensors") &&
           std::none_of(name.begin(), name.end(), [](char c) {
               return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
           });
}

// The canonical name of a stored one, or nothing when it is not part of the text model.
std::optional<std::string> canonical_of(std::string_view stored, std::string_view prefix) {
    if (starts_with(stored, "lm_head.")) return std::string(stored);
    if (prefix == "language_model.model." && starts_with(stored, "language_model.lm_head.")) {
        return std::string(stored.substr(std::string_view("language_model.").size()));
    }
    if (!starts_with(stored, prefix)) return std::nullopt;
    return std::string(stored.substr(prefix.size()));
}

// The module that a stored weight belongs to, as config.json spells it. Stacked experts have no ".weight".
std::string_view module_of(std::string_view stored) {
    constexpr std::string_view kWeight = ".weight";
    return ends_with(stored, kWeight) ? stored.substr(0, stored.size() - kWeight.size()) : stored;
}

bool dense_dtype(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32; }

std::string described(const TensorView& view) {
    return fmt::format("{} {}", dtype_name(view.dtype), shape_text(view.shape));
}

}  // namespace

std::uint64_t AffineTensor::rows() const {
    std::uint64_t product = 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) product *= shape[i];
    return product;
}

Result<Checkpoint> Checkpoint::open(const fs::path& dir) {
    Checkpoint checkpoint;
    checkpoint.dir_ = dir;
    const fs::path config_path = dir / "config.json";
    DP_ASSIGN_OR_RETURN(const Json config, parse_json_file(config_path, config_fields::kMaxConfigBytes));
    DP_ASSIGN_OR_RETURN(checkpoint.quantisation_, parse_quantisation(config, config_path.string()));
    DP_RETURN_IF_ERROR(checkpoint.find_files());
    DP_RETURN_IF_ERROR(checkpoint.resolve_names());
    DP_RETURN_IF_ERROR(checkpoint.resolve_layout());
    DP_RETURN_IF_ERROR(checkpoint.check_quantised_modules());
    return checkpoint;
}

// Opens every weight file and lists the identity's files.
Status Checkpoint::find_files() {
    files_.push_back("config.json");
    if (file_exists(dir_ / "generation_config.json")) files_.push_back("generation_config.json");
    std::optional<Json> index;
    const std::string subject = (dir_ / kIndexFile).string();
    if (file_exists(dir_ / kIndexFile)) {
        files_.emplace_back(kIndexFile);
        DP_ASSIGN_OR_RETURN(index, parse_json_file(dir_ / kIndexFile, kMaxIndexBytes));
        DP_ASSIGN_OR_RETURN(const Json* map, json_get_object(*index, "weight_map", subject));
        std::set<std::string> names;
        for (const auto& [tensor, file] : map->items()) {
            if (!file.is_string() || !plain_shard_name(file.get_ref<const std::string&>())) {
                return corrupt(
                    fmt::format("{}: weight_map of {} is {}, expected a plain file name ending in .safetensors",
                                subject, quoted_excerpt(tensor),
                                file.is_string() ? quoted_excerpt(file.get<std::string>()) : file.type_name()));
            }
            names.insert(file.get<std::string>());
            if (names.size() > kMaxShards) {
                return exhausted(fmt::format("{}: more than {} weight files", subject, kMaxShards));
            }
        }
        if (names.empty()) return corrupt(fmt::format("{}: weight_map is empty, expected tensor names", subject));
        if (names.count(std::string(kSingleFile)) == 0 && file_exists(dir_ / kSingleFile)) {
            return mismatch(
                fmt::format("{}: {} is present but the index does not name it, expected one set of weights; "
                            "remove the set that does not belong here",
                            dir_.string(), kSingleFile));
        }
        shard_names_.assign(names.begin(), names.end());
    } else if (file_exists(dir_ / kSingleFile)) {
        shard_names_.emplace_back(kSingleFile);
    } else {
        return not_found(fmt::format("{}: neither {} nor {}; name the directory of a checkpoint", dir_.string(),
                                     kSingleFile, kIndexFile));
    }
    for (const std::string& name : shard_names_) {
        DP_ASSIGN_OR_RETURN(SafetensorsFile shard, SafetensorsFile::open(dir_ / name));
        shards_.push_back(std::move(shard));
        files_.push_back(name);
    }
    std::sort(files_.begin(), files_.end());
    return index ? check_index(*index, subject) : Status();
}

// Each listed tensor is in its shard, each stored text tensor is listed, and none is stored twice.
Status Checkpoint::check_index(const Json& index, const std::string& subject) const {
    const Json& map = index["weight_map"];
    for (const auto& [tensor, file] : map.items()) {
        const auto& name = file.get_ref<const std::string&>();
        const auto shard = std::lower_bound(shard_names_.begin(), shard_names_.end(), name);
        if (shards_[static_cast<std::size_t>(shard - shard_names_.begin())].find(tensor) == nullptr) {
            return corrupt(
                fmt::format("{}: tensor {} is listed in {}, but that file does not hold it; copy or download the "
                            "weights again",
                            subject, quoted_excerpt(tensor), name));
        }
    }
    for (std::size_t i = 0; i < shards_.size(); ++i) {
        for (const std::string& tensor : shards_[i].names()) {
            const auto listed = map.find(tensor);
            if (listed == map.end() && other_part(tensor)) continue;
            if (listed == map.end() || listed->get_ref<const std::string&>() != shard_names_[i]) {
                return mismatch(
                    fmt::format("{}: tensor {} is in {}, but the index says {}; the files are from two exports",
                                subject, quoted_excerpt(tensor), shard_names_[i],
                                listed == map.end() ? "nothing of it" : listed->get<std::string>()));
            }
        }
    }
    return {};
}

Status Checkpoint::resolve_names() {
    // The final norm is the one tensor that every target and draft has, directly under its prefix.
    std::vector<std::string_view> found;
    for (const std::string_view prefix : kPrefixes) {
        const std::string norm = std::string(prefix) + "norm.weight";
        if (std::any_of(shards_.begin(), shards_.end(),
                        [&](const auto& shard) { return shard.find(norm) != nullptr; })) {
            found.push_back(prefix);
        }
    }
    if (found.empty()) {
        return not_found(
            fmt::format("{}: no tensor \"norm.weight\" under any known prefix (\"model.language_model.\", "
                        "\"language_model.model.\", \"model.\" or none); this is not a checkpoint of a served "
                        "model, or a weight file is missing",
                        dir_.string()));
    }
    if (found.size() > 1) {
        return mismatch(fmt::format("{}: \"norm.weight\" under the prefixes \"{}\" and \"{}\", expected one model",
                                    dir_.string(), found[0], found[1]));
    }
    prefix_ = found.front();
    for (std::size_t i = 0; i < shards_.size(); ++i) {
        for (const auto& [name, view] : shards_[i].tensors()) {
            if (other_part(name)) continue;
            std::optional<std::string> canonical = canonical_of(name, prefix_);
            if (!canonical) continue;
            // Some ports store the selector's bare arrays as embeddings.
            constexpr std::string_view kWeight = ".weight";
            if (ends_with(*canonical, "_codebook.weight") && view.dtype != DType::u32) {
                canonical->resize(canonical->size() - kWeight.size());
            }
            const auto [slot, added] = tensors_.emplace(*canonical, Stored{&view, i, name});
            if (!added) {
                return mismatch(fmt::format("{} and {} both are \"{}\", expected it once", where(slot->second),
                                            where(Stored{&view, i, name}), *canonical));
            }
        }
    }
    return {};
}

Status Checkpoint::resolve_layout() {
    const Stored* decisive = nullptr;
    for (const auto& [name, tensor] : tensors_) {
        if (!ends_with(name, "linear_attn.conv1d.weight")) continue;
        const std::vector<std::uint64_t>& shape = tensor.view->shape;
        const bool huggingface = shape.size() == 3 && shape[1] == 1 && shape[2] > 1;
        const bool mlx = shape.size() == 3 && shape[2] == 1 && shape[1] > 1;
        if (!huggingface && !mlx) {
            return corrupt(fmt::format("{}: shape {}, expected [channels, 1, taps] or [channels, taps, 1]",
                                       where(tensor), shape_text(shape)));
        }
        const CheckpointLayout here = mlx ? CheckpointLayout::mlx : CheckpointLayout::huggingface;
        if (decisive != nullptr && here != layout_) {
            return mismatch(fmt::format("{} has shape {} but {} has {}, expected one layout for all layers",
                                        where(tensor), shape_text(shape), where(*decisive),
                                        shape_text(decisive->view->shape)));
        }
        if (decisive == nullptr) decisive = &tensor;
        layout_ = here;
    }
    bool stated = decisive != nullptr;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
        const auto format = shards_[i].metadata().find("format");
        if (format == shards_[i].metadata().end()) continue;
        const CheckpointLayout here = format->second == "mlx" ? CheckpointLayout::mlx : CheckpointLayout::huggingface;
        if (stated && here != layout_) {
            return mismatch(
                fmt::format("{}: metadata format {} contradicts {}; which layout the weights have decides how norms "
                            "are read, so it "
                            "must be certain: convert the checkpoint again",
                            (dir_ / shard_names_[i]).string(), quoted_excerpt(format->second),
                            decisive != nullptr ? fmt::format("{}, whose shape {} is that of the {} layout",
                                                              where(*decisive), shape_text(decisive->view->shape),
                                                              layout_ == CheckpointLayout::mlx ? "MLX" : "Hugging Face")
                                                : std::string("the metadata of another weight file")));
        }
        stated = true;
        layout_ = here;
    }
    return {};
}

Status Checkpoint::check_quantised_modules() const {
    for (const auto& [name, tensor] : tensors_) {
        for (const std::string_view suffix : {".scales", ".biases"}) {
            if (!ends_with(name, suffix)) continue;
            const std::string_view module = std::string_view(name).substr(0, name.size() - suffix.size());
            DP_RETURN_IF_ERROR(affine_header(module).status());
        }
        if (ends_with(name, ".weight") && tensor.view->dtype == DType::u32) {
            DP_RETURN_IF_ERROR(affine_header(std::string_view(name).substr(0, name.size() - 7)).status());
        }
        if (quantisation_ && tensor.view->dtype != DType::u32) {
            const auto stated = quantisation_->overrides.find(module_of(tensor.name));
            if (stated != quantisation_->overrides.end() && stated->second) {
                return mismatch(fmt::format("{} is stored as {}, but config.json quantises it to {} bits",
                                            where(tensor), described(*tensor.view), stated->second->bits));
            }
        }
    }
    return {};
}

const Checkpoint::Stored* Checkpoint::stored(std::string_view canonical_name) const {
    const auto found = tensors_.find(canonical_name);
    return found == tensors_.end() ? nullptr : &found->second;
}

const TensorView* Checkpoint::find(std::string_view canonical_name) const {
    const Stored* found = stored(canonical_name);
    return found == nullptr ? nullptr : found->view;
}

std::vector<std::string> Checkpoint::names() const {
    std::vector<std::string> names;
    names.reserve(tensors_.size());
    for (const auto& entry : tensors_) names.push_back(entry.first);
    return names;
}

std::vector<std::string_view> Checkpoint::names_under(std::string_view prefix) const {
    std::vector<std::string_view> names;
    for (auto entry = tensors_.lower_bound(prefix); entry != tensors_.end() && starts_with(entry->first, prefix);
         ++entry) {
        names.emplace_back(entry->first);
    }
    return names;
}

std::string Checkpoint::where(const Stored& tensor) const {
    return fmt::format("{}: tensor {}", (dir_ / shard_names_[tensor.shard]).string(), quoted_excerpt(tensor.name));
}

std::string Checkpoint::where(std::string_view canonical_name) const {
    const Stored* found = stored(canonical_name);
    if (found != nullptr) return where(*found);
    return fmt::format("{}: tensor \"{}{}\"", dir_.string(), starts_with(canonical_name, "lm_head.") ? "" : prefix_,
                       canonical_name);
}

Result<const TensorView*> Checkpoint::require_header(std::string_view canonical_name,
                                                     std::span<const std::uint64_t> shape) const {
    const Stored* found = stored(canonical_name);
    if (found == nullptr) {
        return not_found(
            fmt::format("{} is missing, expected shape {}; the checkpoint is incomplete or of another model",
                        where(canonical_name), shape_text(shape)));
    }
    const TensorView& view = *found->view;
    if (view.dtype == DType::u32) {
        return mismatch(fmt::format("{} is quantised ({}), expected unquantised {}", where(*found), described(view),
                                    shape_text(shape)));
    }
    if (!std::equal(view.shape.begin(), view.shape.end(), shape.begin(), shape.end())) {
        return mismatch(fmt::format("{} has shape {}, expected {} by config.json; the two are of different models",
                                    where(*found), shape_text(view.shape), shape_text(shape)));
    }
    if (!dense_dtype(view.dtype)) {
        return unsupported(
            fmt::format("{} has dtype {}, served are BF16, F16 and F32", where(*found), dtype_name(view.dtype)));
    }
    return found->view;
}

Result<const TensorView*> Checkpoint::require(std::string_view canonical_name,
                                              std::span<const std::uint64_t> shape) const {
    DP_ASSIGN_OR_RETURN(const TensorView* view, require_header(canonical_name, shape));
    if (const auto index = first_nonfinite(*view)) {
        return corrupt(fmt::format("{}: element {} is NaN or infinite, expected finite weights; the export is damaged",
                                   where(canonical_name), *index));
    }
    return view;
}

Result<std::vector<float>> Checkpoint::require_f32(std::string_view canonical_name,
                                                   std::span<const std::uint64_t> shape) const {
    DP_ASSIGN_OR_RETURN(const TensorView* view, require(canonical_name, shape));
    std::vector<float> values(view->elements());
    DP_RETURN_IF_ERROR(load_f32(*view, values));
    return values;
}

bool Checkpoint::is_affine(std::string_view module) const { return has(std::string(module) + ".scales"); }

Result<AffineScheme> Checkpoint::stated_scheme(const Stored& weight) const {
    if (!quantisation_) {
        return mismatch(fmt::format(
            "{} is quantised, but config.json has no \"quantization\", which gives the group size", where(weight)));
    }
    const auto stated = quantisation_->overrides.find(module_of(weight.name));
    if (stated == quantisation_->overrides.end()) return quantisation_->global;
    if (!stated->second) {
        return mismatch(fmt::format("{} is quantised, but config.json says that it is not", where(weight)));
    }
    return *stated->second;
}

Result<Checkpoint::AffineHeader> Checkpoint::affine_header(std::string_view module) const {
    AffineHeader header;
    const std::string base(module);
    header.weight = stored(base + ".weight");
    header.scales = stored(base + ".scales");
    header.biases = stored(base + ".biases");
    for (const auto& [part, suffix] : {std::pair(header.weight, ".weight"), std::pair(header.scales, ".scales"),
                                       std::pair(header.biases, ".biases")}) {
        if (part == nullptr) {
            return corrupt(fmt::format("{} is missing, expected weight, scales and biases for a quantised module",
                                       where(base + suffix)));
        }
    }
    const TensorView& weight = *header.weight->view;
    const TensorView& scales = *header.scales->view;
    const TensorView& biases = *header.biases->view;
    if (weight.dtype != DType::u32 || !dense_dtype(scales.dtype)) {
        return corrupt(fmt::format("{} is {} with scales {}, expected U32 with BF16, F16 or F32 scales",
                                   where(*header.weight), described(weight), described(scales)));
    }
    if (scales.dtype != biases.dtype || scales.shape != biases.shape) {
        return corrupt(fmt::format("{} is {} but its scales are {}, expected equal shape and dtype",
                                   where(*header.biases), described(biases), described(scales)));
    }
    const std::size_t rank = weight.shape.size();
    if (rank < 2 || scales.shape.size() != rank || weight.elements() == 0 || scales.elements() == 0 ||
        !std::equal(weight.shape.begin(), weight.shape.end() - 1, scales.shape.begin())) {
        return corrupt(fmt::format("{} is {} but its scales are {}, expected equal rows", where(*header.weight),
                                   described(weight), described(scales)));
    }
    DP_ASSIGN_OR_RETURN(header.scheme, stated_scheme(*header.weight));
    const std::uint64_t in = scales.shape.back() * static_cast<std::uint64_t>(header.scheme.group_size);
    const std::uint64_t row_bits = weight.shape.back() * 32;
    if (row_bits != in * static_cast<std::uint64_t>(header.scheme.bits)) {
        const std::string found =
            row_bits % in == 0 ? fmt::format("{} bits", row_bits / in) : "no whole number of bits";
        return mismatch(fmt::format("{} is {} with scales {}: {} at group size {}, expected {} bits by config.json",
                                    where(*header.weight), described(weight), described(scales), found,
                                    header.scheme.group_size, header.scheme.bits));
    }
    header.shape = weight.shape;
    header.shape.back() = in;
    return header;
}

Result<Checkpoint::AffineHeader> Checkpoint::shaped_affine_header(std::string_view module,
                                                                  std::span<const std::uint64_t> shape) const {
    if (!is_affine(module) && find(std::string(module) + ".weight") == nullptr) {
        return not_found(
            fmt::format("{} is missing, expected shape {}; the checkpoint is incomplete or of another model",
                        where(std::string(module) + ".weight"), shape_text(shape)));
    }
    DP_ASSIGN_OR_RETURN(AffineHeader header, affine_header(module));
    if (!std::equal(header.shape.begin(), header.shape.end(), shape.begin(), shape.end())) {
        return mismatch(
            fmt::format("{} has logical shape {}, expected {} by config.json; the two are of different models",
                        where(*header.weight), shape_text(header.shape), shape_text(shape)));
    }
    return header;
}

Result<AffineScheme> Checkpoint::require_affine_header(std::string_view module,
                                                       std::span<const std::uint64_t> shape) const {
    DP_ASSIGN_OR_RETURN(const AffineHeader header, shaped_affine_header(module, shape));
    return header.scheme;
}

Result<AffineTensor> Checkpoint::affine(std::string_view module, std::span<const std::uint64_t> shape) const {
    DP_ASSIGN_OR_RETURN(const AffineHeader header, shaped_affine_header(module, shape));
    for (const Stored* part : {header.scales, header.biases}) {
        if (const auto index = first_nonfinite(*part->view)) {
            return corrupt(
                fmt::format("{}: element {} is NaN or infinite, expected finite values; the export is damaged",
                            where(*part), *index));
        }
    }
    AffineTensor tensor;
    tensor.shape = header.shape;
    tensor.scheme = header.scheme;
    tensor.scales.resize(header.scales->view->elements());
    tensor.biases.resize(tensor.scales.size());
    DP_RETURN_IF_ERROR(load_f32(*header.scales->view, tensor.scales));
    DP_RETURN_IF_ERROR(load_f32(*header.biases->view, tensor.biases));
    const TensorView& weight = *header.weight->view;
    if (reinterpret_cast<std::uintptr_t>(weight.bytes.data()) % alignof(std::uint32_t) == 0) {
        tensor.words = {reinterpret_cast<const std::uint32_t*>(weight.bytes.data()), weight.elements()};
    } else {
        tensor.copied_words.resize(weight.elements());
        DP_RETURN_IF_ERROR(load_u32(weight, tensor.copied_words));
        tensor.words = tensor.copied_words;
    }
    return tensor;
}

}  // namespace draftprobe
