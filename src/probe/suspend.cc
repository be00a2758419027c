#include "probe/suspend.h"

#include <fmt/format.h>

#include <charconv>

#include "capture/reader.h"
#include "state/snapshot_file.h"

namespace draftprobe::probe {

namespace {

namespace fs = std::filesystem;

fs::path boundary_file(const fs::path& directory) { return directory / "boundary.snapshot"; }
fs::path base_file(const fs::path& directory) { return directory / "base.snapshot"; }

Result<std::size_t> cycles_of(const CaptureHeader& header) {
    for (const Setting& setting : header.settings) {
        std::size_t cycles = 0;
        const char* end = setting.value.data() + setting.value.size();
        if (setting.field != "cycles" || std::from_chars(setting.value.data(), end, cycles).ptr != end) continue;
        return cycles;
    }
    return corrupt("suspended arm: no setting 'cycles', expected the number of decode cycles");
}

}  // namespace

fs::path suspended_capture(const fs::path& directory) { return directory / "arm"; }

Status write_suspended_state(const fs::path& directory, const state::Snapshot& snapshot, const state::Snapshot* base) {
    if (base != nullptr) DP_RETURN_IF_ERROR(state::write_snapshot(*base, base_file(directory), false));
    return state::write_snapshot(snapshot, boundary_file(directory), false);
}

Result<SuspendedArm> read_suspended(const fs::path& directory) {
    SuspendedArm suspended;
    DP_ASSIGN_OR_RETURN(const CaptureReader reader, CaptureReader::open(suspended_capture(directory)));
    suspended.header = reader.header();
    DP_ASSIGN_OR_RETURN(suspended.snapshot, state::read_snapshot(boundary_file(directory)));
    std::error_code error;
    if (fs::exists(base_file(directory), error)) {
        DP_ASSIGN_OR_RETURN(suspended.base, state::read_snapshot(base_file(directory)));
    }
    return suspended;
}

Status adopt_suspended(const fs::path& directory, ProbeRequest& request, ProbeSettings& settings) {
    DP_ASSIGN_OR_RETURN(const CaptureReader reader, CaptureReader::open(suspended_capture(directory)));
    const CaptureHeader& header = reader.header();
    if (header.arm != Arm::restored || header.requests.size() != 1) {
        return corrupt(fmt::format("{}: found an arm '{}' of {} requests, expected a restored one of one request",
                                   directory.string(), arm_name(header.arm), header.requests.size()));
    }
    const CapturedRequest& captured = header.requests.front();
    request.key = captured.key;
    request.prompt.assign(captured.prompt_ids.begin(), captured.prompt_ids.end());
    request.boundary = captured.boundary;
    DP_ASSIGN_OR_RETURN(request.cycles, cycles_of(header));
    RestoreTreatment& treatment = settings.treatment;
    treatment.move = header.treatment.lane_from != header.treatment.lane_to;
    treatment.tier = state::Tier::process;
    DP_ASSIGN_OR_RETURN(treatment.target, state::parse_target_restore(header.treatment.restore_target));
    DP_ASSIGN_OR_RETURN(treatment.draft, state::parse_draft_restore(header.treatment.restore_draft));
    treatment.faults.clear();
    for (const std::string& spelling : header.treatment.faults) {
        DP_ASSIGN_OR_RETURN(instrument::Fault fault, instrument::parse_fault(spelling));
        treatment.faults.push_back(std::move(fault));
    }
    settings.resume_from = directory;
    return {};
}

}  // namespace draftprobe::probe
