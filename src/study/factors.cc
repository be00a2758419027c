#include "study/factors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "compare/compare.h"

namespace draftprobe::study {

namespace fs = std::filesystem;
using state::DraftRestore;

namespace {

FactorSet bit(std::size_t index) { return FactorSet{1} << index; }

bool closed(const std::vector<Factor>& factors, FactorSet set) {
    for (std::size_t i = 0; i < factors.size(); ++i) {
        if ((set & bit(i)) != 0 && (factors[i].needs & ~set) != 0) return false;
    }
    return true;
}

FactorSet last_factors(const std::vector<Factor>& factors, FactorSet set) {
    FactorSet last = set;
    for (std::size_t i = 0; i < factors.size(); ++i) {
        if ((set & bit(i)) != 0) last &= ~factors[i].needs;
    }
    return last;
}

const Factor* find(const std::vector<Factor>& factors, FactorSet set, std::string_view name) {
    for (std::size_t i = 0; i < factors.size(); ++i) {
        if ((set & bit(i)) != 0 && factors[i].name == name) return &factors[i];
    }
    return nullptr;
}

bool restores(const std::vector<Factor>& factors, FactorSet set) { return find(factors, set, "snapshot") != nullptr; }

DraftRestore draft_form(const std::vector<Factor>& factors, FactorSet set, DraftRestore asked) {
    if (find(factors, set, "draft-form") != nullptr) return asked;
    return find(factors, set, "ring-rebuild") != nullptr ? DraftRestore::rows : DraftRestore::exact;
}

// Sum over subsets X of the cell's last factors of (-1)^|X| value(cell without X); nothing when a value is missing.
template <typename T, typename Value>
std::optional<T> contrast(FactorSet cell, FactorSet last, Value value) {
    T sum{};
    for (FactorSet removed = last;; removed = (removed - 1) & last) {
        const std::optional<T> term = value(cell & ~removed);
        if (!term) return std::nullopt;
        sum += std::popcount(removed) % 2 == 0 ? *term : -*term;
        if (removed == 0) return sum;
    }
}

std::string file_label(const std::vector<Factor>& factors, FactorSet cell) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < factors.size(); ++i) {
        if ((cell & bit(i)) != 0) names.push_back(factors[i].label());
    }
    return fmt::format("{}", fmt::join(names, "+"));
}

}  // namespace

Result<std::vector<Factor>> factors_of(const probe::ProbeSettings& settings) {
    const probe::RestoreTreatment& t = settings.treatment;
    std::vector<Factor> factors;
    if (settings.engine.kv_format != state::KvFormat::bf16) {
        factors.push_back({"kv-format", "bf16", std::string(state::kv_format_name(settings.engine.kv_format)), 0});
    }
    const FactorSet format = bit(factors.size()) - 1;  // the KV format where it is a factor, else none
    const FactorSet snapshot = bit(factors.size());
    factors.push_back({"snapshot", "none", "taken and restored", 0});
    if (t.move) factors.push_back({"move", "same lane", "another lane, left dirty", snapshot});
    if (t.tier != state::Tier::memory)
        factors.push_back({"tier", "memory", std::string(state::tier_name(t.tier)), snapshot});
    if (t.target != state::TargetRestore::exact)
        factors.push_back({"target-form", "exact", std::string(state::target_restore_name(t.target)), snapshot});
    FactorSet form_needs = snapshot;
    if (t.draft == DraftRestore::rows || t.draft == DraftRestore::rows_q4) {
        form_needs = bit(factors.size());
        factors.push_back({"ring-rebuild", "copied", "rebuilt from the rows", snapshot});
    }
    if (t.draft != DraftRestore::exact && t.draft != DraftRestore::rows) {
        factors.push_back({"draft-form", t.draft == DraftRestore::rows_q4 ? "rows" : "exact",
                           std::string(state::draft_restore_name(t.draft)), form_needs});
    }
    for (const instrument::Fault& fault : t.faults) {
        if (instrument::spoils_computing_arm(fault.kind)) {
            return invalid_argument(fmt::format(
                "--factors with --inject {}: it spoils the control that every combination is judged against, "
                "expected faults of the restore; leave it out",
                fault.spelling));
        }
        const bool twice = std::any_of(factors.begin(), factors.end(),
                                       [&](const Factor& f) { return f.name == "fault" && f.on == fault.spelling; });
        if (twice) {
            return invalid_argument(
                fmt::format("--factors: found --inject {} twice, expected every fault once", fault.spelling));
        }
        const bool needs_format = fault.kind == instrument::FaultKind::double_quantisation;
        factors.push_back({"fault", "none", fault.spelling, snapshot | (needs_format ? format : 0)});
    }
    // More than enough for any treatment of that many factors to exceed the cells.
    constexpr std::size_t kMostFactors = 12;
    if (factors.size() > kMostFactors || factor_cells(factors).size() > kMaxFactorCells) {
        return invalid_argument(
            fmt::format("--factors: the treatment has {} factors, expected few enough for at most {} combinations; "
                        "give fewer --inject",
                        factors.size(), kMaxFactorCells));
    }
    return factors;
}

