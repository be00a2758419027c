#include "scenario.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/files.h"
#include "base/hash.h"
#include "capture/reader.h"
#include "capture/test_capture.h"
#include "capture/writer.h"
#include "compare/compare.h"
#include "instrument/observer.h"
#include "probe/near_tie.h"
#include "probe/probe.h"
#include "state/restore_form.h"
#include "study/case.h"

namespace draftprobe::scenario {

using probe::Assembly;
using probe::ProbeRequest;
using probe::ProbeSettings;

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = 1 << 20;

Status check_keys(const Json& object, std::string_view subject, const std::set<std::string>& known) {
    if (!object.is_object()) return corrupt(fmt::format("{}: expected an object", subject));
    for (const auto& [key, value] : object.items()) {
        if (!known.contains(key)) {
            return corrupt(
                fmt::format("{}: unknown key '{}', expected some of {}", subject, key, fmt::join(known, ", ")));
        }
    }
    return {};
}

const std::set<std::string> kScenarioKeys = {
    "name",    "about",    "pair",     "control_pair",    "prompt", "boundary", "suffix", "cycles", "level",
    "kv",      "numerics", "chunk",    "treatment",       "faults", "occupant", "script", "build",  "chat",
    "control", "treated",  "near_tie", "control_changes", "treat",  "expect",   "twin",   "verify", "prompts",
    "factors", "foreign",  "plan",     "inject"};
const std::set<std::string> kExpectKeys = {"verdict",
                                           "changed",
                                           "stage",
                                           "component",
                                           "detail",
                                           "shift",
                                           "cycle",
                                           "exit",
                                           "refusals",
                                           "warning",
                                           "warnings",
                                           "flips",
                                           "why",
                                           "first_proposal_difference",
                                           "matched",
                                           "differing",
                                           "near_ties",
                                           "note",
                                           "error",
                                           "runs",
                                           "left",
                                           "refused",
                                           "sources",
                                           "cells",
                                           "interactions",
                                           "population",
                                           "population_refused",
                                           "lower_positions",
                                           "all_accepted"};
const std::set<std::string> kRunKeys = {"run", "verdict", "stage", "component", "detail", "why", "warning", "tier"};

Status check_scenario(const Json& spec, std::string_view subject, bool twin) {
    DP_RETURN_IF_ERROR(check_keys(spec, subject, kScenarioKeys));
    std::vector<const char*> required = {"name", "pair", "expect"};
    if (!spec.contains("plan")) required.insert(required.end(), {"prompt", "boundary", "suffix", "cycles"});
    for (const char* key : required) {
        if (!spec.contains(key)) return corrupt(fmt::format("{}: key '{}' is missing", subject, key));
    }
    DP_RETURN_IF_ERROR(check_keys(spec["expect"], fmt::format("{}.expect", subject), kExpectKeys));
    for (const Json& run : spec["expect"].value("runs", Json::array()))
        DP_RETURN_IF_ERROR(check_keys(run, fmt::format("{}.expect.runs", subject), kRunKeys));
    if (spec["expect"].contains("error")) return {};
    DP_ASSIGN_OR_RETURN(const std::string verdict, json_get_string(spec["expect"], "verdict", subject));
    // A verdict without a place is half of an answer.
    if (verdict == "CHANGED" && !(spec["expect"].contains("stage") && spec["expect"].contains("component"))) {
        return corrupt(fmt::format("{}: CHANGED is expected with a stage and a component", subject));
    }
    if (twin && spec.contains("twin")) return corrupt(fmt::format("{}: a twin has no twin", subject));
    return {};
}

std::string source_path(const std::string& name) { return std::string(DRAFTPROBE_SOURCE_DIR) + "/" + name; }

// A copy of the directory in which one thing differs.
Status copy_changed(const fs::path& from, const fs::path& to, const std::string& change, const Json& patch) {
    std::error_code error;
    fs::create_directories(to);
    for (const auto& entry : fs::directory_iterator(from)) {
        fs::copy_file(entry.path(), to / entry.path().filename(), fs::copy_options::overwrite_existing, error);
        if (error) return io_error(fmt::format("{}: {}", entry.path().string(), error.message()));
    }
    const auto rewrite = [&](const char* name, const auto& edit) -> Status {
        const fs::path file = to / name;
        DP_ASSIGN_OR_RETURN(std::string text, read_text_file(file, std::uint64_t{1} << 26));
        DP_RETURN_IF_ERROR(edit(text));
        fs::remove(file);
        return write_file(file, std::string_view(text));
    };
    if (change == "weights") {
        // The low byte of the last value: still a number, another one.
        return rewrite("model.safetensors", [](std::string& text) {
            text[text.size() - 2] = static_cast<char>(text[text.size() - 2] ^ 1);
            return Status();
        });
    }
    if (change == "tokenizer") {
        return rewrite("tokenizer.json", [](std::string& text) {
            text += "\n";
            return Status();
        });
    }
    return rewrite("config.json", [&](std::string& text) -> Status {
        DP_ASSIGN_OR_RETURN(Json config, parse_json(text, "config.json"));
        config.merge_patch(patch);
        text = config.dump();
        return {};
    });
}

struct PairPaths {
    std::string target;
    std::string draft;
};

Result<PairPaths> named_pair(const std::string& name) {
    static const std::map<std::string, PairPaths> kPairs = {
        {"toy", {"tests/golden/target-r2", "tests/golden/draft-w64"}},
        {"toy-mlx4", {"tests/golden/target-r2-mlx4", "tests/golden/draft-w64"}},
        {"mini", {"models/mini-dense-mlx4", "models/mini-dense-draft"}}};
    const auto at = kPairs.find(name);
    if (at == kPairs.end()) return corrupt(fmt::format("pair '{}', expected toy, toy-mlx4 or mini", name));
    return PairPaths{source_path(at->second.target), source_path(at->second.draft)};
}

// "toy", or {"base": "toy", "target" | "draft": "weights" | "tokenizer" | {config patch}}.
Result<const Assembly*> load_pair(const Json& spec, const fs::path& scratch) {
    static std::map<std::string, Assembly> loaded;
    const std::string key = spec.dump();
    if (const auto at = loaded.find(key); at != loaded.end()) return &at->second;
    const bool changed = spec.is_object();
    if (changed) DP_RETURN_IF_ERROR(check_keys(spec, "pair", {"base", "target", "draft"}));
    DP_ASSIGN_OR_RETURN(PairPaths paths, named_pair(changed ? spec.value("base", "") : spec.get<std::string>()));
    for (const auto& [part, path] : {std::pair{"target", &paths.target}, std::pair{"draft", &paths.draft}}) {
        if (!changed || !spec.contains(part)) continue;
        const Json& change = spec[part];
        const fs::path copy = scratch / fmt::format("changed-{}-{}", part, sha256_hex(key).substr(0, 8));
        DP_RETURN_IF_ERROR(copy_changed(*path, copy, change.is_string() ? change.get<std::string>() : "", change));
        *path = copy.string();
    }
    probe::AssemblyOptions options;
    options.use_digest_cache = false;
    DP_ASSIGN_OR_RETURN(Assembly assembly, probe::load_assembly(paths.target, paths.draft, true, options));
    return &loaded.emplace(key, std::move(assembly)).first->second;
}

std::uint64_t mix(std::uint64_t seed, std::uint64_t index) {
    const std::uint64_t words[] = {seed, index};
    return xxh3_64(std::as_bytes(std::span(words)));
}

// {"seed": N} | {"ids": [...]} | {"file": PATH}; `tokens` ids of it, the last ones those of `tail`.
Result<std::vector<TokenId>> read_prompt(const Json& spec, const Assembly& assembly, std::size_t tokens) {
    DP_RETURN_IF_ERROR(check_keys(spec, "prompt", {"seed", "ids", "file", "tokens", "tail"}));
    tokens = spec.value("tokens", tokens);
    std::vector<TokenId> ids;
    if (spec.contains("ids")) {
        ids = spec["ids"].get<std::vector<TokenId>>();
    } else if (spec.contains("file")) {
        DP_ASSIGN_OR_RETURN(const std::string text,
                            read_text_file(source_path(spec["file"].get<std::string>()), kMaxFileBytes));
        DP_ASSIGN_OR_RETURN(ids, assembly.tokenizer->encode(text));
    } else {
        DP_ASSIGN_OR_RETURN(const std::uint64_t seed, json_get_u64(spec, "seed", "prompt"));
        // Ids below every special one of the toys.
        for (std::size_t i = 0; i < tokens; ++i) ids.push_back(static_cast<TokenId>(mix(seed, i) % 240));
    }
    if (ids.size() < tokens) return corrupt(fmt::format("prompt: {} ids, expected at least {}", ids.size(), tokens));
    ids.resize(tokens);
    if (spec.contains("tail")) {
        DP_ASSIGN_OR_RETURN(const std::vector<TokenId> tail, read_prompt(spec["tail"], assembly, 0));
        if (tail.size() > tokens) return corrupt("prompt.tail: longer than the prompt");
        std::copy(tail.begin(), tail.end(), ids.end() - static_cast<std::ptrdiff_t>(tail.size()));
    }
    return ids;
}

struct Arms {
    ProbeRequest request;
    ProbeSettings settings;
    const Assembly* assembly = nullptr;
};

// What the target says without a draft, behind the prompt: scripts propose from it.
Result<std::vector<TokenId>> continuation(const Arms& arms, std::size_t tokens) {
    decode::EngineSettings settings = arms.settings.engine;
    settings.max_tokens = arms.request.prompt.size() + tokens + 16;
    DP_ASSIGN_OR_RETURN(auto core, decode::EngineCore::create(arms.assembly->models, settings));
    instrument::ObservedEngine engine(std::move(core));
    engine.begin_request(0, {{tokens + 1, {}}});
    DP_RETURN_IF_ERROR(engine.prefill(0, arms.request.prompt, 0, true));
    std::vector<TokenId> ids = {engine.lane(0).anchor};
    while (ids.size() < tokens) {
        DP_ASSIGN_OR_RETURN(const TokenId next, engine.plain_step(0));
        ids.push_back(next);
    }
    return ids;
}

// {"seed": N, "hits": [rate per position]}: the target's own token with that probability, else another one. `hits_last`
// is read where there are several prompts.
Result<decode::ScriptedDrafter::Script> make_script(const Json& spec, const Arms& arms) {
    DP_RETURN_IF_ERROR(check_keys(spec, "script", {"seed", "hits", "hits_last"}));
    const auto hits = spec["hits"].get<std::vector<double>>();
    const auto seed = spec["seed"].get<std::uint64_t>();
    const auto block = static_cast<std::size_t>(arms.assembly->models.draft->config().block);
    if (hits.size() != block - 1)
        return corrupt(fmt::format("script.hits: {} rates, expected {}", hits.size(), block - 1));
    DP_ASSIGN_OR_RETURN(std::vector<TokenId> ids, continuation(arms, (arms.request.cycles + 2) * block));
    const auto first = static_cast<Position>(arms.request.prompt.size());
    decode::ScriptedDrafter::Script script = [hits, seed, ids = std::move(ids), first](const state::Lane& lane,
                                                                                       std::size_t t) -> TokenId {
        const auto position = static_cast<std::size_t>(lane.length - first) + t;
        const std::uint64_t draw = mix(seed, static_cast<std::uint64_t>(lane.length) * 16 + t);
        const bool hit = static_cast<double>(draw >> 11) * 0x1p-53 < hits[t - 1];
        const TokenId right = position < ids.size() ? ids[position] : 0;
        return hit ? right : (right + 1) % 240;
    };
    return script;
}

Status read_treatment(const Json& spec, probe::RestoreTreatment& treatment) {
    DP_RETURN_IF_ERROR(check_keys(spec, "treatment", {"restore_target", "restore_draft", "tier", "move"}));
    treatment.move = spec.value("move", true);
    DP_ASSIGN_OR_RETURN(treatment.target, state::parse_target_restore(spec.value("restore_target", "exact")));
    DP_ASSIGN_OR_RETURN(treatment.draft, state::parse_draft_restore(spec.value("restore_draft", "exact")));
    DP_ASSIGN_OR_RETURN(treatment.tier, state::parse_tier(spec.value("tier", "memory")));
    return {};
}

Result<numerics::NumericsClass> numerics_class(const std::string& name) {
    using numerics::NumericsClass;
    for (const auto cls : {NumericsClass::f32, NumericsClass::i8dot, NumericsClass::schedule_sensitive}) {
        if (numerics::numerics_class_name(cls) == name) return cls;
    }
    return corrupt(fmt::format("numerics '{}'", name));
}

Status read_settings(const Json& spec, ProbeSettings& s) {
    s.engine.isa = numerics::best_isa();
    s.engine.threads = 1;
    s.engine.chunk_tokens = spec.value("chunk", std::size_t{64});
    s.engine.kv_format = spec.value("kv", "bf16") == "int8" ? state::KvFormat::int8 : state::KvFormat::bf16;
    DP_ASSIGN_OR_RETURN(s.engine.numerics, numerics_class(spec.value("numerics", "f32")));
    s.level = spec.value("level", 3);
    s.digest_every = 1;
    s.build_digest = sha256_hex(spec.value("build", "scenario"));
    s.verify_rows = spec.value("verify", std::size_t{0});
    if (spec.contains("treatment")) DP_RETURN_IF_ERROR(read_treatment(spec["treatment"], s.treatment));
    return {};
}

Result<Arms> read_arms(const Json& spec, const Json& pair, const fs::path& scratch) {
    Arms arms;
    DP_ASSIGN_OR_RETURN(arms.assembly, load_pair(pair, scratch));
    ProbeSettings& s = arms.settings;
    DP_RETURN_IF_ERROR(read_settings(spec, s));
    ProbeRequest& r = arms.request;
    r.boundary = spec["boundary"].get<Position>();
    r.cycles = spec["cycles"].get<std::size_t>();
    const std::size_t tokens = static_cast<std::size_t>(r.boundary) + spec["suffix"].get<std::size_t>();
    DP_ASSIGN_OR_RETURN(r.prompt, read_prompt(spec["prompt"], *arms.assembly, tokens));
    if (spec.contains("chat")) {
        r.chat_template = {sha256_hex(std::string_view("template")), spec["chat"].get<std::string>(), "", ""};
    }
    if (!spec.contains("occupant") || spec["occupant"] == "reversed") {
        // The probe's own.
    } else if (spec["occupant"] == "same") {
        r.occupant = r.prompt;
    } else {
        DP_ASSIGN_OR_RETURN(r.occupant, read_prompt(spec["occupant"], *arms.assembly, tokens));
    }
    if (spec.contains("script")) {
        DP_ASSIGN_OR_RETURN(s.script, make_script(spec["script"], arms));
    }
    return arms;
}

Result<Arm> arm_of(const std::string& name) {
    for (const Arm arm : {Arm::fresh, Arm::restored, Arm::natural, Arm::uninterrupted, Arm::repeat}) {
        if (arm_name(arm) == name) return arm;
    }
    return corrupt(fmt::format("arm '{}'", name));
}

// One capture out of several of one arm, each with one request: a request more is a cycle later, and nothing else is
// another number.
Status join_captures(const std::vector<fs::path>& parts, const fs::path& path) {
    CaptureHeader all;
    std::optional<CaptureWriter> writer;
    std::int64_t cycles = 0;
    for (const fs::path& part : parts) {
        DP_ASSIGN_OR_RETURN(CaptureReader reader, CaptureReader::open(part));
        const CaptureHeader& header = reader.header();
        if (!writer) {
            CaptureShape shape;
            shape.level = header.level;
            shape.block = header.block;
            shape.candidates = header.candidates;
            DP_ASSIGN_OR_RETURN(writer, CaptureWriter::create(path, false, shape));
            all = header;
        } else {
            const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
            append(all.requests, header.requests);
            append(all.ledger, header.ledger);
            append(all.schedule, header.schedule);
            append(all.totals.rows, header.totals.rows);
        }
        StepRecord step;
        while (true) {
            DP_ASSIGN_OR_RETURN(const bool more, reader.next(step));
            if (!more) break;
            step.cycle += cycles;
            DP_RETURN_IF_ERROR(writer->add_step(step));
        }
        cycles += header.totals.lane_cycles;
    }
    return writer->finish(std::move(all)).status();
}

// Runs an arm, or finds the capture of an equal one: a capture is a function of what it was asked for.
Result<fs::path> capture_of(Arms& arms, Arm arm, Json spec, const fs::path& scratch) {
    for (const char* key :
         {"name", "about", "expect", "treat", "control", "treated", "control_changes", "control_pair", "factors"})
        spec.erase(key);
    if (!spec.contains("faults")) spec["faults"] = Json::array();
    const fs::path path = scratch / fmt::format("{}-{}", arm_name(arm), sha256_hex(spec.dump()).substr(0, 16));
    if (fs::exists(path)) return path;
    if (spec.value("near_tie", false)) {
        DP_ASSIGN_OR_RETURN(arms.settings.near_tie,
                            probe::measure_near_tie(*arms.assembly, arms.request, arms.settings));
    }
    DP_RETURN_IF_ERROR(probe::run_arm(*arms.assembly, arms.request, arms.settings, arm, path, false).status());
    return path;
}

// What another engine might have written: no engine runs, the format's own example is given these settings.
Result<fs::path> foreign_capture(const Json& spec, Arm arm, const fs::path& scratch) {
    const Json& settings = spec["foreign"];
    const fs::path path =
        scratch / fmt::format("foreign-{}-{}", arm_name(arm), sha256_hex(settings.dump()).substr(0, 16));
    if (fs::exists(path)) return path;
    fixture::ArmData data = fixture::make_arm(arm);
    for (const auto& item : settings.items()) {
        const std::string field = item.key();
        const auto value = item.value().get<std::string>();
        auto& list = data.header.settings;
        const auto at = std::find_if(list.begin(), list.end(), [&](const Setting& s) { return s.field == field; });
        if (at != list.end()) {
            at->value = value;
        } else {
            list.push_back({field, value});
        }
    }
    DP_RETURN_IF_ERROR(fixture::write_arm(path, data).status());
    return path;
}

Status read_faults(const Json& from, ProbeSettings& settings) {
    for (const Json& text : from.value("faults", Json::array())) {
        DP_ASSIGN_OR_RETURN(instrument::Fault fault, instrument::parse_fault(text.get<std::string>()));
        settings.treatment.faults.push_back(std::move(fault));
    }
    return {};
}

// The script of prompt i of n: draws of its own, and rates on the way from `hits` to `hits_last`.
Json script_of(Json script, std::size_t i, std::size_t n) {
    script["seed"] = script.value("seed", std::uint64_t{0}) + i;
    const auto last = script.value("hits_last", script["hits"].get<std::vector<double>>());
    script.erase("hits_last");
    const double share = static_cast<double>(i) / static_cast<double>(n - 1);
    for (std::size_t t = 0; t < last.size(); ++t) {
        const auto first = script["hits"][t].get<double>();
        script["hits"][t] = first + share * (last[t] - first);
    }
    return script;
}

// One arm over `prompts` prompts (1 when absent): seeds that follow each other, one request each.
Result<fs::path> arm_capture(const Json& spec, const Json& pair, Arm arm, const fs::path& scratch) {
    if (spec.contains("foreign")) return foreign_capture(spec, arm, scratch);
    const std::size_t prompts = spec.value("prompts", std::size_t{1});
    std::vector<fs::path> parts;
    for (std::size_t i = 0; i < prompts; ++i) {
        Json one = spec;
        one["pair"] = pair;
        one.erase("prompts");
        if (prompts > 1 && one.contains("script")) one["script"] = script_of(one["script"], i, prompts);
        if (prompts > 1) one["prompt"]["seed"] = one["prompt"].value("seed", std::uint64_t{0}) + i;
        DP_ASSIGN_OR_RETURN(Arms arms, read_arms(one, pair, scratch));
        DP_RETURN_IF_ERROR(read_faults(one, arms.settings));
        if (prompts > 1) {
            one["key"] = arms.request.key = fmt::format("r{}", i);
            one.erase("near_tie");
        }
        DP_ASSIGN_OR_RETURN(fs::path path, capture_of(arms, arm, std::move(one), scratch));
        parts.push_back(std::move(path));
    }
    if (prompts == 1) return parts.front();
    std::string names;
    for (const fs::path& part : parts) names += part.filename().string() + "\n";
    const fs::path joined = scratch / fmt::format("joined-{}", sha256_hex(names).substr(0, 16));
    if (!fs::exists(joined)) DP_RETURN_IF_ERROR(join_captures(parts, joined));
    return joined;
}

// The scenario's plan with its prompts made; `inject: false` takes every fault out of it.
Result<Outcome> run_plan_scenario(const Scenario& scenario, const fs::path& scratch) {
    const Json& spec = scenario.spec;
    DP_ASSIGN_OR_RETURN(const Assembly* assembly, load_pair(spec["pair"], scratch));
    ProbeSettings settings;
    DP_RETURN_IF_ERROR(read_settings(spec, settings));
    Json text = spec["plan"];
    text["format"] = "draftprobe-plan";
    text["version"] = 1;
    std::vector<std::vector<TokenId>> prompts;
    for (Json& request : text["requests"]) {
        DP_ASSIGN_OR_RETURN(std::vector<TokenId> ids, read_prompt(request["prompt"], *assembly, 0));
        prompts.push_back(std::move(ids));
        request["prompt"] = {{"ids", {0}}};
    }
    for (Json& step : text["steps"]) {
        if (!spec.value("inject", true)) step.erase("inject");
    }
    DP_ASSIGN_OR_RETURN(const study::Plan plan, study::parse_plan(text.dump(), scenario.name));
    const fs::path directory = scratch / ("plan-" + sha256_hex(scenario.name).substr(0, 16));
    fs::create_directories(directory);
    Outcome outcome;
    DP_ASSIGN_OR_RETURN(outcome.plan, study::run_plan(*assembly, plan, prompts, settings, directory, {}));
    outcome.comparison = outcome.plan->judged[outcome.plan->representative].comparison;
    return outcome;
}

// Every cell of the treatment's factorial against the fresh control.
Status run_factor_scenario(const Json& spec, const fs::path& scratch, Outcome& outcome) {
    DP_ASSIGN_OR_RETURN(Arms arms, read_arms(spec, spec["pair"], scratch));
    DP_RETURN_IF_ERROR(read_faults(spec, arms.settings));
    const study::Case item{arms.request, arms.settings, false};
    const fs::path directory = scratch / ("factors-" + sha256_hex(spec.dump()).substr(0, 16));
    fs::create_directories(directory);
    DP_RETURN_IF_ERROR(study::run_control(*arms.assembly, item, directory / "control"));
    DP_ASSIGN_OR_RETURN(outcome.comparison,
                        study::run_treated(*arms.assembly, item, directory / "control", directory / "whole"));
    DP_ASSIGN_OR_RETURN(outcome.factors, study::run_factors(*arms.assembly, item, directory / "control",
                                                            outcome.comparison, directory / "cells", {}));
    return {};
}

void check_run(const Json& expect, const study::JudgedRun& run, std::vector<std::string>& problems) {
    const Comparison& c = run.comparison;
    const std::map<std::string, std::string> equal = {{"run", run.name},
                                                      {"verdict", std::string(verdict_name(c.verdict))},
                                                      {"stage", c.first ? c.first->stage : ""},
                                                      {"component", c.first ? c.first->component : ""},
                                                      {"tier", c.treated_capture.tier}};
    const std::map<std::string, std::string> parts = {{"detail", c.first ? c.first->detail : ""},
                                                      {"why", c.why},
                                                      {"warning", fmt::format("{}", fmt::join(run.warnings, "\n"))}};
    for (const auto& [key, value] : expect.items()) {
        const auto text = value.get<std::string>();
        const bool part = parts.contains(key);
        const std::string& found = part ? parts.at(key) : equal.at(key);
        if (part ? found.find(text) != std::string::npos : found == text) continue;
        problems.push_back(fmt::format("run {}: {}: found \"{}\", expected \"{}\"", run.name, key, found, text));
    }
}

void check_plan(const Json& expect, const study::PlanResult& plan, std::vector<std::string>& problems) {
    const Json runs = expect.value("runs", Json::array());
    std::vector<std::string> names;
    for (const study::JudgedRun& run : plan.judged) names.push_back(run.name);
    if (runs.size() != plan.judged.size()) {
        problems.push_back(fmt::format("runs: found {}, expected {}", fmt::join(names, ", "), runs.size()));
        return;
    }
    for (std::size_t i = 0; i < runs.size(); ++i) check_run(runs[i], plan.judged[i], problems);
    if (plan.left.size() != expect.value("left", std::size_t{0}))
        problems.push_back(fmt::format("left: found {}", plan.left.size()));
    if (plan.refused.size() != expect.value("refused", std::size_t{0}))
        problems.push_back(fmt::format("refused: found {}", plan.refused.size()));
}

void check_factors(const Json& expect, const study::FactorStudy& study, std::vector<std::string>& problems) {
    const auto label = [&](study::FactorSet set) { return study::cell_label(study.factors, set); };
    Json sources = Json::array();
    for (const study::FactorSet set : study.sources) sources.push_back(label(set));
    Json cells = Json::object();
    for (const study::FactorCell& cell : study.cells) cells[label(cell.factors)] = verdict_name(cell.summary.verdict);
    Json interactions = Json::array();
    for (const study::FactorEffect& effect : study.effects) {
        const bool several = (effect.last & (effect.last - 1)) != 0;
        const bool any = effect.differs.value_or(0) != 0 || effect.differing_pairs.value_or(0) != 0 ||
                         effect.retained.value_or(0) != 0 || effect.drift.value_or(0) != 0;
        if (several && any) interactions.push_back(label(effect.cell));
    }
    for (const auto& [key, found] :
         {std::pair<const char*, const Json&>{"sources", sources}, {"cells", cells}, {"interactions", interactions}}) {
        if (expect.contains(key) && expect[key] != found)
            problems.push_back(fmt::format("{}: found {}, expected {}", key, found.dump(), expect[key].dump()));
    }
}

}  // namespace

