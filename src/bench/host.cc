#include "bench/host.h"

#include <sys/resource.h>

#include <algorithm>
#include <string_view>
#include <thread>

#include "base/files.h"

namespace draftprobe::bench {

std::string cpu_name() {
    std::string found;
    const auto scan = [&found](std::span<const std::byte> block) {
        if (!found.empty()) return;
        const std::string_view text(reinterpret_cast<const char*>(block.data()), block.size());
        const std::size_t line = text.find("model name");
        const std::size_t colon = text.find(": ", line == std::string_view::npos ? text.size() : line);
        if (colon == std::string_view::npos) return;
        found = text.substr(colon + 2, text.find('\n', colon) - colon - 2);
    };
    const Status status = read_file_blocks("/proc/cpuinfo", scan);
    return status.ok() && !found.empty() ? found : "unknown";
}

std::uint64_t peak_rss_bytes() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

unsigned hardware_threads() { return std::max(1u, std::thread::hardware_concurrency()); }

}  // namespace draftprobe::bench
