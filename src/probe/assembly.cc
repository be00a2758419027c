#include "probe/assembly.h"

#include <fmt/format.h>

#include "formats/checkpoint.h"
#include "formats/identity.h"
#include "model/draft_model.h"
#include "model/tensor_plan.h"

namespace draftprobe::probe {

namespace {

Result<IdentityGroup> group_of(const std::vector<FileDigest>& digests) {
    DP_ASSIGN_OR_RETURN(std::string digest, group_digest(digests));
    IdentityGroup group;
    group.digest = std::move(digest);
    for (const FileDigest& file : digests) {
        group.files.push_back(file.sha256 + "  " + file.name);
        group.cached |= file.cached;
    }
    return group;
}

Result<IdentityGroup> identity_of(const std::filesystem::path& dir, const std::vector<std::string>& names,
                                  DigestCache* cache) {
    DP_ASSIGN_OR_RETURN(const std::vector<FileDigest> digests, digest_files(dir, names, cache));
    return group_of(digests);
}

// The draft's manifest, checked; the digests that the check took become its identity.
Status check_export(const Checkpoint& draft, const AssemblyOptions& options, DigestCache* cache, Assembly& assembly) {
    DP_ASSIGN_OR_RETURN(assembly.manifest, read_manifest(draft.dir()));
    if (!assembly.manifest) {
        if (!options.require_manifest) return {};
        return not_found(fmt::format(
            "{}: no {}, which --require-manifest asks for; use an export that has one, or leave the option out",
            draft.dir().string(), kManifestFileName));
    }
    const Result<std::vector<FileDigest>> digests =
        check_manifest_files(*assembly.manifest, draft.dir(), draft.files(), cache);
    if (!digests.ok()) {
        if (options.export_damaged != nullptr) *options.export_damaged = digests.status().code() == StatusCode::corrupt;
        return digests.status();
    }
    DP_ASSIGN_OR_RETURN(assembly.draft_identity, group_of(*digests));
    return {};
}

Status require_directory(const std::filesystem::path& dir, std::string_view what) {
    std::error_code error;
    if (std::filesystem::is_directory(dir, error)) return {};
    const bool exists = std::filesystem::exists(dir, error);
    const std::string message = fmt::format(
        "{} '{}': found {}, expected a checkpoint directory with config.json and "
        "model.safetensors; check the path",
        what, dir.string(), exists ? "something that is not a directory" : "nothing");
    return exists ? invalid_argument(message) : not_found(message);
}

}  // namespace

Result<Assembly> load_assembly(const std::filesystem::path& target_dir, const std::filesystem::path& draft_dir,
                               bool with_identity, const AssemblyOptions& options) {
    DigestCache digest_cache = DigestCache::open(default_digest_cache_file());
    DigestCache* const cache = options.use_digest_cache ? &digest_cache : nullptr;
    Assembly assembly;
    assembly.target_dir = target_dir;
    assembly.draft_dir = draft_dir;
    // Configurations first: a wrong pair is refused before weights are read.
    DP_RETURN_IF_ERROR(require_directory(target_dir, "--target"));
    DP_ASSIGN_OR_RETURN(const TargetConfig target_config, read_target_config(target_dir));
    std::optional<DraftConfig> draft_config;
    if (!draft_dir.empty()) {
        DP_RETURN_IF_ERROR(require_directory(draft_dir, "--draft"));
        DP_ASSIGN_OR_RETURN(draft_config, read_draft_config(draft_dir));
        DP_RETURN_IF_ERROR(model::check_pair(target_config, *draft_config));
    }
    DP_ASSIGN_OR_RETURN(const Checkpoint target, Checkpoint::open(target_dir));
    assembly.target_precision = target_precision(target);
    // Headers next: what is missing or misshapen is refused before gigabytes are read.
    const auto note_unread = [&assembly](const std::vector<std::string>& names) {
        assembly.unread.insert(assembly.unread.end(), names.begin(), names.end());
    };
    DP_ASSIGN_OR_RETURN(const auto target_plan, model::plan_target(target, target_config));
    note_unread(target_plan.unused);
    if (draft_config) {
        DP_ASSIGN_OR_RETURN(const Checkpoint draft, Checkpoint::open(draft_dir));
        // The export is checked before its weights are used: damaged ones need not be loadable.
        DP_RETURN_IF_ERROR(check_export(draft, options, cache, assembly));
        DP_ASSIGN_OR_RETURN(const auto draft_plan, model::plan_draft(draft, *draft_config));
        note_unread(draft_plan.unused);
        DP_ASSIGN_OR_RETURN(assembly.models.draft,
                            model::DraftModel::load(draft, *draft_config, options.draft_precision));
        if (with_identity && !assembly.manifest) {
            DP_ASSIGN_OR_RETURN(assembly.draft_identity, identity_of(draft_dir, draft.files(), cache));
        }
    }
    DP_ASSIGN_OR_RETURN(assembly.models.target, model::TargetModel::load(target, target_config));
    if (with_identity) {
        DP_ASSIGN_OR_RETURN(assembly.target_identity, identity_of(target_dir, target.files(), cache));
    }
    std::error_code error;
    if (std::filesystem::exists(target_dir / "tokenizer.json", error)) {
        DP_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::load(target_dir / "tokenizer.json"));
        if (tokenizer.vocab_size() > static_cast<std::size_t>(target_config.vocab)) {
            return mismatch(
                fmt::format("{}: tokenizer.json has ids up to {}, the target's vocabulary has {} rows; use the "
                            "tokenizer of this checkpoint",
                            target_dir.string(), tokenizer.vocab_size() - 1, target_config.vocab));
        }
        assembly.tokenizer = std::make_shared<const Tokenizer>(std::move(tokenizer));
        if (with_identity) {
            DP_ASSIGN_OR_RETURN(assembly.tokenizer_identity, identity_of(target_dir, {"tokenizer.json"}, cache));
        }
    }
    // A cache that cannot be written costs the next run some time, and this one nothing.
    if (cache != nullptr) static_cast<void>(cache->save());
    return assembly;
}

std::vector<std::string> assembly_notes(const Assembly& assembly, const TemplateIdentity& chat_template) {
    if (!assembly.manifest) return {};
    const auto spelled = [](const std::string& text) { return text.empty() ? std::string(kNoCondition) : text; };
    DraftConditions run;
    run.template_digest = spelled(chat_template.digest);
    run.thinking = spelled(chat_template.thinking);
    run.effort = spelled(chat_template.effort);
    run.target_precision = assembly.target_precision;
    std::string note = effectiveness_note(assembly.manifest->conditions, run);
    return note.empty() ? std::vector<std::string>() : std::vector<std::string>{std::move(note)};
}

}  // namespace draftprobe::probe
