#include "cli/run.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <span>
#include <thread>

#include "base/files.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "cli/help.h"
#include "cli/resume_arm.h"

namespace draftprobe::cli {

namespace {

struct Found {
    const Command* command = nullptr;
    std::size_t words = 0;  // how many words its name took
};

Result<Found> choose_command(std::span<const std::string> words) {
    if (words.empty()) return invalid_argument("no command; 'draftprobe help' lists the commands");
    const std::string& first = words.front();
    if (first == "--help" || first == "-h") return Found{&kHelpCommand, 1};
    if (first == "--version" || first == "-V") return Found{&kVersionCommand, 1};
    if (const Command* command = find_command(first)) return Found{command, 1};
    if (const auto members = commands_of_group(first); !members.empty()) {
        const std::string second = words.size() > 1 ? words[1] : "";
        if (const Command* command = find_command(first + " " + second)) return Found{command, 2};
        if (second == "--help" || second == "-h") return Found{members.front(), 1};
        std::string expected;
        for (const Command* member : members) {
            expected += fmt::format("{}'{}'", expected.empty() ? "" : " or ", member->name.substr(first.size() + 1));
        }
        return invalid_argument(fmt::format("{}: found {}, expected {}; see 'draftprobe {} --help'", first,
                                            second.empty() ? "nothing" : quoted_excerpt(second), expected,
                                            members.front()->name));
    }
    std::string served;
    std::vector<std::string_view> names;
    for (const Command* command : commands()) {
        served += fmt::format("{}{}", served.empty() ? "" : ", ", command->name);
        names.push_back(command->name);
    }
    for (const RefusedCommand& refused : refused_commands()) {
        if (refused.name == first) {
            return unsupported(fmt::format("{} is not available in this version; available: {}", first, served));
        }
    }
    const std::string_view near = closest(first, names);
    return invalid_argument(fmt::format("unknown command {}{}; 'draftprobe help' lists the commands",
                                        quoted_excerpt(first),
                                        near.empty() ? std::string() : fmt::format(", did you mean '{}'?", near)));
}

Result<int> dispatch(std::span<const std::string> words, Console& console) {
    if (!words.empty() && words.front() == kResumeWord) return run_resumed_arm(words.subspan(1), console);
    DP_ASSIGN_OR_RETURN(const Found found, choose_command(words));
    DP_ASSIGN_OR_RETURN(const Arguments arguments, parse_arguments(*found.command, words.subspan(found.words)));
    if (arguments.given("help") && found.command != &kHelpCommand) {
        console.out(command_help(*found.command));
        return kExitDone;
    }
    return found.command->run(arguments, console);
}

// Whether the result is wanted as JSON: then a failure is an object too. Words are looked at as they are, since a
// failure to parse them is one of those failures.
bool asks_for_json(std::span<const std::string> words) {
    for (const std::string& word : words) {
        if (word == "--") return false;
        if (word == "--json") return true;
    }
    return false;
}

std::string failure_json(int exit, const Status& status) {
    JsonWriter json;
    json.begin_object().member("exit", exit).key("error").begin_object();
    json.member("code", status_code_name(status.code())).member("message", status.message());
    json.end_object().end_object();
    return json.take() + "\n";
}

// Says it on stderr, and on stdout where one object is expected and none was printed.
void report_failure(int exit, const Status& status, bool json, Console& console) {
    console.error(status.message());
    if (json && !console.printed()) console.out(failure_json(exit, status));
}

// For 'git bisect run' a commit that could not be judged is neither good nor bad, whatever the reason.
bool asks_for_bisect(std::span<const std::string> words) {
    return std::any_of(words.begin(), words.end(),
                       [](const std::string& word) { return word == "--bisect" || word.starts_with("--bisect="); });
}

}  // namespace

void remove_partial_output_on_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
    if (pthread_sigmask(SIG_BLOCK, &signals, nullptr) != 0) return;  // then a signal ends the process as ever
    std::thread([signals] {
        int signal = 0;
        if (sigwait(&signals, &signal) != 0) return;
        remove_partial_directories();
        _exit(128 + signal);
    }).detach();
}

int run(const std::vector<std::string>& words) {
    Console console;
    const bool bisect = asks_for_bisect(words);
    const bool json = asks_for_json(words);
    const int failed = bisect ? kExitUndecided : kExitUsage;
    const auto fail = [&](int exit, const Status& status, bool as_json) {
        report_failure(exit, status, as_json, console);
        if (bisect) console.note(fmt::format("--bisect: skip (exit {}): it could not run", exit));
        return exit;
    };
    try {
        const Result<int> done = dispatch(words, console);
        if (!done.ok()) {
            return fail(bisect ? failed : console.failure_exit().value_or(failed), done.status(), json);
        }
        if (!console.output_status().ok()) return fail(failed, console.output_status(), false);
        return *done;
    } catch (const std::bad_alloc&) {
        return fail(failed, exhausted("memory ran out; use a smaller model, prompt or --lanes"), json);
    } catch (const std::exception& exception) {
        const Status status = internal_error(fmt::format("internal error: {}; please report it", exception.what()));
        return fail(failed, status, json);
    }
}

}  // namespace draftprobe::cli
