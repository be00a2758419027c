#include "study/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/files.h"
#include "base/json.h"

namespace draftprobe::study {

namespace {

constexpr std::string_view kPlanFormat = "draftprobe-plan";
constexpr std::int64_t kPlanVersion = 1;
constexpr PlanVerb kVerbs[] = {PlanVerb::start,  PlanVerb::materialise, PlanVerb::save,  PlanVerb::restore,
                               PlanVerb::borrow, PlanVerb::evict,       PlanVerb::spoil, PlanVerb::run};

// Other faults need an arm of their own: they act on the lane that was saved, or around the one drafter of all lanes.
bool acts_while_copying(instrument::FaultKind kind) {
    switch (kind) {
        case instrument::FaultKind::context_shift:
        case instrument::FaultKind::rows_unwritten:
        case instrument::FaultKind::stale_occupant:
        case instrument::FaultKind::missing_component:
        case instrument::FaultKind::double_quantisation: return true;
        default: return false;
    }
}

// Members that nobody reads are mistakes.
Status check_members(const Json& object, std::string_view subject, std::initializer_list<std::string_view> known) {
    if (!object.is_object()) {
        return corrupt(fmt::format("{}: found {}, expected an object", subject, object.type_name()));
    }
    for (const auto& [key, value] : object.items()) {
        if (std::find(known.begin(), known.end(), key) != known.end()) continue;
        return corrupt(
            fmt::format("{}: found the member {}, expected {}", subject, quoted_excerpt(key), fmt::join(known, ", ")));
    }
    return {};
}

Status check_name(const std::string& name, std::string_view subject) {
    constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    if (!name.empty() && name.size() <= 32 && name.find_first_not_of(kAllowed) == std::string::npos) return {};
    return corrupt(fmt::format("{}: found the name {}, expected 1 to 32 of A-Z, a-z, 0-9, '_' and '-'", subject,
                               quoted_excerpt(name)));
}

// Below the plan's directory, wherever that is.
Status check_file(const std::filesystem::path& file, std::string_view subject) {
    const bool escapes = file.empty() || file.is_absolute() ||
                         std::any_of(file.begin(), file.end(), [](const auto& part) { return part == ".."; });
    if (!escapes && file.string().find('\0') == std::string::npos) return {};
    return corrupt(fmt::format("{}: found the file {}, expected a relative path without '..'", subject,
                               quoted_excerpt(file.string())));
}

Result<PlanPrompt> parse_prompt(const Json& json, const std::string& subject) {
    DP_RETURN_IF_ERROR(check_members(json, subject, {"ids", "ids_file", "text_file"}));
    if (json.size() != 1) {
        return corrupt(
            fmt::format("{}: found {} members, expected one of ids, ids_file, text_file", subject, json.size()));
    }
    PlanPrompt prompt;
    if (json_find(json, "ids") != nullptr) {
        DP_ASSIGN_OR_RETURN(const auto ids, json_get_int_array(json, "ids", subject, 0,
                                                               std::numeric_limits<TokenId>::max(), kMaxPlanBytes));
        for (const std::int64_t id : ids) prompt.ids.push_back(static_cast<TokenId>(id));
        return prompt;
    }
    const bool text = json_find(json, "text_file") != nullptr;
    prompt.kind = text ? PlanPrompt::Kind::text_file : PlanPrompt::Kind::ids_file;
    DP_ASSIGN_OR_RETURN(const std::string file, json_get_string(json, text ? "text_file" : "ids_file", subject));
    prompt.file = file;
    DP_RETURN_IF_ERROR(check_file(prompt.file, subject));
    return prompt;
}

Result<PlanRequest> parse_request(const Json& json, const std::string& subject) {
    DP_RETURN_IF_ERROR(check_members(json, subject, {"name", "prompt", "prefix_tokens", "cycles"}));
    PlanRequest request;
    DP_ASSIGN_OR_RETURN(request.name, json_get_string(json, "name", subject));
    DP_RETURN_IF_ERROR(check_name(request.name, subject));
    DP_ASSIGN_OR_RETURN(const Json* prompt, json_get_object(json, "prompt", subject));
    DP_ASSIGN_OR_RETURN(request.prompt, parse_prompt(*prompt, subject + ".prompt"));
    DP_ASSIGN_OR_RETURN(request.boundary, json_get_int(json, "prefix_tokens", subject, kPageTokens, 1'000'000'000));
    if (request.boundary % kPageTokens != 0) {
        return corrupt(fmt::format("{}.prefix_tokens: found {}, expected a multiple of the page of {} tokens", subject,
                                   request.boundary, kPageTokens));
    }
    DP_ASSIGN_OR_RETURN(const std::int64_t cycles, json_get_int(json, "cycles", subject, 1, 1'000'000));
    request.cycles = static_cast<std::size_t>(cycles);
    return request;
}

class Parser {
public:
    Parser(const Json& json, std::string subject) : json_(json), subject_(std::move(subject)) {}

    Result<Plan> run() {
        DP_RETURN_IF_ERROR(
            check_members(json_, subject_, {"format", "version", "lanes", "store_bytes", "requests", "steps"}));
        DP_ASSIGN_OR_RETURN(const std::string format, json_get_string(json_, "format", subject_));
        if (format != kPlanFormat) {
            return corrupt(
                fmt::format("{}: found the format {}, expected \"{}\"", subject_, quoted_excerpt(format), kPlanFormat));
        }
        DP_ASSIGN_OR_RETURN(const std::int64_t version, json_get_int(json_, "version", subject_));
        if (version != kPlanVersion) {
            return mismatch(fmt::format("{}: plan version {}, this program reads version {}; write the plan for it",
                                        subject_, version, kPlanVersion));
        }
        DP_ASSIGN_OR_RETURN(const std::int64_t lanes, json_get_int(json_, "lanes", subject_, 1, kMaxPlanLanes));
        plan_.lanes = static_cast<int>(lanes);
        if (json_find(json_, "store_bytes") != nullptr) {
            DP_ASSIGN_OR_RETURN(const std::int64_t bytes,
                                json_get_int(json_, "store_bytes", subject_, 1, kMaxPlanStore));
            plan_.store_bytes = static_cast<std::size_t>(bytes);
        }
        plan_.subject = subject_;
        DP_RETURN_IF_ERROR(requests());
        DP_RETURN_IF_ERROR(steps());
        return std::move(plan_);
    }

private:
    Status requests() {
        DP_ASSIGN_OR_RETURN(const Json* list, json_get_array(json_, "requests", subject_));
        if (list->empty() || list->size() > kMaxPlanRequests) {
            return exhausted(
                fmt::format("{}.requests: found {}, expected 1 to {}", subject_, list->size(), kMaxPlanRequests));
        }
        for (std::size_t i = 0; i < list->size(); ++i) {
            const std::string subject = fmt::format("{}.requests[{}]", subject_, i);
            DP_ASSIGN_OR_RETURN(PlanRequest request, parse_request((*list)[i], subject));
            if (std::any_of(plan_.requests.begin(), plan_.requests.end(),
                            [&](const PlanRequest& other) { return other.name == request.name; })) {
                return invalid_argument(
                    fmt::format("{}: found the name {} twice, expected every name once", subject, request.name));
            }
            plan_.requests.push_back(std::move(request));
        }
        return {};
    }

    Status steps() {
        DP_ASSIGN_OR_RETURN(const Json* list, json_get_array(json_, "steps", subject_));
        if (list->empty() || list->size() > kMaxPlanSteps) {
            return exhausted(
                fmt::format("{}.steps: found {}, expected 1 to {}", subject_, list->size(), kMaxPlanSteps));
        }
        for (std::size_t i = 0; i < list->size(); ++i) {
            DP_ASSIGN_OR_RETURN(PlanStep step, step_of((*list)[i], fmt::format("{}.steps[{}]", subject_, i)));
            plan_.steps.push_back(std::move(step));
        }
        return {};
    }

    Result<PlanStep> step_of(const Json& json, const std::string& subject) {
        if (!json.is_object()) {
            return corrupt(fmt::format("{}: found {}, expected an object", subject, json.type_name()));
        }
        DP_ASSIGN_OR_RETURN(const std::string verb, json_get_string(json, "do", subject));
        const auto* found = std::find_if(std::begin(kVerbs), std::end(kVerbs),
                                         [&](PlanVerb known) { return plan_verb_name(known) == verb; });
        if (found == std::end(kVerbs)) {
            std::vector<std::string_view> names;
            for (const PlanVerb known : kVerbs) names.push_back(plan_verb_name(known));
            return corrupt(fmt::format("{}.do: found {}, expected one of {}", subject, quoted_excerpt(verb),
                                       fmt::join(names, ", ")));
        }
        PlanStep step;
        step.verb = *found;
        switch (step.verb) {
            case PlanVerb::start:
                DP_RETURN_IF_ERROR(check_members(json, subject, {"do", "request", "lane"}));
                DP_RETURN_IF_ERROR(take_request(json, subject, step));
                DP_RETURN_IF_ERROR(take_lane(json, subject, step));
                break;
            case PlanVerb::materialise:
                DP_RETURN_IF_ERROR(check_members(json, subject, {"do", "lane"}));
                DP_RETURN_IF_ERROR(take_lane(json, subject, step));
                break;
            case PlanVerb::save: {
                DP_RETURN_IF_ERROR(check_members(json, subject, {"do", "lane", "snapshot", "tier"}));
                DP_RETURN_IF_ERROR(take_lane(json, subject, step));
                DP_RETURN_IF_ERROR(take_snapshot(json, subject, step));
                DP_ASSIGN_OR_RETURN(const std::string tier, json_string_or(json, "tier", subject, "memory"));
                if (tier != "memory" && tier != "disk") {
                    return corrupt(
                        fmt::format("{}.tier: found {}, expected memory or disk", subject, quoted_excerpt(tier)));
                }
                step.to_disk = tier == "disk";
                break;
            }
            case PlanVerb::restore:
                DP_RETURN_IF_ERROR(check_members(
                    json, subject,
                    {"do", "request", "lane", "snapshot", "draft", "target", "inject", "inject_tier", "refused"}));
                DP_RETURN_IF_ERROR(take_request(json, subject, step));
                DP_RETURN_IF_ERROR(take_lane(json, subject, step));
                DP_RETURN_IF_ERROR(take_snapshot(json, subject, step));
                DP_RETURN_IF_ERROR(take_treatment(json, subject, step));
                break;
            case PlanVerb::borrow: {
                DP_RETURN_IF_ERROR(check_members(json, subject, {"do", "request", "lane", "from"}));
                DP_RETURN_IF_ERROR(take_request(json, subject, step));
                DP_RETURN_IF_ERROR(take_lane(json, subject, step));
                DP_ASSIGN_OR_RETURN(const std::int64_t from, json_get_int(json, "from", subject));
                DP_RETURN_IF_ERROR(check_lane(from, subject));
                step.from = static_cast<int>(from);
                break;
            }
            case PlanVerb::evict:
            case PlanVerb::spoil:
                DP_RETURN_IF_ERROR(check_members(json, subject, {"do", "snapshot"}));
                DP_RETURN_IF_ERROR(take_snapshot(json, subject, step));
                break;
            case PlanVerb::run:
                DP_RETURN_IF_ERROR(check_members(json, subject, {"do", "lanes", "cycles"}));
                DP_RETURN_IF_ERROR(take_run(json, subject, step));
                break;
        }
        return step;
    }

    Status take_request(const Json& json, const std::string& subject, PlanStep& step) const {
        DP_ASSIGN_OR_RETURN(const std::string name, json_get_string(json, "request", subject));
        std::vector<std::string_view> names;
        for (step.request = 0; step.request < plan_.requests.size(); ++step.request) {
            if (plan_.requests[step.request].name == name) return {};
            names.push_back(plan_.requests[step.request].name);
        }
        return invalid_argument(fmt::format("{}: found the request {}, expected one of {}", subject,
                                            quoted_excerpt(name), fmt::join(names, ", ")));
    }

    Status check_lane(std::int64_t lane, std::string_view subject) const {
        if (lane >= 0 && lane < plan_.lanes) return {};
        return invalid_argument(fmt::format("{}: found lane {}, expected 0 to {}: the plan has {}", subject, lane,
                                            plan_.lanes - 1,
                                            plan_.lanes == 1 ? "one lane" : fmt::format("{} lanes", plan_.lanes)));
    }

    Status take_lane(const Json& json, const std::string& subject, PlanStep& step) const {
        DP_ASSIGN_OR_RETURN(const std::int64_t lane, json_get_int(json, "lane", subject));
        DP_RETURN_IF_ERROR(check_lane(lane, subject));
        step.lane = static_cast<int>(lane);
        return {};
    }

    static Status take_snapshot(const Json& json, const std::string& subject, PlanStep& step) {
        DP_ASSIGN_OR_RETURN(step.snapshot, json_get_string(json, "snapshot", subject));
        return check_name(step.snapshot, subject);
    }

    static Status take_treatment(const Json& json, const std::string& subject, PlanStep& step) {
        DP_ASSIGN_OR_RETURN(const std::string draft, json_string_or(json, "draft", subject, "exact"));
        DP_ASSIGN_OR_RETURN(const std::string target, json_string_or(json, "target", subject, "exact"));
        Result<state::DraftRestore> draft_form = state::parse_draft_restore(draft);
        if (!draft_form.ok()) return draft_form.status().with_context(subject + ".draft");
        Result<state::TargetRestore> target_form = state::parse_target_restore(target);
        if (!target_form.ok()) return target_form.status().with_context(subject + ".target");
        step.treatment.draft = *draft_form;
        step.treatment.target = *target_form;
        DP_ASSIGN_OR_RETURN(step.refused, json_bool_or(json, "refused", subject, false));
        DP_ASSIGN_OR_RETURN(step.inject_tier, json_string_or(json, "inject_tier", subject, ""));
        if (!step.inject_tier.empty() && step.inject_tier != "memory" && step.inject_tier != "disk") {
            return corrupt(fmt::format("{}.inject_tier: found {}, expected memory or disk", subject,
                                       quoted_excerpt(step.inject_tier)));
        }
        DP_ASSIGN_OR_RETURN(const Json* faults, json_array_or_null(json, "inject", subject));
        if (faults == nullptr) return {};
        for (const Json& fault : *faults) {
            if (!fault.is_string()) {
                return corrupt(fmt::format("{}.inject: found {}, expected \"NAME=ARG\"", subject, fault.type_name()));
            }
            Result<instrument::Fault> parsed = instrument::parse_fault(fault.get_ref<const std::string&>());
            if (!parsed.ok()) return parsed.status().with_context(subject);
            if (!acts_while_copying(parsed->kind)) {
                return invalid_argument(
                    fmt::format("{}.inject: found {}, expected a fault that acts while the restore copies: "
                                "context-shift, rows-unwritten, stale-occupant, missing-component, double-quantisation",
                                subject, parsed->spelling));
            }
            step.treatment.faults.push_back(std::move(*parsed));
        }
        return {};
    }

    Status take_run(const Json& json, const std::string& subject, PlanStep& step) const {
        DP_ASSIGN_OR_RETURN(const auto lanes,
                            json_get_int_array(json, "lanes", subject, std::numeric_limits<std::int64_t>::min(),
                                               std::numeric_limits<std::int64_t>::max(), kMaxPlanLanes));
        if (lanes.empty()) return corrupt(fmt::format("{}.lanes: found none, expected at least one", subject));
        for (const std::int64_t lane : lanes) {
            DP_RETURN_IF_ERROR(check_lane(lane, subject));
            if (std::find(step.lanes.begin(), step.lanes.end(), static_cast<int>(lane)) != step.lanes.end()) {
                return invalid_argument(fmt::format("{}: found lane {} twice, expected it once", subject, lane));
            }
            step.lanes.push_back(static_cast<int>(lane));
        }
        if (json_find(json, "cycles") == nullptr) return {};
        DP_ASSIGN_OR_RETURN(const std::int64_t cycles, json_get_int(json, "cycles", subject, 1, 1'000'000));
        step.cycles = static_cast<std::size_t>(cycles);
        return {};
    }

    const Json& json_;
    std::string subject_;
    Plan plan_;
};

// Follows what every lane and snapshot holds, as far as that is known without running.
class SenseCheck {
public:
    SenseCheck(const Plan& plan, std::string_view subject)
        : plan_(plan), subject_(subject), lanes_(static_cast<std::size_t>(plan.lanes)) {}

    Status run() {
        bool ends = false;
        for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
            if (Status status = follow(plan_.steps[i]); !status.ok()) {
                return status.with_context(
                    fmt::format("{}.steps[{}] ({})", subject_, i, plan_verb_name(plan_.steps[i].verb)));
            }
            ends |= plan_.steps[i].verb == PlanVerb::run && !plan_.steps[i].cycles;
        }
        if (ends) return {};
        return invalid_argument(fmt::format(
            "{}.steps: found no 'run' without 'cycles', expected one: a request is judged when it runs to its end",
            subject_));
    }

private:
    enum class At { nothing, start, boundary, beyond };
    struct LaneState {
        At at = At::nothing;
        std::size_t request = 0;
    };
    struct SnapshotState {
        std::size_t request = 0;
        bool on_disk = false;
        bool in_memory = true;
        bool spoiled = false;
    };

    Status follow(const PlanStep& step) {
        LaneState& lane = lanes_[static_cast<std::size_t>(step.lane)];
        switch (step.verb) {
            case PlanVerb::start: lane = {At::start, step.request}; return {};
            case PlanVerb::materialise:
                if (lane.at != At::start) return wrong_lane(step.lane, lane, "a request that was just started");
                lane.at = At::boundary;
                return {};
            case PlanVerb::save:
                if (lane.at != At::boundary)
                    return wrong_lane(step.lane, lane, "a request that stands at its boundary");
                snapshots_[step.snapshot] = {lane.request, step.to_disk};
                return {};
            case PlanVerb::restore: return follow_restore(step, lane);
            case PlanVerb::borrow: return follow_borrow(step, lane);
            case PlanVerb::evict: {
                DP_ASSIGN_OR_RETURN(SnapshotState * snapshot, known(step.snapshot));
                if (!snapshot->in_memory)
                    return invalid_argument(
                        fmt::format("found '{}' evicted already, expected it in memory", step.snapshot));
                snapshot->in_memory = false;
                snapshot->spoiled = false;
                return {};
            }
            case PlanVerb::spoil: {
                DP_ASSIGN_OR_RETURN(SnapshotState * snapshot, known(step.snapshot));
                if (!snapshot->in_memory)
                    return invalid_argument(fmt::format("found '{}' evicted, expected it in memory", step.snapshot));
                snapshot->spoiled = true;
                return {};
            }
            case PlanVerb::run:
                for (const int id : step.lanes) {
                    LaneState& one = lanes_[static_cast<std::size_t>(id)];
                    if (one.at == At::nothing) return wrong_lane(id, one, "a request");
                    one.at = At::beyond;
                }
                return {};
        }
        return {};
    }

    Status follow_restore(const PlanStep& step, LaneState& lane) {
        DP_ASSIGN_OR_RETURN(SnapshotState * snapshot, known(step.snapshot));
        const bool gone = !snapshot->in_memory && !snapshot->on_disk;
        if ((gone || snapshot->spoiled) && !step.refused) {
            return invalid_argument(fmt::format("found '{}' {}, expected a good snapshot, or \"refused\": true",
                                                step.snapshot, gone ? "evicted and not on disk" : "spoiled"));
        }
        const PlanRequest& saved = plan_.requests[snapshot->request];
        const PlanRequest& restored = plan_.requests[step.request];
        if (saved.boundary != restored.boundary) {
            return invalid_argument(
                fmt::format("found '{}' saved at {} for request {}, expected the boundary {} of request {}",
                            step.snapshot, saved.boundary, saved.name, restored.boundary, restored.name));
        }
        if (step.refused) return {};
        snapshot->in_memory = true;
        lane = {At::boundary, step.request};
        return {};
    }

    Status follow_borrow(const PlanStep& step, LaneState& lane) {
        const LaneState& lender = lanes_[static_cast<std::size_t>(step.from)];
        if (step.from == step.lane)
            return invalid_argument(fmt::format("found lane {} twice, expected another lane to lend", step.lane));
        if (lender.at != At::start && lender.at != At::boundary)
            return wrong_lane(step.from, lender, "a request that has not gone beyond its boundary");
        const PlanRequest& lent = plan_.requests[lender.request];
        const PlanRequest& borrowed = plan_.requests[step.request];
        if (lent.boundary != borrowed.boundary) {
            return invalid_argument(fmt::format("found the boundary {} of request {} on lane {}, expected the {} of {}",
                                                lent.boundary, lent.name, step.from, borrowed.boundary, borrowed.name));
        }
        lane = {At::boundary, step.request};
        return {};
    }

    Result<SnapshotState*> known(const std::string& name) {
        const auto found = snapshots_.find(name);
        if (found != snapshots_.end()) return &found->second;
        return invalid_argument(
            fmt::format("found the snapshot '{}', expected one that a 'save' before it made", name));
    }

    Status wrong_lane(int id, const LaneState& lane, std::string_view expected) const {
        const auto place = [&]() -> std::string {
            const std::string& name = plan_.requests[lane.request].name;
            switch (lane.at) {
                case At::nothing: return "nothing";
                case At::start: return fmt::format("request {} at its start", name);
                case At::boundary: return fmt::format("request {} at its boundary", name);
                case At::beyond: return fmt::format("request {} beyond its boundary", name);
            }
            return "nothing";
        };
        return invalid_argument(fmt::format("found {} on lane {}, expected {}", place(), id, expected));
    }

    const Plan& plan_;
    std::string_view subject_;
    std::vector<LaneState> lanes_;
    std::map<std::string, SnapshotState> snapshots_;
};

}  // namespace

std::string_view plan_verb_name(PlanVerb verb) {
    switch (verb) {
        case PlanVerb::start: return "start";
        case PlanVerb::materialise: return "materialise";
        case PlanVerb::save: return "save";
        case PlanVerb::restore: return "restore";
        case PlanVerb::borrow: return "borrow";
        case PlanVerb::evict: return "evict";
        case PlanVerb::spoil: return "spoil";
        case PlanVerb::run: return "run";
    }
    return "run";
}

Result<Plan> parse_plan(std::string_view text, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json json, parse_json(text, subject));
    DP_ASSIGN_OR_RETURN(Plan plan, Parser(json, std::string(subject)).run());
    DP_RETURN_IF_ERROR(SenseCheck(plan, subject).run());
    return plan;
}

Result<Plan> read_plan(const std::filesystem::path& path) {
    DP_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxPlanBytes));
    return parse_plan(text, path.string());
}

}  // namespace draftprobe::study