Result<std::vector<Pair>> read_scenarios(const fs::path& directory) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(directory)) {
        if (entry.path().extension() == ".json") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    std::vector<Pair> pairs;
    std::set<std::string> names;
    for (const fs::path& file : files) {
        const std::string subject = file.filename().string();
        DP_ASSIGN_OR_RETURN(const Json document, parse_json_file(file, kMaxFileBytes));
        DP_RETURN_IF_ERROR(check_keys(document, subject, {"field", "about", "defaults", "scenarios"}));
        DP_ASSIGN_OR_RETURN(const std::string field, json_get_string(document, "field", subject));
        DP_ASSIGN_OR_RETURN(const Json* list, json_get_array(document, "scenarios", subject));
        for (const Json& entry : *list) {
            Json spec = document.value("defaults", Json::object());
            spec.merge_patch(entry);
            const std::string name = spec.value("name", "");
            if (!names.insert(name).second) return corrupt(fmt::format("{}: '{}' twice", subject, name));
            DP_RETURN_IF_ERROR(check_scenario(spec, fmt::format("{}: {}", subject, name), false));
            Pair pair;
            if (spec.contains("twin")) {
                Json twin = spec;
                twin.erase("twin");
                // Expectations are not inherited: a twin says what comes out of it.
                twin.erase("expect");
                twin.merge_patch(spec["twin"]);
                DP_RETURN_IF_ERROR(check_scenario(twin, fmt::format("{}: twin of {}", subject, name), true));
                pair.twins.push_back({name + " twin", field, std::move(twin)});
            }
            spec.erase("twin");
            pair.faulty = {name, field, std::move(spec)};
            pairs.push_back(std::move(pair));
        }
    }
    return pairs;
}