std::vector<FactorSet> factor_cells(const std::vector<Factor>& factors) {
    std::vector<FactorSet> cells;
    for (FactorSet set = 0; set < bit(factors.size()); ++set) {
        if (closed(factors, set)) cells.push_back(set);
    }
    std::stable_sort(cells.begin(), cells.end(),
                     [](FactorSet a, FactorSet b) { return std::popcount(a) < std::popcount(b); });
    return cells;
}

probe::ProbeSettings settings_of(const probe::ProbeSettings& asked, const std::vector<Factor>& factors,
                                 FactorSet cell) {
    probe::ProbeSettings settings = asked;
    const auto has = [&](std::string_view name) { return find(factors, cell, name) != nullptr; };
    if (!has("kv-format")) settings.engine.kv_format = state::KvFormat::bf16;
    probe::RestoreTreatment& t = settings.treatment;
    t.move = has("move");
    if (!has("tier")) t.tier = state::Tier::memory;
    if (!has("target-form")) t.target = state::TargetRestore::exact;
    t.draft = draft_form(factors, cell, asked.treatment.draft);
    t.idle_faults = true;  // that a fault needs another factor is one of the results
    t.faults.clear();
    std::size_t fault = 0;
    for (std::size_t i = 0; i < factors.size(); ++i) {
        if (factors[i].name != "fault") continue;
        if ((cell & bit(i)) != 0) t.faults.push_back(asked.treatment.faults[fault]);
        ++fault;
    }
    return settings;
}

void analyse(FactorStudy& study) {
    std::map<FactorSet, const CaseSummary*> cells;
    for (const FactorCell& cell : study.cells) cells[cell.factors] = &cell.summary;
    const auto tested = [&](FactorSet set) { return outcome_of(cells.at(set)->verdict) != Outcome::untested; };
    const auto differs = [&](FactorSet set) { return outcome_of(cells.at(set)->verdict) == Outcome::differs; };
    for (const FactorCell& cell : study.cells) {
        if (cell.factors == 0) continue;
        const FactorSet set = cell.factors;
        FactorEffect effect;
        effect.cell = set;
        effect.last = last_factors(study.factors, set);
        const auto whole = [&](auto value) {
            return contrast<std::int64_t>(set, effect.last, [&](FactorSet s) -> std::optional<std::int64_t> {
                return tested(s) ? std::optional<std::int64_t>(value(s)) : std::nullopt;
            });
        };
        effect.differs = whole([&](FactorSet s) { return differs(s) ? 1 : 0; });
        effect.differing_pairs = whole([&](FactorSet s) { return cells.at(s)->differing; });
        effect.retained = whole([&](FactorSet s) { return cells.at(s)->retained_difference; });
        effect.drift = contrast<double>(set, effect.last, [&](FactorSet s) {
            const std::optional<double> drift = tested(s) ? cells.at(s)->max_relative_l2 : std::nullopt;
            return drift && std::isfinite(*drift) ? drift : std::nullopt;
        });
        study.effects.push_back(effect);

        bool within = false;
        for (const FactorCell& other : study.cells) {
            within |= other.factors != set && (other.factors & ~set) == 0 && differs(other.factors);
        }
        if (differs(set) && !within) study.sources.push_back(set);
        if (within && outcome_of(cell.summary.verdict) == Outcome::same) study.masked.push_back(set);
    }
}

