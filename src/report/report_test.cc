// The three views of one comparison: canonical JSON that is stable and free of ids, text, and a well-formed page.
#include "report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "base/test_directory.h"
#include "capture/test_capture.h"
#include "compare/compare.h"
#include "report/recompute.h"
#include "report/svg.h"

namespace draftprobe {
namespace {

using testing::HasSubstr;
using testing::Not;

Comparison compare_arms(const fixture::ArmData& control, const fixture::ArmData& treated,
                        const CompareOptions& options = {}) {
    TestDirectory directory;
    EXPECT_TRUE(fixture::write_arm(directory / "c", control).ok());
    EXPECT_TRUE(fixture::write_arm(directory / "t", treated).ok());
    Result<Comparison> result = compare_captures(directory / "c", directory / "t", options);
    EXPECT_TRUE(result.ok());
    return *result;
}

// A restore whose context rows landed 32 positions too high, with changed proposals.
Comparison shifted() {
    fixture::ArmData treated = fixture::make_arm(Arm::restored);
    for (LedgerEvent& event : treated.header.ledger) {
        if (event.event != "restore") continue;
        event.row_digests = fixture::row_digests(-32, event.position - 32);
        for (LedgerComponent& c : event.components) {
            if (c.component != kDraftContext) continue;
            c.digest = fixture::digest_of("shifted");
            c.rows_written = c.rows_claimed - 32;
        }
    }
    for (auto& proposal : treated.steps[0].proposals) proposal += 3;
    fixture::set_accepted(treated.steps[0], 0);
    treated.header.treatment.faults = {"shift-context=<32>&\"x\""};
    treated.header.notes = {"no effectiveness conclusion: the draft was trained with <thinking> off"};
    return compare_arms(fixture::make_arm(Arm::fresh), treated);
}

// Elements balance, attributes are quoted, and text holds no raw '<' or '&'. Void elements are closed with "/>".
std::string html_problem(std::string_view html) {
    std::vector<std::string> open;
    if (!html.starts_with("<!DOCTYPE html>\n")) return "no doctype";
    std::size_t at = html.find("<html");
    while (at < html.size()) {
        if (html[at] == '&') {
            const std::size_t end = html.find(';', at);
            const std::string_view entity = html.substr(at, end - at + 1);
            if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;" && entity != "&#39;") {
                return "raw & at " + std::to_string(at);
            }
        }
        if (html[at] != '<') {
            ++at;
            continue;
        }
        const std::size_t end = html.find('>', at);
        if (end == std::string_view::npos) return "unclosed tag";
        const std::string_view tag = html.substr(at + 1, end - at - 1);
        at = end + 1;
        if (tag.empty() || tag.find('<') != std::string_view::npos) return "bad tag " + std::string(tag);
        if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "odd quotes in " + std::string(tag);
        if (tag.front() == '/') {
            if (open.empty() || open.back() != tag.substr(1)) return "unexpected </" + std::string(tag.substr(1)) + ">";
            open.pop_back();
            continue;
        }
        const std::string name(tag.substr(0, tag.find_first_of(" /")));
        if (tag.back() == '/') continue;
        open.push_back(name);
        if (name == "style") {
            at = html.find("</style>", at);
            if (at == std::string_view::npos) return "unclosed style";
        }
    }
    return open.empty() ? "" : "unclosed " + open.back();
}

TEST(ReportJson, HasTheContractFields) {
    const std::string text = report_json(shifted());
    Result<Json> json = parse_json(text, "report");
    ASSERT_TRUE(json.ok()) << json.status().message();
    const Json& r = *json;
    EXPECT_EQ(r["verdict"], "CHANGED");
    EXPECT_EQ(r["exit"], 1);
    EXPECT_EQ(r["report_version"], 2);
    EXPECT_EQ(r["pairs"]["matched"], 6);
    EXPECT_EQ(r["pairs"]["unmatched_control"], 0);
    EXPECT_EQ(r["pairs"]["unmatched_treated"], 0);
    EXPECT_EQ(r["changed"], Json::parse(R"(["proposals", "acceptance"])"));
    EXPECT_EQ(r["first"]["stage"], "restore");
    EXPECT_EQ(r["first"]["component"], "draft_context");
    EXPECT_TRUE(r["first"]["cycle"].is_null());
    EXPECT_EQ(r["first"]["lane"], 1);
    EXPECT_THAT(r["first"]["detail"].get<std::string>(), HasSubstr("control's row of 32 positions earlier"));
    EXPECT_EQ(r["shift_tokens"], 32);
    EXPECT_TRUE(r["refusals"].empty());
    EXPECT_EQ(r["armed"]["draft_exposure"], 63);
    EXPECT_EQ(r["armed"]["armed"], true);
    EXPECT_EQ(r["acceptance"]["control"]["accepted"], 23);
    EXPECT_EQ(r["acceptance"]["treated"]["accepted"], 20);
    EXPECT_EQ(r["acceptance"]["control"]["mean_accepted"], 3.83333);
    EXPECT_EQ(r["drift"]["max_relative_l2"], 0.0);
    EXPECT_EQ(r["captures"]["treated"]["arm"], "restored");
    EXPECT_FALSE(r["captures"]["treated"].contains("path"));
}

TEST(ReportJson, GoldenBytes) {
    EXPECT_EQ(sha256_hex(report_json(compare_arms(fixture::make_arm(Arm::fresh), fixture::make_arm(Arm::restored)))),
              "93a3dc28503ba11b44a9c763e1596ba74f019d0658110f5e082e1e005ded8ed9");
    EXPECT_EQ(sha256_hex(report_json(shifted())), "8b14853fe94fef638d339ffdc90d06b1ea7feb5cba03eb9d802e42d7dd53e678");
}

TEST(ReportJson, SaysNothingAboutFilesUnlessAsked) {
    Comparison c = shifted();
    const std::string canonical = report_json(c);
    EXPECT_THAT(canonical, Not(HasSubstr(c.control_capture.digest)));
    EXPECT_THAT(canonical, Not(HasSubstr("draftprobe-test")));
    const std::string full = report_json(c, {"/x/control", "/x/treated"});
    Result<Json> json = parse_json(full, "report");
    ASSERT_TRUE(json.ok());
    EXPECT_EQ((*json)["captures"]["control"]["path"], "/x/control");
    EXPECT_EQ((*json)["captures"]["control"]["digest"], c.control_capture.digest);
}

TEST(ReportJson, TokenIdsDoNotReachIt) {
    // The same pair with every id replaced by a keyed word gives the same bytes.
    const auto keyed = [](fixture::ArmData data) {
        data.shape.sanitised = true;
        for (CapturedRequest& r : data.header.requests) r.prompt_ids.clear();
        for (StepRecord& s : data.steps) {
            const auto key = [&](CapturedId& id) {
                id = fixture::mix(id, static_cast<std::uint64_t>(s.length) + 424242);
            };
            key(s.anchor);
            key(s.next_anchor);
            for (auto* list : {&s.candidate_ids, &s.proposals, &s.target_choices, &s.target_top2, &s.committed}) {
                for (CapturedId& id : *list) key(id);
            }
            s.candidate_scores.clear();
            s.target_top2_logits.clear();
            s.context_hash = fixture::digest_of("key" + s.context_hash);
        }
        data.shape.level = 2;
        return data;
    };
    fixture::ArmData control = fixture::make_arm(Arm::fresh);
    fixture::ArmData treated = fixture::make_arm(Arm::restored);
    treated.steps[1].proposals[2] += 1;
    fixture::set_accepted(treated.steps[1], 2);
    treated.steps[3].target_top2_logits[0] += 1;
    treated.steps[3].candidate_scores[0] += 1;
    CompareOptions options;
    options.evidence = Evidence::sanitisable;
    for (auto* arm : {&control, &treated}) arm->shape.level = 2;
    const std::string original = report_json(compare_arms(control, treated, options));
    const std::string sanitised = report_json(compare_arms(keyed(control), keyed(treated)));
    EXPECT_EQ(original, sanitised);
}

TEST(ReportJson, EveryVerdictIsValidJson) {
    for (Verdict verdict : {Verdict::same, Verdict::drift, Verdict::changed, Verdict::not_restored,
                            Verdict::not_comparable, Verdict::contaminated, Verdict::insufficient, Verdict::corrupt}) {
        Comparison c;
        c.verdict = verdict;
        c.draft_drift.max_relative_l2 = std::numeric_limits<double>::infinity();
        Result<Json> json = parse_json(report_json(c), "report");
        ASSERT_TRUE(json.ok()) << json.status().message();
        EXPECT_EQ((*json)["verdict"], verdict_name(verdict));
        EXPECT_EQ((*json)["exit"], verdict_exit(verdict));
        EXPECT_EQ((*json)["drift"]["max_relative_l2"], "Infinity");
        EXPECT_EQ(html_problem(report_html(c)), "");
        EXPECT_THAT(report_text(c), testing::StartsWith("verdict       " + std::string(verdict_name(verdict))));
    }
}

TEST(ReportText, SaysTheVerdictFirstAndWraps) {
    const std::string text = report_text(shifted());
    EXPECT_THAT(text,
                testing::StartsWith("verdict       CHANGED (level 3)\nwhy           changed: proposals, acceptance;"));
    EXPECT_THAT(text, HasSubstr("shift         draft context rows landed 32 positions too high\n"));
    EXPECT_THAT(text, HasSubstr("pairs         6 matched, 1 of them differ; unmatched: 0 control, 0 treated\n"));
    EXPECT_THAT(text, HasSubstr("exposure      63 restored positions visible"));
    EXPECT_THAT(text, HasSubstr("note          no effectiveness conclusion"));
    EXPECT_THAT(text, HasSubstr("next          "));
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = text.find('\n', begin);
        EXPECT_LE(end - begin, 100u) << text.substr(begin, end - begin);
        begin = end + 1;
    }
}

