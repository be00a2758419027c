#include "cli/console.h"

#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>

namespace draftprobe::cli {

namespace {

// 0, or the errno that ended it.
int write_all(int descriptor, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(descriptor, text.data(), text.size());
        if (written < 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        text.remove_prefix(static_cast<std::size_t>(written));
    }
    return 0;
}

}  // namespace

// A closed pipe and a file size limit are errors of the write call, reported and cleaned up after, not deaths.
Console::Console() : terminal_(::isatty(STDERR_FILENO) == 1) {
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGXFSZ, SIG_IGN);
}

void Console::out(std::string_view text) {
    clear_progress();
    printed_ = true;
    if (closed_ || !output_status_.ok()) return;
    const int failure = write_all(STDOUT_FILENO, text);
    if (failure == EPIPE) {
        closed_ = true;
    } else if (failure != 0) {
        output_status_ =
            io_error(fmt::format("standard output: {}, expected to write {} bytes; the result is incomplete",
                                 std::strerror(failure), text.size()));
    }
}

void Console::paragraph(std::string_view prefix, std::string_view message) {
    clear_progress();
    std::string line = "draftprobe: ";
    line += prefix;
    for (const char c : message) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f) {
            line += ' ';  // file names may hold control characters; a message stays one paragraph
        } else {
            line += c;
        }
    }
    line += '\n';
    write_all(STDERR_FILENO, line);
}

void Console::error(std::string_view message) { paragraph("", message); }
void Console::warning(std::string_view message) { paragraph("warning: ", message); }
void Console::note(std::string_view message) { paragraph("", message); }

void Console::progress(std::string_view label, std::string_view phase, std::size_t done, std::size_t total) {
    if (!terminal_) return;
    const auto now = std::chrono::steady_clock::now();
    constexpr std::chrono::milliseconds kInterval(100);
    if (line_open_ && done != total && now - last_progress_ < kInterval) return;
    last_progress_ = now;
    line_open_ = true;
    write_all(STDERR_FILENO, fmt::format("\r\x1b[K{}: {} {}/{}", label, phase, done, total));
}

void Console::clear_progress() {
    if (!line_open_) return;
    line_open_ = false;
    write_all(STDERR_FILENO, "\r\x1b[K");
}

}  // namespace draftprobe::cli
