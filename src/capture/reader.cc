#include "capture/reader.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <optional>
#include <system_error>

#include "base/files.h"
#include "base/hash.h"
#include "base/safetensors.h"
#include "capture/layout.h"
#include "capture/line_source.h"
#include "capture/step_order.h"
#include "capture/text_form.h"
#include "capture/validate.h"

namespace draftprobe {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxSumsBytes = 64 << 10;
constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{1} << 30;

using Sums = std::map<std::string, std::string, std::less<>>;  // name -> digest

// Lines `<64 hex>  <name>`, each ended by LF, names known and once.
Result<Sums> parse_sums(std::string_view text, const std::string& subject) {
    Sums sums;
    while (!text.empty()) {
        const std::size_t end = text.find('\n');
        if (end == std::string_view::npos) {
            return corrupt(fmt::format("{}: the last line has no line feed; the file is cut short", subject));
        }
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(end + 1);
        const bool shaped = line.size() > 66 && line.substr(64, 2) == "  " &&
                            line.substr(0, 64).find_first_not_of("0123456789abcdef") == std::string_view::npos;
        if (!shaped) {
            return corrupt(
                fmt::format("{}: found line '{}', expected '<64 hex digits>  <name>'", subject, line.substr(0, 100)));
        }
        const std::string_view name = line.substr(66);
        if (name != kCaptureFileName && name != kStepsFileName && name != kPackedStepsFileName &&
            name != kTensorsFileName) {
            return corrupt(fmt::format("{}: lists '{}', expected only {}, {} (or .zst) and {}", subject,
                                       name.substr(0, 100), kCaptureFileName, kStepsFileName, kTensorsFileName));
        }
        if (!sums.emplace(name, line.substr(0, 64)).second) {
            return corrupt(fmt::format("{}: lists '{}' twice, expected once", subject, name));
        }
    }
    return sums;
}

Status check_digest(const fs::path& file, std::string_view found, std::string_view expected) {
    if (found == expected) return {};
    return corrupt(fmt::format("{}: SHA-256 {}, expected {} from {}; the file was changed or damaged, copy it again",
                               file.string(), found, expected, kSumsFileName));
}

// Opening a FIFO would wait for ever, and a directory has no bytes: neither is a file of a capture.
Status check_regular(const fs::path& file) {
    std::error_code error;
    const fs::file_status found = fs::status(file, error);
    if (!fs::exists(found)) {
        return corrupt(
            fmt::format("{}: no such file, expected it in a complete capture; copy the capture again", file.string()));
    }
    if (fs::is_regular_file(found)) return {};
    return corrupt(fmt::format("{}: found {}, expected a regular file; copy the capture again", file.string(),
                               fs::is_directory(found) ? "a directory"
                               : fs::is_fifo(found)    ? "a FIFO"
                                                       : "a device or socket"));
}

// Which files the level demands is exactly what the list must name.
Status check_file_set(const Sums& sums, int level, const std::string& subject) {
    const bool plain = sums.contains(kStepsFileName);
    const bool packed = sums.contains(kPackedStepsFileName);
    const bool tensors = sums.contains(kTensorsFileName);
    if ((level >= 1) != (plain || packed) || (plain && packed)) {
        return corrupt(fmt::format("{}: lists {} step files, expected {} at level {}", subject, plain + packed,
                                   level >= 1 ? 1 : 0, level));
    }
    if ((level == 3) != tensors) {
        return corrupt(fmt::format("{}: {} {}, expected {} at level {}", subject, tensors ? "lists" : "does not list",
                                   kTensorsFileName, level == 3 ? "it" : "none", level));
    }
    return {};
}

}  // namespace

struct CaptureReader::State {
    fs::path path;
    CaptureHeader header;
    std::string digest;
    fs::path steps_path;  // empty at level 0
    std::optional<LineSource> lines;
    StepOrder order;
    CaptureTotals totals;
    std::int64_t index = -1;
    std::int64_t drafted = 0;
    std::int64_t rows = 0;
    bool done = false;
    Status failure;

    SafetensorsFile tensors;
    const TensorView* draft_hidden = nullptr;
    const TensorView* target_hidden = nullptr;
    const TensorView* target_rows = nullptr;
    std::int64_t target_row = 0;

    Status open_tensors();
    Result<bool> next(StepRecord& step);
    Status check_end();
    std::int64_t row_offset(std::int64_t step) const;
};

CaptureReader::CaptureReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
CaptureReader::~CaptureReader() = default;
CaptureReader::CaptureReader(CaptureReader&&) noexcept = default;
CaptureReader& CaptureReader::operator=(CaptureReader&&) noexcept = default;

const CaptureHeader& CaptureReader::header() const { return state_->header; }
const std::string& CaptureReader::digest() const { return state_->digest; }
std::int64_t CaptureReader::step_index() const { return state_->index; }

