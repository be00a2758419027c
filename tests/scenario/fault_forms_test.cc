// Every kind of fault under every restore form: refused because it could not act, or found where it acted. The table of
// docs/faults.md is made of it (DRAFTPROBE_WRITE_FAULTS=1 rewrites it, scripts/faults_table.sh).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "base/files.h"
#include "base/test_directory.h"
#include "instrument/faults.h"
#include "scenario.h"

namespace draftprobe::scenario {
namespace {

constexpr const char* kDraftForms[] = {"exact", "rows", "rows-q4", "recompute", "masked", "none"};
constexpr const char* kTargetForms[] = {"exact", "int8-state"};

// Where the form acts, and the forms that leave it nothing to act on.
struct Expectation {
    const char* fault;
    const char* place;  // "stage / component", or the verdict of a run that is not judged
    std::set<std::string> refused;
    std::map<std::string, std::string> elsewhere = {};  // places by "draft target" forms that show another first
};

const std::vector<Expectation>& expectations() {
    const std::set<std::string> no_rows = {"masked", "none"};
    const std::set<std::string> no_rings = {"rows", "rows-q4", "masked", "none"};
    const std::string declared = "restore / draft_context";  // what the form itself declares comes first
    const std::string hidden = "verify / target_hidden";     // exact otherwise: the first difference is the fault's
    static const std::vector<Expectation> all = {
        {"context-shift=5", "restore / draft_context", no_rows},
        {"rows-unwritten=16:zeros", "restore / draft_context", no_rows},
        {"rows-unwritten=all:poison", "restore / draft_context", no_rows},
        {"rows-unwritten=all", "restore / draft_context", no_rows},
        {"stale-occupant=target_kv", "restore / target_kv", {}},
        {"stale-occupant=recurrent", "restore / recurrent", {}},
        {"stale-occupant=conv", "restore / conv", {}},
        {"stale-occupant=draft_context", "restore / draft_context", no_rows},
        {"stale-occupant=draft_ring", "restore / draft_ring", no_rings},
        {"stale-anchor=token:3", "draft / draft_hidden", {"none"}},
        {"stale-anchor=row:9", "draft / draft_context", {"none"}},
        {"window-off-by-one=+1", "draft / draft_hidden", no_rows},
        {"window-off-by-one=-1", "draft / draft_hidden", no_rows},
        {"position-base=0", "prefill / draft_ring", {"none"}},
        {"missing-component=target_kv", "restore / target_kv", {}},
        {"missing-component=recurrent", "restore / recurrent", {}},
        {"missing-component=conv", "restore / conv", {}},
        {"missing-component=draft_context", "restore / draft_context", no_rows},
        {"missing-component=draft_ring", "restore / draft_ring", no_rings},
        {"mislabelled-checkpoint=2", "restore / recurrent", {"recompute"}},
        {"double-quantisation=1", "restore / target_kv", {}},
        {"alias-snapshot=3", "restore / recurrent", {"recompute"}},
        {"unwritten-cell=1", "commit / recurrent", {}},
        {"flip=target_kv:4001", "restore / target_kv", {}},
        {"flip=recurrent:4002", "restore / recurrent", {}},
        {"flip=conv:101", "restore / conv", {}},
        {"flip=draft_context:7001", "restore / draft_context", no_rows},
        {"flip=draft_ring:8001", "restore / draft_ring", no_rows},
        {"draft-nothing=1",
         "width / verify_rows",
         {},
         {{"masked exact", declared}, {"none exact", declared}, {"none int8-state", declared}}},
        {"checkpoint-inside-step=3", "restore / recurrent", {"recompute"}},
        {"pending-row=9", "draft / draft_context", {"none"}},
        {"suffix-unwritten=1", "prefill / draft_context", {}},
        {"split-slots=2",
         "end / recurrent",
         {},
         {{"exact exact", hidden}, {"rows exact", hidden}, {"recompute exact", hidden}}},
        {"unsaved-component=recurrent", "snapshot / recurrent", {"recompute"}},
        {"unsaved-component=draft_context",
         "snapshot / draft_context",
         no_rows,
         {{"recompute exact", "restore / draft_context"}, {"recompute int8-state", "restore / draft_context"}}},
        {"prefix-again=all", "NOT_RESTORED", {}},
        {"unreset-row=all", "CONTAMINATED", {}},
        {"empty-restore=all", "NOT_RESTORED", {}},
        {"cached-control=all", "CONTAMINATED", {}},
    };
    return all;
}

Json spec_of(const std::string& fault, const std::string& draft, const std::string& target) {
    Json spec = {{"pair", "toy"}, {"prompt", {{"seed", 11u}}}, {"boundary", 192}, {"suffix", 24}, {"cycles", 4}};
    spec["treatment"] = {{"restore_draft", draft}, {"restore_target", target}};
    spec["kv"] = fault.starts_with("double-quantisation") ? "int8" : "bf16";
    spec["faults"] = fault.empty() ? Json::array() : Json::array({fault});
    if (fault.starts_with("cached-control")) {
        // It is the control that is served: the arm that computes is judged against one that does too.
        spec["control_changes"] = {{"faults", {fault}}};
        spec["treated"] = "fresh";
    }
    // A longer request before, which left a row there.
    if (fault.starts_with("pending-row")) spec["occupant"] = {{"seed", 5u}, {"tokens", 240}};
    if (fault.starts_with("unreset-row")) {
        // Position 0 is read only within the window, and the fault is one of an arm that computes.
        spec.update({{"boundary", 32}, {"suffix", 8}, {"treated", "repeat"}});
        spec["occupant"] = {{"seed", 5u}, {"tokens", 50}};
    }
    return spec;
}

std::string outcome_text(const Result<Outcome>& result) {
    if (!result.ok()) {
        const std::string message(result.status().message());
        return message.find("it could not act") != std::string::npos ? "refused" : message;
    }
    const Comparison& comparison = result->comparison;
    if (comparison.verdict != Verdict::changed) return std::string(verdict_name(comparison.verdict));
    if (!comparison.first) return "CHANGED";
    return fmt::format("{} / {}", comparison.first->stage, comparison.first->component);
}

// Whether the engine computed or decided anything otherwise: a fault that shows in digests of the state alone would
// not.
bool engine_differs(const Comparison& c) {
    return c.proposals_changed || c.width_changed || c.acceptance_changed || c.output_changed ||
           c.draft_drift.rows_different + c.target_drift.rows_different > 0;
}

// By fault, then draft form, then target form.
using Outcomes = std::map<std::string, std::map<std::string, std::map<std::string, std::string>>>;

// By fault and draft form, with the target form `exact`: what outcomes() found meanwhile.
std::map<std::string, std::map<std::string, bool>>& engine_differences() {
    static std::map<std::string, std::map<std::string, bool>> found;
    return found;
}

const Outcomes& outcomes() {
    static const Outcomes all = [] {
        const TestDirectory scratch;
        Outcomes found;
        const auto run = [&](const std::string& fault) {
            for (const char* draft : kDraftForms) {
                for (const char* target : kTargetForms) {
                    const Scenario scenario{fmt::format("{} {} {}", fault, draft, target), "",
                                            spec_of(fault, draft, target)};
                    const Result<Outcome> result = run_scenario(scenario, scratch.path());
                    found[fault][draft][target] = outcome_text(result);
                    if (target == kTargetForms[0] && result.ok())
                        engine_differences()[fault][draft] = engine_differs(result->comparison);
                }
            }
        };
        run("");
        for (const Expectation& expectation : expectations()) run(expectation.fault);
        return found;
    }();
    return all;
}

TEST(FaultForms, EveryKindIsThere) {
    std::set<std::string> kinds;
    for (const Expectation& e : expectations()) kinds.insert(std::string(e.fault, std::string_view(e.fault).find('=')));
    for (const auto& fault : instrument::list_faults())
        EXPECT_TRUE(kinds.contains(std::string(fault.name))) << fault.name << " has no row";
}

TEST(FaultForms, HealthyRunsAreWhatTheirFormPromises) {
    const auto& healthy = outcomes().at("");
    for (const char* draft : {"exact", "rows", "recompute"}) {
        EXPECT_EQ(healthy.at(draft).at("exact"), "SAME") << draft;
        EXPECT_EQ(healthy.at(draft).at("int8-state"), "DRIFT") << draft;
    }
    for (const char* target : kTargetForms) {
        // Flips of unknown margin, and none of them names a component of the restore.
        EXPECT_EQ(healthy.at("rows-q4").at(target), "select / proposals");
        EXPECT_EQ(healthy.at("none").at(target), "restore / draft_context");
    }
    EXPECT_EQ(healthy.at("masked").at("exact"), "restore / draft_context");
}

TEST(FaultForms, EachIsRefusedOrFoundWhereItActed) {
    for (const Expectation& e : expectations()) {
        for (const char* draft : kDraftForms) {
            for (const char* target : kTargetForms) {
                const auto other = e.elsewhere.find(fmt::format("{} {}", draft, target));
                const std::string place = other == e.elsewhere.end() ? e.place : other->second;
                EXPECT_EQ(outcomes().at(e.fault).at(draft).at(target), e.refused.contains(draft) ? "refused" : place)
                    << e.fault << " under " << draft << " and " << target;
            }
        }
    }
}

TEST(FaultForms, EachMakesTheEngineComputeOtherwise) {
    static_cast<void>(outcomes());
    EXPECT_FALSE(engine_differences().at("").at("exact"));
    EXPECT_FALSE(engine_differences().at("").at("rows"));
    for (const Expectation& e : expectations()) {
        const std::string_view fault = e.fault;
        // These leave the right bytes: what is wrong with them is who computed them.
        const bool right_bytes = fault.starts_with("empty-restore") || fault.starts_with("cached-control");
        // The draft reads the rings. A row below them is read when rings are made of it.
        const char* form = fault.starts_with("flip=draft_context") ? "rows" : "exact";
        EXPECT_EQ(engine_differences().at(e.fault).at(form), !right_bytes) << e.fault;
    }
}

std::string forms_table() {
    std::string table =
        "| fault | exact | rows | rows-q4 | recompute | masked | none |\n|---|---|---|---|---|---|---|\n";
    const auto row = [&](const std::string& name, const std::string& fault) {
        table += fmt::format("| {} |", name);
        for (const char* draft : kDraftForms) {
            const auto& cell = outcomes().at(fault).at(draft);
            const std::string& exact = cell.at("exact");
            const std::string& lossy = cell.at("int8-state");
            table += exact == lossy ? fmt::format(" {} |", exact) : fmt::format(" {}; int8-state: {} |", exact, lossy);
        }
        table += "\n";
    };
    row("(none)", "");
    for (const Expectation& e : expectations()) row(fmt::format("`{}`", e.fault), e.fault);
    return table;
}

TEST(FaultForms, TheTableIsWhatTheRunSays) {
    const std::string path = std::string(DRAFTPROBE_SOURCE_DIR) + "/docs/faults.md";
    auto text = read_text_file(path, 1 << 20);
    ASSERT_TRUE(text.ok()) << text.status().message();
    const std::string begin = "<!-- table of forms: scripts/faults_table.sh -->\n";
    const std::string end = "<!-- end of table of forms -->\n";
    const std::size_t from = text->find(begin);
    const std::size_t to = text->find(end);
    ASSERT_NE(from, std::string::npos);
    ASSERT_NE(to, std::string::npos);
    const std::string made = text->substr(0, from + begin.size()) + forms_table() + text->substr(to);
    if (std::getenv("DRAFTPROBE_WRITE_FAULTS") != nullptr) {
        std::filesystem::remove(path);
        ASSERT_TRUE(write_file(path, std::string_view(made)).ok());
        return;
    }
    EXPECT_EQ(made, text.value()) << "run scripts/faults_table.sh";
}

}  // namespace
}  // namespace draftprobe::scenario
