#include <fmt/format.h>

#include "base/json_writer.h"
#include "bench/host.h"
#include "bench/snapshot_bench.h"
#include "bench/store_bench.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "cli/engine_options.h"
#include "cli/models.h"

namespace draftprobe::cli {

namespace {

using bench::BoundedTimes;

// Budget of the measured prefix store, in sizes of the synthetic state's keys and values.
constexpr std::size_t kStoreSizes = 4;

void write_times(JsonWriter& json, std::string_view key, const std::vector<double>& seconds) {
    const bench::Summary summary = bench::summarise(seconds);
    json.key(key).begin_object();
    json.key("median").value_rounded(summary.median);
    json.key("min").value_rounded(summary.min);
    json.key("max").value_rounded(summary.max);
    json.key("spread").value_rounded(summary.spread());
    json.member("inconclusive", summary.inconclusive()).end_object();
}

void write_operation(JsonWriter& json, const BoundedTimes& times) {
    json.begin_object().member("name", times.name).member("bound", times.bound_name);
    write_times(json, "seconds", times.seconds);
    write_times(json, "bound_seconds", times.bound);
    const auto [low, high] = times.middle_half();
    json.key("bound_over_time").value_rounded(times.ratio());
    json.key("middle_half").begin_array().value_rounded(low);
    json.value_rounded(high).end_array();
    json.member("inconclusive", times.inconclusive()).end_object();
}

std::string spread_text(const std::vector<double>& seconds) {
    const bench::Summary summary = bench::summarise(seconds);
    return fmt::format("{:.2f} ms (spread {:.0f} %)", summary.median * 1e3, summary.spread() * 100);
}

std::string operation_line(const BoundedTimes& times, std::size_t bytes) {
    const double rate = static_cast<double>(bytes) / bench::summarise(times.seconds).median / 1e9;
    const auto [low, high] = times.middle_half();
    return fmt::format("  {:<25}{}, {:.2f} GB/s; {} {}: ratio {:.2f}, half of them {:.2f}..{:.2f}{}\n", times.name,
                       spread_text(times.seconds), rate, times.bound_name, spread_text(times.bound), times.ratio(), low,
                       high, times.inconclusive() ? ", inconclusive" : "");
}

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::string store_text(const bench::StoreMemory& store) {
    std::string out = fmt::format(
        "prefix store of {:.0f} MiB: {} snapshots put, {} evicted, {} kept; they would take {:.1f} MiB apart\n",
        mebibytes(store.budget), store.put, store.evictions, store.entries, mebibytes(store.apart));
    out += fmt::format("  counted {:.1f} MiB", mebibytes(store.counted));
    if (store.resident == 0) return out + "; the system does not say what is resident\n";
    return out + fmt::format(
                     "; resident {:.1f} MiB, {:.3f} of what is counted (at worst {:.3f}), {:.3f} of the budget "
                     "at most\n",
                     mebibytes(store.resident),
                     static_cast<double>(store.resident) / static_cast<double>(store.counted), store.worst_ratio,
                     store.worst_budget);
}

void write_store(JsonWriter& json, const bench::StoreMemory& store) {
    json.key("store").begin_object().member("budget_bytes", store.budget).member("counted_bytes", store.counted);
    json.member("resident_bytes", store.resident).key("worst_resident_over_counted").value_rounded(store.worst_ratio);
    json.key("worst_resident_over_budget").value_rounded(store.worst_budget);
    json.member("put", store.put).member("entries", store.entries).member("evictions", store.evictions);
    json.member("bytes_apart", store.apart).end_object();
}

std::string times_text(const bench::SnapshotTimes& times, const bench::StoreMemory& store,
                       const std::optional<bench::PrefixTimes>& prefix, std::size_t repeats) {
    std::string out = fmt::format(
        "bench snapshot: {:.1f} MiB of state over {} positions, {} repeats, {} of the operations in "
        "memory; every byte came back\n",
        static_cast<double>(times.bytes) / (1 << 20), times.positions, repeats, times.memory_repeats);
    for (const BoundedTimes& operation : times.operations) out += operation_line(operation, times.bytes);
    out += store_text(store);
    if (prefix) {
        out += fmt::format("prefix of {} tokens, {:.1f} MiB\n", prefix->tokens,
                           static_cast<double>(prefix->bytes) / (1 << 20));
        out += operation_line(prefix->restore, prefix->bytes);
    }
    return out + fmt::format("cpu {}, {} hardware threads\n", bench::cpu_name(), bench::hardware_threads());
}

std::string times_json(const bench::SnapshotTimes& times, const bench::StoreMemory& store,
                       const std::optional<bench::PrefixTimes>& prefix, std::size_t repeats) {
    JsonWriter json;
    json.begin_object().member("bytes", times.bytes).member("positions", times.positions);
    json.member("repeats", repeats).member("memory_repeats", times.memory_repeats);
    json.key("operations").begin_array();
    for (const BoundedTimes& operation : times.operations) write_operation(json, operation);
    json.end_array();
    write_store(json, store);
    json.key("prefix");
    if (prefix) {
        json.begin_object().member("tokens", prefix->tokens).member("bytes", prefix->bytes).key("restore");
        write_operation(json, prefix->restore);
        json.end_object();
    } else {
        json.null();
    }
    json.member("cpu", bench::cpu_name()).member("hardware_threads", bench::hardware_threads());
    return json.end_object().take() + "\n";
}

Result<std::optional<bench::PrefixTimes>> prefix_times(const Arguments& arguments, Console& console) {
    if (!arguments.given("target")) return std::optional<bench::PrefixTimes>();
    DP_ASSIGN_OR_RETURN(const probe::Assembly assembly, load_models(arguments, false, console));
    DP_ASSIGN_OR_RETURN(const decode::EngineSettings settings,
                        engine_settings(arguments, assembly.models.target->config(), console));
    const Position tokens = *arguments.number("tokens") / kPageTokens * kPageTokens;
    console.note(fmt::format("bench snapshot: {}", engine_text(arguments, settings)));
    DP_ASSIGN_OR_RETURN(bench::PrefixTimes times,
                        bench::measure_prefix(assembly.models, settings, std::max(tokens, kPageTokens),
                                              std::min<std::size_t>(3, *arguments.number("repeats"))));
    return std::optional(std::move(times));
}

Result<int> run_bench_snapshot(const Arguments& arguments, Console& console) {
    std::error_code error;
    const std::filesystem::path scratch = std::filesystem::temp_directory_path(error);
    if (error) {
        return io_error(
            fmt::format("temporary directory: {}, expected one for the files; set TMPDIR", error.message()));
    }
    if (!arguments.given("target") && arguments.given("draft")) {
        return invalid_argument("bench snapshot: found --draft without --target, expected both or neither");
    }
    const auto repeats = static_cast<std::size_t>(*arguments.number("repeats"));
    const auto bytes = static_cast<std::size_t>(*arguments.number("size-mib")) << 20;
    DP_ASSIGN_OR_RETURN(const bench::SnapshotTimes times, bench::measure_snapshots(bytes, repeats, scratch));
    DP_ASSIGN_OR_RETURN(const bench::StoreMemory store, bench::measure_store(kStoreSizes * bytes));
    DP_ASSIGN_OR_RETURN(const auto prefix, prefix_times(arguments, console));
    console.out(arguments.given("json") ? times_json(times, store, prefix, repeats)
                                        : times_text(times, store, prefix, repeats));
    return kExitDone;
}

}  // namespace

const Command kBenchSnapshotCommand = {
    .bit = kBenchSnapshot,
    .name = "bench snapshot",
    .brief = "measure snapshots and restores against bounds of the same run",
    .description =
        "Takes and restores a synthetic state in memory and through a file, after checking that every byte comes back, "
        "beside what the machine can do with the same bytes: memcpy, SHA-256, and writing, reading and hashing a file. "
        "New memory is mapped for huge pages, and its first touch is part of the time on both sides; the bound is the "
        "faster of two ways of touching it. Each operation runs beside its bound; a ratio is the median over the "
        "repeats of the bound's time over the operation's: 1 is as fast as the bound. A middle half of the ratios "
        "wider "
        "than 20 % is inconclusive, and so is a median whose spread, (max - min) / median, is above 20 %. With "
        "--target "
        "(and --draft) it also restores a prefix of --tokens tokens beside computing it. A prefix store of four times "
        "--size-mib is filled until it evicts, and what it counts is set beside the growth of the process's memory.",
    .exit_status = "0 measured\n2 usage error, or could not run",
    .examples =
        "draftprobe bench snapshot --size-mib 256\n"
        "draftprobe bench snapshot --target models/mini-dense-mlx4 --draft models/mini-dense-draft",
    .run = run_bench_snapshot,
};

}  // namespace draftprobe::cli
