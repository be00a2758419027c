#include "probe/probe.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "base/hash.h"
#include "capture/reader.h"
#include "decode/cycle_costs.h"
#include "instrument/injector.h"
#include "probe/arm_parts.h"
#include "probe/expected.h"
#include "probe/recorder.h"
#include "probe/suspend.h"
#include "state/snapshot.h"
#include "state/snapshot_file.h"

namespace draftprobe::probe {

using instrument::ObservedEngine;

namespace {

constexpr int kFreshLane = 0;
constexpr int kMovedLane = 1;            // where the restored arm goes on
constexpr std::size_t kCostRepeats = 5;  // measured cycles per width behind an adaptive budget's first costs

// The lane's earlier occupant: the prompt backwards, so that no row it leaves behind is the right one by accident
// (unless the prompt is the same both ways, which the ledger's shared-token count then shows).
std::vector<TokenId> occupant_prompt(const ProbeRequest& request) {
    if (!request.occupant.empty()) return request.occupant;
    return {request.prompt.rbegin(), request.prompt.rend()};
}

class ArmRun {
public:
    ArmRun(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings, Arm arm,
           ObservedEngine& engine, Recorder& recorder, state::StateIdentity identity,
           std::filesystem::path scratch_file)
        : assembly_(assembly),
          request_(request),
          settings_(settings),
          arm_(arm),
          engine_(engine),
          recorder_(recorder),
          faults_(settings.treatment.faults, engine, recorder),
          identity_(std::move(identity)),
          scratch_file_(std::move(scratch_file)) {}

    Status run() {
        engine_.observer().set_sink(nullptr);
        int lane = kFreshLane;
        const std::span<const TokenId> prompt(request_.prompt);
        if (arm_ == Arm::restored || faults_.has(instrument::FaultKind::cached_control)) {
            lane = restored_lane();
            if (lane != kFreshLane) DP_RETURN_IF_ERROR(dirty(lane));
            DP_RETURN_IF_ERROR(settings_.resume_from.empty() ? materialise_and_restore() : resume());
        } else if (arm_ == Arm::fresh || arm_ == Arm::repeat) {
            if (faults_.has(instrument::FaultKind::unreset_row)) DP_RETURN_IF_ERROR(dirty(kFreshLane));
            faults_.before_request(kFreshLane);
            DP_RETURN_IF_ERROR(materialise(kFreshLane));
        } else {
            begin(kFreshLane);
        }
        recorder_.set_phase(ForwardPhase::resume);
        const state::Lane& state = engine_.lane(lane);
        const Position stop = arm_ == Arm::natural ? 0 : request_.boundary;
        faults_.before_prefill(lane);
        DP_RETURN_IF_ERROR(
            prefill(lane, prompt.subspan(static_cast<std::size_t>(state.length)), stop, true, "prefill"));
        faults_.after_prefill(lane, request_.boundary);
        recorder_.ledger_event("prefill", state, "", prompt, occupant_);
        if (witnesses()) add_expected_rings(state, engine_.core(), recorder_.ledger.back());
        recorder_.count_rows(state);
        DP_RETURN_IF_ERROR(decode(lane));
        recorder_.ledger_event("end", state, "", prompt, occupant_);
        engine_.observer().set_sink(nullptr);
        if (!settings_.treatment.idle_faults) DP_RETURN_IF_ERROR(faults_.check_acted());
        return recorder_.status();
    }

    // Materialises and leaves the state in files, for another process to go on with: run() with resume_from.
    Status suspend(const std::filesystem::path& directory) {
        engine_.observer().set_sink(nullptr);
        DP_RETURN_IF_ERROR(materialise(kFreshLane));
        engine_.observer().set_sink(nullptr);
        DP_ASSIGN_OR_RETURN(const state::Snapshot snapshot, snapshot_lane());
        return write_suspended_state(directory, snapshot, base_ ? &*base_ : nullptr);
    }