// A SAME that could not have been anything else says so before any figure.
TEST(ReportText, BlindSpotsStandBelowTheVerdict) {
    fixture::ArmData treated = fixture::make_arm(Arm::restored);
    for (LedgerEvent& event : treated.header.ledger) {
        if (event.event == "restore") event.previous_shared_tokens = 192;
    }
    treated.header.identity.build = fixture::group("another build");
    const Comparison c = compare_arms(fixture::make_arm(Arm::fresh), treated);
    EXPECT_EQ(c.verdict, Verdict::same);
    const std::string text = report_text(c);
    EXPECT_LT(text.find("beware        blind spot"), text.find("pairs "));
    EXPECT_EQ(text.find("blind spot: lane"), text.rfind("blind spot: lane")) << "once";
    EXPECT_GT(text.find("warning       build:"), text.find("pairs "));
    const std::string json = report_json(c);
    EXPECT_THAT(json, HasSubstr("\"blind_spots\": 1"));
    EXPECT_THAT(json, HasSubstr("stale rows would be the right rows and are undetectable"));
    const std::string html = report_html(c);
    EXPECT_LT(html.find("blind spot: lane"), html.find("Matched lane-cycles"));
}

TEST(ReportText, SaysOfWhichKindTheVisiblePositionsAre) {
    fixture::ArmData treated = fixture::make_arm(Arm::restored);
    fixture::leave_unwritten(treated, 0, 192);
    EXPECT_THAT(
        report_text(compare_arms(fixture::make_arm(Arm::fresh), treated)),
        HasSubstr("exposure      0 restored, 63 unwritten positions visible to the draft at its first cycle\n"));
}