std::string cell_label(const std::vector<Factor>& factors, FactorSet cell) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < factors.size(); ++i) {
        if ((cell & bit(i)) != 0) names.push_back(factors[i].label());
    }
    return names.empty() ? "none" : fmt::format("{}", fmt::join(names, " + "));
}

Result<FactorStudy> run_factors(const probe::Assembly& assembly, const Case& item, const fs::path& control,
                                const Comparison& whole, const fs::path& directory,
                                const std::function<void(std::size_t, std::size_t)>& progress,
                                const RunCell& run_cell) {
    FactorStudy study;
    DP_ASSIGN_OR_RETURN(study.factors, factors_of(item.settings));
    const std::vector<FactorSet> cells = factor_cells(study.factors);
    const bool kv = study.factors.front().name == "kv-format";
    std::error_code error;
    fs::create_directory(directory, error);
    if (error)
        return io_error(fmt::format("{}: {}, expected to make a directory", directory.string(), error.message()));
    study.arms = 2;  // the asked pair

    // The control of bf16, where the asked one is of another format.
    fs::path plain_control = control;
    if (kv) {
        plain_control = directory / "control-bf16";
        Case plain = item;
        plain.settings = settings_of(item.settings, study.factors, 0);
        DP_RETURN_IF_ERROR(run_control(assembly, plain, plain_control));
        ++study.arms;
        CompareOptions options;
        options.treat = {"kv_format"};
        DP_ASSIGN_OR_RETURN(const Comparison formats, compare_captures(plain_control, control, options));
        study.kv_format = summarise(formats);
    }
    for (std::size_t i = 0; i < cells.size(); ++i) {
        FactorCell cell;
        cell.factors = cells[i];
        if (i + 1 == cells.size()) {
            cell.summary = summarise(whole);
            cell.control = "control";
            cell.treated = "treated";
        } else if (!restores(study.factors, cells[i])) {
            cell.summary.verdict = Verdict::same;
            cell.summary.why = "a control";
            cell.summary.max_relative_l2 = item.settings.level >= 3 ? std::optional<double>(0) : std::nullopt;
        } else {
            Case one = item;
            one.settings = settings_of(item.settings, study.factors, cells[i]);
            const bool plain = kv && (cells[i] & bit(0)) == 0;
            const fs::path& fresh = plain ? plain_control : control;
            const fs::path treated = directory / file_label(study.factors, cells[i]);
            DP_ASSIGN_OR_RETURN(const Comparison judged, run_cell(assembly, one, fresh, treated));
            cell.summary = summarise(judged);
            cell.control = fresh.lexically_relative(directory.parent_path()).generic_string();
            cell.treated = treated.lexically_relative(directory.parent_path()).generic_string();
            ++study.arms;
        }
        study.cells.push_back(std::move(cell));
        if (progress) progress(i + 1, cells.size());
    }
    analyse(study);
    return study;
}

namespace {

std::string number(const std::optional<std::int64_t>& value) {
    return value ? fmt::format("{:+}", *value) : std::string("unknown");
}
std::string number(const std::optional<double>& value) {
    return value ? fmt::format("{:+.3g}", *value) : std::string("unknown");
}

}  // namespace

bool is_zero(const FactorEffect& e) {
    return e.differs == 0 && e.differing_pairs == 0 && e.retained == 0 && (!e.drift || *e.drift == 0);
}

bool is_interaction(const FactorEffect& effect) { return std::popcount(effect.last) > 1; }

