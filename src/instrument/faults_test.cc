#include "instrument/faults.h"

#include <gmock/gmock.h>

#include <set>

namespace draftprobe::instrument {
namespace {

using ::testing::HasSubstr;

state::StateShape small_shape() {
    state::StateShape shape;
    shape.attention_layers = 1;
    shape.kv_heads = 1;
    shape.head_dim = 16;
    shape.delta_layers = 1;
    shape.key_heads = shape.value_heads = 1;
    shape.key_dim = shape.value_dim = 4;
    shape.conv_rows = 3;
    shape.conv_channels = 12;
    shape.draft_layers = 1;
    shape.draft_kv_heads = 1;
    shape.draft_head_dim = 16;
    shape.hidden = 8;
    shape.context_capacity = 31;
    shape.max_tokens = 64;
    return shape;
}

// A lane of 32 tokens whose rows hold `value`.
void fill(state::Lane& lane, float value) {
    lane.reset();
    ASSERT_TRUE(lane.kv.reserve(31).ok());
    const std::vector<float> row(32, value);
    for (Position p = 0; p < 32; ++p) {
        lane.kv.write(0, p, row.data(), row.data());
        if (p == 0) continue;
        lane.draft.rows().write(lane.draft.slot(p), row.data());
        lane.draft.keys(0).write(lane.draft.slot(p), row.data());
        lane.draft.values(0).write(lane.draft.slot(p), row.data());
        lane.draft.mark_written(p, false);
        lane.draft.mark_written(p, true);
    }
    lane.draft.claim(1, 32, state::RowSource::restored);
    lane.length = 32;
    lane.tokens.assign(32, 7);
    lane.target_rows_written = 32;
}

std::set<std::string> changed_by(const std::string& text) {
    state::Lane healthy(0, small_shape(), false);
    state::Lane broken(1, small_shape(), false);
    fill(healthy, 1.5f);
    fill(broken, -4.0f);  // the previous occupant
    const Result<Fault> fault = parse_fault(text);
    EXPECT_TRUE(fault.ok()) << fault.status().message();
    auto faults = CopyFaults::before_restore({&fault.value(), 1}, broken, 32);
    EXPECT_TRUE(faults.ok()) << faults.status().message();
    fill(broken, 1.5f);
    EXPECT_TRUE(faults->apply(broken, true).ok());
    if (fault->kind == FaultKind::flip && fault->component != state::Component::draft_context) {
        EXPECT_TRUE(flip_restored_byte(broken, fault.value()).ok());
    }
    std::set<std::string> changed;
    const auto a = state::lane_ledger(healthy, true);
    const auto b = state::lane_ledger(broken, true);
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i].digest != b[i].digest) changed.insert(std::string(state::component_name(a[i].component)));
    }
    return changed;
}

TEST(Faults, EveryOneIsParsedListedAndSpelledAsItWasGiven) {
    const std::vector<std::string> texts = {
        "context-shift=-7",
        "rows-unwritten=all",
        "stale-occupant=recurrent",
        "stale-anchor=token:3",
        "window-off-by-one=+1",
        "position-base=0",
        "missing-component=conv",
        "mislabelled-checkpoint=2",
        "double-quantisation=1",
        "alias-snapshot=3",
        "unwritten-cell=1",
        "flip=draft_ring:9",
        "empty-restore=all",
        "cached-control=all",
        "draft-nothing=2",
        "checkpoint-inside-step=3",
        "pending-row=9",
        "unreset-row=all",
        "prefix-again=all",
        "suffix-unwritten=1",
        "split-slots=8",
        "unsaved-component=draft_context",
    };
    ASSERT_EQ(texts.size(), list_faults().size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
        const Result<Fault> fault = parse_fault(texts[i]);
        ASSERT_TRUE(fault.ok()) << fault.status().message();
        EXPECT_EQ(fault->spelling, texts[i]);
        EXPECT_EQ(static_cast<std::size_t>(fault->kind), i) << texts[i];
        EXPECT_EQ(texts[i].substr(0, texts[i].find('=')), list_faults()[i].name);
    }
    EXPECT_EQ(parse_fault("context-shift=+32")->spelling, "context-shift=32");
}

