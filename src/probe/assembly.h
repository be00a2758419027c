// An assembly: the loaded target, draft and tokenizer of one run, with the identity of their complete files.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "decode/engine_core.h"
#include "formats/manifest.h"
#include "text/tokenizer.h"

namespace draftprobe::probe {

struct Assembly {
    std::filesystem::path target_dir;
    std::filesystem::path draft_dir;  // empty without a draft
    decode::ModelPair models;
    std::shared_ptr<const Tokenizer> tokenizer;  // null when the target directory has no tokenizer.json
    IdentityGroup target_identity;
    IdentityGroup draft_identity;
    IdentityGroup tokenizer_identity;
    std::optional<Manifest> manifest;  // of the draft: its selection.json, checked against its files
    std::string target_precision;      // as a manifest spells it
    std::vector<std::string> unread;   // tensors of the checkpoints that the models do not read
};

struct AssemblyOptions {
    bool use_digest_cache = true;
    bool require_manifest = false;
    model::DraftPrecision draft_precision = model::DraftPrecision::stored;
    // Set when loading fails because the draft's files are not those that its manifest lists. May be null.
    bool* export_damaged = nullptr;
};

// Loads and checks everything, including that the draft fits the target and, where the draft has a selection.json, that
// its complete files are the listed ones. Digests of complete files are taken when `with_identity`. Errors: as
// read_target_config, Checkpoint, Manifest and the models say; mismatch naming the field of a wrong pair; not_found for
// a required manifest.
Result<Assembly> load_assembly(const std::filesystem::path& target_dir, const std::filesystem::path& draft_dir,
                               bool with_identity, const AssemblyOptions& options = {});

// What every report of this run has to say about the draft's training conditions: nothing, or one sentence.
std::vector<std::string> assembly_notes(const Assembly& assembly, const TemplateIdentity& chat_template);

}  // namespace draftprobe::probe
