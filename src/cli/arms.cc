#include "cli/arms.h"

#include <fmt/format.h>

#include "base/json_writer.h"
#include "cli/engine_options.h"
#include "cli/models.h"
#include "cli/prompt.h"
#include "cli/resume_arm.h"
#include "cli/version.h"
#include "probe/near_tie.h"

namespace draftprobe::cli {

namespace {

Result<Position> page_boundary(std::int64_t prefix_tokens, std::size_t prompt_tokens, Console& console) {
    const auto length = static_cast<Position>(prompt_tokens);
    if (prefix_tokens >= length) {
        return invalid_argument(
            fmt::format("--prefix-tokens: found {}, expected fewer than the prompt's {} tokens; the prefix has "
                        "to end before the prompt does",
                        prefix_tokens, length));
    }
    const Position boundary = prefix_tokens / kPageTokens * kPageTokens;
    if (boundary == 0) {
        return invalid_argument(
            fmt::format("--prefix-tokens: found {}, expected at least {}: snapshots are taken at whole pages",
                        prefix_tokens, kPageTokens));
    }
    if (boundary != prefix_tokens) {
        console.warning(fmt::format("--prefix-tokens {} is not a multiple of the page of {} tokens; rounded down to {}",
                                    prefix_tokens, kPageTokens, boundary));
    }
    return boundary;
}

}  // namespace

Result<std::vector<instrument::Fault>> parse_faults(const Arguments& arguments) {
    std::vector<instrument::Fault> faults;
    for (const std::string& text : arguments.all("inject")) {
        DP_ASSIGN_OR_RETURN(instrument::Fault fault, instrument::parse_fault(text));
        faults.push_back(std::move(fault));
    }
    return faults;
}

std::string fault_list(bool as_json) {
    if (as_json) {
        JsonWriter json;
        json.begin_object().key("faults").begin_array();
        for (const instrument::FaultDescription& fault : instrument::list_faults()) {
            json.begin_object().member("name", fault.name).member("argument", fault.argument);
            json.member("text", fault.text).end_object();
        }
        json.end_array().end_object();
        return json.take() + "\n";
    }
    std::string out;
    for (const instrument::FaultDescription& fault : instrument::list_faults()) {
        out += fmt::format("{}={}\n    {}\n", fault.name, fault.argument, fault.text);
    }
    return out;
}

Status check_out(const std::filesystem::path& out, bool force) {
    std::error_code error;
    if (force || !std::filesystem::exists(std::filesystem::symlink_status(out, error))) return {};
    return invalid_argument(
        fmt::format("--out {}: found something there already, expected a new name; give another --out, or --force "
                    "to replace what an earlier run made",
                    out.string()));
}

Status load_engine(const Arguments& arguments, Console& console, ArmPlan& plan) {
    DP_ASSIGN_OR_RETURN(plan.assembly, load_models(arguments, true, console));
    const TargetConfig& target = plan.assembly.models.target->config();
    DP_ASSIGN_OR_RETURN(plan.settings.engine, engine_settings(arguments, target, console));
    DP_ASSIGN_OR_RETURN(plan.settings.sampling, sampling_settings(arguments));
    DP_ASSIGN_OR_RETURN(const BudgetChoice budget,
                        budget_choice(arguments, static_cast<std::size_t>(plan.assembly.models.draft->config().block)));
    if (budget.kind == budget::BudgetKind::adaptive) {
        console.warning(
            "--budget adaptive learns from measured times: the captures are marked timing-confounded, and a comparison "
            "refuses them unless --treat timing_confounded declares it; a seed file (budget calibrate) and full are "
            "comparable");
    }
    plan.settings.budget = budget.kind;
    plan.settings.seed = budget.seed;
    plan.settings.level = static_cast<int>(*arguments.number("level"));
    plan.settings.digest_every = static_cast<std::size_t>(*arguments.number("digest-every"));
    plan.settings.resume_elsewhere = resume_in_new_process;
    DP_ASSIGN_OR_RETURN(plan.settings.build_digest, build_digest());
    return {};
}

Result<ArmPlan> load_arms(const Arguments& arguments, Console& console) {
    ArmPlan plan;
    const bool injects = find_option("inject", arguments.command().bit) != nullptr;
    if (injects) {
        DP_ASSIGN_OR_RETURN(plan.settings.treatment.faults, parse_faults(arguments));
    }
    DP_ASSIGN_OR_RETURN(plan.settings.treatment.draft, state::parse_draft_restore(arguments.text("restore-draft")));
    DP_ASSIGN_OR_RETURN(plan.settings.treatment.target, state::parse_target_restore(arguments.text("restore-target")));
    DP_ASSIGN_OR_RETURN(plan.settings.treatment.tier, state::parse_tier(arguments.text("tier")));
    DP_ASSIGN_OR_RETURN(const PromptFile prompt, read_prompt_file(arguments));
    DP_RETURN_IF_ERROR(load_engine(arguments, console, plan));

    DP_ASSIGN_OR_RETURN(plan.request.prompt, prompt_tokens(prompt, plan.assembly, console));
    plan.request.chat_template = prompt.chat_template;
    plan.request.cycles = static_cast<std::size_t>(*arguments.number("cycles"));
    DP_ASSIGN_OR_RETURN(plan.request.boundary,
                        page_boundary(*arguments.number("prefix-tokens"), plan.request.prompt.size(), console));
    DP_RETURN_IF_ERROR(probe::check_request(plan.assembly, plan.request));
    return plan;
}

Result<ArmPlan> plan_arms(const Arguments& arguments, Console& console) {
    DP_ASSIGN_OR_RETURN(ArmPlan plan, load_arms(arguments, console));
    for (const std::string& note : probe::assembly_notes(plan.assembly, plan.request.chat_template)) {
        console.warning(note);
    }
    if (plan.settings.engine.numerics == numerics::NumericsClass::schedule_sensitive &&
        plan.settings.sampling.greedy()) {
        console.note(fmt::format(
            "{}: measuring near-tie thresholds: {} to {} rotations of the prompt, each prefilled and decoded "
            "twice, until there are {} margins; a shorter prompt costs less",
            arguments.command().name, probe::kNearTieLeastPrompts, probe::kNearTiePrompts, probe::kNearTieSamples));
        DP_ASSIGN_OR_RETURN(plan.settings.near_tie,
                            probe::measure_near_tie(plan.assembly, plan.request, plan.settings));
        if (plan.settings.near_tie->samples == 0) {
            console.warning(
                "no near-tie thresholds: with --chunk-tokens 1 there is only one schedule of a prefill, so every flip "
                "counts; give longer chunks");
        }
    }
    console.note(fmt::format("{}: {}; prompt {} tokens, prefix {}", arguments.command().name,
                             engine_text(arguments, plan.settings.engine), plan.request.prompt.size(),
                             plan.request.boundary));
    return plan;
}

}  // namespace draftprobe::cli
