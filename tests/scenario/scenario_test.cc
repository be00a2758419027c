// Runs every scenario of tests/scenarios and its healthy twin, and holds docs/faults.md to what came out.
//
// DRAFTPROBE_WRITE_FAULTS=1 rewrites the table instead of comparing it (scripts/faults_table.sh).
#include "scenario.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "base/files.h"
#include "base/test_directory.h"
#include "instrument/faults.h"

namespace draftprobe::scenario {
namespace {

std::string source_path(const std::string& name) { return std::string(DRAFTPROBE_SOURCE_DIR) + "/" + name; }

const std::vector<Pair>& all_scenarios() {
    static const std::vector<Pair> pairs = [] {
        auto read = read_scenarios(source_path("tests/scenarios"));
        EXPECT_TRUE(read.ok()) << read.status().message();
        return read.ok() ? std::move(read).value() : std::vector<Pair>();
    }();
    return pairs;
}

// One run of each scenario serves the test of its own and the table.
const Result<Outcome>& outcome(const Scenario& scenario) {
    static TestDirectory scratch;
    static std::map<std::string, Result<Outcome>> outcomes;
    const auto at = outcomes.find(scenario.name);
    if (at != outcomes.end()) return at->second;
    return outcomes.emplace(scenario.name, run_scenario(scenario, scratch.path())).first->second;
}

class ScenarioTest : public ::testing::Test {
public:
    explicit ScenarioTest(const Scenario& scenario) : scenario_(scenario) {}
    void TestBody() override {
        const Result<Outcome>& result = outcome(scenario_);
        const Json& expect = scenario_.spec["expect"];
        if (expect.contains("error")) {
            ASSERT_FALSE(result.ok()) << "found no error, expected " << expect["error"];
            EXPECT_NE(result.status().message().find(expect["error"].get<std::string>()), std::string::npos)
                << result.status().message();
            return;
        }
        ASSERT_TRUE(result.ok()) << result.status().message();
        for (const std::string& problem : unmet(expect, result.value())) ADD_FAILURE() << problem;
        if (HasFailure()) {
            const auto& first = result->comparison.first;
            std::cerr << "why: " << result->comparison.why << "\n";
            if (first)
                std::cerr << "first: " << first->stage << " " << first->component << ": " << first->detail << "\n";
        }
    }

private:
    const Scenario& scenario_;
};

std::string place(const Comparison& result) {
    return result.first ? fmt::format("{} / {}", result.first->stage, result.first->component) : "-";
}

std::string faults_table() {
    std::string table =
        "| fault | scenario | verdict | stage / component | what it says | healthy twin |\n"
        "|---|---|---|---|---|---|\n";
    for (const auto& description : instrument::list_faults()) {
        for (const Pair& pair : all_scenarios()) {
            if (!pair.faulty.spec.contains("faults") || pair.twins.empty()) continue;
            const Json& faults = pair.faulty.spec["faults"];
            if (faults.size() != 1) continue;
            const auto text = faults[0].get<std::string>();
            if (!text.starts_with(std::string(description.name) + "=")) continue;
            const auto& found = outcome(pair.faulty);
            const auto& twin = outcome(pair.twins[0]);
            if (!found.ok() || !twin.ok()) continue;
            const Comparison& said = found->comparison;
            // Where nothing was judged, what differs says less than why.
            const bool judged = said.verdict != Verdict::contaminated && said.verdict != Verdict::not_restored;
            table +=
                fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", text, pair.faulty.name, verdict_name(said.verdict),
                            judged ? place(said) : "-", judged && said.first ? said.first->detail : said.why,
                            verdict_name(twin->comparison.verdict));
        }
    }
    return table;
}

TEST(Scenarios, EveryFaultHasOneWithATwin) {
    std::set<std::string> covered;
    for (const Pair& pair : all_scenarios()) {
        if (!pair.faulty.spec.contains("faults") || pair.twins.empty()) continue;
        for (const Json& text : pair.faulty.spec["faults"]) {
            const auto name = text.get<std::string>();
            covered.insert(name.substr(0, name.find('=')));
        }
    }
    for (const auto& fault : instrument::list_faults())
        EXPECT_TRUE(covered.contains(std::string(fault.name))) << fault.name;
}

TEST(Scenarios, UnknownKeysAndHalfExpectationsAreRefused) {
    const TestDirectory directory;
    const std::string good = R"({"field": "X", "scenarios": [{"name": "n", "pair": "toy", "prompt": {"seed": 1},
        "boundary": 64, "suffix": 8, "cycles": 1, "expect": {"verdict": "SAME"}KEY}]KEY2})";
    const auto read = [&](std::string key, std::string key2, std::string verdict) {
        std::string text = good;
        text.replace(text.find("KEY2"), 4, key2);
        text.replace(text.find("KEY"), 3, key);
        text.replace(text.find("SAME"), 4, verdict);
        std::filesystem::remove(directory / "a.json");
        EXPECT_TRUE(write_file(directory / "a.json", std::string_view(text)).ok());
        return read_scenarios(directory.path());
    };
    EXPECT_TRUE(read("", "", "SAME").ok());
    EXPECT_EQ(read(R"(, "extra": 1)", "", "SAME").status().code(), StatusCode::corrupt);
    EXPECT_EQ(read("", R"(, "extra": 1)", "SAME").status().code(), StatusCode::corrupt);
    EXPECT_EQ(read("", "", "CHANGED").status().code(), StatusCode::corrupt);
    EXPECT_EQ(read(R"(, "twin": {"extra": 1, "expect": {"verdict": "SAME"}})", "", "SAME").status().code(),
              StatusCode::corrupt);
    EXPECT_EQ(read(R"(, "twin": {})", "", "SAME").status().code(), StatusCode::corrupt);
}

TEST(Scenarios, TheTableOfFaultsIsWhatTheRunSays) {
    const std::string path = source_path("docs/faults.md");
    auto text = read_text_file(path, 1 << 20);
    ASSERT_TRUE(text.ok()) << text.status().message();
    const std::string begin = "<!-- table: scripts/faults_table.sh -->\n";
    const std::string end = "<!-- end of table -->\n";
    const std::size_t from = text->find(begin);
    const std::size_t to = text->find(end);
    ASSERT_NE(from, std::string::npos);
    ASSERT_NE(to, std::string::npos);
    const std::string made = text->substr(0, from + begin.size()) + faults_table() + text->substr(to);
    if (std::getenv("DRAFTPROBE_WRITE_FAULTS") != nullptr) {
        std::filesystem::remove(path);
        ASSERT_TRUE(write_file(path, std::string_view(made)).ok());
        return;
    }
    EXPECT_EQ(made, text.value()) << "run scripts/faults_table.sh";
}

void register_scenarios() {
    for (const Pair& pair : all_scenarios()) {
        const auto add = [](const Scenario& scenario) {
            ::testing::RegisterTest("Scenario", scenario.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                                    [&scenario]() -> ::testing::Test* { return new ScenarioTest(scenario); });
        };
        add(pair.faulty);
        for (const Scenario& twin : pair.twins) add(twin);
    }
}

}  // namespace
}  // namespace draftprobe::scenario

int main(int argc, char** argv) {
    ::testing::InitGoogleTest(&argc, argv);
    draftprobe::scenario::register_scenarios();
    return RUN_ALL_TESTS();
}