std::string effect_label(const FactorStudy& study, const FactorEffect& effect) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < study.factors.size(); ++i) {
        if ((effect.last & bit(i)) != 0) names.push_back(study.factors[i].label());
    }
    const FactorSet beside = effect.cell & ~effect.last;
    std::string label = fmt::format("{}", fmt::join(names, " x "));
    if (beside != 0) label += fmt::format(" (with {})", cell_label(study.factors, beside));
    return label;
}

namespace {

const CaseSummary& summary_of(const FactorStudy& study, FactorSet set) {
    return std::find_if(study.cells.begin(), study.cells.end(),
                        [set](const FactorCell& cell) { return cell.factors == set; })
        ->summary;
}

// "CHANGED at restore/draft_context".
std::string finding_text(const CaseSummary& summary) {
    const std::string place = first_place(summary);
    return fmt::format("{}{}{}", verdict_name(summary.verdict), place.empty() ? "" : " at ", place);
}

// What combinations that decide nothing leave open; "" when there is none.
std::string untested_text(const FactorStudy& study) {
    std::size_t restored = 0;
    std::vector<std::string_view> verdicts;
    std::size_t untested = 0;
    for (const FactorCell& cell : study.cells) {
        restored += restores(study.factors, cell.factors) ? 1 : 0;
        if (outcome_of(cell.summary.verdict) != Outcome::untested) continue;
        ++untested;
        const std::string_view name = verdict_name(cell.summary.verdict);
        if (std::find(verdicts.begin(), verdicts.end(), name) == verdicts.end()) verdicts.push_back(name);
    }
    if (untested == 0) return {};
    const std::string which = fmt::format("({}: {})", untested, fmt::join(verdicts, ", "));
    if (untested == restored) return fmt::format("No combination was tested {}: nothing can be attributed.", which);
    return fmt::format("Some combinations were not tested {}; what they would say is not known.", which);
}

}  // namespace

std::vector<std::string> attribution(const FactorStudy& study) {
    std::vector<std::string> out;
    for (const FactorSet source : study.sources) {
        const FactorSet last = last_factors(study.factors, source);
        const std::string label = cell_label(study.factors, last);
        const std::string finding = finding_text(summary_of(study, source));
        if (std::popcount(last) == 1) {
            out.push_back(fmt::format("{} alone makes it differ. ({})", label, finding));
        } else {
            out.push_back(fmt::format("{} differ only together: an interaction. ({})", label, finding));
        }
    }
    for (const FactorSet cell : study.masked) {
        const bool smallest = std::none_of(study.masked.begin(), study.masked.end(),
                                           [cell](FactorSet other) { return other != cell && (other & ~cell) == 0; });
        if (!smallest) continue;
        out.push_back(fmt::format("{} is SAME although a part of it differs: one factor hides another.",
                                  cell_label(study.factors, cell)));
    }
    if (std::string untested = untested_text(study); !untested.empty()) out.push_back(std::move(untested));
    if (out.empty()) out.emplace_back("No combination differs: there is nothing to attribute.");
    return out;
}

bool is_unknown(const FactorEffect& e) { return !e.differs && !e.differing_pairs && !e.retained && !e.drift; }