    std::size_t retained() const { return retained_; }
    // S of the draft form `recompute`.
    std::optional<Position> recompute_start() const { return recompute_start_; }

private:
    // Whether the arm records what has to hold in it by itself.
    bool witnesses() const { return arm_ == Arm::restored && settings_.level >= 2; }

    // The draft of the engine, not the one that a fault put in its place.
    void witness_draft(int lane) {
        if (witnesses() && !settings_.script)
            recorder_.expect_draft_rows(expected_draft_rows(engine_.lane(lane), engine_.core()));
    }

    decode::Request request() const { return engine_request(assembly_, request_, settings_); }

    void begin(int lane) {
        engine_.begin_request(lane, request());
        engine_.observer().set_sink(&faults_);
    }

    // Prefill in visible steps: the engine's own chunks, one call each.
    Status prefill(int lane, std::span<const TokenId> tokens, Position stop, bool select_anchor,
                   std::string_view phase) {
        const std::size_t total = tokens.size();
        while (!tokens.empty()) {
            const std::size_t count = decode::next_chunk(engine_.lane(lane).length, tokens.size(),
                                                         engine_.core().settings().chunk_tokens, stop);
            const bool last = count == tokens.size();
            DP_RETURN_IF_ERROR(engine_.prefill(lane, tokens.first(count), stop, select_anchor && last));
            tokens = tokens.subspan(count);
            report(phase, total - tokens.size(), total);
        }
        return {};
    }

    Status materialise(int lane) {
        begin(lane);
        recorder_.set_phase(ForwardPhase::materialise);
        const std::span<const TokenId> prefix =
            std::span(request_.prompt).first(static_cast<std::size_t>(request_.boundary));
        const auto base = static_cast<std::size_t>(base_length());
        if (base > 0) {
            DP_RETURN_IF_ERROR(prefill(lane, prefix.first(base), request_.boundary, false, "materialise"));
            DP_ASSIGN_OR_RETURN(base_, state::take_snapshot(engine_.lane(lane), identity_));
        }
        DP_RETURN_IF_ERROR(prefill(lane, prefix.subspan(base), request_.boundary, false, "materialise"));
        recorder_.ledger_event("materialise", engine_.lane(lane), "", request_.prompt, occupant_);
        return {};
    }

    // Another request runs in the lane first, unobserved: prompt and two cycles.
    Status dirty(int lane) {
        occupant_ = occupant_prompt(request_);
        engine_.begin_request(lane, {{64, {}}});
        DP_RETURN_IF_ERROR(prefill(lane, occupant_, 0, true, "dirty the other lane"));
        decode::ModelDrafter drafter(*engine_.core().draft_forward());
        for (int cycle = 0; cycle < 2; ++cycle) {
            auto result = engine_.cycle({&lane, 1}, drafter, engine_.core().settings().block);
            if (!result.ok()) return result.status();
        }
        return {};
    }

    int restored_lane() const { return settings_.treatment.move ? kMovedLane : kFreshLane; }

    // Where the base of a recomputation is taken: at the end of a chunk, so that the schedule stays the control's.
    Position base_length() const {
        if (arm_ != Arm::restored || settings_.treatment.draft != state::DraftRestore::recompute) return 0;
        const auto chunk = static_cast<Position>(engine_.core().settings().chunk_tokens);
        const Position start = latest_recompute_start(request_.boundary, engine_.core().window()) / chunk * chunk;
        return start % kPageTokens == 0 ? start : 0;
    }