TEST(Faults, BadArgumentsAreRefusedWithWhatIsExpected) {
    for (const char* text : {"context-shift=0",
                             "context-shift",
                             "context-shift=x",
                             "context-shift=1000001",
                             "rows-unwritten=0",
                             "rows-unwritten=4:ones",
                             "rows-unwritten=all:",
                             "stale-occupant=anchor",
                             "stale-anchor=3",
                             "stale-anchor=row:0",
                             "window-off-by-one=0",
                             "window-off-by-one=2",
                             "position-base=-1",
                             "missing-component=",
                             "unwritten-cell=0",
                             "mislabelled-checkpoint=-1",
                             "double-quantisation=two",
                             "alias-snapshot=0",
                             "flip=conv",
                             "flip=conv:-1",
                             "empty-restore=1",
                             "cached-control=",
                             "draft-nothing=0",
                             "checkpoint-inside-step=0",
                             "pending-row=all",
                             "unreset-row=1",
                             "prefix-again=",
                             "suffix-unwritten=-1",
                             "split-slots=x"}) {
        const Result<Fault> fault = parse_fault(text);
        ASSERT_EQ(fault.status().code(), StatusCode::invalid_argument) << text;
        EXPECT_THAT(fault.status().message(), HasSubstr("expected")) << text;
    }
    EXPECT_THAT(parse_fault("nonsense=1").status().message(),
                ::testing::AllOf(HasSubstr("unknown fault 'nonsense'"), HasSubstr("context-shift=N")));
}

FaultRun run_with(state::DraftRestore draft) {
    return {.boundary = 32, .prompt_length = 48, .draft = draft, .target = state::TargetRestore::exact, .move = true};
}

Status checked(const char* text, const FaultRun& run, const state::StateShape& shape = small_shape()) {
    const Result<Fault> fault = parse_fault(text);
    EXPECT_TRUE(fault.ok()) << text;
    return check_faults({&fault.value(), 1}, shape, run);
}

TEST(Faults, WhatCannotActIsRefused) {
    const FaultRun exact = run_with(state::DraftRestore::exact);
    for (const char* text :
         {"double-quantisation=1", "position-base=32", "stale-anchor=row:31", "stale-anchor=token:32",
          "alias-snapshot=33", "flip=recurrent:64", "flip=draft_context:496", "rows-unwritten=32",
          "mislabelled-checkpoint=17", "checkpoint-inside-step=31", "checkpoint-inside-step=17"}) {
        EXPECT_EQ(checked(text, exact).code(), StatusCode::invalid_argument) << text;
        EXPECT_THAT(checked(text, exact).message(),
                    ::testing::AllOf(HasSubstr(text), HasSubstr("could not act"), HasSubstr("expected")))
            << text;
    }
    for (const char* text : {"position-base=31", "stale-anchor=row:30", "stale-anchor=token:31", "alias-snapshot=32",
                             "flip=recurrent:63", "flip=draft_context:495", "rows-unwritten=31",
                             "mislabelled-checkpoint=16", "checkpoint-inside-step=16", "window-off-by-one=-1"}) {
        EXPECT_TRUE(checked(text, exact).ok()) << text;
    }
}

