#include "bench/probe_bench.h"

#include <errno.h>
#include <fmt/format.h>
#include <stdlib.h>

#include <chrono>
#include <cstring>

#include "compare/compare.h"

namespace draftprobe::bench {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

class ScratchDirectory {
public:
    static Result<ScratchDirectory> create(const fs::path& parent) {
        std::string name = (parent / "draftprobe-bench-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) {
            return io_error(fmt::format(
                "{}: {}, expected to make a directory for the captures there; set TMPDIR to one that can be "
                "written",
                parent.string(), std::strerror(errno)));
        }
        return ScratchDirectory(name);
    }
    ScratchDirectory(ScratchDirectory&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
    ScratchDirectory& operator=(ScratchDirectory&&) = delete;
    ~ScratchDirectory() {
        std::error_code ignored;
        if (!path_.empty()) fs::remove_all(path_, ignored);
    }
    const fs::path& path() const { return path_; }

private:
    explicit ScratchDirectory(fs::path path) : path_(std::move(path)) {}
    fs::path path_;
};

double seconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Result<ProbeTimes> measure_probe(const probe::Assembly& assembly, const probe::ProbeRequest& request,
                                 const probe::ProbeSettings& settings, std::size_t repeats, const fs::path& scratch) {
    DP_ASSIGN_OR_RETURN(const ScratchDirectory directory, ScratchDirectory::create(scratch));
    const fs::path control = directory.path() / "control";
    const fs::path treated = directory.path() / "treated";
    ProbeTimes times;
    for (std::size_t repeat = 0; repeat < repeats; ++repeat) {
        const Clock::time_point start = Clock::now();
        DP_ASSIGN_OR_RETURN(const probe::ArmResult fresh,
                            probe::run_arm(assembly, request, settings, Arm::fresh, control, true));
        const Clock::time_point after_fresh = Clock::now();
        DP_RETURN_IF_ERROR(probe::run_arm(assembly, request, settings, Arm::restored, treated, true).status());
        const Clock::time_point after_restored = Clock::now();
        DP_ASSIGN_OR_RETURN(times.comparison, compare_captures(control, treated, {}));
        const Clock::time_point end = Clock::now();
        times.cycles = fresh.cycles;
        if (times.comparison.verdict != Verdict::same) break;
        times.total.push_back(seconds(start, end));
        times.fresh.push_back(seconds(start, after_fresh));
        times.restored.push_back(seconds(after_fresh, after_restored));
        times.compare.push_back(seconds(after_restored, end));
    }
    return times;
}

}  // namespace draftprobe::bench
