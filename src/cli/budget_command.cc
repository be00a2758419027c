#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/utf8.h"
#include "budget/seed.h"
#include "capture/reader.h"
#include "cli/arguments.h"
#include "cli/capture_path.h"
#include "cli/console.h"
#include "cli/engine_options.h"
#include "cli/models.h"
#include "decode/cycle_costs.h"
#include "decode/engine.h"
#include "replay/calibrate.h"

namespace draftprobe::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxCostsBytes = 64u << 10;
constexpr std::size_t kCostRepeats = 15;  // measured cycles per width

// The cost of a cycle by rows verified, and where it came from.
struct Costs {
    budget::CostTable table;
    std::size_t lanes = 1;
};

Result<Costs> costs_from_file(const fs::path& path, std::size_t lanes) {
    DP_ASSIGN_OR_RETURN(const Json document, parse_json_file(path, kMaxCostsBytes));
    if (!document.is_array()) {
        return corrupt(fmt::format("{}: found {}, expected an array of one positive number per row count",
                                   path.string(), document.type_name()));
    }
    Costs costs;
    costs.lanes = lanes;
    for (const Json& value : document) {
        DP_ASSIGN_OR_RETURN(const double cost, json_to_f64(value, path.string()));
        costs.table.push_back(cost);
    }
    DP_RETURN_IF_ERROR(budget::check_costs(costs.table, costs.table.size(), path.string()));
    return costs;
}

// Any tokens do: what a cycle costs depends on how many there are, not on which.
std::vector<TokenId> filler_tokens(std::size_t count, std::size_t vocab) {
    constexpr std::size_t kStride = 7919;  // a prime, so that neighbours differ
    std::vector<TokenId> tokens(count);
    for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<TokenId>(i * kStride % vocab);
    return tokens;
}

// Costs of other models or settings than the captures' say nothing about them. The first capture speaks for all.
Status check_measured(const fs::path& path, const probe::Assembly& assembly, const decode::EngineSettings& settings) {
    DP_ASSIGN_OR_RETURN(const CaptureReader reader, CaptureReader::open(path));
    const CaptureHeader& header = reader.header();
    const auto setting = [&header](std::string_view field) {
        for (const Setting& entry : header.settings) {
            if (entry.field == field) return entry.value;
        }
        return std::string("nothing");
    };
    const bool affine = assembly.models.draft->precision() == model::DraftPrecision::affine4;
    const struct {
        std::string_view option;
        std::string measured, captured;
    } rows[] = {
        {"--target", assembly.target_identity.digest, header.identity.target.digest},
        {"--draft", assembly.draft_identity.digest, header.identity.draft.digest},
        {"--numerics", std::string(numerics::numerics_class_name(settings.numerics)), setting("numerics")},
        {"--kv", std::string(state::kv_format_name(settings.kv_format)), setting("kv_format")},
        {"--draft-bits", affine ? "affine4" : "stored", setting("draft.precision")},
    };
    for (const auto& row : rows) {
        if (row.measured == row.captured) continue;
        return mismatch(fmt::format(
            "{}: costs would be measured with {}, {} was made with {}; give the models and settings of the captures",
            row.option, row.measured.substr(0, 16), path.string(), row.captured.substr(0, 16)));
    }
    return {};
}