    Result<state::Snapshot> snapshot_lane() {
        const state::Lane& from = engine_.lane(kFreshLane);
        DP_ASSIGN_OR_RETURN(state::Snapshot snapshot, state::take_snapshot(from, identity_));
        recorder_.ledger_event("snapshot", from, state::tier_name(settings_.treatment.tier), request_.prompt, {});
        if (settings_.level >= 2)
            add_expected_restore(snapshot, settings_.treatment, engine_.core(), recorder_.ledger.back());
        recorder_.ledger_request(engine_.request_record(from.id()), from);
        const std::vector<TokenId> other(request_.prompt.rbegin(), request_.prompt.rend());
        DP_RETURN_IF_ERROR(faults_.at_snapshot(
            from.id(), std::span(request_.prompt).subspan(static_cast<std::size_t>(request_.boundary)), other,
            snapshot));
        // The ledger of a checkpoint lists what it holds.
        for (const state::Component lost : faults_.unsaved()) {
            if (recorder_.ledger.empty()) break;
            std::erase_if(recorder_.ledger.back().components, [lost](const LedgerComponent& component) {
                return component.component == state::component_name(lost);
            });
        }
        if (!settings_.snapshot_file.empty())
            DP_RETURN_IF_ERROR(
                state::write_snapshot(snapshot, settings_.snapshot_file, settings_.replace_snapshot_file));
        return snapshot;
    }

    Status materialise_and_restore() {
        DP_RETURN_IF_ERROR(materialise(kFreshLane));
        DP_ASSIGN_OR_RETURN(state::Snapshot snapshot, snapshot_lane());
        // A control that is served from a cache has the tier of no treatment.
        if (arm_ == Arm::restored && settings_.treatment.tier == state::Tier::disk) {
            DP_ASSIGN_OR_RETURN(snapshot, through_disk(snapshot, scratch_file_, false));
        }
        return restore(snapshot);
    }

    Status resume() {
        DP_ASSIGN_OR_RETURN(SuspendedArm suspended, read_suspended(settings_.resume_from));
        recorder_.ledger = std::move(suspended.header.ledger);
        recorder_.schedule = std::move(suspended.header.schedule);
        base_ = std::move(suspended.base);
        engine_.observer().set_sink(&faults_);
        return restore(suspended.snapshot);
    }

    Status restore(const state::Snapshot& snapshot) {
        state::Lane& to = engine_.lane(restored_lane());
        const std::vector<TokenId> occupant_tokens = to.tokens;
        faults_.before_request(to.id());
        DP_ASSIGN_OR_RETURN(const auto recomputed, restore_request(engine_, snapshot, identity_, settings_.treatment,
                                                                   to.id(), base_ ? &*base_ : nullptr));
        if (recomputed) record_scratch(*recomputed);
        DP_RETURN_IF_ERROR(faults_.after_restore(to.id(), assembly_.draft_dir));
        engine_.core().target_forward().set_keep_non_finite(settings_.sampling.greedy());
        engine_.set_request(to.id(), request());
        recorder_.ledger_event("restore", to, state::tier_name(settings_.treatment.tier), request_.prompt,
                               occupant_tokens);
        recorder_.ledger_request(engine_.request_record(to.id()), to);
        return {};
    }

    void record_scratch(const RecomputeCost& cost) {
        recompute_start_ = cost.start;
        for (const auto& call : cost.calls) {
            ForwardCall forward;
            forward.phase = ForwardPhase::scratch;
            forward.request = request_.key;
            forward.lane = engine_.core().lane_count();
            forward.start = call.start;
            forward.rows = static_cast<std::int64_t>(call.rows);
            forward.numerics_class = numerics::numerics_class_name(engine_.core().settings().numerics);
            recorder_.schedule.push_back(std::move(forward));
        }
    }

    Status decode(int lane) {
        decode::ModelDrafter model_drafter(*engine_.core().draft_forward());
        decode::ScriptedDrafter scripted(engine_.core().settings().block, settings_.script);
        decode::Drafter& healthy = settings_.script ? static_cast<decode::Drafter&>(scripted) : model_drafter;
        faults_.set_verify_rows(verify_rows());
        decode::Drafter& drafter = faults_.drafter(healthy);
        return settings_.lockstep ? decode_in_lockstep(lane, drafter, healthy) : decode_freely(lane, drafter, healthy);
    }

