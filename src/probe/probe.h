// One probe: the same request in two (or more) arms, each recorded as a capture.
//
//   fresh          materialise [0, B), go on in place: the control
//   restored       another lane is dirtied by another request; materialise [0, B), snapshot, restore into that lane, go
//   on there repeat         fresh again uninterrupted  the same chunk cuts, no stop at B natural        natural
//   chunking, no cut at B
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "budget/controller.h"
#include "decode/sampling.h"
#include "probe/assembly.h"
#include "probe/lockstep.h"
#include "probe/restore.h"

namespace draftprobe::probe {

struct ProbeRequest {
    std::string key = "r0";
    std::vector<TokenId> prompt;     // P ids
    Position boundary = 0;           // B: page-aligned, 0 <= B < P; 0: the restore has nothing to restore
    std::size_t cycles = 0;          // decode cycles, at least 1; fewer are run when a stop token ends the request
    TemplateIdentity chat_template;  // empty unless the prompt is a rendered chat; part of the snapshot's namespace
    // Prompt of the request that leaves the restored arm's lane dirty; empty: this prompt backwards.
    std::vector<TokenId> occupant;
};

struct ProbeSettings {
    decode::EngineSettings engine;  // max_tokens is set by the probe
    int level = 3;
    std::size_t digest_every = 0;
    decode::SamplingSettings sampling;
    budget::BudgetKind budget = budget::BudgetKind::full;
    std::shared_ptr<const budget::Seed> seed;  // set exactly for a frozen budget
    std::size_t verify_rows = 0;               // most rows of a verification, anchor included; 0: the draft's block
    // Set: every cycle commits what the control committed there, and there are as many cycles as it had. For the
    // control itself it is not set. Needs level 2, whose ledger says what the arm chose behind the prompt.
    std::shared_ptr<const ControlTokens> lockstep;
    RestoreTreatment treatment;              // of the restored arm; faults also of a computing one that takes them
    decode::ScriptedDrafter::Script script;  // proposes in the draft's place, which then needs level 2 or below
    std::filesystem::path snapshot_file;     // where the restored arm also keeps its snapshot; empty: nowhere
    bool replace_snapshot_file = false;      // whether one that is there goes
    // The tier `process`: runs the rest of the arm that was suspended in `directory` in a new process, which writes the
    // capture at `path`. Required for that tier.
    std::function<Status(const std::filesystem::path& directory, const std::filesystem::path& path, bool force)>
        resume_elsewhere;
    // The two halves of such an arm, see probe/suspend.h: where the first leaves its state, where the second finds it.
    std::filesystem::path suspend_to;
    std::filesystem::path resume_from;
    std::string build_digest;         // 64 hex digits
    std::optional<NearTie> near_tie;  // recorded by computing arms (probe/near_tie.h)
    // Called while work goes on: what is being done, how much of how much. May be empty.
    std::function<void(std::string_view phase, std::size_t done, std::size_t total)> progress;
};

struct ArmResult {
    std::filesystem::path path;
    std::string digest;  // capture digest
    std::size_t cycles = 0;
    std::size_t retained = 0;
    std::string ended_early;  // why a restored arm stopped at rows that are not finite; empty when it did not
};

// Largest P accepted for a model pair: what position embeddings and the context allow.
std::size_t prompt_limit(const Assembly& assembly, std::size_t cycles, std::size_t block);

// Checks request and settings against the models before anything is written. Errors: invalid_argument (empty prompt,
// ids outside the vocabulary, boundary negative, unaligned or not below P, no draft), exhausted (prompt too long).
Status check_request(const Assembly& assembly, const ProbeRequest& request);

// Runs one arm and writes its capture directory at `path` (appears complete or not at all). Errors: as check_request;
// those of the engine; invalid_argument when `path` exists and force is false.
Result<ArmResult> run_arm(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings, Arm arm,
                          const std::filesystem::path& path, bool force);

}  // namespace draftprobe::probe
