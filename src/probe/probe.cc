#include "probe/probe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/hash.h"
#include "decode/cycle_costs.h"
#include "probe/recorder.h"
#include "state/snapshot.h"

namespace draftprobe::probe {

using instrument::ObservedEngine;

namespace {

constexpr int kFreshLane = 0;
constexpr int kMovedLane = 1;            // where the restored arm goes on
constexpr std::size_t kCostRepeats = 5;  // measured cycles per width behind an adaptive budget's first costs

std::vector<Setting> effective_settings(const Assembly& assembly, const ProbeSettings& settings) {
    const decode::EngineSettings& engine = settings.engine;
    const TargetConfig& target = assembly.models.target->config();
    const DraftConfig& draft = assembly.models.draft->config();
    std::vector<Setting> effective;
    const auto add = [&effective](std::string field, std::string value) {
        effective.push_back({std::move(field), std::move(value)});
    };
    add("numerics", std::string(numerics::numerics_class_name(engine.numerics)));
    add("kv_format", std::string(state::kv_format_name(engine.kv_format)));
    add("row_format", std::string(state::row_format_name(engine.row_format)));
    add("budget", std::string(budget::budget_kind_name(settings.budget)));
    add("sampling", decode::sampling_text(settings.sampling));
    add("draft.block", fmt::format("{}", draft.block));
    add("draft.window", fmt::format("{}", assembly.models.draft->window()));
    add("draft.taps", fmt::format("{}", fmt::join(draft.taps, ",")));
    add("draft.mask_token", fmt::format("{}", draft.mask_token));
    add("draft.selector_top_k", fmt::format("{}", draft.selector ? draft.selector->top_k : 0));
    add("draft.precision", assembly.models.draft->precision() == model::DraftPrecision::affine4 ? "affine4" : "stored");
    add("chunk_tokens", fmt::format("{}", engine.chunk_tokens));
    add("stop_tokens", fmt::format("{}", fmt::join(target.eos_ids, ",")));
    return effective;
}

// The namespace of a snapshot: every identity group and setting that reaches its bytes, and the chat template, so that
// state of one mode is never taken for another's. The prompt is not in it: a prefix may serve many.
state::StateIdentity state_identity(const Assembly& assembly, const TemplateIdentity& chat,
                                    const std::vector<Setting>& settings) {
    state::StateIdentity identity{assembly.target_identity.digest, assembly.draft_identity.digest,
                                  assembly.tokenizer_identity.digest, chat.digest, chat.thinking, chat.effort, {}};
    for (const Setting& setting : settings) identity.settings.emplace_back(setting.field, setting.value);
    return identity;
}

// The lane's earlier occupant: the prompt backwards, so that no row it leaves behind is the right one by accident
// (unless the prompt is the same both ways, which the ledger's shared-token count then shows).
std::vector<TokenId> occupant_prompt(const ProbeRequest& request) {
    return {request.prompt.rbegin(), request.prompt.rend()};
}

// Requests draw different numbers under one seed; the same request draws the same in every arm.
std::uint64_t request_number(const std::string& key) { return xxh3_64(std::as_bytes(std::span(key))); }

class ArmRun {
public:
    ArmRun(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings, Arm arm,
           ObservedEngine& engine, Recorder& recorder, state::StateIdentity identity)
        : assembly_(assembly),
          request_(request),
          settings_(settings),
          arm_(arm),
          engine_(engine),
          recorder_(recorder),
          identity_(std::move(identity)) {}

    Status run() {
        engine_.observer().set_sink(nullptr);
        int lane = kFreshLane;
        const std::span<const TokenId> prompt(request_.prompt);
        switch (arm_) {
            case Arm::fresh:
            case Arm::repeat: DP_RETURN_IF_ERROR(materialise(kFreshLane)); break;
            case Arm::restored: {
                lane = restored_lane();
                if (lane != kFreshLane) DP_RETURN_IF_ERROR(dirty(lane));
                DP_RETURN_IF_ERROR(materialise(kFreshLane));
                DP_RETURN_IF_ERROR(restore());
                break;
            }
            case Arm::uninterrupted:
            case Arm::natural: begin(kFreshLane); break;
        }
        recorder_.set_phase(ForwardPhase::resume);
        const state::Lane& state = engine_.lane(lane);
        const Position stop = arm_ == Arm::natural ? 0 : request_.boundary;
        DP_RETURN_IF_ERROR(
            prefill(lane, prompt.subspan(static_cast<std::size_t>(state.length)), stop, true, "prefill"));
        recorder_.ledger_event("prefill", state, "", prompt, occupant_);
        recorder_.count_rows(state);
        DP_RETURN_IF_ERROR(settings_.lockstep ? decode_in_lockstep(lane) : decode(lane));
        recorder_.ledger_event("end", state, "", prompt, occupant_);
        engine_.observer().set_sink(nullptr);
        return recorder_.status();
    }

