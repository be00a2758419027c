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

struct Prompt {
    std::string path;
    std::vector<TokenId> tokens;
};

struct Generated {
    std::vector<decode::BatchResult> results;  // one per prompt
    double seconds = 0;                        // all of it
    double prefill_seconds = 0;                // until the first token came out
    double decode_seconds() const { return seconds - prefill_seconds; }
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double mean_retained(const decode::BatchResult& result) {
    return result.cycles == 0 ? 0.0 : static_cast<double>(result.retained) / static_cast<double>(result.cycles);
}

Status check_length(const probe::Assembly& assembly, const Prompt& prompt, std::size_t max_tokens, std::size_t block) {
    std::int64_t positions = assembly.models.target->config().max_positions;
    if (assembly.models.draft != nullptr)
        positions = std::min(positions, assembly.models.draft->config().max_positions);
    if (prompt.tokens.size() + max_tokens + block <= static_cast<std::size_t>(positions)) return {};
    return exhausted(fmt::format(
        "prompt: {}: {} tokens and --max-tokens {} with {} rows a cycle, expected at most {} positions together "
        "(max_position_embeddings); shorten the prompt or --max-tokens",
        prompt.path, prompt.tokens.size(), max_tokens, block, positions));
}

// Without a draft nothing is proposed, and a cycle is a plain decoding step.
std::unique_ptr<decode::Drafter> make_drafter(decode::EngineCore& core) {
    if (core.draft_forward() != nullptr) return std::make_unique<decode::ModelDrafter>(*core.draft_forward());
    return std::make_unique<decode::ScriptedDrafter>(1, [](const state::Lane&, std::size_t) { return TokenId{0}; });
}

// An adaptive budget needs to know what a cycle costs before its first one; it is measured on an empty lane.
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

// Prompts draw different random numbers under one seed: each has its place in the list as its number.
Result<Generated> generate(decode::ProductionEngine& engine, const std::vector<Prompt>& prompts,
                           const decode::Request& request, Console& console) {
    const std::unique_ptr<decode::Drafter> drafter = make_drafter(engine.core());
    std::vector<decode::BatchRequest> batch;
    std::size_t prompt_tokens = 0;
    for (const Prompt& prompt : prompts) {
        batch.push_back({prompt.tokens, request});
        batch.back().request.sampling.request = batch.size() - 1;
        prompt_tokens += prompt.tokens.size();
    }
    Generated generated;
    const Clock::time_point start = Clock::now();
    const auto on_step = [&](const decode::BatchProgress& progress) {
        if (progress.emitted == 0 || generated.prefill_seconds == 0) generated.prefill_seconds = seconds_since(start);
        if (progress.prefilled < prompt_tokens) {
            console.progress("generate", "prefill", progress.prefilled, prompt_tokens);
        } else {
            console.progress("generate", "decode", progress.emitted, prompts.size() * request.limits.max_new_tokens);
        }
    };
    DP_ASSIGN_OR_RETURN(generated.results, decode::run_batch(engine, batch, *drafter, on_step));
    generated.seconds = seconds_since(start);
    console.clear_progress();
    return generated;
}

std::string joined(std::span<const TokenId> ids) {
    std::string out;
    for (const TokenId id : ids) out += fmt::format("{}{}", out.empty() ? "" : " ", id);
    return out;
}

// The text without its stop token; ids where there is no tokenizer.
std::string continuation(const decode::BatchResult& result, const probe::Assembly& assembly) {
    if (assembly.tokenizer == nullptr) return joined(result.tokens);
    return assembly.tokenizer->decode(std::span(result.tokens).first(result.tokens.size() - (result.stopped ? 1 : 0)));
}

void write_result(JsonWriter& json, const decode::BatchResult& result, const Prompt& prompt,
                  const probe::Assembly& assembly) {
    if (assembly.tokenizer != nullptr) json.member("text", continuation(result, assembly));
    json.key("ids").begin_array();
    for (const TokenId id : result.tokens) json.value(id);
    json.end_array()
        .member("prompt_tokens", prompt.tokens.size())
        .member("tokens", result.tokens.size())
        .member("stopped", result.stopped)
        .member("speculative", assembly.models.draft != nullptr)
        .member("cycles", result.cycles)
        .member("verified", result.verified);
    json.key("mean_retained").value_rounded(mean_retained(result));
}

// One prompt: its result at the top. Several: `results`, in order, each with the path of its prompt.
std::string generated_json(const Generated& generated, const std::vector<Prompt>& prompts,
                           const probe::Assembly& assembly, const decode::EngineSettings& settings) {
    JsonWriter json;
    json.begin_object();
    if (prompts.size() == 1) {
        write_result(json, generated.results.front(), prompts.front(), assembly);
    } else {
        json.key("results").begin_array();
        for (std::size_t i = 0; i < prompts.size(); ++i) {
            json.begin_object().member("prompt", prompts[i].path);
            write_result(json, generated.results[i], prompts[i], assembly);
            json.end_object();
        }
        json.end_array();
    }
    json.member("numerics", numerics::numerics_class_name(settings.numerics))
        .member("kv_format", state::kv_format_name(settings.kv_format))
        .member("isa", numerics::isa_name(settings.isa))
        .member("threads", settings.threads)
        .member("lanes", settings.lanes);
    json.key("prefill_seconds").value_rounded(generated.prefill_seconds);
    json.key("decode_seconds").value_rounded(generated.decode_seconds());
    return json.end_object().take() + "\n";
}

std::string generated_text(const Generated& generated, const std::vector<Prompt>& prompts,
                           const probe::Assembly& assembly) {
    std::string out;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        if (prompts.size() > 1) out += fmt::format("== {}\n", prompts[i].path);
        out += continuation(generated.results[i], assembly) + "\n";
    }
    return out;
}