    Status decode_freely(int lane, decode::Drafter& drafter, decode::Drafter& healthy) {
        // The prompt's own continuation may be a stop token: then there is nothing to decode.
        const std::vector<TokenId>& stops = assembly_.models.target->config().eos_ids;
        if (std::find(stops.begin(), stops.end(), engine_.lane(lane).anchor) != stops.end()) return {};
        DP_RETURN_IF_ERROR(start_controller(lane, healthy));
        witness_draft(lane);
        for (std::size_t cycle = 0; cycle < request_.cycles; ++cycle) {
            auto result = engine_.cycle({&lane, 1}, drafter, verify_rows());
            if (!result.ok()) return result.status();
            retained_ += result.value()[0].retained;
            report("decode", cycle + 1, request_.cycles);
            DP_RETURN_IF_ERROR(recorder_.status());
            if (result.value()[0].finished || !recorder_.ended_early().empty()) break;
        }
        return {};
    }

    // The control's cycles, each committing its tokens. What this arm chose behind the prompt is in the ledger by now.
    Status decode_in_lockstep(int lane, decode::Drafter& drafter, decode::Drafter& healthy) {
        const ControlTokens& control = *settings_.lockstep;
        if (control.first_anchor() == nullptr) return {};
        engine_.lane(lane).anchor = *control.first_anchor();
        DP_RETURN_IF_ERROR(start_controller(lane, healthy));
        witness_draft(lane);
        for (std::size_t cycle = 0; cycle < control.cycles.size(); ++cycle) {
            const ControlCycle& tokens = control.cycles[cycle];
            const decode::ForcedCommit force{tokens.committed, tokens.next_anchor};
            auto result = engine_.step({}, {&lane, 1}, &drafter, verify_rows(), {&force, 1});
            if (!result.ok()) return result.status();
            retained_ += tokens.committed.size();
            report("decode", cycle + 1, control.cycles.size());
            DP_RETURN_IF_ERROR(recorder_.status());
            if (!recorder_.ended_early().empty()) break;
        }
        return {};
    }

    // Costs are those of the engine's own draft: what is measured is no cycle, in which a fault would act.
    Status start_controller(int lane, decode::Drafter& drafter) {
        if (settings_.budget != budget::BudgetKind::adaptive) return {};
        DP_ASSIGN_OR_RETURN(std::vector<double> costs,
                            decode::measure_cycle_costs(engine_.core(), {&lane, 1}, drafter, kCostRepeats));
        engine_.set_controller(lane,
                               budget::Controller::adaptive(engine_.core().settings().block, 1, std::move(costs)));
        return {};
    }

    std::size_t verify_rows() const {
        return settings_.verify_rows == 0 ? engine_.core().settings().block : settings_.verify_rows;
    }

    void report(std::string_view phase, std::size_t done, std::size_t total) const {
        if (settings_.progress) settings_.progress(phase, done, total);
    }