std::string factors_text(const FactorStudy& study) {
    std::string out = fmt::format("\nFactors: {} combinations of {}, {} arms run\n", study.cells.size(),
                                  study.factors.size(), study.arms);
    for (const Factor& factor : study.factors) {
        out += fmt::format("  {:<16}{} -> {}\n", factor.name, factor.off, factor.on);
    }
    std::size_t width = 11;
    for (const FactorCell& cell : study.cells) {
        width = std::max(width, cell_label(study.factors, cell.factors).size());
    }
    out += fmt::format("\n  {:<{}}  {:<15}{:<26}{:>6}{:>10}{:>12}\n", "combination", width, "verdict", "first", "pairs",
                       "retained", "max drift");
    for (const FactorCell& cell : study.cells) {
        const CaseSummary& s = cell.summary;
        out += fmt::format("  {:<{}}  {:<15}{:<26}{:>6}{:>+10}{:>12}\n", cell_label(study.factors, cell.factors), width,
                           verdict_name(s.verdict), first_place(s), s.differing, s.retained_difference,
                           s.max_relative_l2 ? fmt::format("{:.3g}", *s.max_relative_l2) : "-");
    }
    out += "  (pairs: matched lane-cycles that differ; retained: tokens over them, against the control)\n";
    if (study.kv_format) {
        out += fmt::format("\nKV format itself, fresh against fresh, declared: {}: {}\n",
                           verdict_name(study.kv_format->verdict), study.kv_format->why);
    }
    out += "\nMain effects and interactions\n";
    std::size_t zero = 0;
    std::size_t unknown = 0;
    for (const FactorEffect& effect : study.effects) {
        zero += is_zero(effect) ? 1 : 0;
        unknown += is_unknown(effect) ? 1 : 0;
        if (is_zero(effect) || is_unknown(effect)) continue;
        out += fmt::format("  {} {}: differs {}, pairs {}, retained {}, drift {}\n",
                           is_interaction(effect) ? "interaction" : "effect of  ", effect_label(study, effect),
                           number(effect.differs), number(effect.differing_pairs), number(effect.retained),
                           number(effect.drift));
    }
    if (zero > 0) out += fmt::format("  {} effects are zero.\n", zero);
    if (unknown > 0) out += fmt::format("  {} effects are unknown: a combination in them was not tested.\n", unknown);
    out += "\nAttribution (to every smallest combination that differs)\n";
    for (const std::string& sentence : attribution(study)) out += fmt::format("  {}\n", sentence);
    return out;
}

namespace {

void write_labels(JsonWriter& json, std::string_view key, const FactorStudy& study, FactorSet set) {
    json.key(key).begin_array();
    for (std::size_t i = 0; i < study.factors.size(); ++i) {
        if ((set & bit(i)) != 0) json.value(study.factors[i].label());
    }
    json.end_array();
}

template <typename T>
void write_optional(JsonWriter& json, std::string_view key, const std::optional<T>& value) {
    json.key(key);
    if (!value) {
        json.null();
    } else if constexpr (std::is_same_v<T, double>) {
        json.value_rounded(*value);
    } else {
        json.value(*value);
    }
}

}  // namespace

std::string factors_json(const FactorStudy& study) {
    JsonWriter json;
    json.begin_object().member("arms", study.arms);
    json.key("factors").begin_array();
    for (const Factor& factor : study.factors) {
        json.begin_object().member("name", factor.name).member("off", factor.off).member("on", factor.on);
        write_labels(json, "needs", study, factor.needs);
        json.end_object();
    }
    json.end_array().key("cells").begin_array();
    for (const FactorCell& cell : study.cells) {
        json.begin_object();
        write_labels(json, "factors", study, cell.factors);
        if (!cell.treated.empty()) json.member("control", cell.control).member("capture", cell.treated);
        write_summary(json, cell.summary);
        json.end_object();
    }
    json.end_array().key("kv_format");
    if (study.kv_format) {
        json.begin_object();
        write_summary(json, *study.kv_format);
        json.end_object();
    } else {
        json.null();
    }
    json.key("effects").begin_array();
    for (const FactorEffect& effect : study.effects) {
        json.begin_object();
        write_labels(json, "factors", study, effect.last);
        write_labels(json, "with", study, effect.cell & ~effect.last);
        write_optional(json, "differs", effect.differs);
        write_optional(json, "differing_pairs", effect.differing_pairs);
        write_optional(json, "retained", effect.retained);
        write_optional(json, "drift", effect.drift);
        json.end_object();
    }
    json.end_array().key("attribution").begin_array();
    for (const FactorSet source : study.sources) {
        json.begin_object();
        write_labels(json, "factors", study, last_factors(study.factors, source));
        json.member("interaction", std::popcount(last_factors(study.factors, source)) > 1);
        json.member("verdict", verdict_name(summary_of(study, source).verdict)).end_object();
    }
    json.end_array().key("masked").begin_array();
    for (const FactorSet cell : study.masked) {
        json.begin_object();
        write_labels(json, "factors", study, cell);
        json.end_object();
    }
    json.end_array().end_object();
    return json.take();
}

}  // namespace draftprobe::study
