#include "cli/probe_study.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/study_page.h"
#include "compare/compare.h"
#include "study/factors.h"
#include "study/minimise.h"

namespace draftprobe::cli {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStudies[] = {"factors", "minimize", "sweep", "plan"};

Status together(std::string_view one, std::string_view other, std::string_view why) {
    return invalid_argument(
        fmt::format("probe: found --{} with --{}, expected one of them: {}; leave one out", one, other, why));
}

// As a shell reads it back.
std::string quoted(const std::string& word) {
    const auto plain = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               std::string_view("-_./=,:+@%").find(c) != std::string_view::npos;
    };
    if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
}

}  // namespace

Status check_study_options(const Arguments& arguments) {
    std::string_view first;
    for (const std::string_view study : kStudies) {
        if (!arguments.given(study)) continue;
        if (!first.empty()) return together(first, study, "a run answers one question");
        first = study;
    }
    if (arguments.given("plan")) {
        for (const std::string_view option : {"prompt", "prompt-ids", "chat", "thinking", "effort", "prefix-tokens",
                                              "cycles", "restore-draft", "restore-target", "tier", "inject"}) {
            if (arguments.given(option)) return together("plan", option, "the plan says it for every request");
        }
        for (const std::string_view option : {"controls", "lockstep"}) {
            if (arguments.given(option)) {
                return together("plan", option,
                                "plans have neither --controls nor --lockstep: every run is judged against a fresh "
                                "control of its request");
            }
        }
        if (arguments.given("lanes"))
            return together("plan", "lanes", "the plan has lanes of its own, its member lanes");
    }
    if (arguments.given("sweep") && arguments.given("controls")) {
        return together("sweep", "controls", "every value has its own fresh control");
    }
    if (arguments.given("lockstep") && *arguments.number("level") < 2) {
        return invalid_argument(
            "probe: found --lockstep with --level 1, expected --level 2 or 3: the ledger says which token an arm "
            "itself "
            "chose behind the prompt");
    }
    if (arguments.given("sweep")) DP_RETURN_IF_ERROR(study::parse_sweep(arguments.text("sweep")).status());
    return {};
}

Result<StudyOutput> run_sweep_study(const Arguments& arguments, const probe::Assembly& assembly, study::Case& item,
                                    const AtomicDirectory& directory, Console& console) {
    DP_ASSIGN_OR_RETURN(const study::SweepRange range, study::parse_sweep(arguments.text("sweep")));
    DP_ASSIGN_OR_RETURN(const study::Sweep sweep, study::run_sweep(assembly, item, range, directory.file("scratch"),
                                                                   [&](std::size_t done, std::size_t total) {
                                                                       console.progress("sweep", "values", done, total);
                                                                   }));
    const std::int64_t value = sweep.points[sweep.representative].value;
    DP_ASSIGN_OR_RETURN(item, study::case_at(assembly, item, range.variable, value));
    item.settings.treatment.idle_faults = true;  // as in the sweep: without effect it has a result too
    StudyOutput output;
    output.key = "sweep";
    output.json = study::sweep_json(sweep);
    output.page = sweep_section(sweep);
    output.file = "sweep.json";
    output.file_text = output.json + "\n";
    output.text =
        study::sweep_text(sweep) + fmt::format("\nReport and captures above: {} = {}, the first of the gravest.\n",
                                               study::sweep_variable_name(range.variable), value);
    return output;
}