Result<Outcome> run_scenario(const Scenario& scenario, const fs::path& scratch) {
    const Json& spec = scenario.spec;
    if (spec.contains("plan")) return run_plan_scenario(scenario, scratch);
    Outcome outcome;
    if (spec.value("factors", false)) {
        DP_RETURN_IF_ERROR(run_factor_scenario(spec, scratch, outcome));
        return outcome;
    }
    DP_ASSIGN_OR_RETURN(const Arm control_arm, arm_of(spec.value("control", "fresh")));
    DP_ASSIGN_OR_RETURN(const Arm treated_arm, arm_of(spec.value("treated", "restored")));
    Json control_spec = spec;
    // The control's faults are its own.
    control_spec.erase("faults");
    if (spec.contains("control_changes")) control_spec.merge_patch(spec["control_changes"]);
    if (control_arm != Arm::restored) control_spec.erase("treatment");
    DP_ASSIGN_OR_RETURN(const fs::path control_path,
                        arm_capture(control_spec, spec.value("control_pair", spec["pair"]), control_arm, scratch));
    Json treated_spec = spec;
    treated_spec.erase("near_tie");
    DP_ASSIGN_OR_RETURN(const fs::path treated_path, arm_capture(treated_spec, spec["pair"], treated_arm, scratch));
    CompareOptions options;
    if (spec.contains("treat")) options.treat = spec["treat"].get<std::vector<std::string>>();
    DP_ASSIGN_OR_RETURN(outcome.comparison, compare_captures(control_path, treated_path, options));
    return outcome;
}

