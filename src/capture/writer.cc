#include "capture/writer.h"

#include <fmt/format.h>

#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <system_error>
#include <vector>

#include "base/files.h"
#include "base/hash.h"
#include "base/json_writer.h"
#include "base/safetensors.h"
#include "capture/layout.h"
#include "capture/step_order.h"
#include "capture/text_form.h"
#include "capture/validate.h"

namespace draftprobe {
namespace {

// A file that grows; its SHA-256 is taken on the way.
class GrowingFile {
public:
    GrowingFile() = default;
    ~GrowingFile() {
        if (file_ != nullptr) std::fclose(file_);
    }
    GrowingFile(const GrowingFile&) = delete;
    GrowingFile& operator=(const GrowingFile&) = delete;

    Status open(const std::filesystem::path& path) {
        path_ = path;
        file_ = std::fopen(path.c_str(), "wbx");
        if (file_ == nullptr)
            return io_error(fmt::format("{}: cannot create: {}", path.string(), std::strerror(errno)));
        return {};
    }
    bool is_open() const { return file_ != nullptr; }

    Status append(const void* data, std::size_t size_bytes) {
        if (size_bytes == 0) return {};
        sha_.update(data, size_bytes);
        if (std::fwrite(data, 1, size_bytes, file_) != size_bytes) {
            return io_error(fmt::format("{}: cannot write {} bytes: {}; is the disk full?", path_.string(), size_bytes,
                                        std::strerror(errno)));
        }
        return {};
    }
    Status close() {
        const int result = std::fclose(file_);
        file_ = nullptr;
        if (result == 0) return {};
        return io_error(fmt::format("{}: cannot write: {}; is the disk full?", path_.string(), std::strerror(errno)));
    }
    std::string digest() { return hex(sha_.finish()); }
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
    std::FILE* file_ = nullptr;
    Sha256 sha_;
};

Status as_argument_error(const Status& status) {
    return status.ok() ? status : invalid_argument(fmt::format("capture writer: {}", status.message()));
}

std::span<const std::byte> as_bytes_of(const std::vector<std::int64_t>& values) {
    return std::as_bytes(std::span<const std::int64_t>(values));
}

}  // namespace

struct CaptureWriter::State {
    explicit State(AtomicDirectory built) : directory(std::move(built)) {}

    AtomicDirectory directory;
    CaptureHeader shape;  // level, block, candidates, hidden, sanitised: what validate_step needs
    GrowingFile steps;
    GrowingFile draft_rows;
    GrowingFile target_rows;
    GrowingFile timing;
    CaptureTotals totals;
    StepOrder order;
    std::vector<std::int64_t> target_row_offsets{0};
    std::vector<Bf16> zero_rows;
    bool failed = false;