void tell_summary(const Generated& generated, const std::vector<Prompt>& prompts, bool drafted, Console& console) {
    std::size_t tokens = 0;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        const decode::BatchResult& result = generated.results[i];
        tokens += result.tokens.size();
        console.note(
            fmt::format("generate: {}{} new tokens{} after {} prompt tokens, {} {}, {:.3f} tokens retained a "
                        "cycle",
                        prompts.size() > 1 ? prompts[i].path + ": " : "", result.tokens.size(),
                        result.stopped ? ", ended by a stop token," : "", prompts[i].tokens.size(), result.cycles,
                        drafted ? "cycles" : "plain steps", mean_retained(result)));
    }
    const double seconds = generated.decode_seconds();
    const std::size_t decoded = tokens - std::min(tokens, prompts.size());
    console.note(fmt::format("generate: first token after {:.3f} s, the rest in {:.3f} s, {:.1f} tokens/s",
                             generated.prefill_seconds, seconds,
                             seconds > 0 ? static_cast<double>(decoded) / seconds : 0.0));
}

Result<std::vector<Prompt>> read_prompts(const std::vector<PromptFile>& files, const probe::Assembly& assembly,
                                         Console& console) {
    std::vector<Prompt> prompts;
    for (const PromptFile& file : files) {
        DP_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, prompt_tokens(file, assembly, console));
        prompts.push_back({file.path, std::move(tokens)});
    }
    return prompts;
}

Result<int> run_generate(const Arguments& arguments, Console& console) {
    DP_ASSIGN_OR_RETURN(const std::vector<PromptFile> files, read_prompt_files(arguments));
    DP_ASSIGN_OR_RETURN(const probe::Assembly assembly, load_models(arguments, false, console));
    for (const std::string& note : probe::assembly_notes(assembly, files.front().chat_template)) console.warning(note);
    DP_ASSIGN_OR_RETURN(decode::EngineSettings settings,
                        engine_settings(arguments, assembly.models.target->config(), console));
    DP_ASSIGN_OR_RETURN(const std::vector<Prompt> prompts, read_prompts(files, assembly, console));
    const auto max_tokens = static_cast<std::size_t>(*arguments.number("max-tokens"));
    const bool drafted = assembly.models.draft != nullptr;
    settings.block = drafted ? static_cast<std::size_t>(assembly.models.draft->config().block) : 1;
    settings.lanes = std::min(settings.lanes, static_cast<int>(prompts.size()));
    decode::Request request;
    request.limits = {max_tokens, assembly.models.target->config().eos_ids};
    DP_ASSIGN_OR_RETURN(request.sampling.settings, sampling_settings(arguments));
    DP_ASSIGN_OR_RETURN(const BudgetChoice budget, budget_choice(arguments, settings.block));
    for (const Prompt& prompt : prompts) {
        DP_RETURN_IF_ERROR(check_length(assembly, prompt, max_tokens, settings.block));
        settings.max_tokens = std::max(settings.max_tokens, prompt.tokens.size() + max_tokens + settings.block);
    }
    DP_ASSIGN_OR_RETURN(auto core, decode::EngineCore::create(assembly.models, settings));
    decode::ProductionEngine engine(std::move(core));
    DP_ASSIGN_OR_RETURN(request.controller, make_controller(budget, engine.core()));
    DP_ASSIGN_OR_RETURN(const Generated generated, generate(engine, prompts, request, console));
    console.out(arguments.given("json") ? generated_json(generated, prompts, assembly, settings)
                                        : generated_text(generated, prompts, assembly));
    console.note(fmt::format("generate: {}", engine_text(arguments, settings)));
    tell_summary(generated, prompts, drafted, console);
    return kExitDone;
}

}  // namespace

const Command kGenerateCommand = {
    .bit = kGenerate,
    .name = "generate",
    .brief = "continue prompts with the production engine",
    .description =
        "Prints the continuation on standard output, as text when the target has a tokenizer.json, else as ids, "
        "followed by one line feed. With --draft it decodes speculatively, which gives the same tokens. The stop token "
        "is not part of the text. With --temperature the continuation is sampled, from the target's distribution "
        "whether drafted or not. A summary goes to standard error.\n\n"
        "Several prompts share the lanes: they prefill and decode side by side, and each continuation is the one that "
        "its prompt gets alone. Each is then preceded by a line with its prompt's name.",
    .exit_status = "0 done\n2 usage error, or could not run\n5 the draft is not what its selection.json lists",
    .examples =
        "draftprobe generate --target T --prompt main.c\n"
        "draftprobe generate --target T --draft D --prompt main.c --max-tokens 256\n"
        "draftprobe generate --target T --draft D --prompt a.py --prompt b.py --lanes 2\n"
        "draftprobe generate --target T --draft D --chat chat.json --thinking off",
    .run = run_generate,
};

}  // namespace draftprobe::cli