Result<CaptureReader> CaptureReader::open(const fs::path& path) {
    auto state = std::make_unique<State>();
    state->path = path;
    std::error_code error;
    if (!fs::exists(path, error))
        return not_found(fmt::format("{}: no such capture directory; check the path", path.string()));
    if (!fs::is_directory(path, error)) {
        // A mistyped name, not a damaged capture.
        return invalid_argument(fmt::format(
            "{}: found something that is not a directory, expected a capture directory; name the directory itself",
            path.string()));
    }
    const fs::path sums_path = path / kSumsFileName;
    if (!fs::exists(sums_path, error)) {
        return corrupt(fmt::format("{}: no {}, expected a complete capture; the recording may have been interrupted",
                                   path.string(), kSumsFileName));
    }
    DP_RETURN_IF_ERROR(check_regular(sums_path));
    DP_ASSIGN_OR_RETURN(const std::string sums_text, read_text_file(sums_path, kMaxSumsBytes));
    DP_ASSIGN_OR_RETURN(const Sums sums, parse_sums(sums_text, sums_path.string()));
    state->digest = sha256_hex(sums_text);

    const auto header_digest = sums.find(kCaptureFileName);
    if (header_digest == sums.end()) {
        return corrupt(fmt::format("{}: does not list {}", sums_path.string(), kCaptureFileName));
    }
    const fs::path header_path = path / kCaptureFileName;
    DP_RETURN_IF_ERROR(check_regular(header_path));
    Result<std::string> text = read_text_file(header_path, kMaxHeaderBytes);
    if (!text.ok()) return text.status();
    // The version is looked at first: a capture of another version may rightly have other files.
    Result<CaptureHeader> header = parse_capture_header(*text, header_path.string());
    if (!header.ok() && header.status().code() != StatusCode::corrupt) return header.status();
    DP_RETURN_IF_ERROR(check_digest(header_path, sha256_hex(*text), header_digest->second));
    if (!header.ok()) return header.status();
    state->header = std::move(header).value();
    DP_RETURN_IF_ERROR(check_file_set(sums, state->header.level, sums_path.string()));

    for (const auto& [name, expected] : sums) {
        if (name == kCaptureFileName) continue;
        DP_RETURN_IF_ERROR(check_regular(path / name));
        Result<std::string> found = sha256_file(path / name);
        if (!found.ok()) return found.status();
        DP_RETURN_IF_ERROR(check_digest(path / name, *found, expected));
        if (name != kTensorsFileName) state->steps_path = path / name;
    }
    if (state->header.level == 3) DP_RETURN_IF_ERROR(state->open_tensors());
    CaptureReader reader(std::move(state));
    DP_RETURN_IF_ERROR(reader.rewind());
    return reader;
}

Status CaptureReader::State::open_tensors() {
    const fs::path file = path / kTensorsFileName;
    Result<SafetensorsFile> opened = SafetensorsFile::open(file);
    if (!opened.ok() && opened.status().code() == StatusCode::unsupported) return corrupt(opened.status().message());
    if (!opened.ok()) return opened.status();
    tensors = std::move(opened).value();
    draft_hidden = tensors.find(kDraftHiddenName);
    target_hidden = tensors.find(kTargetHiddenName);
    target_rows = tensors.find(kTargetRowsName);
    const auto steps = static_cast<std::uint64_t>(header.totals.lane_cycles);
    const auto hidden = static_cast<std::uint64_t>(header.hidden);
    const auto total_rows = static_cast<std::uint64_t>(header.totals.verified + header.totals.lane_cycles);
    const auto check = [&](const TensorView* view, std::string_view name, DType dtype,
                           const std::vector<std::uint64_t>& shape) -> Status {
        if (view == nullptr) return corrupt(fmt::format("{}: no tensor '{}'", file.string(), name));
        if (view->dtype == dtype && view->shape == shape) return {};
        return corrupt(fmt::format("{}: tensor '{}' is {} {}, expected {} {}", file.string(), name,
                                   dtype_name(view->dtype), shape_text(view->shape), dtype_name(dtype),
                                   shape_text(shape)));
    };
    const auto drafts = static_cast<std::uint64_t>(header.block - 1);
    DP_RETURN_IF_ERROR(check(draft_hidden, kDraftHiddenName, DType::bf16, {steps, drafts, hidden}));
    DP_RETURN_IF_ERROR(check(target_hidden, kTargetHiddenName, DType::bf16, {total_rows, hidden}));
    return check(target_rows, kTargetRowsName, DType::i64, {steps + 1});
}

std::int64_t CaptureReader::State::row_offset(std::int64_t step) const {
    std::int64_t value = 0;
    std::memcpy(&value, target_rows->bytes.data() + static_cast<std::size_t>(step) * sizeof(value), sizeof(value));
    return value;
}