// Cycles of --lanes lanes with --context tokens each, on the models and settings of the options.
Result<Costs> measured_costs(const Arguments& arguments, const fs::path& capture, Console& console) {
    DP_ASSIGN_OR_RETURN(const probe::Assembly assembly, load_models(arguments, true, console));
    const auto context = static_cast<std::size_t>(*arguments.number("context"));
    DP_ASSIGN_OR_RETURN(decode::EngineSettings settings,
                        engine_settings(arguments, assembly.models.target->config(), console));
    DP_RETURN_IF_ERROR(check_measured(capture, assembly, settings));
    const auto block = static_cast<std::size_t>(assembly.models.draft->config().block);
    settings.max_tokens = context + 2 * block;
    const std::int64_t positions =
        std::min(assembly.models.target->config().max_positions, assembly.models.draft->config().max_positions);
    if (settings.max_tokens > static_cast<std::size_t>(positions)) {
        return exhausted(fmt::format(
            "--context: found {}, expected at most {} (max_position_embeddings less two blocks); give fewer tokens",
            context, positions - static_cast<std::int64_t>(2 * block)));
    }
    DP_ASSIGN_OR_RETURN(auto core, decode::EngineCore::create(assembly.models, settings));
    decode::ProductionEngine engine(std::move(core));
    const auto vocab = static_cast<std::size_t>(assembly.models.target->config().vocab);
    const std::vector<TokenId> tokens = filler_tokens(context, vocab);
    std::vector<int> lanes;
    for (int lane = 0; lane < settings.lanes; ++lane) {
        engine.begin_request(lane, {});
        console.progress("budget calibrate", "fill lanes", static_cast<std::size_t>(lane), tokens.size());
        DP_RETURN_IF_ERROR(engine.prefill(lane, tokens, 0, true));
        lanes.push_back(lane);
    }
    decode::ModelDrafter drafter(*engine.core().draft_forward());
    Costs costs;
    costs.lanes = lanes.size();
    DP_ASSIGN_OR_RETURN(costs.table, decode::measure_cycle_costs(engine.core(), lanes, drafter, kCostRepeats));
    console.clear_progress();
    console.note(fmt::format("budget calibrate: costs measured with {} lane{} of {} tokens, median of {}; {}",
                             costs.lanes, costs.lanes == 1 ? "" : "s", context, kCostRepeats,
                             engine_text(arguments, settings)));
    return costs;
}

Result<Costs> costs_of(const Arguments& arguments, const fs::path& capture, Console& console) {
    const bool models = arguments.given("target") && arguments.given("draft");
    if (arguments.given("costs") == models || arguments.given("target") != arguments.given("draft")) {
        return invalid_argument(fmt::format(
            "budget calibrate: found {}, expected either --costs FILE.json, or --target with --draft to measure on",
            arguments.given("costs") && models ? "both --costs and models"
            : arguments.given("target")        ? "--target without --draft"
            : arguments.given("draft")         ? "--draft without --target"
                                               : "neither costs nor models"));
    }
    if (models) return measured_costs(arguments, capture, console);
    auto costs = costs_from_file(arguments.text("costs"), static_cast<std::size_t>(*arguments.number("lanes")));
    if (!costs.ok()) return costs.status().with_context("--costs");
    return costs;
}

// --force must not delete what a mistyped --out names: only a seed is replaced.
Status check_out(const fs::path& out, bool force) {
    std::error_code error;
    const fs::path parent = out.has_parent_path() ? out.parent_path() : fs::path(".");
    if (!fs::is_directory(parent, error)) {
        return not_found(fmt::format("--out {}: {} is not a directory, expected one that exists; create it first",
                                     out.string(), parent.string()));
    }
    if (!fs::exists(fs::symlink_status(out, error))) return {};
    if (!force) {
        return invalid_argument(
            fmt::format("--out {}: already exists, expected a new path; choose another path, or --force to replace it",
                        out.string()));
    }
    if (budget::read_seed(out).ok()) return {};
    return invalid_argument(fmt::format(
        "--out {}: found something that is not a seed file, expected one to replace; choose another path or remove it "
        "yourself",
        out.string()));
}

struct Made {
    fs::path path;
    std::string digest;
    const replay::Calibration& calibration;
};

double hazard(const budget::State& state, std::size_t bucket) {
    return state.successes[bucket] / (state.successes[bucket] + state.failures[bucket]);
}

std::string text_view(const Made& made) {
    const replay::Calibration& c = made.calibration;
    const budget::Seed& seed = c.seed;
    std::string out = fmt::format("seed            {}\ndigest          {}\n", made.path.string(), made.digest);
    out += fmt::format("captures        {}{}\n", c.captures, seed.provenance.after_restore ? ", restored arms" : "");
    out += fmt::format(
        "lane-cycles     {} taught; not counted: {} repeated contexts, {} forced, {} not drafted, {} without verified "
        "rows, {} without a finite confidence\n",
        seed.provenance.lane_cycles, c.duplicates, c.forced, c.not_drafted, c.not_at_risk, c.not_finite);
    out += fmt::format("cost            {} lanes:", seed.lanes);
    for (const double cost : seed.state.cost) out += fmt::format(" {:.4g}", cost);
    out += "\n\nconfidence up to    matched   rejected     hazard   (prior included)\n";
    for (std::size_t i = 0; i < seed.upper_edges.size(); ++i) {
        out += fmt::format("{:>16} {:>10.2f} {:>10.2f} {:>10.4f}\n", seed.upper_edges[i], seed.state.successes[i],
                           seed.state.failures[i], hazard(seed.state, i));
    }
    for (const std::string& note : c.notes) out += fmt::format("note: {}\n", printable_text(note));
    return out;
}