namespace {

Result<StudyOutput> factor_study(const probe::Assembly& assembly, const study::Case& item, const Comparison& comparison,
                                 const AtomicDirectory& directory, Console& console) {
    DP_ASSIGN_OR_RETURN(const study::FactorStudy factors,
                        study::run_factors(assembly, item, directory.file("control"), comparison,
                                           directory.file("factors"), [&](std::size_t done, std::size_t total) {
                                               console.progress("factors", "combinations", done, total);
                                           }));
    StudyOutput output;
    output.key = "factors";
    output.json = study::factors_json(factors);
    output.file = "factors.json";
    output.file_text = output.json + "\n";
    output.text = study::factors_text(factors);
    output.page = factors_section(factors);
    return output;
}

Result<StudyOutput> minimise_study(const Arguments& arguments, const probe::Assembly& assembly, const study::Case& item,
                                   const Comparison& comparison, const AtomicDirectory& directory, Console& console) {
    DP_ASSIGN_OR_RETURN(
        const study::Minimised minimised,
        study::minimise(assembly, item, study::summarise(comparison), directory.file("scratch"), [&](std::size_t runs) {
            console.progress("minimize", "runs", runs, study::kMaxMinimiseRuns);
        }));
    StudyOutput output;
    output.key = "minimized";
    output.file = "minimized.json";
    output.file_text = study::minimised_prompt(minimised);
    const std::string prompt = (directory.final_path() / output.file).string();
    const std::string command = probe_command_line(arguments, prompt, minimised.item);
    JsonWriter quoted_command;
    quoted_command.value(command);
    output.json = study::minimised_json(minimised);
    output.json.insert(output.json.size() - 1, ",\"command\":" + quoted_command.take());
    output.page = minimised_section(minimised, command);
    output.text = study::minimised_text(minimised) + fmt::format("  repeat  {}\n", command);
    return output;
}

}  // namespace

Result<std::optional<StudyOutput>> run_pair_study(const Arguments& arguments, const probe::Assembly& assembly,
                                                  const study::Case& item, const AtomicDirectory& directory,
                                                  Console& console) {
    if (!arguments.given("factors") && !arguments.given("minimize")) return std::optional<StudyOutput>();
    // Of the pair alone: further controls judge the report, and not the finding that a study is about.
    DP_ASSIGN_OR_RETURN(const Comparison comparison,
                        compare_captures(directory.file("control"), directory.file("treated"), {item.treat}));
    if (arguments.given("minimize") &&
        (comparison.verdict == Verdict::same || comparison.verdict == Verdict::insufficient)) {
        console.warning(fmt::format("--minimize: the verdict is {}: nothing to minimise; nothing more was run",
                                    verdict_name(comparison.verdict)));
        return std::optional<StudyOutput>();
    }
    if (arguments.given("factors")) {
        DP_ASSIGN_OR_RETURN(StudyOutput output, factor_study(assembly, item, comparison, directory, console));
        return std::optional<StudyOutput>(std::move(output));
    }
    DP_ASSIGN_OR_RETURN(StudyOutput output, minimise_study(arguments, assembly, item, comparison, directory, console));
    return std::optional<StudyOutput>(std::move(output));
}

std::string probe_command_line(const Arguments& arguments, const std::string& prompt, const study::Case& item) {
    // What names the request, the study or the output is replaced or left out.
    constexpr std::string_view kReplaced[] = {"prompt",        "prompt-ids", "chat",        "thinking", "effort",
                                              "prefix-tokens", "cycles",     "factors",     "sweep",    "minimize",
                                              "plan",          "controls",   "bisect",      "out",      "report",
                                              "json",          "force",      "list-faults", "help"};
    std::string line = "draftprobe probe";
    for (const Option& option : option_table()) {
        if ((option.commands & arguments.command().bit) == 0 || !arguments.given(option.name)) continue;
        if (std::find(std::begin(kReplaced), std::end(kReplaced), option.name) != std::end(kReplaced)) continue;
        if (option.kind == OptionKind::flag) {
            line += fmt::format(" --{}", option.name);
            continue;
        }
        const std::vector<std::string> values = (option.repeatable_in & arguments.command().bit) != 0
                                                    ? arguments.all(option.name)
                                                    : std::vector<std::string>{arguments.text(option.name)};
        for (const std::string& value : values) line += fmt::format(" --{} {}", option.name, quoted(value));
    }
    return line + fmt::format(" --prompt-ids {} --prefix-tokens {} --cycles {}", quoted(prompt), item.request.boundary,
                              item.request.cycles);
}

}  // namespace draftprobe::cli
