#include "study/factors.h"

#include <gmock/gmock.h>

namespace draftprobe::study {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

probe::ProbeSettings treated(state::DraftRestore draft, state::Tier tier, std::vector<const char*> faults = {}) {
    probe::ProbeSettings settings;
    settings.treatment.draft = draft;
    settings.treatment.tier = tier;
    for (const char* fault : faults) settings.treatment.faults.push_back(*instrument::parse_fault(fault));
    return settings;
}

std::vector<std::string> labels(const std::vector<Factor>& factors) {
    std::vector<std::string> result;
    for (const Factor& factor : factors) result.push_back(factor.label());
    return result;
}

// Cells with an outcome of our choosing.
FactorStudy study_of(const probe::ProbeSettings& settings, const std::function<bool(const std::string&)>& differs) {
    FactorStudy study;
    study.factors = *factors_of(settings);
    for (const FactorSet set : factor_cells(study.factors)) {
        FactorCell cell;
        cell.factors = set;
        const bool changed = differs(cell_label(study.factors, set));
        cell.summary.verdict = changed ? Verdict::changed : Verdict::same;
        cell.summary.differing = changed ? 4 : 0;
        study.cells.push_back(cell);
    }
    analyse(study);
    return study;
}

bool has(const std::string& label, const char* factor) { return label.find(factor) != std::string::npos; }

TEST(Factors, are_those_in_which_the_treatment_differs) {
    EXPECT_THAT(labels(*factors_of(treated(state::DraftRestore::exact, state::Tier::memory))),
                ElementsAre("snapshot", "move"));
    auto settings = treated(state::DraftRestore::rows_q4, state::Tier::disk);
    settings.engine.kv_format = state::KvFormat::int8;
    settings.treatment.target = state::TargetRestore::int8_state;
    const auto factors = factors_of(settings);
    EXPECT_THAT(labels(*factors),
                ElementsAre("kv-format", "snapshot", "move", "tier", "target-form", "ring-rebuild", "draft-form"));
    // 2 formats x (fresh, or restored with move, tier, target form and three states of the draft's form).
    EXPECT_EQ(factor_cells(*factors).size(), 2u * (1 + 2 * 2 * 2 * 3));
    EXPECT_THAT(labels(*factors_of(treated(state::DraftRestore::masked, state::Tier::memory, {"context-shift=5"}))),
                ElementsAre("snapshot", "move", "draft-form", "context-shift=5"));
}

TEST(Factors, too_many_combinations_are_refused_before_anything_runs) {
    const auto many = factors_of(treated(state::DraftRestore::rows_q4, state::Tier::disk,
                                         {"context-shift=1", "context-shift=2", "context-shift=3", "context-shift=4"}));
    EXPECT_EQ(many.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(many.status().message(), HasSubstr("at most 64"));
    EXPECT_EQ(
        factors_of(treated(state::DraftRestore::exact, state::Tier::memory, {"context-shift=1", "context-shift=1"}))
            .status()
            .code(),
        StatusCode::invalid_argument);
}

TEST(Factors, every_cell_has_what_its_factors_need) {
    const auto factors = *factors_of(treated(state::DraftRestore::rows_q4, state::Tier::memory));
    std::vector<std::string> cells;
    for (const FactorSet set : factor_cells(factors)) cells.push_back(cell_label(factors, set));
    EXPECT_THAT(cells, ElementsAre("none", "snapshot", "snapshot + move", "snapshot + ring-rebuild",
                                   "snapshot + move + ring-rebuild", "snapshot + ring-rebuild + draft-form",
                                   "snapshot + move + ring-rebuild + draft-form"));
    const auto one =
        settings_of(treated(state::DraftRestore::rows_q4, state::Tier::disk), factors, factor_cells(factors)[3]);
    EXPECT_EQ(one.treatment.draft, state::DraftRestore::rows);
    EXPECT_FALSE(one.treatment.move);
    EXPECT_EQ(one.treatment.tier, state::Tier::memory);
}

TEST(Factors, one_factor_alone_is_the_source) {
    const auto study = study_of(treated(state::DraftRestore::rows, state::Tier::disk),
                                [](const std::string& cell) { return has(cell, "ring-rebuild"); });
    ASSERT_EQ(study.sources.size(), 1u);
    EXPECT_EQ(cell_label(study.factors, study.sources[0]), "snapshot + ring-rebuild");
    EXPECT_TRUE(study.masked.empty());
    for (const FactorEffect& effect : study.effects) {
        EXPECT_EQ(effect.differs, cell_label(study.factors, effect.cell) == "snapshot + ring-rebuild" ? 1 : 0);
    }
    EXPECT_THAT(factors_text(study), HasSubstr("ring-rebuild alone makes it differ."));
}

// The shape of a feature that is harmless alone, on a hit that is harmless alone.
TEST(Factors, a_difference_of_two_together_is_an_interaction) {
    const auto study = study_of(treated(state::DraftRestore::rows, state::Tier::disk),
                                [](const std::string& cell) { return has(cell, "ring-rebuild") && has(cell, "tier"); });
    ASSERT_EQ(study.sources.size(), 1u);
    EXPECT_EQ(cell_label(study.factors, study.sources[0]), "snapshot + tier + ring-rebuild");
    std::size_t nonzero = 0;
    for (const FactorEffect& effect : study.effects) {
        if (effect.differs == 0) continue;
        ++nonzero;
        EXPECT_EQ(cell_label(study.factors, effect.last), "tier + ring-rebuild");
        EXPECT_EQ(effect.differs, 1);
        EXPECT_EQ(effect.differing_pairs, 4);
    }
    EXPECT_EQ(nonzero, 1u);
    EXPECT_THAT(factors_text(study), HasSubstr("tier + ring-rebuild differ only together: an interaction."));
}

TEST(Factors, two_sources_that_do_not_add_up_interact_negatively) {
    const auto study = study_of(treated(state::DraftRestore::rows, state::Tier::disk),
                                [](const std::string& cell) { return has(cell, "ring-rebuild") || has(cell, "tier"); });
    EXPECT_EQ(study.sources.size(), 2u);
    bool seen = false;
    for (const FactorEffect& effect : study.effects) {
        if (cell_label(study.factors, effect.last) != "tier + ring-rebuild") continue;
        if (cell_label(study.factors, effect.cell) != "snapshot + tier + ring-rebuild") continue;
        seen = true;
        EXPECT_EQ(effect.differs, -1);
    }
    EXPECT_TRUE(seen);
}

TEST(Factors, a_factor_that_hides_another_is_said) {
    const auto study = study_of(treated(state::DraftRestore::rows, state::Tier::memory), [](const std::string& cell) {
        return has(cell, "move") && !has(cell, "ring-rebuild");
    });
    ASSERT_EQ(study.masked.size(), 1u);
    EXPECT_THAT(factors_text(study), HasSubstr("one factor hides another"));
}

TEST(Factors, an_untested_cell_makes_effects_unknown_and_not_zero) {
    FactorStudy study =
        study_of(treated(state::DraftRestore::exact, state::Tier::memory), [](const auto&) { return false; });
    study.effects.clear();
    study.cells.back().summary.verdict = Verdict::insufficient;
    analyse(study);
    EXPECT_FALSE(study.effects.back().differs.has_value());
    EXPECT_THAT(factors_text(study), HasSubstr("Some combinations were not tested (1: INSUFFICIENT)"));
    EXPECT_THAT(factors_text(study), HasSubstr("1 effects are unknown"));
    for (FactorCell& cell : study.cells) {
        if (cell.factors != 0) cell.summary.verdict = Verdict::not_restored;
    }
    study.effects.clear();
    analyse(study);
    EXPECT_THAT(attribution(study),
                ElementsAre("No combination was tested (2: NOT_RESTORED): nothing can be attributed."));
}

}  // namespace
}  // namespace draftprobe::study