    Status add(const StepRecord& step, const StepTensors& tensors);
    Status add_tensors(const StepRecord& step, const StepTensors& tensors);
    Status write_tensors();
    Result<std::string> finish(CaptureHeader header);
};

CaptureWriter::CaptureWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
CaptureWriter::~CaptureWriter() = default;
CaptureWriter::CaptureWriter(CaptureWriter&&) noexcept = default;
CaptureWriter& CaptureWriter::operator=(CaptureWriter&&) noexcept = default;

Result<CaptureWriter> CaptureWriter::create(const std::filesystem::path& final_path, bool force,
                                            const CaptureShape& shape) {
    if (shape.level < 0 || shape.level > 3 || shape.block < 1 || shape.candidates < 0 ||
        (shape.level == 3 && shape.hidden < 1)) {
        return invalid_argument(
            fmt::format("capture writer: level {}, block {}, candidates {}, hidden {}; expected a level "
                        "0..3, a block of at least 1, and a hidden width at level 3",
                        shape.level, shape.block, shape.candidates, shape.hidden));
    }
    DP_ASSIGN_OR_RETURN(AtomicDirectory directory,
                        AtomicDirectory::create(final_path, force, {kCaptureFileName, kCaptureEntries}));
    auto state = std::make_unique<State>(std::move(directory));
    state->shape.level = shape.level;
    state->shape.block = shape.block;
    state->shape.candidates = shape.candidates;
    state->shape.hidden = shape.level == 3 ? shape.hidden : 0;
    state->shape.sanitised = shape.sanitised;
    if (shape.level >= 1) DP_RETURN_IF_ERROR(state->steps.open(state->directory.file(kStepsFileName)));
    if (shape.level == 3) {
        DP_RETURN_IF_ERROR(state->draft_rows.open(state->directory.file("draft_hidden.spool")));
        DP_RETURN_IF_ERROR(state->target_rows.open(state->directory.file("target_hidden.spool")));
        state->zero_rows.resize(static_cast<std::size_t>((shape.block - 1) * shape.hidden));
    }
    return CaptureWriter(std::move(state));
}

Status CaptureWriter::add_step(const StepRecord& step, const StepTensors& tensors) {
    State& s = *state_;
    if (s.failed)
        return internal_error("capture writer: a step after a failed step; end the capture at the first error");
    Status status = s.add(step, tensors);
    s.failed = !status.ok();
    return status;
}

Status CaptureWriter::State::add(const StepRecord& step, const StepTensors& tensors) {
    DP_RETURN_IF_ERROR(as_argument_error(validate_step(step, shape)));
    DP_RETURN_IF_ERROR(as_argument_error(order.check(step)));
    add_to_totals(step, totals);
    if (shape.level == 0) return {};
    std::string line = format_step(step, shape.level);
    line += '\n';
    DP_RETURN_IF_ERROR(steps.append(line.data(), line.size()));
    return shape.level == 3 ? add_tensors(step, tensors) : Status();
}

Status CaptureWriter::State::add_tensors(const StepRecord& step, const StepTensors& tensors) {
    if ((tensors.draft_hidden == nullptr && step.drafted > 0) || tensors.target_hidden == nullptr) {
        return invalid_argument("capture writer: no hidden rows for a step, expected both tensors at level 3");
    }
    const auto bytes = [&](std::int64_t rows) { return static_cast<std::size_t>(rows * shape.hidden) * sizeof(Bf16); };
    const std::int64_t missing = shape.block - 1 - step.drafted;
    DP_RETURN_IF_ERROR(draft_rows.append(tensors.draft_hidden, bytes(step.drafted)));
    DP_RETURN_IF_ERROR(draft_rows.append(zero_rows.data(), bytes(missing)));
    DP_RETURN_IF_ERROR(target_rows.append(tensors.target_hidden, bytes(step.verified + 1)));
    target_row_offsets.push_back(target_row_offsets.back() + step.verified + 1);
    return {};
}

Status CaptureWriter::add_timing(const StepTiming& timing) {
    State& s = *state_;
    if (!s.timing.is_open()) DP_RETURN_IF_ERROR(s.timing.open(s.directory.file(kTimingFileName)));
    JsonWriter out;
    out.begin_object();
    out.member("cycle", timing.cycle).member("lane", timing.lane);
    out.member("draft_us", timing.draft_us).member("verify_us", timing.verify_us).member("commit_us", timing.commit_us);
    out.end_object();
    const std::string line = out.take() + "\n";
    return s.timing.append(line.data(), line.size());
}

Status CaptureWriter::State::write_tensors() {
    DP_RETURN_IF_ERROR(draft_rows.close());
    DP_RETURN_IF_ERROR(target_rows.close());
    DP_ASSIGN_OR_RETURN(const MappedFile draft, MappedFile::open(draft_rows.path()));
    DP_ASSIGN_OR_RETURN(const MappedFile target, MappedFile::open(target_rows.path()));
    const auto steps_count = static_cast<std::uint64_t>(totals.lane_cycles);
    const auto hidden = static_cast<std::uint64_t>(shape.hidden);
    const std::uint64_t draft_shape[] = {steps_count, static_cast<std::uint64_t>(shape.block - 1), hidden};
    const std::uint64_t target_shape[] = {static_cast<std::uint64_t>(target_row_offsets.back()), hidden};
    const std::uint64_t offsets_shape[] = {target_row_offsets.size()};
    SafetensorsWriter out;
    DP_RETURN_IF_ERROR(out.add(kDraftHiddenName, DType::bf16, draft_shape, draft.bytes()));
    DP_RETURN_IF_ERROR(out.add(kTargetHiddenName, DType::bf16, target_shape, target.bytes()));
    DP_RETURN_IF_ERROR(out.add(kTargetRowsName, DType::i64, offsets_shape, as_bytes_of(target_row_offsets)));
    DP_RETURN_IF_ERROR(out.write(directory.file(kTensorsFileName)));
    for (const GrowingFile* spool : {&draft_rows, &target_rows}) {
        std::error_code error;
        if (!std::filesystem::remove(spool->path(), error)) {
            return io_error(fmt::format("{}: cannot remove: {}", spool->path().string(), error.message()));
        }
    }
    return {};
}

Result<std::string> CaptureWriter::finish(CaptureHeader header) {
    if (state_->failed) return internal_error("capture writer: finish after a failed step; the capture was dropped");
    Result<std::string> digest = state_->finish(std::move(header));
    state_->failed = true;
    return digest;
}

Result<std::string> CaptureWriter::State::finish(CaptureHeader header) {
    header.level = shape.level;
    header.block = shape.block;
    header.candidates = shape.candidates;
    header.hidden = shape.hidden;
    header.sanitised = shape.sanitised;
    if (header.level < 2) header.ledger.clear();
    totals.rows = std::move(header.totals.rows);
    header.totals = totals;
    finish_identity(header);
    DP_RETURN_IF_ERROR(as_argument_error(validate_header(header)));
    DP_RETURN_IF_ERROR(as_argument_error(order.check_requests(header)));

    const std::string text = format_capture_header(header);
    DP_RETURN_IF_ERROR(write_file(directory.file(kCaptureFileName), text));
    std::string sums = fmt::format("{}  {}\n", sha256_hex(text), kCaptureFileName);
    if (shape.level >= 1) {
        DP_RETURN_IF_ERROR(steps.close());
        sums += fmt::format("{}  {}\n", steps.digest(), kStepsFileName);
    }
    if (shape.level == 3) {
        DP_RETURN_IF_ERROR(write_tensors());
        DP_ASSIGN_OR_RETURN(const std::string digest, sha256_file(directory.file(kTensorsFileName)));
        sums += fmt::format("{}  {}\n", digest, kTensorsFileName);
    }
    DP_RETURN_IF_ERROR(write_file(directory.file(kSumsFileName), sums));
    if (timing.is_open()) {
        DP_RETURN_IF_ERROR(timing.close());
        const std::string line = fmt::format("{}  {}\n", timing.digest(), kTimingFileName);
        DP_RETURN_IF_ERROR(write_file(directory.file(kTimingSumsFileName), line));
    }
    DP_RETURN_IF_ERROR(directory.commit());
    return sha256_hex(sums);
}

}  // namespace draftprobe
