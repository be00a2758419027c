#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/json_writer.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "cli/engine_options.h"
#include "cli/models.h"
#include "cli/prompt.h"
#include "decode/batch.h"
#include "decode/cycle_costs.h"

namespace draftprobe::cli {

namespace {

using Clock = std::chrono::steady_clock;

// Measured cycles per width behind an adaptive budget's first costs.
constexpr std::size_t kCostRepeats = 5;

struct Generated {
    decode::BatchResult result;
    double prefill_seconds = 0;
    double decode_seconds = 0;

    double mean_retained() const {
        return result.cycles == 0 ? 0.0 : static_cast<double>(result.retained) / static_cast<double>(result.cycles);
    }
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Status check_length(const probe::Assembly& assembly, std::size_t prompt, std::size_t max_tokens, std::size_t block) {
    std::int64_t positions = assembly.models.target->config().max_positions;
    if (assembly.models.draft != nullptr)
        positions = std::min(positions, assembly.models.draft->config().max_positions);
    if (prompt + max_tokens + block <= static_cast<std::size_t>(positions)) return {};
    return exhausted(fmt::format(
        "prompt: {} tokens and --max-tokens {} with {} rows a cycle, expected at most {} positions together "
        "(max_position_embeddings); shorten the prompt or --max-tokens",
        prompt, max_tokens, block, positions));
}

// Without a draft nothing is proposed, and a cycle is a plain decoding step.
std::unique_ptr<decode::Drafter> make_drafter(decode::EngineCore& core) {
    if (core.draft_forward() != nullptr) return std::make_unique<decode::ModelDrafter>(*core.draft_forward());
    return std::make_unique<decode::ScriptedDrafter>(1, [](const state::Lane&, std::size_t) { return TokenId{0}; });
}

Result<Generated> generate(decode::ProductionEngine& engine, const std::vector<TokenId>& prompt,
                           const decode::Request& request, Console& console) {
    const std::unique_ptr<decode::Drafter> drafter = make_drafter(engine.core());
    Generated generated;
    const Clock::time_point start = Clock::now();
    const auto on_step = [&](const decode::BatchProgress& progress) {
        if (progress.emitted <= 1) {
            generated.prefill_seconds = seconds_since(start);
            console.progress("generate", "prefill", progress.prefilled, prompt.size());
        } else {
            console.progress("generate", "decode", progress.emitted, request.limits.max_new_tokens);
        }
    };
    const decode::BatchRequest batch{prompt, request};
    DP_ASSIGN_OR_RETURN(std::vector<decode::BatchResult> results,
                        decode::run_batch(engine, {&batch, 1}, *drafter, on_step));
    generated.result = std::move(results.front());
    generated.decode_seconds = seconds_since(start) - generated.prefill_seconds;
    console.clear_progress();
    return generated;
}

// An adaptive budget needs to know what a cycle costs before its first one.
Result<std::optional<budget::Controller>> make_controller(const BudgetChoice& choice, decode::EngineCore& core) {
    std::optional<budget::Controller> controller;
    if (choice.kind == budget::BudgetKind::frozen) controller = budget::Controller::frozen(choice.seed);
    if (choice.kind == budget::BudgetKind::adaptive) {
        const int lane = 0;
        core.lane(lane).has_anchor = true;
        const std::unique_ptr<decode::Drafter> drafter = make_drafter(core);
        DP_ASSIGN_OR_RETURN(std::vector<double> costs,
                            decode::measure_cycle_costs(core, {&lane, 1}, *drafter, kCostRepeats));
        core.lane(lane).has_anchor = false;
        controller = budget::Controller::adaptive(core.settings().block, 1, std::move(costs));
    }
    return controller;
}

std::string joined(std::span<const TokenId> ids) {
    std::string out;
    for (const TokenId id : ids) out += fmt::format("{}{}", out.empty() ? "" : " ", id);
    return out;
}

std::string generated_json(const Generated& generated, const std::string* text, std::size_t prompt, bool drafted,
                           const decode::EngineSettings& settings) {
    const decode::BatchResult& result = generated.result;
    JsonWriter json;
    json.begin_object();
    if (text != nullptr) json.member("text", *text);
    json.key("ids").begin_array();
    for (const TokenId id : result.tokens) json.value(id);
    json.end_array()
        .member("prompt_tokens", prompt)
        .member("tokens", result.tokens.size())
        .member("stopped", result.stopped)
        .member("speculative", drafted)
        .member("cycles", result.cycles)
        .member("verified", result.verified);
    json.key("mean_retained").value_rounded(generated.mean_retained());
    json.member("numerics", numerics::numerics_class_name(settings.numerics))
        .member("kv_format", state::kv_format_name(settings.kv_format))
        .member("isa", numerics::isa_name(settings.isa))
        .member("threads", settings.threads);
    json.key("prefill_seconds").value_rounded(generated.prefill_seconds);
    json.key("decode_seconds").value_rounded(generated.decode_seconds);
    return json.end_object().take() + "\n";
}

Result<int> run_generate(const Arguments& arguments, Console& console) {
    DP_ASSIGN_OR_RETURN(const PromptFile file, read_prompt_file(arguments));
    DP_ASSIGN_OR_RETURN(const probe::Assembly assembly, load_models(arguments, false, console));
    for (const std::string& note : probe::assembly_notes(assembly, {})) console.warning(note);
    DP_ASSIGN_OR_RETURN(decode::EngineSettings settings,
                        engine_settings(arguments, assembly.models.target->config(), console));
    DP_ASSIGN_OR_RETURN(const std::vector<TokenId> prompt, prompt_tokens(file, assembly, console));
    const auto max_tokens = static_cast<std::size_t>(*arguments.number("max-tokens"));
    const bool drafted = assembly.models.draft != nullptr;
    DP_ASSIGN_OR_RETURN(const decode::SamplingSettings sampling, sampling_settings(arguments));
    settings.block = drafted ? static_cast<std::size_t>(assembly.models.draft->config().block) : 1;
    DP_ASSIGN_OR_RETURN(const BudgetChoice budget, budget_choice(arguments, settings.block));
    DP_RETURN_IF_ERROR(check_length(assembly, prompt.size(), max_tokens, settings.block));
    settings.max_tokens = prompt.size() + max_tokens + settings.block;
    DP_ASSIGN_OR_RETURN(auto core, decode::EngineCore::create(assembly.models, settings));
    decode::ProductionEngine engine(std::move(core));
    decode::Request request;
    request.limits = {max_tokens, assembly.models.target->config().eos_ids};
    request.sampling.settings = sampling;
    DP_ASSIGN_OR_RETURN(request.controller, make_controller(budget, engine.core()));
    DP_ASSIGN_OR_RETURN(const Generated generated, generate(engine, prompt, request, console));
    const decode::BatchResult& result = generated.result;

    std::string text;
    if (assembly.tokenizer != nullptr) {
        text =
            assembly.tokenizer->decode(std::span(result.tokens).first(result.tokens.size() - (result.stopped ? 1 : 0)));
    }
    if (arguments.given("json")) {
        console.out(generated_json(generated, assembly.tokenizer != nullptr ? &text : nullptr, prompt.size(), drafted,
                                   settings));
    } else {
        console.out((assembly.tokenizer != nullptr ? text : joined(result.tokens)) + "\n");
    }
    const double rate =
        generated.decode_seconds > 0 ? static_cast<double>(result.tokens.size() - 1) / generated.decode_seconds : 0.0;
    console.note(fmt::format("generate: {}", engine_text(arguments, settings)));
    console.note(fmt::format(
        "generate: {} new tokens{} after {} prompt tokens, {} {}, {:.3f} tokens retained a cycle; prefill {:.3f} s, "
        "decode {:.3f} s, {:.1f} tokens/s",
        result.tokens.size(), result.stopped ? ", ended by a stop token," : "", prompt.size(), result.cycles,
        drafted ? "cycles" : "plain steps", generated.mean_retained(), generated.prefill_seconds,
        generated.decode_seconds, rate));
    return kExitDone;
}

}  // namespace

const Command kGenerateCommand = {
    .bit = kGenerate,
    .name = "generate",
    .brief = "continue a prompt with the production engine",
    .description =
        "Prints the continuation on standard output, as text when the target has a tokenizer.json, else as ids, "
        "followed by "
        "one line feed. With --draft it decodes speculatively, which gives the same tokens. The stop token is not part "
        "of the text. "
        "With --temperature the continuation is sampled, from the target's distribution whether drafted or not. "
        "A summary goes to standard error.",
    .exit_status = "0 done\n2 usage error, or could not run\n5 the draft is not what its selection.json lists",
    .examples =
        "draftprobe generate --target T --prompt main.c\n"
        "draftprobe generate --target T --draft D --prompt main.c --max-tokens 256\n"
        "draftprobe generate --target T --draft D --chat chat.json --thinking off",
    .run = run_generate,
};

}  // namespace draftprobe::cli
