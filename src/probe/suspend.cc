#include "probe/suspend.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "base/files.h"
#include "capture/reader.h"
#include "state/snapshot_file.h"

namespace draftprobe::probe {

namespace {

namespace fs = std::filesystem;

fs::path boundary_file(const fs::path& directory) { return directory / "boundary.snapshot"; }
fs::path base_file(const fs::path& directory) { return directory / "base.snapshot"; }

fs::path tokens_file(const fs::path& directory) { return directory / "lockstep.txt"; }
// There when faults may be idle (RestoreTreatment).
fs::path idle_faults_file(const fs::path& directory) { return directory / "idle-faults"; }

constexpr std::uint64_t kMaxTokensBytes = std::uint64_t{1} << 30;

Result<std::string> setting_of(const CaptureHeader& header, std::string_view field) {
    for (const Setting& setting : header.settings) {
        if (setting.field == field) return setting.value;
    }
    return corrupt(fmt::format("suspended arm: found no setting '{}', expected one", field));
}

template <typename Number>
bool read_number(std::string_view text, Number& number) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    return error == std::errc() && stop == end;
}

Result<std::size_t> number_of(const CaptureHeader& header, std::string_view field) {
    DP_ASSIGN_OR_RETURN(const std::string text, setting_of(header, field));
    std::size_t number = 0;
    if (read_number(text, number)) return number;
    return corrupt(fmt::format("suspended arm: setting '{}': found '{}', expected a number", field, text));
}

// One line of the tokens' file.
Result<ControlCycle> read_cycle(std::string_view line, const fs::path& file) {
    std::vector<TokenId> numbers;
    while (!line.empty()) {
        const std::size_t space = line.find(' ');
        TokenId id = 0;
        if (!read_number(line.substr(0, space), id)) break;
        numbers.push_back(id);
        line = space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
    }
    if (!line.empty() || numbers.size() < 2) {
        return corrupt(fmt::format("{}: expected a next anchor and the committed tokens in each line", file.string()));
    }
    return ControlCycle{{numbers.begin() + 1, numbers.end()}, numbers.front()};
}

Result<ControlTokens> read_suspended_tokens(const fs::path& directory) {
    const fs::path file = tokens_file(directory);
    DP_ASSIGN_OR_RETURN(const std::string text, read_text_file(file, kMaxTokensBytes));
    ControlTokens tokens;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        DP_ASSIGN_OR_RETURN(ControlCycle cycle, read_cycle(std::string_view(text).substr(at, end - at), file));
        tokens.cycles.push_back(std::move(cycle));
        at = end + 1;
    }
    return tokens;
}

// What the command line of the second process may say otherwise.
Status adopt_settings(const fs::path& directory, const CaptureHeader& header, ProbeSettings& settings) {
    DP_ASSIGN_OR_RETURN(const std::string format, setting_of(header, "kv_format"));
    settings.engine.kv_format =
        format == state::kv_format_name(state::KvFormat::int8) ? state::KvFormat::int8 : state::KvFormat::bf16;
    DP_ASSIGN_OR_RETURN(const std::string width, setting_of(header, "verify_width"));
    settings.verify_rows = 0;
    if (width != "all") {
        DP_ASSIGN_OR_RETURN(settings.verify_rows, number_of(header, "verify_width"));
    }
    settings.lockstep = nullptr;
    if (header.treatment.lockstep) {
        DP_ASSIGN_OR_RETURN(ControlTokens tokens, read_suspended_tokens(directory));
        settings.lockstep = std::make_shared<const ControlTokens>(std::move(tokens));
    }
    return {};
}

}  // namespace

fs::path suspended_capture(const fs::path& directory) { return directory / "arm"; }

Status write_suspended_state(const fs::path& directory, const state::Snapshot& snapshot, const state::Snapshot* base) {
    if (base != nullptr) DP_RETURN_IF_ERROR(state::write_snapshot(*base, base_file(directory), false));
    return state::write_snapshot(snapshot, boundary_file(directory), false);
}

Status write_suspended_tokens(const fs::path& directory, const ControlTokens& tokens) {
    std::string text;
    for (const ControlCycle& cycle : tokens.cycles) {
        text += fmt::format("{}", cycle.next_anchor);
        for (const TokenId id : cycle.committed) text += fmt::format(" {}", id);
        text += '\n';
    }
    return write_file(tokens_file(directory), text);
}

Status write_suspended_idle_faults(const fs::path& directory) { return write_file(idle_faults_file(directory), ""); }

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
    DP_ASSIGN_OR_RETURN(request.cycles, number_of(header, "cycles"));
    request.chat_template = header.identity.chat_template;
    DP_RETURN_IF_ERROR(adopt_settings(directory, header, settings));
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
    std::error_code error;
    treatment.idle_faults = fs::exists(idle_faults_file(directory), error);
    settings.resume_from = directory;
    return {};
}

}  // namespace draftprobe::probe
