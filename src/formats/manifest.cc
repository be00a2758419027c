#include "formats/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/json.h"

namespace draftprobe {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxManifestBytes = 1u << 20;
constexpr std::size_t kShownDigits = 16;
constexpr std::size_t kMaxManifestFiles = 4096;
constexpr std::size_t kMaxName = 255;
constexpr std::size_t kMaxText = 1024;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 53;  // beyond, JSON readers disagree about integers

bool hex_digest(std::string_view text) {
    return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool control_free(std::string_view text) {
    return std::none_of(text.begin(), text.end(),
                        [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

// Nothing that leaves the directory, and no hidden file.
bool plain_file_name(std::string_view name) {
    return !name.empty() && name.size() <= kMaxName && name.front() != '.' && control_free(name) &&
           name.find_first_of("/\\") == std::string_view::npos;
}

bool effort_name(std::string_view text) {
    constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return !text.empty() && text.size() <= 64 && text.find_first_not_of(kAllowed) == std::string_view::npos;
}

bool precision_name(std::string_view text) {
    constexpr std::array<std::string_view, 3> kDense = {"bf16", "f16", "f32"};
    if (std::find(kDense.begin(), kDense.end(), text) != kDense.end()) return true;
    for (const int bits : {2, 3, 4, 5, 6, 8}) {
        for (const int group : {32, 64, 128}) {
            if (text == fmt::format("affine{}-g{}", bits, group)) return true;
        }
    }
    return false;
}

Status wrong(std::string_view subject, std::string_view field, std::string_view found, std::string_view expected) {
    return corrupt(fmt::format("{}: \"{}\" is {}, expected {}", subject, field, found, expected));
}

// One line of text, for people.
Result<std::string> line_member(const Json& object, const char* key, std::string_view place) {
    DP_ASSIGN_OR_RETURN(std::string text, json_get_string(object, key, place));
    if (text.size() > kMaxText || !control_free(text)) {
        return wrong(place, key, quoted_excerpt(text),
                     fmt::format("one line of at most {} bytes without control characters", kMaxText));
    }
    return text;
}

Result<std::string> checked_member(const Json& object, const char* key, std::string_view place,
                                   bool (*valid)(std::string_view), std::string_view expected) {
    DP_ASSIGN_OR_RETURN(std::string text, json_get_string(object, key, place));
    if (!valid(text)) return wrong(place, key, quoted_excerpt(text), expected);
    return text;
}

Result<std::vector<ManifestFile>> parse_files(const Json& json, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json* list, json_get_array(json, "files", subject));
    if (list->empty() || list->size() > kMaxManifestFiles) {
        return wrong(subject, "files", fmt::format("a list of {}", list->size()),
                     fmt::format("1 to {} files", kMaxManifestFiles));
    }
    std::vector<ManifestFile> files;
    std::set<std::string_view> names;
    files.reserve(list->size());
    for (const Json& item : *list) {
        const std::string place = fmt::format("{}: files[{}]", subject, files.size());
        ManifestFile file;
        DP_ASSIGN_OR_RETURN(file.name,
                            checked_member(item, "name", place, plain_file_name,
                                           "a plain file name of the draft's directory, without '/' and leading '.'"));
        if (file.name == kManifestFileName) {
            return wrong(place, "name", quoted_excerpt(file.name), "a file other than the manifest itself");
        }
        DP_ASSIGN_OR_RETURN(const std::int64_t size, json_get_int(item, "size", place, 0, kMaxCount));
        file.size = static_cast<std::uint64_t>(size);
        DP_ASSIGN_OR_RETURN(file.sha256,
                            checked_member(item, "sha256", place, hex_digest, "64 lower-case hexadecimal digits"));
        files.push_back(std::move(file));
        if (!names.insert(files.back().name).second) {
            return wrong(place, "name", quoted_excerpt(files.back().name) + " a second time", "each file once");
        }
    }
    return files;
}

Result<TrainingRun> parse_training(const Json& json, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json* object, json_get_object(json, "training", subject));
    const std::string place = fmt::format("{}: training", subject);
    TrainingRun training;
    DP_ASSIGN_OR_RETURN(training.run, line_member(*object, "run", place));
    DP_ASSIGN_OR_RETURN(training.seed, json_get_int(*object, "seed", place, 0, kMaxCount));
    DP_ASSIGN_OR_RETURN(training.steps, json_get_int(*object, "steps", place, 0, kMaxCount));
    DP_ASSIGN_OR_RETURN(training.objective, line_member(*object, "objective", place));
    DP_ASSIGN_OR_RETURN(training.data, line_member(*object, "data", place));
    return training;
}

Result<DraftConditions> parse_conditions(const Json& json, std::string_view subject) {
    DraftConditions conditions;
    DP_ASSIGN_OR_RETURN(const Json* chat, json_get_object(json, "template", subject));
    const std::string place = fmt::format("{}: template", subject);
    DP_ASSIGN_OR_RETURN(
        conditions.template_digest,
        checked_member(
            *chat, "digest", place, [](std::string_view t) { return t == kNoCondition || hex_digest(t); },
            "\"none\" or 64 lower-case hexadecimal digits"));
    DP_ASSIGN_OR_RETURN(
        conditions.thinking,
        checked_member(
            *chat, "thinking", place, [](std::string_view t) { return t == kNoCondition || t == "on" || t == "off"; },
            "\"none\", \"on\" or \"off\""));
    DP_ASSIGN_OR_RETURN(conditions.effort,
                        checked_member(*chat, "effort", place, effort_name,
                                       "\"none\" or a name of at most 64 letters, digits, '.', '_' and '-'"));
    DP_ASSIGN_OR_RETURN(const Json* target, json_get_object(json, "target", subject));
    DP_ASSIGN_OR_RETURN(conditions.target_precision,
                        checked_member(*target, "precision", fmt::format("{}: target", subject), precision_name,
                                       "\"bf16\", \"f16\", \"f32\" or \"affineB-gG\" as in affine4-g64"));
    return conditions;
}

Status check_size(const ManifestFile& file, const fs::path& dir) {
    std::error_code error;
    const fs::path path = dir / file.name;
    if (!fs::is_regular_file(path, error)) {
        return corrupt(
            fmt::format("{}: no such file, but {} lists it with {} bytes; the export is incomplete, copy it again",
                        path.string(), kManifestFileName, file.size));
    }
    const std::uintmax_t found = fs::file_size(path, error);
    if (error) return io_error(fmt::format("{}: {}", path.string(), error.message()));
    if (found == file.size) return {};
    return corrupt(fmt::format("{}: {} bytes, expected {} by {}; this is not the file that was exported, copy it again",
                               path.string(), found, file.size, kManifestFileName));
}

}  // namespace

Result<Manifest> parse_manifest(const Json& json, std::string_view subject) {
    if (!json.is_object()) return corrupt(fmt::format("{}: {}, expected an object", subject, json.type_name()));
    DP_ASSIGN_OR_RETURN(const std::int64_t version, json_get_int(json, "selection_version", subject));
    if (version != kManifestVersion) {
        return unsupported(
            fmt::format("{}: \"selection_version\" is {}, supported is {}; use a draftprobe that knows it", subject,
                        version, kManifestVersion));
    }
    Manifest manifest;
    DP_ASSIGN_OR_RETURN(manifest.files, parse_files(json, subject));
    DP_ASSIGN_OR_RETURN(manifest.training, parse_training(json, subject));
    DP_ASSIGN_OR_RETURN(manifest.conditions, parse_conditions(json, subject));
    DP_ASSIGN_OR_RETURN(const Json* target, json_get_object(json, "target", subject));
    DP_ASSIGN_OR_RETURN(manifest.target_name, line_member(*target, "name", fmt::format("{}: target", subject)));
    return manifest;
}

Result<std::optional<Manifest>> read_manifest(const fs::path& dir) {
    const fs::path path = dir / kManifestFileName;
    const Result<Json> json = parse_json_file(path, kMaxManifestBytes);
    std::error_code error;
    const bool absent = !fs::exists(fs::symlink_status(path, error));  // a link to nothing is not absence
    if (!json.ok() && json.status().code() == StatusCode::not_found && absent) return std::optional<Manifest>();
    if (!json.ok()) return json.status();
    DP_ASSIGN_OR_RETURN(Manifest manifest, parse_manifest(*json, path.string()));
    return std::optional<Manifest>(std::move(manifest));
}

Status check_manifest_sizes(const Manifest& manifest, const fs::path& dir, std::span<const std::string> declared) {
    for (const std::string& name : declared) {
        if (std::none_of(manifest.files.begin(), manifest.files.end(),
                         [&](const ManifestFile& file) { return file.name == name; })) {
            return corrupt(
                fmt::format("{}: the checkpoint has {}, expected it among \"files\"; the manifest is of "
                            "another export, or the file does not belong here",
                            (dir / kManifestFileName).string(), quoted_excerpt(name)));
        }
    }
    for (const ManifestFile& file : manifest.files) DP_RETURN_IF_ERROR(check_size(file, dir));
    return {};
}

Result<std::vector<FileDigest>> check_manifest_files(const Manifest& manifest, const fs::path& dir,
                                                     std::span<const std::string> declared, DigestCache* cache) {
    DP_RETURN_IF_ERROR(check_manifest_sizes(manifest, dir, declared));
    std::vector<std::string> names;
    for (const ManifestFile& file : manifest.files) names.push_back(file.name);
    DP_ASSIGN_OR_RETURN(const std::vector<FileDigest> found, digest_files(dir, names, cache));
    for (std::size_t i = 0; i < found.size(); ++i) {
        if (found[i].sha256 == manifest.files[i].sha256) continue;
        return corrupt(
            fmt::format("{}: SHA-256 {}, expected {} by {}; this is not the file that was exported, copy it "
                        "again",
                        (dir / found[i].name).string(), found[i].sha256, manifest.files[i].sha256, kManifestFileName));
    }
    std::vector<FileDigest> digests;
    for (const std::string& name : declared) {
        digests.push_back(
            *std::find_if(found.begin(), found.end(), [&](const FileDigest& digest) { return digest.name == name; }));
    }
    return digests;
}

std::string target_precision(const Checkpoint& target) {
    if (target.quantisation()) {
        const AffineScheme& scheme = target.quantisation()->global;
        return fmt::format("affine{}-g{}", scheme.bits, scheme.group_size);
    }
    const TensorView* embedding = target.find("embed_tokens.weight");
    if (embedding == nullptr) return std::string(kNoCondition);
    switch (embedding->dtype) {
        case DType::f32: return "f32";
        case DType::f16: return "f16";
        default: return "bf16";
    }
}

std::string effectiveness_note(const DraftConditions& trained, const DraftConditions& run) {
    std::string differences;
    // Digests are compared whole and shown short.
    const auto compare = [&differences](std::string_view what, std::string_view was, std::string_view is) {
        if (was == is) return;
        differences += fmt::format("{}{} {}, this run has {}", differences.empty() ? "" : "; ", what,
                                   was.substr(0, kShownDigits), is.substr(0, kShownDigits));
    };
    compare("template", trained.template_digest, run.template_digest);
    compare("thinking", trained.thinking, run.thinking);
    compare("effort", trained.effort, run.effort);
    compare("target precision", trained.target_precision, run.target_precision);
    if (differences.empty()) return {};
    return "no effectiveness conclusion: the draft was trained for " + differences;
}

}  // namespace draftprobe
