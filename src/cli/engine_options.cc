#include "cli/engine_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace draftprobe::cli {

using numerics::Isa;
using numerics::NumericsClass;

namespace {

Result<Isa> instruction_set(const std::string& name) {
    if (name == "auto") return numerics::best_isa();
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (numerics::isa_name(isa) != name) continue;
        if (numerics::isa_supported(isa)) return isa;
        return unsupported(
            fmt::format("--isa: found {}, which this CPU lacks; the best it has is {}, use that or --isa auto", name,
                        numerics::isa_name(numerics::best_isa())));
    }
    return internal_error(fmt::format("instruction set {}", name));
}

Result<NumericsClass> numerics_class(const Arguments& arguments) {
    const std::string name = arguments.text("numerics");
    if (name != "schedule-sensitive") return name == "f32" ? NumericsClass::f32 : NumericsClass::i8dot;
    const unsigned command = arguments.command().bit;
    if (command == kProbe || command == kCapture) return NumericsClass::schedule_sensitive;
    return unsupported(
        fmt::format("{}: --numerics schedule-sensitive is for studying drift and belongs to probe and capture; use f32 "
                    "or i8dot here",
                    arguments.command().name));
}

}  // namespace

Result<decode::EngineSettings> engine_settings(const Arguments& arguments, const TargetConfig& target,
                                               Console& console) {
    decode::EngineSettings settings;
    DP_ASSIGN_OR_RETURN(settings.isa, instruction_set(arguments.text("isa")));
    const bool quantised = target.quantisation.has_value();
    if (arguments.given("numerics")) {
        DP_ASSIGN_OR_RETURN(settings.numerics, numerics_class(arguments));
        if (settings.numerics == NumericsClass::i8dot && !quantised) {
            console.warning(
                "--numerics i8dot changes only products with quantised weights, and this target has none; results "
                "equal those of f32");
        }
    } else {
        settings.numerics = quantised ? NumericsClass::i8dot : NumericsClass::f32;
    }
    settings.kv_format = arguments.text("kv") == "int8" ? state::KvFormat::int8 : state::KvFormat::bf16;
    const unsigned hardware = std::max(1u, std::thread::hardware_concurrency());
    settings.threads = static_cast<int>(arguments.number("threads").value_or(std::min(hardware, 1024u)));
    // Results do not depend on it, and threads without a CPU only wait for each other.
    if (settings.threads > static_cast<int>(hardware)) {
        console.warning(fmt::format("--threads {}: this machine runs {} at a time; using {}", settings.threads,
                                    hardware, hardware));
        settings.threads = static_cast<int>(hardware);
    }
    settings.chunk_tokens = static_cast<std::size_t>(*arguments.number("chunk-tokens"));
    settings.lanes = static_cast<int>(*arguments.number("lanes"));
    return settings;
}

Result<decode::SamplingSettings> sampling_settings(const Arguments& arguments) {
    decode::SamplingSettings settings;
    settings.temperature = static_cast<float>(arguments.decimal("temperature"));
    settings.top_k = *arguments.number("top-k");
    settings.top_p = static_cast<float>(arguments.decimal("top-p"));
    settings.min_p = static_cast<float>(arguments.decimal("min-p"));
    settings.seed = static_cast<std::uint64_t>(*arguments.number("seed"));
    DP_RETURN_IF_ERROR(decode::check_sampling(settings));
    for (const std::string_view name : {"top-k", "top-p", "min-p", "seed"}) {
        if (!settings.greedy() || !arguments.given(name)) continue;
        return invalid_argument(
            fmt::format("--{}: found without --temperature, expected a temperature above 0 beside it; a greedy run "
                        "draws nothing",
                        name));
    }
    return settings;
}

Result<BudgetChoice> budget_choice(const Arguments& arguments, std::size_t block) {
    const std::string text = arguments.text("budget");
    if (text == "full") return BudgetChoice{};
    if (text == "adaptive") return BudgetChoice{budget::BudgetKind::adaptive, nullptr};
    Result<budget::Seed> seed = budget::read_seed(text);
    if (!seed.ok()) return seed.status().with_context("--budget (full, adaptive or a seed file)");
    if (seed->block != block) {
        return mismatch(fmt::format(
            "--budget {}: the seed is for blocks of {} rows, the draft's are of {}; calibrate a seed for this draft",
            text, seed->block, block));
    }
    return BudgetChoice{budget::BudgetKind::frozen, std::make_shared<const budget::Seed>(std::move(*seed))};
}

std::string engine_text(const Arguments& arguments, const decode::EngineSettings& settings) {
    std::string_view reason;
    if (!arguments.given("numerics")) {
        reason =
            settings.numerics == NumericsClass::i8dot ? " (the target is quantised)" : " (the target is not quantised)";
    }
    return fmt::format("numerics {}{}, kv {}, isa {}, {} thread{}", numerics::numerics_class_name(settings.numerics),
                       reason, state::kv_format_name(settings.kv_format), numerics::isa_name(settings.isa),
                       settings.threads, settings.threads == 1 ? "" : "s");
}

}  // namespace draftprobe::cli
