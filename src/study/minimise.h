// Minimising: the smallest prompt, prefix and number of cycles that still give the verdict, stage and component, and
// the shift of context rows where the finding has one.
//
// Four reductions in turn, each by halving: cycles; whole pages off the front, with the boundary; tokens off the end;
// the boundary itself, in pages. Rounds go on until none of them succeeds, so the result cannot be made smaller by any
// one of them at the values halving visits. Deterministic: the same case gives the same result.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "study/case.h"

namespace draftprobe::study {

inline constexpr std::size_t kMaxMinimiseRuns = 200;  // of both arms

struct Minimised {
    Case item;            // its prompt is ids: a chat's template is not part of it
    CaseSummary summary;  // of the smallest case
    std::size_t runs = 0;
    bool bounded = false;  // the bound on runs ended it
    std::size_t prompt_before = 0;
    Position boundary_before = 0;
    std::size_t cycles_before = 0;
};

// The same verdict, first stage and first component as the finding, and the same shift where the finding has one.
bool same_finding(const CaseSummary& summary, const CaseSummary& finding);

// Decides whether a smaller case still shows the finding.
using Holds = std::function<Result<bool>(const Case&)>;
// Shrinks `item`, for which `holds` is true. `runs` is not counted for cases that were tried before. Errors: of
// `holds`.
Result<Minimised> minimise_with(const Case& item, std::size_t max_runs, const Holds& holds);

// Runs both arms for every trial. `finding` is the summary of the case as given. Errors: mismatch when the prompt as
// plain ids does not give it.
Result<Minimised> minimise(const probe::Assembly& assembly, const Case& item, const CaseSummary& finding,
                           const std::filesystem::path& scratch, const std::function<void(std::size_t runs)>& progress);

std::string minimised_text(const Minimised& minimised);
std::string minimised_json(const Minimised& minimised);  // one object: sizes and summary
// A prompt for --prompt-ids: ids, prefix_tokens, cycles.
std::string minimised_prompt(const Minimised& minimised);

}  // namespace draftprobe::study