    std::size_t retained() const { return retained_; }

private:
    decode::Request request() const {
        decode::Request request;
        // Cycles bound the run; the limit only has to be out of their way.
        request.limits = {request_.cycles * engine_.core().settings().block + 2,
                          assembly_.models.target->config().eos_ids};
        request.sampling = {settings_.sampling, request_number(request_.key)};
        if (settings_.budget == budget::BudgetKind::frozen)
            request.controller = budget::Controller::frozen(settings_.seed);
        return request;
    }

    void begin(int lane) {
        engine_.begin_request(lane, request());
        engine_.observer().set_sink(&recorder_);
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
        DP_RETURN_IF_ERROR(prefill(lane, prefix, request_.boundary, false, "materialise"));
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

    Status restore() {
        const state::Lane& from = engine_.lane(kFreshLane);
        state::Lane& to = engine_.lane(restored_lane());
        DP_ASSIGN_OR_RETURN(const state::Snapshot snapshot, state::take_snapshot(from, identity_));
        recorder_.ledger_event("snapshot", from, state::tier_name(settings_.treatment.tier), request_.prompt, {});
        const std::vector<TokenId> occupant_tokens = to.tokens;
        DP_RETURN_IF_ERROR(restore_request(engine_, snapshot, identity_, settings_.treatment, to.id()).status());
        engine_.set_request(to.id(), request());
        recorder_.ledger_event("restore", to, state::tier_name(settings_.treatment.tier), request_.prompt,
                               occupant_tokens);
        return {};
    }

    Status decode(int lane) {
        // The prompt's own continuation may be a stop token: then there is nothing to decode.
        const std::vector<TokenId>& stops = assembly_.models.target->config().eos_ids;
        if (std::find(stops.begin(), stops.end(), engine_.lane(lane).anchor) != stops.end()) return {};
        decode::ModelDrafter drafter(*engine_.core().draft_forward());
        DP_RETURN_IF_ERROR(start_controller(lane, drafter));
        for (std::size_t cycle = 0; cycle < request_.cycles; ++cycle) {
            auto result = engine_.cycle({&lane, 1}, drafter, verify_rows());
            if (!result.ok()) return result.status();
            retained_ += result.value()[0].retained;
            report("decode", cycle + 1, request_.cycles);
            DP_RETURN_IF_ERROR(recorder_.status());
            if (result.value()[0].finished) break;
        }
        return {};
    }

    // The control's cycles, each committing its tokens. What this arm chose behind the prompt is in the ledger by now.
    Status decode_in_lockstep(int lane) {
        const ControlTokens& control = *settings_.lockstep;
        if (control.first_anchor() == nullptr) return {};
        engine_.lane(lane).anchor = *control.first_anchor();
        decode::ModelDrafter drafter(*engine_.core().draft_forward());
        DP_RETURN_IF_ERROR(start_controller(lane, drafter));
        for (std::size_t cycle = 0; cycle < control.cycles.size(); ++cycle) {
            const ControlCycle& tokens = control.cycles[cycle];
            const decode::ForcedCommit force{tokens.committed, tokens.next_anchor};
            auto result = engine_.step({}, {&lane, 1}, &drafter, verify_rows(), {&force, 1});
            if (!result.ok()) return result.status();
            retained_ += tokens.committed.size();
            report("decode", cycle + 1, control.cycles.size());
            DP_RETURN_IF_ERROR(recorder_.status());
        }
        return {};
    }

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
    state::StateIdentity identity_;
    std::vector<TokenId> occupant_;
    std::size_t retained_ = 0;
};

Status check_settings(const ProbeSettings& settings, std::size_t block) {
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
    if (request.boundary <= 0 || request.boundary % kPageTokens != 0 || request.boundary >= length) {
        return invalid_argument(
            fmt::format("prefix boundary: found {}, expected a multiple of {} above 0 and below the prompt's {} "
                        "tokens; choose another --prefix-tokens",
                        request.boundary, kPageTokens, length));
    }
    return {};
}

Result<ArmResult> run_arm(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings, Arm arm,
                          const std::filesystem::path& path, bool force) {
    DP_RETURN_IF_ERROR(check_request(assembly, request));
    const DraftConfig& draft = assembly.models.draft->config();
    DP_RETURN_IF_ERROR(check_settings(settings, static_cast<std::size_t>(draft.block)));
    decode::EngineSettings engine_settings = settings.engine;
    engine_settings.lanes = std::max(engine_settings.lanes, 2);
    engine_settings.max_tokens = request.prompt.size() + (request.cycles + 3) * static_cast<std::size_t>(draft.block);
    engine_settings.poison = true;

    CaptureShape shape;
    shape.level = settings.level;
    shape.block = draft.block;
    shape.candidates = draft.candidates();
    shape.hidden = settings.level >= 3 ? draft.hidden : 0;
    DP_ASSIGN_OR_RETURN(CaptureWriter writer, CaptureWriter::create(path, force, shape));
    DP_ASSIGN_OR_RETURN(auto core, decode::EngineCore::create(assembly.models, engine_settings));

    RecorderOptions options;
    options.level = settings.level;
    options.digest_every = settings.digest_every;
    options.window = core->window();
    options.boundary = request.boundary;
    options.request = request.key;
    options.tokenizer_digest = assembly.tokenizer_identity.digest;
    options.require_finite_draft = arm != Arm::restored;
    options.numerics_class = numerics::numerics_class_name(engine_settings.numerics);
    Recorder recorder(options, writer);
    const std::size_t window = core->window();
    ObservedEngine engine(std::move(core));

    CaptureHeader header;
    header.settings = effective_settings(assembly, settings);
    ArmRun run(assembly, request, settings, arm, engine, recorder,
               state_identity(assembly, request.chat_template, header.settings));
    // How long and how wide an arm decodes reaches no byte of its state, but such arms are not comparable.
    header.settings.push_back({"cycles", fmt::format("{}", request.cycles)});
    header.settings.push_back(
        {"verify_rows",
         fmt::format("{}", settings.verify_rows == 0 ? static_cast<std::size_t>(draft.block) : settings.verify_rows)});
    DP_RETURN_IF_ERROR(run.run());

    header.level = settings.level;
    header.identity.target = assembly.target_identity;
    header.identity.draft = assembly.draft_identity;
    header.identity.tokenizer = assembly.tokenizer_identity;
    header.identity.chat_template = request.chat_template;
    if (settings.seed) header.identity.budget_seed.digest = settings.seed->digest;
    header.timing_confounded = settings.budget == budget::BudgetKind::adaptive;
    header.identity.build.digest = settings.build_digest;
    header.notes = assembly_notes(assembly, request.chat_template);
    header.environment = {{"isa", std::string(numerics::isa_name(engine_settings.isa))},
                          {"threads", fmt::format("{}", engine_settings.threads)},
                          {"lanes", fmt::format("{}", engine_settings.lanes)},
                          {"device", "cpu"}};
    header.arm = arm;
    if (arm == Arm::restored) {
        header.treatment.restore_target = state::target_restore_name(settings.treatment.target);
        header.treatment.restore_draft = state::draft_restore_name(settings.treatment.draft);
        header.treatment.tier = state::tier_name(settings.treatment.tier);
        header.treatment.lane_from = kFreshLane;
        header.treatment.lane_to = settings.treatment.move ? kMovedLane : kFreshLane;
        for (const instrument::Fault& fault : settings.treatment.faults)
            header.treatment.faults.push_back(fault.spelling);
    }
    header.treatment.lockstep = settings.lockstep != nullptr;
    CapturedRequest captured;
    captured.key = request.key;
    captured.prompt_ids.assign(request.prompt.begin(), request.prompt.end());
    captured.prompt_length = static_cast<Position>(request.prompt.size());
    captured.boundary = request.boundary;
    captured.window = static_cast<Position>(assembly.models.draft->window() == 0 ? 0 : window);
    header.requests.push_back(std::move(captured));
    header.ledger = std::move(recorder.ledger);
    header.schedule = std::move(recorder.schedule);
    header.totals.rows = std::move(recorder.rows);
    header.block = shape.block;
    header.candidates = shape.candidates;
    header.hidden = shape.hidden;

    ArmResult result;
    result.path = path;
    result.cycles = recorder.cycles();
    result.retained = run.retained();
    DP_ASSIGN_OR_RETURN(result.digest, writer.finish(std::move(header)));
    return result;
}

}  // namespace draftprobe::probe
