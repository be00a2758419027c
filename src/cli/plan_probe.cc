#include "cli/plan_probe.h"

#include <fmt/format.h>

#include "base/files.h"
#include "cli/arms.h"
#include "cli/probe_output.h"
#include "cli/probe_study.h"
#include "cli/prompt.h"
#include "cli/study_page.h"
#include "study/plan_run.h"

namespace draftprobe::cli {

namespace fs = std::filesystem;

namespace {

// The tokens of every request of the plan; files lie beside it.
Result<std::vector<std::vector<TokenId>>> plan_prompts(const study::Plan& plan, const fs::path& directory,
                                                       const probe::Assembly& assembly, Console& console) {
    std::vector<std::vector<TokenId>> prompts;
    for (const study::PlanRequest& request : plan.requests) {
        PromptFile file;
        if (request.prompt.kind == study::PlanPrompt::Kind::ids) {
            file.kind = PromptKind::ids;
            file.path = fmt::format("{}: request {}", plan.subject, request.name);
            file.ids = request.prompt.ids;
        } else {
            const bool text = request.prompt.kind == study::PlanPrompt::Kind::text_file;
            DP_ASSIGN_OR_RETURN(file, read_prompt_at(text ? PromptKind::text : PromptKind::ids,
                                                     (directory / request.prompt.file).string()));
        }
        DP_ASSIGN_OR_RETURN(std::vector<TokenId> ids, prompt_tokens(file, assembly, console));
        prompts.push_back(std::move(ids));
    }
    return prompts;
}

}  // namespace

Result<int> run_plan_probe(const Arguments& arguments, Console& console) {
    const fs::path path = arguments.text("plan");
    DP_ASSIGN_OR_RETURN(const study::Plan plan, study::read_plan(path));
    ArmPlan engine;
    DP_RETURN_IF_ERROR(load_engine(arguments, console, engine));
    DP_ASSIGN_OR_RETURN(const auto prompts, plan_prompts(plan, path.parent_path(), engine.assembly, console));
    for (const std::string& note : probe::assembly_notes(engine.assembly, {})) console.warning(note);

    DP_ASSIGN_OR_RETURN(AtomicDirectory directory, create_probe_output(arguments));
    DP_ASSIGN_OR_RETURN(const study::PlanResult result,
                        study::run_plan(engine.assembly, plan, prompts, engine.settings, directory.path(),
                                        [&](std::string_view phase, std::size_t done, std::size_t total) {
                                            console.progress("plan", phase, done, total);
                                        }));
    StudyOutput output;
    output.key = "plan";
    output.json = study::plan_json(result);
    output.file = "plan.json";
    output.file_text = output.json + "\n";
    output.text = study::plan_text(result);
    output.page = plan_section(result);
    const study::JudgedRun& shown = result.judged[result.representative];
    ProbeOutput all;
    all.comparison = shown.comparison;
    all.verdict = result.verdict;
    all.why = result.why;
    const std::string how = study::restored_how(shown);
    all.lead = fmt::format("Run {} of the plan, {}, against controls/{}; all runs are below\n\n", shown.name,
                           how.empty() ? "which computed its prefix" : "restored from " + how, shown.request);
    all.control = "controls/" + shown.request;
    all.treated = "runs/" + shown.name;
    all.study = std::move(output);
    return finish_probe_output(arguments, console, std::move(directory), all);
}

}  // namespace draftprobe::cli
