// The factorial with real arms, on an engine whose defects we choose: each acts under one factor, or under two
// together.
#include <gmock/gmock.h>

#include "base/test_directory.h"
#include "study/factors.h"
#include "study/toy_assembly.h"

namespace draftprobe::study {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// All six: snapshot, move, tier, ring rebuild, draft form, KV format. Rows in 4 bits differ on their own.
Case six_factors(state::DraftRestore draft, state::KvFormat format = state::KvFormat::bf16) {
    Case item = toy_case();
    item.settings.engine.kv_format = format;
    item.settings.treatment.draft = draft;
    item.settings.treatment.tier = state::Tier::disk;
    return item;
}

// An engine that has `fault` where `broken` says so.
RunCell engine_with(const char* fault, std::function<bool(const probe::ProbeSettings&)> broken) {
    return [fault, broken = std::move(broken)](const probe::Assembly& assembly, const Case& item,
                                               const std::filesystem::path& control,
                                               const std::filesystem::path& treated) {
        Case defective = item;
        if (broken(item.settings)) defective.settings.treatment.faults.push_back(*instrument::parse_fault(fault));
        return run_treated(assembly, defective, control, treated);
    };
}

struct Attributed {
    std::vector<std::string> sentences;
    std::vector<std::string> effects;  // labels of those by which "differs" is not 0
};

Attributed attribute(const Case& item, const RunCell& engine) {
    TestDirectory directory;
    EXPECT_TRUE(run_control(toys(), item, directory / "control").ok());
    const auto whole = engine(toys(), item, directory / "control", directory / "treated");
    EXPECT_TRUE(whole.ok()) << whole.status().message();
    if (!whole.ok()) return {};
    const auto study = run_factors(toys(), item, directory / "control", *whole, directory / "cells", {}, engine);
    EXPECT_TRUE(study.ok()) << study.status().message();
    if (!study.ok()) return {};
    Attributed result{attribution(*study), {}};
    for (const FactorEffect& effect : study->effects) {
        if (effect.differs != 0) result.effects.push_back(effect_label(*study, effect));
    }
    return result;
}

bool on_disk(const probe::ProbeSettings& s) { return s.treatment.tier == state::Tier::disk; }
bool moved(const probe::ProbeSettings& s) { return s.treatment.move; }
bool rebuilt(const probe::ProbeSettings& s) { return state::rebuilds_rings(s.treatment.draft); }
bool int8(const probe::ProbeSettings& s) { return s.engine.kv_format == state::KvFormat::int8; }

TEST(FactorRuns, a_defect_under_one_factor_is_attributed_to_it_alone) {
    struct One {
        const char* fault;
        bool (*broken)(const probe::ProbeSettings&);
        const char* factor;
    };
    for (const One& one : {One{"context-shift=8", on_disk, "tier"}, One{"stale-occupant=draft_context", moved, "move"},
                           One{"flip=target_kv:100", rebuilt, "ring-rebuild"}}) {
        const Attributed found = attribute(six_factors(state::DraftRestore::rows), engine_with(one.fault, one.broken));
        EXPECT_THAT(found.sentences,
                    ElementsAre(StartsWith(std::string(one.factor) + " alone makes it differ. (CHANGED")));
        EXPECT_THAT(found.effects, ElementsAre(std::string(one.factor) + " (with snapshot)"));
    }
    const Attributed any = attribute(six_factors(state::DraftRestore::rows),
                                     engine_with("flip=recurrent:40", [](const auto&) { return true; }));
    EXPECT_THAT(any.sentences, ElementsAre(StartsWith("snapshot alone makes it differ.")));
    EXPECT_THAT(any.effects, ElementsAre("snapshot"));
}

TEST(FactorRuns, a_defect_of_two_factors_together_is_their_interaction) {
    const Attributed found =
        attribute(six_factors(state::DraftRestore::rows),
                  engine_with("context-shift=8", [](const auto& s) { return on_disk(s) && rebuilt(s); }));
    EXPECT_THAT(found.sentences, ElementsAre(StartsWith("tier + ring-rebuild differ only together: an interaction.")));
    EXPECT_THAT(found.effects, ElementsAre("tier x ring-rebuild (with snapshot)"));
    const Attributed three =
        attribute(six_factors(state::DraftRestore::rows),
                  engine_with("context-shift=8", [](const auto& s) { return on_disk(s) && rebuilt(s) && moved(s); }));
    EXPECT_THAT(three.sentences,
                ElementsAre(StartsWith("move + tier + ring-rebuild differ only together: an interaction.")));
    EXPECT_THAT(three.effects, ElementsAre("move x tier x ring-rebuild (with snapshot)"));
}

// The fault itself as a factor: in its own lane a request's stale rows are the right rows.
TEST(FactorRuns, a_fault_that_acts_only_in_another_lane_interacts_with_the_move) {
    Case item = six_factors(state::DraftRestore::exact);
    item.settings.treatment.faults.push_back(*instrument::parse_fault("stale-occupant=draft_context"));
    const Attributed found = attribute(item, run_treated);
    EXPECT_THAT(found.sentences,
                ElementsAre(StartsWith("move + stale-occupant=draft_context differ only together: an interaction.")));
    EXPECT_THAT(found.effects, ElementsAre("move x stale-occupant=draft_context (with snapshot)"));
}

TEST(FactorRuns, formats_are_factors_of_their_own) {
    const Attributed form = attribute(six_factors(state::DraftRestore::rows_q4), run_treated);
    EXPECT_THAT(form.sentences, ElementsAre("draft-form alone makes it differ. (DRIFT at restore/draft_context)"));
    EXPECT_THAT(form.effects, ElementsAre("draft-form (with snapshot + ring-rebuild)"));
    const Attributed format = attribute(six_factors(state::DraftRestore::rows, state::KvFormat::int8),
                                        engine_with("flip=target_kv:100", int8));
    EXPECT_THAT(format.sentences,
                ElementsAre(StartsWith("kv-format + snapshot differ only together: an interaction.")));
    EXPECT_THAT(format.effects, ElementsAre("kv-format x snapshot"));
    const Attributed healthy = attribute(six_factors(state::DraftRestore::rows, state::KvFormat::int8), run_treated);
    EXPECT_THAT(healthy.sentences, ElementsAre("No combination differs: there is nothing to attribute."));
    EXPECT_THAT(healthy.effects, IsEmpty());
}

TEST(FactorRuns, a_fault_that_needs_a_format_is_not_run_without_it) {
    Case item = six_factors(state::DraftRestore::exact, state::KvFormat::int8);
    item.settings.treatment.faults.push_back(*instrument::parse_fault("double-quantisation=1"));
    const Attributed found = attribute(item, run_treated);
    EXPECT_THAT(found.sentences, ElementsAre(StartsWith("double-quantisation=1 alone makes it differ.")));
    EXPECT_THAT(found.effects, ElementsAre("double-quantisation=1 (with kv-format + snapshot)"));
}

}  // namespace
}  // namespace draftprobe::study