TEST(ReportText, SaysThatNearTiesAreUnknownWithoutThresholds) {
    fixture::ArmData control = fixture::make_arm(Arm::fresh);
    fixture::ArmData treated = fixture::make_arm(Arm::restored);
    treated.steps[2].target_choices[3] += 7;
    EXPECT_THAT(report_text(compare_arms(control, treated)),
                HasSubstr("flips         1, 0 of them near-ties, largest control margin 2.5\n"));
    control.header.near_tie.reset();
    EXPECT_THAT(report_text(compare_arms(control, treated)),
                HasSubstr("flips         1, near-ties unknown: no thresholds recorded, largest control margin 2.5\n"));
}

TEST(ReportText, MeansOverDifferentTextsAreSaidToBe) {
    fixture::ArmData treated = fixture::make_arm(Arm::restored);
    treated.steps[1].target_choices[0] += 7;
    fixture::set_accepted(treated.steps[1], 0);
    treated.steps[1].next_anchor += 7;
    fixture::keep_steps(treated, 2);
    const std::string text = report_text(compare_arms(fixture::make_arm(Arm::fresh), treated));
    std::string words;
    for (char c : text) {
        if (c == '\n') c = ' ';
        if (c != ' ' || words.empty() || words.back() != ' ') words += c;
    }
    EXPECT_THAT(words, HasSubstr("; different texts after the first output difference: 2 of 6 cycles matched"));
}