TEST(Faults, AFormThatLeavesNothingToActOnRefuses) {
    using state::DraftRestore;
    const auto refused = [](const char* text, DraftRestore draft) {
        return checked(text, run_with(draft)).code() == StatusCode::invalid_argument;
    };
    for (const char* text : {"context-shift=1", "rows-unwritten=all", "stale-occupant=draft_context",
                             "missing-component=draft_ring", "flip=draft_ring:0"}) {
        EXPECT_TRUE(refused(text, DraftRestore::masked)) << text;
        EXPECT_TRUE(refused(text, DraftRestore::none)) << text;
        EXPECT_FALSE(refused(text, DraftRestore::recompute)) << text;
    }
    for (const char* text : {"stale-occupant=draft_ring", "missing-component=draft_ring"}) {
        EXPECT_TRUE(refused(text, DraftRestore::rows)) << text;
        EXPECT_TRUE(refused(text, DraftRestore::rows_q4)) << text;
        EXPECT_FALSE(refused(text, DraftRestore::exact)) << text;
    }
    EXPECT_FALSE(refused("flip=draft_ring:0", DraftRestore::rows_q4));
    for (const char* text : {"mislabelled-checkpoint=1", "alias-snapshot=1"}) {
        EXPECT_TRUE(refused(text, DraftRestore::recompute)) << text;
        EXPECT_FALSE(refused(text, DraftRestore::masked)) << text;
    }
    // 16 rows lie behind the boundary.
    EXPECT_TRUE(refused("stale-anchor=row:16", DraftRestore::masked));
    EXPECT_FALSE(refused("stale-anchor=row:15", DraftRestore::masked));
    EXPECT_TRUE(refused("window-off-by-one=-1", DraftRestore::masked));
    EXPECT_TRUE(refused("position-base=0", DraftRestore::none));
}

TEST(Faults, WhatTheRunLacksRefuses) {
    FaultRun nothing_restored = run_with(state::DraftRestore::exact);
    nothing_restored.boundary = 0;
    EXPECT_FALSE(checked("prefix-again=all", nothing_restored).ok());
    EXPECT_TRUE(checked("unreset-row=all", nothing_restored).ok());
    FaultRun in_place = run_with(state::DraftRestore::exact);
    in_place.move = false;
    EXPECT_FALSE(checked("stale-occupant=target_kv", in_place).ok());
    EXPECT_TRUE(checked("missing-component=target_kv", in_place).ok());
    state::StateShape without = small_shape();
    without.delta_layers = 0;
    EXPECT_FALSE(checked("unwritten-cell=1", run_with(state::DraftRestore::exact), without).ok());
    EXPECT_FALSE(checked("stale-occupant=recurrent", run_with(state::DraftRestore::exact), without).ok());
    without.draft_layers = 0;
    EXPECT_FALSE(checked("context-shift=1", run_with(state::DraftRestore::exact), without).ok());
    FaultRun narrow = run_with(state::DraftRestore::exact);
    narrow.prompt_length = 31;
    EXPECT_FALSE(checked("window-off-by-one=+1", narrow).ok());
}

TEST(Faults, AByteBehindTheEndIsNoFlip) {
    state::Lane lane(0, small_shape(), false);
    fill(lane, 1.5f);
    EXPECT_TRUE(flip_byte(lane, state::Component::draft_context, 495));
    EXPECT_FALSE(flip_byte(lane, state::Component::draft_context, 496));
    const Fault fault = parse_fault("flip=conv:4000").value();
    EXPECT_EQ(flip_restored_byte(lane, fault).code(), StatusCode::invalid_argument);
}

TEST(Faults, EachChangesItsComponentAndNoOther) {
    using Names = std::set<std::string>;
    const Names draft = {"draft_context", "draft_ring"};
    for (const char* text :
         {"context-shift=4", "rows-unwritten=all", "rows-unwritten=2:zeros", "rows-unwritten=1:poison",
          "stale-occupant=draft_context", "missing-component=draft_context"}) {
        EXPECT_EQ(changed_by(text), draft) << text;
    }
    for (const char* component : {"target_kv", "draft_ring"}) {
        EXPECT_EQ(changed_by(std::string("stale-occupant=") + component), Names{component});
        EXPECT_EQ(changed_by(std::string("missing-component=") + component), Names{component});
    }
    for (const char* component : {"target_kv", "recurrent", "conv", "draft_context", "draft_ring"}) {
        EXPECT_EQ(changed_by(std::string("flip=") + component + ":11"), Names{component});
    }
}

}  // namespace
}  // namespace draftprobe::instrument
