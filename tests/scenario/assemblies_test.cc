// The bundled assemblies: five drafts of one target on the same inputs, and the mixture of experts with its own draft.
#include <gmock/gmock.h>

#include <set>

#include "base/hash.h"
#include "base/test_directory.h"
#include "capture/reader.h"
#include "compare/compare.h"
#include "probe/probe.h"

namespace draftprobe {
namespace {

namespace fs = std::filesystem;

const char* const kDenseDrafts[] = {"mini-dense-draft", "exports/strong", "exports/weak", "exports/short-window",
                                    "exports/v1-block16"};

fs::path models() { return fs::path(DRAFTPROBE_SOURCE_DIR) / "models"; }

class Assemblies : public ::testing::Test {
protected:
    probe::Assembly load(const std::string& target, const std::string& draft) const {
        probe::AssemblyOptions options;
        options.require_manifest = true;
        auto loaded = probe::load_assembly(models() / target, models() / draft, true, options);
        EXPECT_TRUE(loaded.ok()) << loaded.status().message();
        return std::move(loaded).value();
    }
    static probe::ProbeRequest request(const probe::Assembly& assembly, std::size_t tokens, Position boundary) {
        auto text = read_text_file(models() / "prompts" / "draft_forward.cc.txt", 1 << 20);
        EXPECT_TRUE(text.ok());
        auto ids = assembly.tokenizer->encode(text.value());
        EXPECT_TRUE(ids.ok());
        probe::ProbeRequest request;
        request.prompt.assign(ids->begin(), ids->begin() + static_cast<std::ptrdiff_t>(tokens));
        request.boundary = boundary;
        request.cycles = 8;
        return request;
    }
    static probe::ProbeSettings settings() {
        probe::ProbeSettings settings;
        settings.engine.isa = numerics::best_isa();
        settings.engine.numerics = numerics::NumericsClass::i8dot;
        settings.engine.threads = 2;
        settings.engine.chunk_tokens = 256;
        settings.build_digest = sha256_hex(std::string_view("scenario"));
        return settings;
    }
    fs::path run(const probe::Assembly& assembly, const probe::ProbeRequest& request,
                 const probe::ProbeSettings& settings, Arm arm, const std::string& name) const {
        auto result = probe::run_arm(assembly, request, settings, arm, dir_ / name, false);
        EXPECT_TRUE(result.ok()) << result.status().message();
        return dir_ / name;
    }
    static Comparison judged(const fs::path& control, const fs::path& treated, std::vector<std::string> treat = {}) {
        auto comparison = compare_captures(control, treated, {std::move(treat), Evidence::all});
        EXPECT_TRUE(comparison.ok()) << comparison.status().message();
        return std::move(comparison).value();
    }