TEST(ReportText, AFaultBeforeAnyCycleIsNotArmedAndSaysWhy) {
    fixture::ArmData control = fixture::make_arm(Arm::fresh);
    fixture::ArmData treated = fixture::make_arm(Arm::restored);
    for (auto* arm : {&control, &treated}) fixture::keep_steps(*arm, 0);
    fixture::find_part(treated, "restore", kDraftContext)->digest = fixture::digest_of("stale");
    const std::string text = report_text(compare_arms(control, treated));
    EXPECT_THAT(text, testing::StartsWith("verdict       CHANGED"));
    EXPECT_THAT(text, HasSubstr("armed         no: the restored arm ran no decode cycle: no draft saw its restore\n"));
}

TEST(ReportText, SwappedArmsAreNotCalledComputed) {
    const std::string text = report_text(compare_arms(fixture::make_arm(Arm::restored), fixture::make_arm(Arm::fresh)));
    EXPECT_THAT(text, HasSubstr("armed         the control is the restored arm and the treated one computed"));
    EXPECT_THAT(text, Not(HasSubstr("both arms computed")));
}

TEST(Report, FurtherControlsAreInEveryView) {
    Comparison c = shifted();
    const std::string without = report_json(c);
    EXPECT_THAT(without, Not(HasSubstr("\"controls\"")));
    c.controls = {
        {"natural", "natural", Verdict::drift, "values differ & <no> decision flipped", 24, std::string(64, 'd')},
        {"repeat", "repeat", Verdict::same, "24 matched", 24, std::string(64, 'e')}};
    Result<Json> json = parse_json(report_json(c), "report");
    ASSERT_TRUE(json.ok());
    ASSERT_EQ((*json)["controls"].size(), 2u);
    EXPECT_EQ((*json)["controls"][0]["arm"], "natural");
    EXPECT_EQ((*json)["controls"][0]["verdict"], "DRIFT");
    EXPECT_FALSE((*json)["controls"][0].contains("digest"));
    json = parse_json(report_json(c, {"a", "b"}), "report");
    EXPECT_EQ((*json)["controls"][1]["digest"], std::string(64, 'e'));
    EXPECT_THAT(report_text(c), HasSubstr("control       natural: DRIFT: values differ"));
    EXPECT_EQ(html_problem(report_html(c)), "");
    EXPECT_THAT(report_html(c), HasSubstr("<td>repeat</td><td class=\"same\">SAME</td>"));
}

class RecomputeTest : public testing::Test {
protected:
    void spill(const std::string& name, const std::string& text) const {
        std::ofstream(directory_ / name, std::ios::binary) << text;
    }
    void write(const std::string& name, const fixture::ArmData& arm) const {
        EXPECT_TRUE(fixture::write_arm(directory_ / name, arm).ok()) << name;
    }
    Result<Comparison> again() const {
        DP_ASSIGN_OR_RETURN(const ReportSources sources, report_sources(directory_.path()));
        return compare_with_controls(directory_.path(), sources);
    }
    TestDirectory directory_;
};

TEST_F(RecomputeTest, AReportWithFurtherControlsIsMadeAgainByteForByte) {
    write("control", fixture::make_arm(Arm::fresh));
    write("treated", fixture::make_arm(Arm::restored));
    fixture::ArmData repeat = fixture::make_arm(Arm::repeat);
    write("repeat", repeat);
    for (auto& proposal : repeat.steps[0].proposals) proposal += 3;
    fixture::set_accepted(repeat.steps[0], 0);
    write("natural", repeat);
    ReportSources sources;
    for (const char* arm : {"repeat", "natural"}) sources.controls.push_back({arm, arm});
    Result<Comparison> made = compare_with_controls(directory_.path(), sources);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->verdict, Verdict::not_comparable);
    EXPECT_THAT(made->why, HasSubstr("the control 'natural' is CHANGED against the fresh arm"));
    const std::string report = report_json(*made);
    EXPECT_EQ((*parse_json(report, "report"))["controls"][1]["capture"], "natural");
    EXPECT_EQ((*parse_json(report, "report"))["exit"], 4);
    spill("report.json", report);
    Result<Comparison> recomputed = again();
    ASSERT_TRUE(recomputed.ok()) << recomputed.status().message();
    EXPECT_EQ(report_json(*recomputed), report);
}

