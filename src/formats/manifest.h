// selection.json beside a trained draft: which files were exported, by which training run, and for which conditions.
//
//     {"selection_version": 1,
//      "files": [{"name": "model.safetensors", "size": 3848817896, "sha256": "..."}, ...],
//      "training": {"run": "...", "seed": 1, "steps": 1000, "objective": "...", "data": "..."},
//      "template": {"digest": "none" | 64 hex digits, "thinking": "none" | "on" | "off", "effort": "none" | NAME},
//      "target": {"precision": "bf16" | "f16" | "f32" | "affineB-gG", "name": "..."}}
//
// All members are required; other members are ignored. The manifest describes the files and is not one of them: it
// changes no arithmetic, so it is not part of the draft's identity, and a corrected description does not make older
// captures incomparable. What it says about training conditions reaches a capture as a note.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/status.h"
#include "formats/checkpoint.h"
#include "formats/identity.h"

namespace draftprobe {

inline constexpr std::int64_t kManifestVersion = 1;
inline constexpr std::string_view kManifestFileName = "selection.json";
inline constexpr std::string_view kNoCondition = "none";

struct ManifestFile {
    std::string name;        // a plain file name in the draft's directory, each once
    std::uint64_t size = 0;  // bytes
    std::string sha256;      // of the complete file, 64 lower-case hexadecimal digits
};

struct TrainingRun {
    std::string run;
    std::int64_t seed = 0;
    std::int64_t steps = 0;
    std::string objective;
    std::string data;
};

// What a draft was trained under, or what a run has. Each member is spelled as in selection.json.
struct DraftConditions {
    std::string template_digest{kNoCondition};  // "none" or 64 hexadecimal digits
    std::string thinking{kNoCondition};         // "none", "on" or "off"
    std::string effort{kNoCondition};           // "none" or a name of letters, digits, '.', '_' and '-'
    std::string target_precision;               // "bf16", "f16", "f32" or "affineB-gG"
};

struct Manifest {
    std::vector<ManifestFile> files;
    TrainingRun training;
    DraftConditions conditions;
    std::string target_name;
};

// Errors: corrupt (member, found, expected), unsupported (another version).
Result<Manifest> parse_manifest(const Json& json, std::string_view subject);

// `dir`/selection.json; nullopt when there is none. Errors: io, and those of parse_json and parse_manifest.
Result<std::optional<Manifest>> read_manifest(const std::filesystem::path& dir);

// Whether the listed files are there with their sizes, and every name in `declared` is listed; no content is read.
// Errors as check_manifest_files.
Status check_manifest_sizes(const Manifest& manifest, const std::filesystem::path& dir,
                            std::span<const std::string> declared);

// Checks every listed file completely, sizes before contents, and that every name in `declared` is listed. Gives the
// digests of `declared`, in its order; `cache` as for digest_files. Errors: corrupt (a file that is absent or not as
// listed, or a declared one that is not listed: name, found, expected), io.
Result<std::vector<FileDigest>> check_manifest_files(const Manifest& manifest, const std::filesystem::path& dir,
                                                     std::span<const std::string> declared,
                                                     DigestCache* cache = nullptr);

// How the target's weights are stored, in the manifest's spelling: the scheme that config.json states for all modules,
// or the dtype of the embedding.
std::string target_precision(const Checkpoint& target);

// One sentence beginning "no effectiveness conclusion:" that names every condition of `run` that is not the trained
// one; empty when there is none. It holds no id and no text of a prompt.
std::string effectiveness_note(const DraftConditions& trained, const DraftConditions& run);

}  // namespace draftprobe
