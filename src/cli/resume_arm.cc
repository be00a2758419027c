#include "cli/resume_arm.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/files.h"
#include "cli/arguments.h"
#include "cli/arms.h"
#include "probe/suspend.h"

namespace draftprobe::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxCommandLine = std::uint64_t{4} << 20;
constexpr std::uint64_t kMaxMessages = std::uint64_t{1} << 20;

// The words that this process was given, without its name.
Result<std::vector<std::string>> own_words() {
    DP_ASSIGN_OR_RETURN(const std::string line, read_text_file("/proc/self/cmdline", kMaxCommandLine));
    std::vector<std::string> words;
    for (std::size_t at = 0; at < line.size();) {
        const std::size_t end = line.find('\0', at);
        words.push_back(line.substr(at, end - at));
        at = end == std::string::npos ? line.size() : end + 1;
    }
    if (!words.empty()) words.erase(words.begin());
    return words;
}

constexpr int kNotStarted = 127;

// The child, between fork and exec: only what a signal handler may call. The new process ends with the one that waits
// for it, also with one that was killed before it could be told so.
[[noreturn]] void become(char* const* argv, const char* messages, pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(kNotStarted);
    const int nowhere = ::open("/dev/null", O_WRONLY);
    const int file = ::open(messages, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (nowhere < 0 || file < 0) ::_exit(kNotStarted);
    if (::dup2(nowhere, STDOUT_FILENO) < 0 || ::dup2(file, STDERR_FILENO) < 0) ::_exit(kNotStarted);
    ::execve("/proc/self/exe", argv, environ);
    constexpr std::string_view kFailed = "draftprobe: /proc/self/exe: cannot start it again\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kFailed.data(), kFailed.size());
    ::_exit(kNotStarted);
}

// Standard output to nowhere, messages to a file.
Result<pid_t> spawn(const std::vector<std::string>& words, const fs::path& messages) {
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0) return io_error(fmt::format("cannot start a new process: {}", std::strerror(errno)));
    if (child == 0) become(argv.data(), messages.c_str(), parent);
    return child;
}

// The last message, without the program's name.
std::string last_message(const fs::path& messages) {
    const Result<std::string> text = read_text_file(messages, kMaxMessages);
    if (!text.ok()) return text.status().message();
    constexpr std::string_view kPrefix = "draftprobe: ";
    const std::size_t at = text->rfind(kPrefix);
    if (at == std::string::npos) return "it said nothing";
    return text->substr(at + kPrefix.size(), text->find('\n', at) - at - kPrefix.size());
}

}  // namespace

Status resume_in_new_process(const fs::path& suspended, const fs::path& capture, bool force) {
    DP_ASSIGN_OR_RETURN(const std::vector<std::string> own, own_words());
    std::vector<std::string> words = {"draftprobe", std::string(kResumeWord), suspended.string(), capture.string(),
                                      force ? "force" : "keep"};
    words.insert(words.end(), own.begin(), own.end());
    const fs::path messages = suspended / "messages";
    DP_ASSIGN_OR_RETURN(const pid_t child, spawn(words, messages));
    int status = 0;
    while (::waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) return io_error(fmt::format("waiting for the new process: {}", std::strerror(errno)));
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
    const std::string end = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                                : fmt::format("exit status {}", WEXITSTATUS(status));
    return io_error(fmt::format("the new process ended with {}: {}", end, last_message(messages)));
}

Result<int> run_resumed_arm(std::span<const std::string> words, Console& console) {
    if (words.size() < 4) return invalid_argument("resume-arm: internal; use 'draftprobe probe --tier process'");
    const fs::path suspended = words[0];
    const fs::path capture = words[1];
    const bool force = words[2] == "force";
    std::size_t name = 1;
    const Command* command = find_command(words[3]);
    if (command == nullptr && words.size() > 4) {
        command = find_command(words[3] + " " + words[4]);
        name = 2;
    }
    if (command == nullptr) return invalid_argument(fmt::format("resume-arm: unknown command '{}'", words[3]));
    DP_ASSIGN_OR_RETURN(const Arguments arguments, parse_arguments(*command, words.subspan(3 + name)));
    DP_ASSIGN_OR_RETURN(ArmPlan plan, load_arms(arguments, console));
    DP_RETURN_IF_ERROR(probe::adopt_suspended(suspended, plan.request, plan.settings));
    DP_RETURN_IF_ERROR(
        probe::run_arm(plan.assembly, plan.request, plan.settings, Arm::restored, capture, force).status());
    return kExitDone;
}

}  // namespace draftprobe::cli