// Another schedule moves that class: its natural control drifts and takes nothing from the verdict.
TEST_F(RecomputeTest, ADriftingControlOfTheScheduleSensitiveClassIsExpected) {
    const auto sensitive = [](fixture::ArmData arm) {
        for (Setting& setting : arm.header.settings) {
            if (setting.field == "numerics") setting.value = "schedule-sensitive";
        }
        for (ForwardCall& call : arm.header.schedule) call.numerics_class = "schedule-sensitive";
        return arm;
    };
    write("control", sensitive(fixture::make_arm(Arm::fresh)));
    write("treated", sensitive(fixture::make_arm(Arm::restored)));
    fixture::ArmData natural = sensitive(fixture::make_arm(Arm::natural));
    natural.steps[0].q[0] += 0.125f;
    natural.header.schedule.back().rows -= 1;
    natural.header.schedule.push_back(natural.header.schedule.back());
    natural.header.schedule.back().start += natural.header.schedule.back().rows;
    natural.header.schedule.back().rows = 1;
    write("natural", natural);
    ReportSources sources;
    sources.controls = {{"natural", "natural"}};
    const Comparison made = *compare_with_controls(directory_.path(), sources);
    ASSERT_EQ(made.controls[0].verdict, Verdict::drift) << made.controls[0].why;
    EXPECT_THAT(made.controls[0].why, HasSubstr("as expected in the numerics class schedule-sensitive"));
    EXPECT_EQ(made.verdict, Verdict::same) << made.why;
}

TEST_F(RecomputeTest, APlanSaysWhichRunItsReportIsOf) {
    std::filesystem::create_directories(directory_ / "controls");
    std::filesystem::create_directories(directory_ / "runs");
    write("controls/A", fixture::make_arm(Arm::fresh));
    write("runs/03-A", fixture::make_arm(Arm::restored));
    const std::string report = report_json(*compare_captures(directory_ / "controls/A", directory_ / "runs/03-A", {}));
    spill("report.json", report);
    EXPECT_EQ(again().status().code(), StatusCode::not_found);
    spill("plan.json", R"({"representative": "03-A", "judged": [{"run": "01-A"},
        {"run": "03-A", "control": "controls/A", "capture": "runs/03-A"}]})");
    ASSERT_TRUE(again().ok());
    EXPECT_EQ(report_json(*again()), report);
    for (const char* name : {"../runs/03-A", "/runs/03-A", "runs/../../x", ""}) {
        spill("plan.json", std::string(R"({"representative": "03-A", "judged": [{"run": "03-A", "control": "controls/A",
            "capture": ")") + name +
                               R"("}]})");
        EXPECT_EQ(again().status().code(), StatusCode::corrupt) << name;
    }
    spill("plan.json", R"({"representative": "04-A", "judged": []})");
    EXPECT_EQ(again().status().code(), StatusCode::corrupt);
}

TEST_F(RecomputeTest, DeclaredTreatmentsAreReadFromTheReport) {
    fixture::ArmData control = fixture::make_arm(Arm::fresh);
    fixture::ArmData treated = fixture::make_arm(Arm::restored);
    for (auto* arm : {&control, &treated}) arm->header.timing_confounded = true;
    write("control", control);
    write("treated", treated);
    ReportSources sources;
    EXPECT_THAT(compare_with_controls(directory_.path(), sources)->why, HasSubstr("the verify budget learned online"));
    sources.options.treat = {"timing_confounded"};
    const Comparison made = *compare_with_controls(directory_.path(), sources);
    EXPECT_EQ(made.verdict, Verdict::same);
    spill("report.json", report_json(made));
    ASSERT_TRUE(again().ok());
    EXPECT_EQ(report_json(*again()), report_json(made));
}

