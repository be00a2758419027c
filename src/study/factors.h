// Factors: which part of a treatment makes the difference, and which parts only together.
//
// A treatment differs from a fresh run in factors: taking and restoring a snapshot at all, moving to another lane, the
// tier, the form of the target's state, rebuilding the draft's rings, the form of its context, every injected fault,
// and the KV format where it is not bf16. A factor may need others (everything restored needs the snapshot, quantising
// twice needs a quantised format), so the cells of the factorial are the sets of factors that are closed under `needs`.
// Every cell is judged against the fresh control of its own KV format; what the KV format itself changes is judged
// apart, as a declared difference.
//
// Effects: for a cell S with last factors M (those that no factor in S needs), the sum over subsets X of M of
// (-1)^|X| f(S without X). With one last factor that is the factor's effect beside those it needs; with more it is
// their interaction: what the parts one by one do not explain.
//
// Attribution: the difference is attributed to every smallest differing cell, one that differs while no cell within it
// does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "study/case.h"

namespace draftprobe::study {

inline constexpr std::size_t kMaxFactorCells = 64;

using FactorSet = std::uint32_t;  // bit i: factor i

struct Factor {
    std::string name;  // "snapshot", "move", "tier", "target-form", "ring-rebuild", "draft-form", "kv-format", "fault"
    std::string off;   // value without the factor
    std::string on;
    FactorSet needs = 0;  // factors without which this one cannot be
    std::string label() const { return name == "fault" ? on : name; }
};

struct FactorCell {
    FactorSet factors = 0;
    CaseSummary summary;  // of the empty cell and of the KV format alone: SAME, being controls
    // Captures that the summary compares, below the output directory; empty for controls.
    std::string control;
    std::string treated;
};

struct FactorEffect {
    FactorSet cell = 0;
    FactorSet last = 0;  // M
    // Contrasts; absent where a cell that enters is untested (drift also: not finite or not measured).
    std::optional<std::int64_t> differs;
    std::optional<std::int64_t> differing_pairs;
    std::optional<std::int64_t> retained;
    std::optional<double> drift;
};

struct FactorStudy {
    std::vector<Factor> factors;
    std::vector<FactorCell> cells;      // ascending by number of factors, then by set; the last is the whole treatment
    std::vector<FactorEffect> effects;  // one per cell but the empty one
    std::vector<FactorSet> sources;     // smallest differing cells
    std::vector<FactorSet> masked;      // cells that are SAME although a cell within them differs
    std::optional<CaseSummary> kv_format;  // fresh int8 against fresh bf16, declared
    std::size_t arms = 0;                  // arms that were run
};

// The factors of a treatment, in a fixed order. Errors: invalid_argument when there are more than kMaxFactorCells
// cells.
Result<std::vector<Factor>> factors_of(const probe::ProbeSettings& settings);
// Closed sets in the order of FactorStudy::cells.
std::vector<FactorSet> factor_cells(const std::vector<Factor>& factors);
// `settings` with the factors of `cell` alone.
probe::ProbeSettings settings_of(const probe::ProbeSettings& settings, const std::vector<Factor>& factors,
                                 FactorSet cell);
// Fills effects, sources and masked from the cells.
void analyse(FactorStudy& study);

// "snapshot + move", "none".
std::string cell_label(const std::vector<Factor>& factors, FactorSet cell);

// "move (with snapshot)"; "tier x ring-rebuild (with snapshot)" for an interaction.
std::string effect_label(const FactorStudy& study, const FactorEffect& effect);
bool is_interaction(const FactorEffect& effect);
// Whether every contrast that is known is 0, and none but the drift is unknown.
bool is_zero(const FactorEffect& effect);
// Whether no contrast is known.
bool is_unknown(const FactorEffect& effect);
// What the differences are attributed to, a sentence each; at least one.
std::vector<std::string> attribution(const FactorStudy& study);

// Runs the restored arm of a cell into `treated` and compares it with `control`: run_treated, or a test's engine.
using RunCell =
    std::function<Result<Comparison>(const probe::Assembly& assembly, const Case& item,
                                     const std::filesystem::path& control, const std::filesystem::path& treated)>;

// Runs every cell. `control` is a capture of the case's fresh control and `whole` its comparison with the asked
// treatment, which is not run again. Captures go to `directory`, one per cell; it lies beside the pair that was
// compared, whose captures are named control and treated.
Result<FactorStudy> run_factors(const probe::Assembly& assembly, const Case& item, const std::filesystem::path& control,
                                const Comparison& whole, const std::filesystem::path& directory,
                                const std::function<void(std::size_t done, std::size_t total)>& progress,
                                const RunCell& run_cell = run_treated);

std::string factors_text(const FactorStudy& study);
std::string factors_json(const FactorStudy& study);  // one object

}  // namespace draftprobe::study