    const Assembly& assembly_;
    const ProbeRequest& request_;
    const ProbeSettings& settings_;
    Arm arm_;
    ObservedEngine& engine_;
    Recorder& recorder_;
    instrument::FaultInjector faults_;
    state::StateIdentity identity_;
    std::filesystem::path scratch_file_;   // of the disk tier
    std::optional<state::Snapshot> base_;  // exact, at base_length()
    std::optional<Position> recompute_start_;
    std::vector<TokenId> occupant_;
    std::size_t retained_ = 0;
};

// Tokens to commit may come from a file (probe/suspend.h).
Status check_lockstep(const ControlTokens& tokens, std::size_t vocab) {
    for (std::size_t cycle = 0; cycle < tokens.cycles.size(); ++cycle) {
        const ControlCycle& tokens_of = tokens.cycles[cycle];
        const auto outside = [vocab](TokenId id) { return id >= vocab; };
        const bool inside = !tokens_of.committed.empty() && !outside(tokens_of.next_anchor) &&
                            std::none_of(tokens_of.committed.begin(), tokens_of.committed.end(), outside);
        if (inside) continue;
        return invalid_argument(
            fmt::format("lockstep: cycle {} commits no token, or one outside the target's vocabulary of {} rows; "
                        "expected the tokens of a control of this target",
                        cycle, vocab));
    }
    return {};
}

Status check_settings(const ProbeSettings& settings, const Assembly& assembly) {
    const auto block = static_cast<std::size_t>(assembly.models.draft->config().block);
    if (settings.verify_rows > block) {
        return invalid_argument(fmt::format("verify rows: found {}, expected at most the draft's block of {}",
                                            settings.verify_rows, block));
    }
    if (settings.lockstep != nullptr && settings.level < 2) {
        return invalid_argument(
            fmt::format("lockstep at level {}: expected level 2 or 3, whose ledger says which token the arm itself "
                        "chose behind the prompt; give --level 2",
                        settings.level));
    }
    if (settings.lockstep != nullptr) {
        DP_RETURN_IF_ERROR(
            check_lockstep(*settings.lockstep, static_cast<std::size_t>(assembly.models.target->config().vocab)));
    }
    return {};
}

}  // namespace

std::size_t prompt_limit(const Assembly& assembly, std::size_t cycles, std::size_t block) {
    std::size_t positions = static_cast<std::size_t>(assembly.models.target->config().max_positions);
    if (assembly.models.draft != nullptr) {
        positions = std::min(positions, static_cast<std::size_t>(assembly.models.draft->config().max_positions));
    }
    const std::size_t decoded = (cycles + 1) * block;
    return positions > decoded ? positions - decoded : 0;
}

Status check_request(const Assembly& assembly, const ProbeRequest& request) {
    if (assembly.models.draft == nullptr)
        return invalid_argument("probe: no draft was given; name one with --draft DIR");
    if (request.prompt.empty()) {
        return invalid_argument("prompt: found 0 tokens, expected at least 1; give a prompt that is not empty");
    }
    const auto vocab = static_cast<std::size_t>(assembly.models.target->config().vocab);
    for (std::size_t i = 0; i < request.prompt.size(); ++i) {
        if (request.prompt[i] >= vocab) {
            return invalid_argument(
                fmt::format("prompt: token id {} at index {}, expected ids below the target's vocabulary of {} "
                            "rows; use ids of this target's tokenizer",
                            request.prompt[i], i, vocab));
        }
    }
    if (request.cycles == 0) return invalid_argument("--cycles: found 0, expected at least 1");
    const auto block = static_cast<std::size_t>(assembly.models.draft->config().block);
    const std::size_t limit = prompt_limit(assembly, request.cycles, block);
    if (request.prompt.size() > limit) {
        return exhausted(
            fmt::format("prompt: {} tokens, expected at most {} (max_position_embeddings less {} cycles of {} rows); "
                        "shorten the prompt or --cycles",
                        request.prompt.size(), limit, request.cycles + 1, block));
    }
    const auto length = static_cast<Position>(request.prompt.size());
    if (request.boundary < 0 || request.boundary % kPageTokens != 0 || request.boundary >= length) {
        return invalid_argument(
            fmt::format("prefix boundary: found {}, expected a multiple of {} from 0 on and below the prompt's {} "
                        "tokens; choose another --prefix-tokens",
                        request.boundary, kPageTokens, length));
    }
    return {};
}

namespace {

// A directory beside the capture that is never committed: gone when it is dropped or the program ends on a signal.
Result<AtomicDirectory> state_workspace(const std::filesystem::path& path) {
    const std::filesystem::path name = path.has_filename() ? path : path.parent_path();
    return AtomicDirectory::create(name.parent_path() / (name.filename().string() + ".state"), false);
}

Result<ArmResult> run_in_two_processes(const Assembly& assembly, const ProbeRequest& request,
                                       const ProbeSettings& settings, const std::filesystem::path& path, bool force) {
    if (!settings.resume_elsewhere) {
        return unsupported("tier process: this caller starts no process; expected memory or disk");
    }
    // The file must not be there already when the second process has done all the work.
    std::error_code error;
    if (!force && std::filesystem::exists(path, error)) {
        return invalid_argument(fmt::format("{}: found something there already, expected a new name", path.string()));
    }
    DP_ASSIGN_OR_RETURN(const AtomicDirectory workspace, state_workspace(path));
    ProbeSettings first = settings;
    first.suspend_to = workspace.path();
    first.level = std::min(settings.level, 2);  // no step, so no tensors
    DP_RETURN_IF_ERROR(
        run_arm(assembly, request, first, Arm::restored, suspended_capture(workspace.path()), false).status());
    if (settings.lockstep != nullptr) {
        DP_RETURN_IF_ERROR(write_suspended_tokens(workspace.path(), *settings.lockstep));
    }
    if (settings.treatment.idle_faults) DP_RETURN_IF_ERROR(write_suspended_idle_faults(workspace.path()));
    DP_RETURN_IF_ERROR(settings.resume_elsewhere(workspace.path(), path, force).with_context("tier process"));
    DP_ASSIGN_OR_RETURN(const CaptureReader reader, CaptureReader::open(path));
    ArmResult result;
    result.path = path;
    result.digest = reader.digest();
    result.cycles = static_cast<std::size_t>(reader.header().totals.lane_cycles);
    result.retained = static_cast<std::size_t>(reader.header().totals.retained);
    return result;
}

}  // namespace

Result<ArmResult> run_arm(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings, Arm arm,
                          const std::filesystem::path& path, bool force) {
    DP_RETURN_IF_ERROR(check_request(assembly, request));
    DP_RETURN_IF_ERROR(check_settings(settings, assembly));
    const bool restores = arm == Arm::restored;
    if (restores && settings.treatment.tier == state::Tier::process && settings.resume_from.empty() &&
        settings.suspend_to.empty()) {
        return run_in_two_processes(assembly, request, settings, path, force);
    }
    decode::EngineSettings engine_settings = settings.engine;
    engine_settings.lanes = std::max(engine_settings.lanes, 2);
    engine_settings.max_tokens = lane_positions(assembly, request);
    engine_settings.poison = true;

    DP_ASSIGN_OR_RETURN(CaptureWriter writer, CaptureWriter::create(path, force, capture_shape(assembly, settings)));
    DP_ASSIGN_OR_RETURN(auto core, decode::EngineCore::create(assembly.models, engine_settings));

    Recorder recorder(recorder_options(assembly, request, settings, arm, *core), writer);
    DP_RETURN_IF_ERROR(
        check_treatment_faults(settings.treatment, core->shape(), request.boundary, request.prompt.size()));
    ObservedEngine engine(std::move(core));

    std::optional<AtomicDirectory> workspace;
    if (restores && settings.treatment.tier == state::Tier::disk) {
        DP_ASSIGN_OR_RETURN(workspace, state_workspace(path));
    }
    ArmRun run(assembly, request, settings, arm, engine, recorder,
               state_identity(assembly, request.chat_template, settings),
               workspace ? workspace->file("boundary.snapshot") : std::filesystem::path());
    DP_RETURN_IF_ERROR(settings.suspend_to.empty() ? run.run() : run.suspend(settings.suspend_to));

    CaptureHeader header = arm_header(assembly, request, settings, arm, engine.core());
    if (restores) {
        header.treatment.recompute_start = run.recompute_start();
        header.treatment.lane_from = kFreshLane;
        header.treatment.lane_to = settings.treatment.move ? kMovedLane : kFreshLane;
    }
    if (!recorder.ended_early().empty()) header.notes.push_back(recorder.ended_early());
    header.ledger = std::move(recorder.ledger);
    header.schedule = std::move(recorder.schedule);
    header.totals.rows = std::move(recorder.rows);

    ArmResult result;
    result.path = path;
    result.cycles = recorder.cycles();
    result.retained = run.retained();
    result.ended_early = recorder.ended_early();
    DP_ASSIGN_OR_RETURN(result.digest, writer.finish(std::move(header)));
    return result;
}

}  // namespace draftprobe::probe