TEST(Report, StatisticsAreInEveryView) {
    fixture::Options options;
    options.budget = "frozen";
    fixture::ArmData control = fixture::make_arm(Arm::fresh, options);
    fixture::ArmData treated = fixture::make_arm(Arm::restored, options);
    for (auto* arm : {&control, &treated}) fixture::set_verified(arm->steps[0], 2);
    fixture::keep_steps(treated, 1);
    fixture::keep_steps(control, 1);
    treated.steps[0].q[0] += 0.125f;
    const Comparison c = compare_arms(control, treated);
    Result<Json> json = parse_json(report_json(c), "report");
    ASSERT_TRUE(json.ok()) << json.status().message();
    const Json& a = (*json)["acceptance"];
    ASSERT_EQ(a["cells"].size(), 3u);
    EXPECT_EQ(a["cells"][0]["dimension"], "exposure");
    EXPECT_EQ(a["cells"][0]["band"], "26-50 %");
    EXPECT_EQ(a["cells"][1]["band"], "32-127");
    EXPECT_EQ(a["cells"][2]["band"], "memory");
    EXPECT_TRUE(a["cells"][2]["effect"].is_null()) << "one prompt is no population";
    EXPECT_EQ(a["positions"].size(), 2u);
    ASSERT_EQ(a["reliability"].size(), 2u);
    EXPECT_EQ(a["reliability"][1]["arm"], "treated");
    EXPECT_EQ(a["reliability"][1]["widths"][0]["verified"], 2);
    EXPECT_EQ(a["reliability"][1]["widths"][0]["realised_retained"], 3.0);
    ASSERT_EQ(a["hazards"]["control"].size(), 2u);
    EXPECT_EQ(a["hazards"]["control"][0]["stratum"], 7);
    EXPECT_EQ(a["hazards"]["control"][0]["unknown"], 1);
    EXPECT_EQ(a["hazards"]["control"][1]["known"], 2);
    EXPECT_TRUE(a["trend"]["control"].is_null());
    EXPECT_THAT(report_text(c), HasSubstr("informative censoring"));
    const std::string html = report_html(c);
    EXPECT_EQ(html_problem(html), "");
    for (std::string_view title :
         {"By position, where both", "By exposure, distance", "Confidence against outcome", "Match rate of reached"}) {
        EXPECT_THAT(html, HasSubstr(std::string(title)));
    }
}

TEST(ReportText, ControlCharactersFromCapturesDoNotReachTheTerminal) {
    Comparison c;
    c.warnings = {"\x1b[31mred\x07"};
    EXPECT_THAT(report_text(c), HasSubstr("?[31mred?"));
}

TEST(ReportHtml, IsWellFormedAndEscaped) {
    const Comparison c = shifted();
    const std::string html = report_html(c);
    EXPECT_EQ(html_problem(html), "");
    EXPECT_THAT(html, HasSubstr("&lt;thinking&gt;"));
    EXPECT_THAT(html, Not(HasSubstr("<thinking>")));
    EXPECT_THAT(html, Not(HasSubstr("http")));
    EXPECT_THAT(html, Not(HasSubstr("<script")));
    EXPECT_THAT(html, HasSubstr("prefers-color-scheme:dark"));
    for (std::string_view figure :
         {"Survival of acceptance length", "Hidden-row drift by cycle", "Change of prefix confidence",
          "Verified proposals by cycle", "Exposure by cycle", "Ledger: where"}) {
        EXPECT_THAT(html, HasSubstr(std::string(figure)));
    }
    std::size_t drawings = 0;
    for (std::size_t at = html.find("<svg"); at != std::string::npos; at = html.find("<svg", at + 1)) ++drawings;
    EXPECT_EQ(drawings, 6u);
}

TEST(ReportHtml, SaysWhatWasComparedAndWhereItStops) {
    Comparison c = shifted();
    const std::string html = report_html(c);
    EXPECT_THAT(html, HasSubstr("<th scope=\"row\">Prompt</th><td>256 tokens</td>"));
    EXPECT_THAT(html, HasSubstr("<td>position 192</td>"));
    EXPECT_THAT(html, HasSubstr("<th scope=\"row\">Draft window</th><td>128</td>"));
    EXPECT_THAT(html, HasSubstr(c.control_capture.target.substr(0, 12)));
    EXPECT_LT(html.find("no effectiveness conclusion"), html.find("First difference"));
    EXPECT_THAT(html, HasSubstr("first difference &gt; treated restore lane 1: draft_context"));
    EXPECT_EQ(html.find("class=\"mark\""), html.rfind("class=\"mark\""));
    EXPECT_THAT(html, Not(HasSubstr("have no partner")));
    c.pairs.unmatched_control = 3;
    EXPECT_THAT(report_html(c),
                HasSubstr("last near cycle 5; 3 of the control and 0 of the treated arm have no partner"));
}

