// An assembly: the loaded target, draft and tokenizer of one run, with the identity of their complete files.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "capture/capture.h"
#include "decode/engine_core.h"
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
};

// Loads and checks everything, including that the draft fits the target. Digests of complete files are taken when
// `with_identity`. Errors: as read_target_config, Checkpoint and the models say; mismatch naming the field of a wrong
// pair.
Result<Assembly> load_assembly(const std::filesystem::path& target_dir, const std::filesystem::path& draft_dir,
                               bool with_identity);

}  // namespace draftprobe::probe
