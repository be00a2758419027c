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

}  // namespace

Result<decode::EngineSettings> engine_settings(const Arguments& arguments, const TargetConfig& target,
                                               Console& console) {
    decode::EngineSettings settings;
    DP_ASSIGN_OR_RETURN(settings.isa, instruction_set(arguments.text("isa")));
    const bool quantised = target.quantisation.has_value();
    if (arguments.given("numerics")) {
        settings.numerics = arguments.text("numerics") == "f32" ? NumericsClass::f32 : NumericsClass::i8dot;
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
    return settings;
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