TEST(ReportHtml, SectionsOfStudiesAreLaidOutAndEscaped) {
    PageSection section;
    section.title = "Sweep of <x>";
    section.lead = {"a & b"};
    section.strip.variable = "suffix";
    section.strip.points = {{8, Verdict::same, 0, 4}, {9, Verdict::changed, 3, 4}, {10, Verdict::insufficient, 0, 0}};
    section.tables = {
        {"Values <all>", {{"suffix", true}, {"Verdict"}}, {{"8", "SAME"}, {"9", "CHANGED"}, {"10", "<b>"}}},
        {"Nothing", {{"empty"}}, {}}};
    section.command = "probe --prompt 'a b' <x>";
    const std::string html = report_html(shifted(), {section, PageSection{"Second", {}, {}, {}, ""}});
    EXPECT_EQ(html_problem(html), "");
    for (const char* part :
         {"<h2>Sweep of &lt;x&gt;</h2>", "<p>a &amp; b</p>", "<caption>Values &lt;all&gt;</caption>",
          "<th class=\"n\">suffix</th><th>Verdict</th>", "<td class=\"n\">9</td><td class=\"changed\">CHANGED</td>",
          "<td>&lt;b&gt;</td>", "<pre>probe --prompt &#39;a b&#39; &lt;x&gt;</pre>", "<h2>Second</h2>",
          "<title>suffix 9: CHANGED, 3 of 4 matched lane-cycles differ</title>", "class=\"v-same\"",
          "class=\"v-changed\"", "class=\"v-other\""}) {
        EXPECT_THAT(html, HasSubstr(part));
    }
    EXPECT_THAT(html, Not(HasSubstr("Nothing</caption>"))) << "a table without rows is left out";
    EXPECT_LT(html.find("First difference"), html.find("Sweep of"));
    EXPECT_EQ(report_html(shifted(), {}), report_html(shifted()));
}

TEST(ReportHtml, StripsSurviveManyAndDegenerateValues) {
    PageStrip strip{"boundary", {}};
    EXPECT_EQ(strip_figure(strip), "");
    strip.points = {{32, Verdict::corrupt, 0, 0}};
    EXPECT_THAT(strip_figure(strip), HasSubstr("</svg>"));
    for (int i = 0; i < 1024; ++i) strip.points.push_back({64 + i, Verdict::same, i, 1024});
    const std::string figure = strip_figure(strip);
    EXPECT_THAT(figure, Not(HasSubstr("nan")));
    EXPECT_THAT(figure, HasSubstr("1023 differ"));
}

TEST(ReportHtml, CheckerSeesBrokenPages) {
    const std::string html = report_html(shifted());
    std::string broken = html;
    broken.erase(broken.find("</table>"), 8);
    EXPECT_NE(html_problem(broken), "");
    broken = html;
    broken.insert(broken.find("<h1") - 1, "a & b");
    EXPECT_NE(html_problem(broken), "");
}

TEST(ReportHtml, EscapesEverything) {
    EXPECT_EQ(html_escape("<a href='x'>&\"\x01\xff\xc3\xa9"),
              "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\xef\xbf\xbd\xef\xbf\xbd\xc3\xa9");
}

TEST(ReportHtml, ChartsSurviveDegenerateData) {
    const double infinity = std::numeric_limits<double>::infinity();
    EXPECT_THAT(chart_figure({"t", "x", "y", {}, 0, ""}), HasSubstr("Nothing was recorded"));
    for (const auto& points : std::vector<std::vector<std::pair<double, double>>>{
             {{0, 0}}, {{5, 1}, {5, 2}}, {{0, 0}, {1, infinity}}, {{0, 1e-300}, {1, 1e300}}}) {
        const std::string figure = chart_figure({"t", "x", "y", {{"n", "c", points, false}}, 0, ""});
        EXPECT_THAT(figure, HasSubstr("</svg>"));
        EXPECT_THAT(figure, Not(HasSubstr("nan")));
        EXPECT_THAT(figure, Not(HasSubstr("inf")));
    }
}

}  // namespace
}  // namespace draftprobe
