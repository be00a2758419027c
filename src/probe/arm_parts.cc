#include "probe/arm_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hash.h"

namespace draftprobe::probe {

namespace {

// Requests draw different numbers under one seed; the same request draws the same in every arm.
std::uint64_t request_number(const std::string& key) { return xxh3_64(std::as_bytes(std::span(key))); }

}  // namespace

std::vector<Setting> state_settings(const Assembly& assembly, const ProbeSettings& settings) {
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
    add("draft.rope_theta", fmt::format("{}", draft.rope_theta));
    add("draft.precision", assembly.models.draft->precision() == model::DraftPrecision::affine4 ? "affine4" : "stored");
    add("chunk_tokens", fmt::format("{}", engine.chunk_tokens));
    add("stop_tokens", fmt::format("{}", fmt::join(target.eos_ids, ",")));
    return effective;
}

state::StateIdentity state_identity(const Assembly& assembly, const TemplateIdentity& chat,
                                    const ProbeSettings& settings) {
    state::StateIdentity identity{assembly.target_identity.digest,
                                  assembly.draft_identity.digest,
                                  assembly.tokenizer_identity.digest,
                                  chat.digest,
                                  chat.thinking,
                                  chat.effort,
                                  {}};
    for (const Setting& setting : state_settings(assembly, settings))
        identity.settings.emplace_back(setting.field, setting.value);
    return identity;
}

decode::Request engine_request(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings) {
    const auto block = static_cast<std::size_t>(assembly.models.draft->config().block);
    decode::Request engine;
    // Cycles bound the run; the limit only has to be out of their way.
    engine.limits = {request.cycles * block + 2, assembly.models.target->config().eos_ids};
    engine.sampling = {settings.sampling, request_number(request.key)};
    if (settings.budget == budget::BudgetKind::frozen) engine.controller = budget::Controller::frozen(settings.seed);
    return engine;
}

std::size_t lane_positions(const Assembly& assembly, const ProbeRequest& request) {
    return request.prompt.size() +
           (request.cycles + 3) * static_cast<std::size_t>(assembly.models.draft->config().block);
}

std::vector<instrument::Fault> faults_of(const RestoreTreatment& treatment, Arm arm) {
    std::vector<instrument::Fault> faults;
    for (const instrument::Fault& fault : treatment.faults) {
        const bool of_control = instrument::spoils_computing_arm(fault.kind);
        if (of_control ? arm == Arm::fresh : arm == Arm::restored) faults.push_back(fault);
    }
    return faults;
}

CaptureShape capture_shape(const Assembly& assembly, const ProbeSettings& settings) {
    const DraftConfig& draft = assembly.models.draft->config();
    CaptureShape shape;
    shape.level = settings.level;
    shape.block = draft.block;
    shape.candidates = draft.candidates();
    shape.hidden = settings.level >= 3 ? draft.hidden : 0;
    return shape;
}

RecorderOptions recorder_options(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings,
                                 Arm arm, const decode::EngineCore& core) {
    RecorderOptions options;
    options.level = settings.level;
    options.digest_every = settings.digest_every;
    options.window = core.window();
    options.block = static_cast<std::size_t>(assembly.models.draft->config().block);
    options.boundary = request.boundary;
    options.request = request.key;
    options.tokenizer_digest = assembly.tokenizer_identity.digest;
    options.require_finite = arm != Arm::restored;
    options.witness = arm == Arm::restored && settings.level >= 2;
    options.numerics_class = numerics::numerics_class_name(settings.engine.numerics);
    return options;
}

CaptureHeader arm_header(const Assembly& assembly, const ProbeRequest& request, const ProbeSettings& settings, Arm arm,
                         const decode::EngineCore& core) {
    const CaptureShape shape = capture_shape(assembly, settings);
    const decode::EngineSettings& engine = core.settings();
    CaptureHeader header;
    header.settings = state_settings(assembly, settings);
    // How long and how wide an arm decodes reaches no byte of its state, but such arms are not comparable.
    header.settings.push_back({"cycles", fmt::format("{}", request.cycles)});
    header.settings.push_back(
        {"verify_width", settings.verify_rows == 0 ? "all" : fmt::format("{}", settings.verify_rows)});
    header.level = settings.level;
    header.identity.target = assembly.target_identity;
    header.identity.draft = assembly.draft_identity;
    header.identity.tokenizer = assembly.tokenizer_identity;
    header.identity.chat_template = request.chat_template;
    if (settings.seed) header.identity.budget_seed.digest = settings.seed->digest;
    header.timing_confounded = settings.budget == budget::BudgetKind::adaptive;
    header.identity.build.digest = settings.build_digest;
    header.notes = assembly_notes(assembly, request.chat_template);
    header.environment = {{"isa", std::string(numerics::isa_name(engine.isa))},
                          {"threads", fmt::format("{}", engine.threads)},
                          {"lanes", fmt::format("{}", engine.lanes)},
                          {"device", "cpu"}};
    header.arm = arm;
    if (arm == Arm::restored) {
        header.treatment.restore_target = state::target_restore_name(settings.treatment.target);
        header.treatment.restore_draft = state::draft_restore_name(settings.treatment.draft);
        header.treatment.tier = state::tier_name(settings.treatment.tier);
    } else {
        header.near_tie = settings.near_tie;
    }
    for (const instrument::Fault& fault : settings.treatment.faults) header.treatment.faults.push_back(fault.spelling);
    header.treatment.lockstep = settings.lockstep != nullptr;
    CapturedRequest captured;
    captured.key = request.key;
    captured.prompt_ids.assign(request.prompt.begin(), request.prompt.end());
    captured.prompt_length = static_cast<Position>(request.prompt.size());
    captured.boundary = request.boundary;
    captured.window = static_cast<Position>(assembly.models.draft->window() == 0 ? 0 : core.window());
    header.requests.push_back(std::move(captured));
    header.block = shape.block;
    header.candidates = shape.candidates;
    header.hidden = shape.hidden;
    return header;
}

}  // namespace draftprobe::probe
