// The probe on the bundled trained pair: healthy restores are SAME, the injected fault is CHANGED with component and
// shift, and what was not tested is not claimed.
#include <gmock/gmock.h>

#include <unistd.h>

#include <filesystem>

#include "base/files.h"
#include "base/hash.h"
#include "compare/compare.h"
#include "instrument/observer.h"
#include "probe/probe.h"
#include "state/ledger.h"

namespace draftprobe {
namespace {

using probe::Assembly;
using probe::ProbeRequest;
using probe::ProbeSettings;

std::string source_path(const std::string& name) { return std::string(DRAFTPROBE_SOURCE_DIR) + "/" + name; }

const Assembly& bundled_pair() {
    static const Assembly assembly = [] {
        auto loaded =
            probe::load_assembly(source_path("models/mini-dense-mlx4"), source_path("models/mini-dense-draft"), true);
        EXPECT_TRUE(loaded.ok()) << loaded.status().message();
        return std::move(loaded).value();
    }();
    return assembly;
}

std::vector<TokenId> source_file_ids(std::size_t count) {
    auto text = read_text_file(source_path("models/prompts/draft_forward.cc.txt"), 1 << 20);
    EXPECT_TRUE(text.ok()) << text.status().message();
    auto ids = bundled_pair().tokenizer->encode(text.value());
    EXPECT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_GE(ids.value().size(), count);
    ids.value().resize(count);
    return ids.value();
}

class PairTest : public ::testing::Test {
protected:
    void SetUp() override {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        dir_ = std::filesystem::temp_directory_path() /
               ("draftprobe-scenario-" + std::to_string(::getpid()) + "-" + info->name());
        std::filesystem::create_directories(dir_);
    }
    // A failed scenario keeps its captures.
    void TearDown() override {
        if (!HasFailure()) std::filesystem::remove_all(dir_);
    }

