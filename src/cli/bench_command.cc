#include <fmt/format.h>

#include "base/json_writer.h"
#include "bench/host.h"
#include "bench/probe_bench.h"
#include "cli/arms.h"
#include "report/report.h"

namespace draftprobe::cli {

namespace {

void write_summary(JsonWriter& json, std::string_view name, const std::vector<double>& values) {
    const bench::Summary summary = bench::summarise(values);
    json.key(name).begin_object();
    json.key("median").value_rounded(summary.median);
    json.key("min").value_rounded(summary.min);
    json.key("max").value_rounded(summary.max);
    json.key("spread").value_rounded(summary.spread());
    json.member("inconclusive", summary.inconclusive()).end_object();
}

std::string times_json(const ArmPlan& plan, const bench::ProbeTimes& times) {
    JsonWriter json;
    json.begin_object()
        .member("verdict", verdict_name(times.comparison.verdict))
        .member("repeats", times.total.size())
        .member("prompt_tokens", plan.request.prompt.size())
        .member("prefix_tokens", plan.request.boundary)
        .member("cycles", times.cycles);
    write_summary(json, "seconds", times.total);
    write_summary(json, "fresh_seconds", times.fresh);
    write_summary(json, "restored_seconds", times.restored);
    write_summary(json, "compare_seconds", times.compare);
    return json.member("peak_rss_bytes", bench::peak_rss_bytes())
               .member("threads", plan.settings.engine.threads)
               .member("isa", numerics::isa_name(plan.settings.engine.isa))
               .member("numerics", numerics::numerics_class_name(plan.settings.engine.numerics))
               .member("level", plan.settings.level)
               .member("cpu", bench::cpu_name())
               .member("hardware_threads", bench::hardware_threads())
               .end_object()
               .take() +
           "\n";
}

std::string summary_line(std::string_view name, const std::vector<double>& values) {
    const bench::Summary summary = bench::summarise(values);
    if (values.size() == 1) return fmt::format("{:<10}{:.4f} s, one run: no spread\n", name, summary.median);
    return fmt::format(
        "{:<10}median {:.4f} s, {:.4f} to {:.4f} s, spread {:.1f} %{}\n", name, summary.median, summary.min,
        summary.max, summary.spread() * 100,
        summary.inconclusive() ? fmt::format(" (inconclusive: above {:.0f} %)", bench::kMaxSpread * 100) : "");
}

std::string times_text(const ArmPlan& plan, const bench::ProbeTimes& times) {
    const decode::EngineSettings& engine = plan.settings.engine;
    std::string out =
        fmt::format("bench probe: verdict SAME in {} of {} run{}; prompt {} tokens, prefix {}, {} cycle{}\n",
                    times.total.size(), times.total.size(), times.total.size() == 1 ? "" : "s",
                    plan.request.prompt.size(), plan.request.boundary, times.cycles, times.cycles == 1 ? "" : "s");
    out += summary_line("probe", times.total) + summary_line("fresh", times.fresh) +
           summary_line("restored", times.restored) + summary_line("compare", times.compare);
    out += fmt::format("peak RSS {:.1f} MiB; {} of {} hardware threads, isa {}, numerics {}, level {}\ncpu {}\n",
                       static_cast<double>(bench::peak_rss_bytes()) / (1024.0 * 1024.0), engine.threads,
                       bench::hardware_threads(), numerics::isa_name(engine.isa),
                       numerics::numerics_class_name(engine.numerics), plan.settings.level, bench::cpu_name());
    return out;
}

Result<int> run_bench_probe(const Arguments& arguments, Console& console) {
    DP_ASSIGN_OR_RETURN(ArmPlan plan, plan_arms(arguments, console));
    const auto repeats = static_cast<std::size_t>(*arguments.number("repeats"));
    plan.settings.progress = [&console](std::string_view phase, std::size_t done, std::size_t total) {
        console.progress("bench probe", phase, done, total);
    };
    std::error_code error;
    const std::filesystem::path scratch = std::filesystem::temp_directory_path(error);
    if (error) {
        return io_error(
            fmt::format("temporary directory: {}, expected one for the captures; set TMPDIR", error.message()));
    }
    DP_ASSIGN_OR_RETURN(const bench::ProbeTimes times,
                        bench::measure_probe(plan.assembly, plan.request, plan.settings, repeats, scratch));
    console.clear_progress();
    if (times.comparison.verdict != Verdict::same) {
        console.error(fmt::format(
            "bench probe: the verdict is {}, expected SAME before anything is timed; run 'draftprobe probe' with "
            "the same options",
            verdict_name(times.comparison.verdict)));
        console.out(arguments.given("json") ? report_json(times.comparison) : report_text(times.comparison));
        return verdict_exit(times.comparison.verdict);
    }
    console.out(arguments.given("json") ? times_json(plan, times) : times_text(plan, times));
    return kExitDone;
}

}  // namespace

const Command kBenchProbeCommand = {
    .bit = kBenchProbe,
    .name = "bench probe",
    .brief = "measure the wall time of a probe, after checking that its verdict is SAME",
    .description =
        "Runs the probe --repeats times, both arms and the comparison, with captures in a temporary directory. Times "
        "are medians; a "
        "spread, (max - min) / median, above 20 % is labelled inconclusive.",
    .exit_status =
        "0 measured\n2 usage error, or could not run\nother: the verdict's exit status; nothing was measured",
    .examples = "draftprobe bench probe --target T --draft D --prompt main.c --prefix-tokens 512 --cycles 16",
    .run = run_bench_probe,
};

}  // namespace draftprobe::cli