std::vector<std::string> unmet(const Json& expect, const Outcome& outcome) {
    const Comparison& result = outcome.comparison;
    std::vector<std::string> problems;
    if (outcome.plan) check_plan(expect, *outcome.plan, problems);
    if (outcome.factors) check_factors(expect, *outcome.factors, problems);
    const auto check = [&](const char* key, const Json& found) {
        if (expect.contains(key) && expect[key] != found)
            problems.push_back(fmt::format("{}: found {}, expected {}", key, found.dump(), expect[key].dump()));
    };
    const auto contains = [&](const char* key, const std::string& found) {
        if (expect.contains(key) && found.find(expect[key].get<std::string>()) == std::string::npos)
            problems.push_back(fmt::format("{}: found \"{}\", expected it to say {}", key, found, expect[key].dump()));
    };
    const Verdict verdict = outcome.plan ? outcome.plan->verdict : result.verdict;
    check("verdict", std::string(verdict_name(verdict)));
    check("exit", verdict_exit(verdict));
    std::vector<std::string> changed;
    if (result.proposals_changed) changed.push_back("proposals");
    if (result.width_changed) changed.push_back("width");
    if (result.acceptance_changed) changed.push_back("acceptance");
    if (result.output_changed) changed.push_back("output");
    check("changed", changed);
    check("stage", result.first ? result.first->stage : "");
    check("component", result.first ? result.first->component : "");
    check("cycle", result.first && result.first->cycle ? Json(*result.first->cycle) : Json());
    check("shift", result.shift_tokens ? Json(*result.shift_tokens) : Json());
    check("flips", result.flips.total);
    check("near_ties", result.flips.near_ties);
    check("matched", result.pairs.matched);
    check("differing", result.pairs.differing);
    contains("detail", result.first ? result.first->detail : "");
    contains("why", result.why);
    contains("note", fmt::format("{}", fmt::join(result.notes, "\n")));
    contains("warning", fmt::format("{}", fmt::join(result.warnings, "\n")));
    std::vector<std::string> fields;
    for (const Refusal& refusal : result.refusals) fields.push_back(refusal.field);
    check("refusals", fields);
    std::vector<std::int64_t> positions;
    const auto& first_at = result.paired.first_proposal_difference;
    for (std::size_t i = 0; i < first_at.size(); ++i) {
        if (first_at[i] > 0) positions.push_back(static_cast<std::int64_t>(i) + 1);
    }
    check("first_proposal_difference", positions);
    check("population", result.population ? std::string(result.population->claim()) : "refused");
    contains("population_refused", result.population_refused);
    std::vector<std::int64_t> lower;
    for (const PositionEffect& at : result.positions) {
        if (at.effect && at.effect->claim() == "lower" && at.adjusted_p.value_or(1) <= 0.05)
            lower.push_back(at.position);
    }
    check("lower_positions", lower);
    check("warnings", result.warnings.size());
    check("all_accepted", result.treated.verified > 0 && result.treated.accepted == result.treated.verified);
    return problems;
}

}  // namespace draftprobe::scenario