std::string json_view(const Made& made) {
    const replay::Calibration& c = made.calibration;
    const budget::Seed& seed = c.seed;
    JsonWriter json(JsonWriter::Style::pretty);
    json.begin_object();
    json.key("seed").begin_object().member("path", made.path.string()).member("digest", made.digest).end_object();
    json.member("block", seed.block).member("lanes", seed.lanes);
    json.member("captures", c.captures).member("after_restore", seed.provenance.after_restore);
    json.member("lane_cycles", seed.provenance.lane_cycles);
    json.key("not_counted").begin_object();
    json.member("duplicates", c.duplicates).member("forced", c.forced);
    json.member("not_drafted", c.not_drafted).member("not_at_risk", c.not_at_risk);
    json.member("not_finite", c.not_finite).end_object();
    json.key("buckets").begin_array();
    for (std::size_t i = 0; i < seed.upper_edges.size(); ++i) {
        json.begin_object().member("upper_edge", seed.upper_edges[i]);
        json.member("successes", seed.state.successes[i]).member("failures", seed.state.failures[i]);
        json.key("hazard").value_rounded(hazard(seed.state, i)).end_object();
    }
    json.end_array().key("cost").begin_array();
    for (const double cost : seed.state.cost) json.value(cost);
    json.end_array().key("notes").begin_array();
    for (const std::string& note : c.notes) json.value(note);
    return json.end_array().end_object().take() + "\n";
}

Result<int> run_calibrate(const Arguments& arguments, Console& console) {
    const fs::path out = arguments.text("out");
    const bool force = arguments.given("force");
    DP_RETURN_IF_ERROR(check_out(out, force));
    const std::vector<fs::path> captures(arguments.positionals().begin(), arguments.positionals().end());
    for (const fs::path& path : captures) {
        DP_RETURN_IF_ERROR(check_is_capture(path, "calibrate from its control/, or from its treated/ alone"));
    }
    DP_ASSIGN_OR_RETURN(const Costs costs, costs_of(arguments, captures.front(), console));
    replay::CalibrateOptions options;
    options.costs = costs.table;
    options.lanes = costs.lanes;
    options.after_restore = arguments.given("after-restore");
    const Result<replay::Calibration> made = replay::calibrate(captures, options);
    if (!made.ok() && made.status().code() == StatusCode::corrupt) console.set_failure_exit(kExitCorrupt);
    if (!made.ok()) return made.status();
    DP_ASSIGN_OR_RETURN(const std::string text, budget::seed_json(made->seed));
    DP_RETURN_IF_ERROR(write_file_atomically(out, text, force).with_context("--out"));
    const Made view{out, sha256_hex(text), *made};
    console.out(arguments.given("json") ? json_view(view) : text_view(view));
    return kExitDone;
}

}  // namespace

const Command kBudgetCalibrateCommand = {
    .bit = kBudgetCalibrate,
    .name = "budget calibrate",
    .positionals = "CAPTURE...",
    .brief = "make the seed of a frozen verify budget from captures",
    .description =
        "Counts, per bucket of the draft's prefix confidence, how often proposals that were reached and verified "
        "matched "
        "the target, and writes the counts with the costs of a cycle as a seed file. A run under that seed verifies "
        "the "
        "rows that promise the most tokens per unit of cost, and never learns, so it is as reproducible as a full "
        "one.\n\n"
        "Every CAPTURE is a capture of greedy decoding under the full budget. All of them have the same target, draft, "
        "tokenizer, template and settings; prompts may differ. A context that several of them hold counts once.",
    .exit_status =
        "0 done\n"
        "2 usage error, or the captures do not belong into one seed\n"
        "5 a capture breaks its own rules",
    .examples =
        "draftprobe budget calibrate runs/a runs/b --target T --draft D --lanes 4 --out seed.json\n"
        "draftprobe budget calibrate runs/a runs/b --costs costs.json --out seed.json\n"
        "draftprobe budget calibrate out/treated --after-restore --costs costs.json --out restored.json",
    .run = run_calibrate,
};

}  // namespace draftprobe::cli
