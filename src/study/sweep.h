// Sweeps: one number of a request varied over a range, every value judged against its own fresh control.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "study/case.h"
#include "study/rule.h"

namespace draftprobe::study {

// boundary: B, whole pages. suffix: P - B; the prompt is cut behind. window_fill: P; the last tokens of the prompt,
// with B at the last page that ends before them, at most the draft's window less one. verify_width: most rows of a
// verification, anchor included.
enum class SweepVariable { boundary, suffix, window_fill, verify_width };
std::string_view sweep_variable_name(SweepVariable variable);

inline constexpr std::size_t kMaxSweepPoints = 1024;

struct SweepRange {
    SweepVariable variable = SweepVariable::suffix;
    std::int64_t from = 0;
    std::int64_t to = 0;
    std::int64_t step = 1;
    std::size_t points() const { return static_cast<std::size_t>((to - from) / step + 1); }
};

// "NAME=FROM..TO[:STEP]". Errors: invalid_argument.
Result<SweepRange> parse_sweep(std::string_view text);

// The case at one value. Errors: invalid_argument when the case cannot have it.
Result<Case> case_at(const probe::Assembly& assembly, const Case& item, SweepVariable variable, std::int64_t value);

struct SweepPoint {
    std::int64_t value = 0;
    CaseSummary summary;
};

// One rule for one thing that can differ. "verdict" is over tested points, the others over points with matched pairs.
struct SweepRule {
    std::string observable;  // "verdict", "proposals", "width", "acceptance", "output"
    Rule rule;
    std::size_t points = 0;                // that entered
    std::vector<std::int64_t> not_judged;  // values of the points that did not, ascending
};

struct Sweep {
    SweepRange range;
    std::vector<SweepPoint> points;
    std::vector<SweepRule> rules;
    std::size_t untested = 0;
    // Index of the point that stands for the sweep, whose pair is kept: the first of the gravest outcome; a point that
    // tested nothing stands for a sweep only if none did.
    std::size_t representative = 0;
};

// How grave a verdict is for whoever reads one of many; an untested point is graver than SAME.
int gravity(Verdict verdict);

// `unit`: the variable has no values but its multiples.
std::vector<SweepRule> rules_of(const std::vector<SweepPoint>& points, std::int64_t unit = 1);
// "Rules that explain every point exactly", or "... every judged point ..." when a rule leaves some out.
std::string rules_title(const Sweep& sweep, std::string_view points);
std::size_t representative_of(const std::vector<SweepPoint>& points);

// Checks every value before it runs any. Scratch captures go below `scratch`, which is made and removed.
Result<Sweep> run_sweep(const probe::Assembly& assembly, const Case& item, const SweepRange& range,
                        const std::filesystem::path& scratch,
                        const std::function<void(std::size_t done, std::size_t total)>& progress);

std::string sweep_text(const Sweep& sweep);
std::string sweep_json(const Sweep& sweep);  // one object

}  // namespace draftprobe::study