    static ProbeSettings settings() {
        ProbeSettings s;
        s.engine.isa = numerics::best_isa();
        s.engine.numerics = numerics::NumericsClass::i8dot;
        s.engine.threads = 2;
        s.engine.chunk_tokens = 256;
        s.build_digest = sha256_hex(std::string_view("scenario"));
        return s;
    }
    static ProbeRequest request(std::size_t tokens, Position boundary, std::size_t cycles) {
        ProbeRequest r;
        r.prompt = source_file_ids(tokens);
        r.boundary = boundary;
        r.cycles = cycles;
        return r;
    }
    std::filesystem::path arm(const ProbeRequest& r, const ProbeSettings& s, Arm which, const std::string& name) {
        const auto path = dir_ / name;
        auto result = probe::run_arm(bundled_pair(), r, s, which, path, false);
        EXPECT_TRUE(result.ok()) << result.status().message();
        return path;
    }
    static Comparison judge(const std::filesystem::path& control, const std::filesystem::path& treated,
                            std::vector<std::string> treat = {}) {
        CompareOptions options;
        options.treat = std::move(treat);
        auto comparison = compare_captures(control, treated, options);
        EXPECT_TRUE(comparison.ok()) << comparison.status().message();
        return std::move(comparison).value();
    }

protected:
    std::filesystem::path dir_;
};

TEST_F(PairTest, HealthyRestoresOfEveryFormAreTheSameAtEveryLevel) {
    const ProbeRequest r = request(900, 832, 8);
    for (const int level : {1, 2, 3}) {
        ProbeSettings s = settings();
        s.level = level;
        s.digest_every = 1;
        const std::string suffix = std::to_string(level);
        const auto control = arm(r, s, Arm::fresh, "control" + suffix);
        for (const auto form : {state::DraftRestore::exact, state::DraftRestore::rows}) {
            s.treatment.draft = form;
            const auto treated =
                arm(r, s, Arm::restored, "treated" + suffix + std::string(state::draft_restore_name(form)));
            const Comparison result = judge(control, treated);
            EXPECT_EQ(verdict_name(result.verdict), "SAME") << result.why;
            EXPECT_EQ(result.level, level);
            EXPECT_EQ(result.pairs.matched, 8);
            EXPECT_EQ(result.armed.draft_exposure, 511 - (900 - 832));
            EXPECT_EQ(result.treated.restored_rows > 0, true);
        }
    }
}

TEST_F(PairTest, TheDraftIsTrainedAndItsAcceptanceIsReal) {
    const ProbeRequest r = request(900, 832, 24);
    const auto control = arm(r, settings(), Arm::fresh, "control");
    const Comparison result = judge(control, control);
    // Neither an untrained draft (nothing accepted) nor one that is always right (everything censored).
    EXPECT_GT(result.control.mean_retained(), 1.5);
    EXPECT_LT(result.control.mean_retained(), 8.0);
}

TEST_F(PairTest, OtherControlsAreBitEqual) {
    const ProbeRequest r = request(900, 832, 6);
    const auto control = arm(r, settings(), Arm::fresh, "control");
    for (const Arm other : {Arm::repeat, Arm::uninterrupted, Arm::natural}) {
        const auto treated = arm(r, settings(), other, std::string(arm_name(other)));
        const Comparison result = judge(control, treated);
        EXPECT_EQ(verdict_name(result.verdict), "SAME") << arm_name(other) << ": " << result.why;
        EXPECT_EQ(result.draft_drift.rows_different + result.target_drift.rows_different, 0);
    }
}

TEST_F(PairTest, ShiftedContextRowsAreChangedWithComponentAndShift) {
    const ProbeRequest r = request(900, 832, 6);
    const auto control = arm(r, settings(), Arm::fresh, "control");
    for (const auto form : {state::DraftRestore::exact, state::DraftRestore::rows}) {
        for (const Position shift : {1, 5, 31, 32, 33, -7}) {
            ProbeSettings s = settings();
            s.treatment.draft = form;
            auto fault = instrument::parse_fault("context-shift=" + std::to_string(shift));
            ASSERT_TRUE(fault.ok());
            s.treatment.faults.push_back(fault.value());
            const auto treated = arm(r, s, Arm::restored,
                                     std::string(state::draft_restore_name(form)) + "shift" + std::to_string(shift));
            const Comparison result = judge(control, treated);
            EXPECT_EQ(verdict_name(result.verdict), "CHANGED") << shift << ": " << result.why;
            ASSERT_TRUE(result.first.has_value());
            EXPECT_EQ(result.first->stage, "restore");
            EXPECT_EQ(result.first->component, "draft_context");
            EXPECT_EQ(result.shift_tokens, shift);
            // The engine really read the moved rows: what the draft computed differs from its first cycle on.
            EXPECT_GT(result.draft_drift.rows_different, 0) << shift;
            EXPECT_EQ(result.target_drift.rows_different, 0) << shift << ": the target's restore was healthy";
        }
    }
}

TEST_F(PairTest, ARestoreThatTheDraftCannotSeeIsInsufficient) {
    // P - B = 644 >= W - 1 = 511: every restored context row is out of the window at the first decode cycle.
    const ProbeRequest r = request(900, 256, 4);
    const auto control = arm(r, settings(), Arm::fresh, "control");
    const auto treated = arm(r, settings(), Arm::restored, "treated");
    const Comparison result = judge(control, treated);
    EXPECT_EQ(verdict_name(result.verdict), "INSUFFICIENT") << result.why;
    EXPECT_EQ(result.armed.draft_exposure, 0);
}

TEST_F(PairTest, UndeclaredSettingsAreRefusedAllAtOnceAndDeclaredOnesCompared) {
    const ProbeRequest r = request(600, 544, 4);
    const auto control = arm(r, settings(), Arm::fresh, "control");
    ProbeSettings other = settings();
    other.engine.kv_format = state::KvFormat::int8;
    other.engine.numerics = numerics::NumericsClass::f32;
    const auto treated = arm(r, other, Arm::restored, "treated");
    const Comparison refused = judge(control, treated);
    EXPECT_EQ(verdict_name(refused.verdict), "NOT_COMPARABLE");
    std::vector<std::string> fields;
    for (const Refusal& refusal : refused.refusals) fields.push_back(refusal.field);
    EXPECT_THAT(fields, ::testing::UnorderedElementsAre("settings.kv_format", "settings.numerics"));
    EXPECT_NE(verdict_name(judge(control, treated, {"kv_format", "numerics"}).verdict), "NOT_COMPARABLE");
}

TEST_F(PairTest, Int8KvAndTheFloatClassAreSameToo) {
    const ProbeRequest r = request(600, 544, 6);
    for (const auto cls : {numerics::NumericsClass::f32, numerics::NumericsClass::i8dot}) {
        ProbeSettings s = settings();
        s.engine.kv_format = state::KvFormat::int8;
        s.engine.numerics = cls;
        const std::string suffix(numerics::numerics_class_name(cls));
        const auto control = arm(r, s, Arm::fresh, "control" + suffix);
        const auto treated = arm(r, s, Arm::restored, "treated" + suffix);
        EXPECT_EQ(verdict_name(judge(control, treated).verdict), "SAME") << suffix;
    }
}

TEST_F(PairTest, AnInterruptedArmLeavesNothingThatLooksComplete) {
    ProbeRequest r = request(600, 544, 4);
    r.boundary = 600;  // not page-aligned and not below the prompt
    const auto path = dir_ / "refused";
    const auto result = probe::run_arm(bundled_pair(), r, settings(), Arm::fresh, path, false);
    EXPECT_EQ(result.status().code(), StatusCode::invalid_argument);
    EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

TEST(ProductionEngine, DecodesTheSameBitsAsTheObservedOne) {
    const auto decode = [](auto& engine, std::vector<std::string>& digests, std::vector<TokenId>& tokens) {
        engine.begin_request(0, {{1000, {}}});
        const std::vector<TokenId> prompt = source_file_ids(700);
        ASSERT_TRUE(engine.prefill(0, prompt, 0, true).ok());
        decode::ModelDrafter drafter(*engine.core().draft_forward());
        const int lane = 0;
        for (int cycle = 0; cycle < 8; ++cycle) {
            auto result = engine.cycle({&lane, 1}, drafter, 8);
            ASSERT_TRUE(result.ok()) << result.status().message();
            const auto& emitted = result.value()[0].emitted;
            tokens.insert(tokens.end(), emitted.begin(), emitted.end());
            for (const auto& entry : state::lane_ledger(engine.lane(0), true)) digests.push_back(entry.digest);
        }
    };
    decode::EngineSettings s;
    s.isa = numerics::best_isa();
    s.numerics = numerics::NumericsClass::i8dot;
    s.threads = 2;
    s.chunk_tokens = 256;
    s.max_tokens = 1024;
    auto production_core = decode::EngineCore::create(bundled_pair().models, s);
    auto observed_core = decode::EngineCore::create(bundled_pair().models, s);
    ASSERT_TRUE(production_core.ok() && observed_core.ok());
    decode::ProductionEngine production(std::move(production_core).value());
    instrument::ObservedEngine observed(std::move(observed_core).value());
    std::vector<std::string> digests[2];
    std::vector<TokenId> tokens[2];
    decode(production, digests[0], tokens[0]);
    decode(observed, digests[1], tokens[1]);
    EXPECT_EQ(tokens[0], tokens[1]);
    EXPECT_EQ(digests[0], digests[1]);
}

}  // namespace
}  // namespace draftprobe