    TestDirectory dir_;
};

TEST_F(Assemblies, FiveDraftsOnTheSameInputsDifferInTheDraftAlone) {
    std::set<std::string> inputs;
    std::set<std::string> drafts;
    fs::path first;
    for (const std::string draft : kDenseDrafts) {
        SCOPED_TRACE(draft);
        const probe::Assembly assembly = load("mini-dense-mlx4", draft);
        const std::string name = fs::path(draft).filename().string();
        const fs::path control = run(assembly, request(assembly, 300, 256), settings(), Arm::fresh, name);
        auto reader = CaptureReader::open(control);
        ASSERT_TRUE(reader.ok()) << reader.status().message();
        inputs.insert(reader->header().identity.non_draft_input_digest);
        drafts.insert(reader->header().identity.draft.digest);
        EXPECT_TRUE(reader->header().notes.empty());  // trained for raw text on this target
        EXPECT_EQ(
            judged(control, run(assembly, request(assembly, 300, 256), settings(), Arm::restored, name + "-r")).verdict,
            Verdict::same);
        if (first.empty()) {
            first = control;
            continue;
        }
        // Another draft is a treatment to be declared, and then the target's side is the same.
        EXPECT_EQ(judged(first, control).verdict, Verdict::not_comparable);
        const Comparison declared = judged(first, control, {"draft"});
        EXPECT_NE(declared.verdict, Verdict::not_comparable) << declared.why;
        EXPECT_GT(declared.pairs.matched, 0);
        EXPECT_EQ(declared.target_drift.rows_different, 0);
    }
    EXPECT_EQ(inputs.size(), 1u);
    EXPECT_EQ(drafts.size(), std::size(kDenseDrafts));
}

TEST_F(Assemblies, TheMixtureOfExpertsIsRestoredAndItsFaultIsFound) {
    const probe::Assembly assembly = load("mini-moe-mlx4", "mini-moe-draft");
    ASSERT_TRUE(assembly.models.target->config().moe);
    const probe::ProbeRequest asked = request(assembly, 420, 320);
    const fs::path control = run(assembly, asked, settings(), Arm::fresh, "control");
    for (const Arm arm : {Arm::repeat, Arm::natural, Arm::restored})
        EXPECT_EQ(judged(control, run(assembly, asked, settings(), arm, std::string(arm_name(arm)))).verdict,
                  Verdict::same);
    probe::ProbeSettings shifted = settings();
    shifted.treatment.faults.push_back(instrument::parse_fault("context-shift=32").value());
    const Comparison fault = judged(control, run(assembly, asked, shifted, Arm::restored, "shifted"));
    EXPECT_EQ(fault.verdict, Verdict::changed);
    ASSERT_TRUE(fault.first.has_value());
    EXPECT_EQ(fault.first->component, "draft_context");
    EXPECT_EQ(fault.shift_tokens, 32);
}

TEST_F(Assemblies, SampledAndBudgetedArmsRepeatThemselvesAndSurviveTheRestore) {
    const probe::Assembly assembly = load("mini-dense-mlx4", "mini-dense-draft");
    const probe::ProbeRequest asked = request(assembly, 300, 256);
    auto seed = std::make_shared<budget::Seed>();
    seed->block = 8;
    seed->lanes = 1;
    seed->upper_edges = {0.25, 0.75, 1};
    seed->state.successes = {4, 12, 19};
    seed->state.failures = {6, 4, 1};
    for (int rows = 1; rows <= 8; ++rows) seed->state.cost.push_back(1 + 0.1 * rows);
    seed->digest = sha256_hex(budget::seed_json(*seed).value());
    probe::ProbeSettings sampled = settings();
    sampled.sampling.temperature = 0.8f;
    sampled.sampling.top_p = 0.9f;
    sampled.sampling.seed = 12;
    probe::ProbeSettings frozen = settings();
    frozen.budget = budget::BudgetKind::frozen;
    frozen.seed = seed;
    const std::pair<std::string, probe::ProbeSettings> cases[] = {{"sampled", sampled}, {"frozen", frozen}};
    for (const auto& [name, s] : cases) {
        SCOPED_TRACE(name);
        const fs::path control = run(assembly, asked, s, Arm::fresh, name);
        EXPECT_EQ(judged(control, run(assembly, asked, s, Arm::repeat, name + "-repeat")).verdict, Verdict::same);
        EXPECT_EQ(judged(control, run(assembly, asked, s, Arm::restored, name + "-restored")).verdict, Verdict::same);
        auto reader = CaptureReader::open(control);
        ASSERT_TRUE(reader.ok());
        StepRecord step;
        std::int64_t cut = 0;
        for (auto more = reader->next(step); more.ok() && more.value(); more = reader->next(step)) {
            EXPECT_EQ(step.proposal_source, name == "sampled" ? "sampled" : "selector");
            EXPECT_EQ(step.controller_in.has_value(), name == "frozen");
            EXPECT_EQ(step.width_margin.has_value(), name == "frozen");
            cut += step.offered_cut == CutReason::budget ? 1 : 0;
        }
        EXPECT_EQ(cut > 0, name == "frozen");
        // A greedy full arm is another experiment.
        EXPECT_EQ(judged(control, run(assembly, asked, settings(), Arm::fresh, name + "-other")).verdict,
                  Verdict::not_comparable);
    }
}

}  // namespace
}  // namespace draftprobe
