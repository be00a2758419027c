#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/json_writer.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "cli/engine_options.h"
#include "cli/models.h"
#include "cli/prompt.h"
#include "decode/engine.h"

namespace draftprobe::cli {

namespace {

using Clock = std::chrono::steady_clock;

struct Generated {
    std::vector<TokenId> tokens;  // the stop token, if any, is the last
    bool stopped = false;         // by a stop token
    std::size_t cycles = 0;
    std::size_t retained = 0;  // over the cycles
    double prefill_seconds = 0;
    double decode_seconds = 0;

    double mean_retained() const {
        return cycles == 0 ? 0.0 : static_cast<double>(retained) / static_cast<double>(cycles);
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

Result<Generated> generate(decode::ProductionEngine& engine, const std::vector<TokenId>& prompt, std::size_t max_tokens,
                           Console& console) {
    constexpr int kLane = 0;
    const std::vector<TokenId>& stops = engine.core().models().target->config().eos_ids;
    const auto stops_at = [&stops](TokenId token) {
        return std::find(stops.begin(), stops.end(), token) != stops.end();
    };
    Generated result;
    engine.begin_request(kLane, {max_tokens, stops});
    Clock::time_point start = Clock::now();
    std::span<const TokenId> rest(prompt);
    while (!rest.empty()) {
        const std::size_t count =
            decode::next_chunk(engine.lane(kLane).length, rest.size(), engine.core().settings().chunk_tokens, 0);
        DP_RETURN_IF_ERROR(engine.prefill(kLane, rest.first(count), 0, count == rest.size()));
        rest = rest.subspan(count);
        console.progress("generate", "prefill", prompt.size() - rest.size(), prompt.size());
    }
    result.prefill_seconds = seconds_since(start);

    start = Clock::now();
    result.tokens.push_back(engine.lane(kLane).anchor);
    result.stopped = stops_at(result.tokens.back());
    std::optional<decode::ModelDrafter> drafter;
    if (engine.core().draft_forward() != nullptr) drafter.emplace(*engine.core().draft_forward());
    while (!result.stopped && result.tokens.size() < max_tokens) {
        if (drafter) {
            DP_ASSIGN_OR_RETURN(const auto results,
                                engine.cycle({&kLane, 1}, *drafter, engine.core().settings().block));
            const decode::CycleResult& cycle = results.front();
            result.tokens.insert(result.tokens.end(), cycle.emitted.begin(), cycle.emitted.end());
            result.retained += cycle.retained;
        } else {
            DP_ASSIGN_OR_RETURN(const TokenId token, engine.plain_step(kLane));
            result.tokens.push_back(token);
            result.retained += 1;
        }
        result.cycles += 1;
        result.stopped = stops_at(result.tokens.back());
        console.progress("generate", "decode", result.tokens.size(), max_tokens);
    }
    result.decode_seconds = seconds_since(start);
    console.clear_progress();
    return result;
}

std::string joined(std::span<const TokenId> ids) {
    std::string out;
    for (const TokenId id : ids) out += fmt::format("{}{}", out.empty() ? "" : " ", id);
    return out;
}

std::string generated_json(const Generated& result, const std::string* text, std::size_t prompt, bool drafted,
                           const decode::EngineSettings& settings) {
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
        .member("cycles", result.cycles);
    json.key("mean_retained").value_rounded(result.mean_retained());
    json.member("numerics", numerics::numerics_class_name(settings.numerics))
        .member("kv_format", state::kv_format_name(settings.kv_format))
        .member("isa", numerics::isa_name(settings.isa))
        .member("threads", settings.threads);
    json.key("prefill_seconds").value_rounded(result.prefill_seconds);
    json.key("decode_seconds").value_rounded(result.decode_seconds);
    return json.end_object().take() + "\n";
}

Result<int> run_generate(const Arguments& arguments, Console& console) {
    DP_ASSIGN_OR_RETURN(const PromptFile file, read_prompt_file(arguments));
    DP_ASSIGN_OR_RETURN(const probe::Assembly assembly, load_models(arguments, false, console));
    for (const std::string& note : probe::assembly_notes(assembly, {})) console.warning(note);
    DP_ASSIGN_OR_RETURN(decode::EngineSettings settings,
                        engine_settings(arguments, assembly.models.target->config(), console));
    DP_ASSIGN_OR_RETURN(const std::vector<TokenId> prompt, prompt_tokens(file, assembly));
    const auto max_tokens = static_cast<std::size_t>(*arguments.number("max-tokens"));
    const bool drafted = assembly.models.draft != nullptr;
    settings.block = drafted ? static_cast<std::size_t>(assembly.models.draft->config().block) : 1;
    DP_RETURN_IF_ERROR(check_length(assembly, prompt.size(), max_tokens, settings.block));
    settings.max_tokens = prompt.size() + max_tokens + settings.block;
    DP_ASSIGN_OR_RETURN(auto core, decode::EngineCore::create(assembly.models, settings));
    decode::ProductionEngine engine(std::move(core));
    DP_ASSIGN_OR_RETURN(const Generated result, generate(engine, prompt, max_tokens, console));

    std::string text;
    if (assembly.tokenizer != nullptr) {
        text =
            assembly.tokenizer->decode(std::span(result.tokens).first(result.tokens.size() - (result.stopped ? 1 : 0)));
    }
    if (arguments.given("json")) {
        console.out(
            generated_json(result, assembly.tokenizer != nullptr ? &text : nullptr, prompt.size(), drafted, settings));
    } else {
        console.out((assembly.tokenizer != nullptr ? text : joined(result.tokens)) + "\n");
    }
    const double rate =
        result.decode_seconds > 0 ? static_cast<double>(result.tokens.size() - 1) / result.decode_seconds : 0.0;
    console.note(fmt::format("generate: {}", engine_text(arguments, settings)));
    console.note(fmt::format(
        "generate: {} new tokens{} after {} prompt tokens, {} {}, {:.3f} tokens retained a cycle; prefill {:.3f} s, "
        "decode {:.3f} s, {:.1f} tokens/s",
        result.tokens.size(), result.stopped ? ", ended by a stop token," : "", prompt.size(), result.cycles,
        drafted ? "cycles" : "plain steps", result.mean_retained(), result.prefill_seconds, result.decode_seconds,
        rate));
    return kExitDone;
}

}  // namespace

const Command kGenerateCommand = {
    .bit = kGenerate,
    .name = "generate",
    .brief = "continue a prompt with the production engine",
    .description =
        "Prints the greedy continuation on standard output, as text when the target has a tokenizer.json, else as ids, "
        "followed by "
        "one line feed. With --draft it decodes speculatively, which gives the same tokens. The stop token is not part "
        "of the text. "
        "A summary goes to standard error.",
    .exit_status = "0 done\n2 usage error, or could not run\n5 the draft is not what its selection.json lists",
    .examples =
        "draftprobe generate --target T --prompt main.c\n"
        "draftprobe generate --target T --draft D --prompt main.c --max-tokens 256",
    .run = run_generate,
};

}  // namespace draftprobe::cli