Status CaptureReader::rewind() {
    State& s = *state_;
    s.lines.reset();
    s.order = {};
    s.totals = {};
    s.index = -1;
    s.drafted = 0;
    s.rows = 0;
    s.target_row = 0;
    s.done = s.steps_path.empty();
    s.failure = {};
    if (s.steps_path.empty()) return {};
    DP_ASSIGN_OR_RETURN(LineSource lines, LineSource::open(s.steps_path));
    s.lines.emplace(std::move(lines));
    return {};
}

Result<bool> CaptureReader::next(StepRecord& step) {
    State& s = *state_;
    if (!s.failure.ok()) return s.failure;
    if (s.done) return false;
    Result<bool> more = s.next(step);
    if (!more.ok()) s.failure = more.status();
    return more;
}

Result<bool> CaptureReader::State::next(StepRecord& step) {
    std::string_view line;
    DP_ASSIGN_OR_RETURN(const bool more, lines->next(line));
    if (!more) {
        done = true;
        DP_RETURN_IF_ERROR(check_end());
        return false;
    }
    const auto subject = [&] { return fmt::format("{}: line {}", steps_path.string(), lines->line_number()); };
    // The subject is only made for a message.
    if (!parse_step(line, {}, header, step).ok()) return parse_step(line, subject(), header, step);
    if (Status status = order.check(step); !status.ok()) return status.with_context(subject());
    ++index;
    target_row += rows;
    drafted = step.drafted;
    rows = step.verified + 1;
    add_to_totals(step, totals);
    if (header.level == 3) {
        if (index >= header.totals.lane_cycles) {
            return corrupt(
                fmt::format("{}: found more steps than totals.lane_cycles {}", subject(), header.totals.lane_cycles));
        }
        if (row_offset(index) != target_row || row_offset(index + 1) != target_row + rows) {
            return corrupt(fmt::format("{}: {} says rows [{}, {}), expected [{}, {}) from verified + 1", subject(),
                                       kTargetRowsName, row_offset(index), row_offset(index + 1), target_row,
                                       target_row + rows));
        }
        if (target_row + rows > static_cast<std::int64_t>(target_hidden->shape[0])) {
            return corrupt(fmt::format("{}: {} has {} rows, expected at least {}", subject(), kTargetHiddenName,
                                       target_hidden->shape[0], target_row + rows));
        }
    }
    return true;
}

Status CaptureReader::State::check_end() {
    DP_RETURN_IF_ERROR(order.check_requests(header).with_context(steps_path.string()));
    const CaptureTotals& said = header.totals;
    const struct {
        std::string_view name;
        std::int64_t found;
        std::int64_t counted;
    } sums[] = {{"lane_cycles", said.lane_cycles, totals.lane_cycles},
                {"drafted", said.drafted, totals.drafted},
                {"offered", said.offered, totals.offered},
                {"verified", said.verified, totals.verified},
                {"accepted", said.accepted, totals.accepted},
                {"retained", said.retained, totals.retained},
                {"emitted", said.emitted, totals.emitted}};
    for (const auto& sum : sums) {
        if (sum.found != sum.counted) {
            return corrupt(
                fmt::format("{}: totals.{} is {}, expected {} from the steps; steps are missing or were added",
                            (path / kCaptureFileName).string(), sum.name, sum.found, sum.counted));
        }
    }
    return {};
}

std::span<const std::byte> CaptureReader::draft_hidden() const {
    const State& s = *state_;
    if (s.draft_hidden == nullptr || s.index < 0) return {};
    const auto row_bytes = static_cast<std::size_t>(s.header.hidden) * sizeof(Bf16);
    const auto first = static_cast<std::size_t>(s.index * (s.header.block - 1));
    return s.draft_hidden->bytes.subspan(first * row_bytes, static_cast<std::size_t>(s.drafted) * row_bytes);
}

std::span<const std::byte> CaptureReader::target_hidden() const {
    const State& s = *state_;
    if (s.target_hidden == nullptr || s.index < 0) return {};
    const auto row_bytes = static_cast<std::size_t>(s.header.hidden) * sizeof(Bf16);
    return s.target_hidden->bytes.subspan(static_cast<std::size_t>(s.target_row) * row_bytes,
                                          static_cast<std::size_t>(s.rows) * row_bytes);
}

Status check_timing(const fs::path& path) {
    std::error_code error;
    const fs::path timing = path / kTimingFileName;
    const fs::path sums = path / kTimingSumsFileName;
    if (!fs::exists(timing, error) && !fs::exists(sums, error)) return {};
    DP_ASSIGN_OR_RETURN(const std::string line, read_text_file(sums, kMaxSumsBytes));
    DP_ASSIGN_OR_RETURN(const std::string found, sha256_file(timing));
    if (line == fmt::format("{}  {}\n", found, kTimingFileName)) return {};
    return corrupt(fmt::format("{}: SHA-256 {}, expected the one in {}", timing.string(), found, sums.string()));
}

}  // namespace draftprobe
