#include "replay/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>

#include "base/hash.h"
#include "capture/reader.h"
#include "compare/refuse.h"

namespace draftprobe::replay {
namespace {

namespace fs = std::filesystem;

// The first 128 bits of a context hash; the rest cannot matter at any number of contexts that fits in memory.
struct ContextKey {
    std::uint64_t high = 0;
    std::uint64_t low = 0;
    bool operator==(const ContextKey&) const = default;
};
struct ContextKeyHash {
    std::size_t operator()(const ContextKey& key) const { return static_cast<std::size_t>(key.low); }
};

ContextKey context_key(std::string_view digest) {
    ContextKey key;
    std::from_chars(digest.data(), digest.data() + 16, key.high, 16);
    std::from_chars(digest.data() + 16, digest.data() + 32, key.low, 16);
    return key;
}

// What one context has shown so far.
struct Evidence {
    std::uint64_t inputs = 0;  // hash of proposals and confidences
    std::int64_t length = 0;
    bool rejected = false;

    std::int64_t seen() const { return length + (rejected ? 1 : 0); }
    // One may have been cut before the other, and then knows less; what both saw must agree.
    bool agrees_with(const Evidence& other) const {
        if (inputs != other.inputs) return false;
        const Evidence& less = seen() <= other.seen() ? *this : other;
        const Evidence& more = seen() <= other.seen() ? other : *this;
        return less.rejected ? more.rejected && more.length == less.length : more.length >= less.length;
    }
};

Evidence evidence_of(const StepRecord& step, const ObservedAcceptance& seen) {
    const auto hash = [](const auto& values) { return xxh3_64(std::as_bytes(std::span(values))); };
    const std::uint64_t both[] = {hash(step.proposals), hash(step.prefix_confidence)};
    return {xxh3_64(std::as_bytes(std::span(both))), seen.length, seen.rejected};
}

Status refused(const fs::path& path, std::string_view field, std::string_view found, std::string_view expected,
               std::string_view next) {
    return invalid_argument(
        fmt::format("{}: {}: found {}, expected {}; {}", path.string(), field, found, expected, next));
}

// What makes a capture useless for calibration by itself.
Status check_usable(const fs::path& path, const CaptureHeader& h, bool after_restore) {
    if (h.level == 0) {
        return refused(path, "level", "0", "1 or more", "a capture without steps shows no position; record it again");
    }
    if (h.timing_confounded) {
        return refused(path, "timing_confounded", "true", "false", "calibrate from captures made with --budget full");
    }
    if (const std::string_view budget = setting_value(h, "budget"); budget != "full") {
        return refused(path, "settings.budget", budget.empty() ? "nothing" : budget, "full",
                       "calibrate from captures made with --budget full");
    }
    if (const std::string_view sampling = setting_value(h, "sampling"); !sampling.empty() && sampling != "greedy") {
        return refused(path, "settings.sampling", sampling, "greedy",
                       "sampled lanes verify all rows and need no seed; calibrate from greedy captures");
    }
    if (!h.treatment.faults.empty()) {
        return refused(path, "treatment.faults", h.treatment.faults.front(), "none",
                       "a deliberate fault is no evidence; leave this capture out");
    }
    if (after_restore != (h.arm == Arm::restored)) {
        return refused(path, "arm", arm_name(h.arm), after_restore ? "restored" : "an arm that restored nothing",
                       after_restore ? "leave this capture out, or make a seed without --after-restore"
                                     : "leave this capture out, or make a seed of restored arms with --after-restore");
    }
    return {};
}

// What keeps two captures out of one seed.
std::vector<Refusal> differences(const CaptureHeader& first, const CaptureHeader& other) {
    std::vector<Refusal> found = check_comparable(first, other, {"prompt", "boundary"}).refusals;
    const auto compare = [&](std::string field, const std::string& a, const std::string& b) {
        if (a != b) found.push_back({std::move(field), a, b});
    };
    compare("treatment.restore_target", first.treatment.restore_target, other.treatment.restore_target);
    compare("treatment.restore_draft", first.treatment.restore_draft, other.treatment.restore_draft);
    compare("treatment.tier", first.treatment.tier, other.treatment.tier);
    return found;
}

class Calibrator {
public:
    explicit Calibrator(const CalibrateOptions& options) : options_(options) {}

    Status add(const fs::path& path);
    Result<Calibration> finish();

private:
    Status begin(const fs::path& path, const CaptureHeader& header);
    Status check_belongs(const fs::path& path, const CaptureHeader& header) const;
    Status add_step(const fs::path& path, const CaptureHeader& header, const StepRecord& step);
    void add_note(std::string note);

    const CalibrateOptions& options_;
    Calibration result_;
    fs::path first_path_;
    std::optional<CaptureHeader> first_;
    std::set<std::string> digests_;
    std::unordered_map<ContextKey, Evidence, ContextKeyHash> contexts_;
};

Status Calibrator::begin(const fs::path& path, const CaptureHeader& header) {
    first_path_ = path;
    first_ = header;
    first_->ledger.clear();
    first_->schedule.clear();
    const auto block = static_cast<std::size_t>(header.block);
    if (const Status status = budget::check_costs(options_.costs, block, "costs"); !status.ok()) {
        return invalid_argument(status.message());
    }
    budget::Seed& seed = result_.seed;
    seed.block = block;
    seed.lanes = options_.lanes;
    seed.upper_edges.assign(budget::kUpperEdges.begin(), budget::kUpperEdges.end());
    seed.state = budget::initial_state(seed.upper_edges.size(), options_.costs, {});
    seed.provenance.target = header.identity.target.digest;
    seed.provenance.draft = header.identity.draft.digest;
    seed.provenance.after_restore = options_.after_restore;
    seed.provenance.note = options_.note;
    return {};
}

Status Calibrator::check_belongs(const fs::path& path, const CaptureHeader& header) const {
    std::string text;
    for (const Refusal& difference : differences(*first_, header)) {
        text += fmt::format("{}{}: found {}, expected {}", text.empty() ? "" : "; ", difference.field,
                            difference.treated.empty() ? "nothing" : difference.treated,
                            difference.control.empty() ? "nothing" : difference.control);
    }
    if (text.empty()) return {};
    return mismatch(fmt::format("{}: does not belong with {}: {}; make a seed of each kind of capture", path.string(),
                                first_path_.string(), text));
}

void Calibrator::add_note(std::string note) {
    if (std::find(result_.notes.begin(), result_.notes.end(), note) == result_.notes.end()) {
        result_.notes.push_back(std::move(note));
    }
}

Status Calibrator::add_step(const fs::path& path, const CaptureHeader& header, const StepRecord& step) {
    const auto place = [&] {
        return fmt::format("{}: cycle {} of request '{}'", path.string(), step.cycle, step.request);
    };
    if (step.verified_cut == CutReason::budget) {
        return corrupt(
            fmt::format("{}: found {} of {} proposals verified because of the budget, expected all under "
                        "settings.budget full; record the capture again",
                        place(), step.verified, step.offered));
    }
    const ObservedAcceptance seen = observed_acceptance(step);
    if (!seen.at_risk) return ++result_.not_at_risk, Status();
    if (step.forced) return ++result_.forced, Status();
    if (step.proposal_source != "selector" && step.proposal_source != "argmax") {
        return ++result_.not_drafted, Status();
    }
    if (step.prefix_confidence.empty()) {
        return invalid_argument(fmt::format(
            "{}: found no prefix confidences, expected one per proposal; {}", place(),
            header.sanitised ? "calibrate from the capture that was sanitised" : "record the capture with them"));
    }
    const Evidence now = evidence_of(step, seen);
    const auto [entry, is_new] = contexts_.try_emplace(context_key(step.context_hash), now);
    Evidence& known = entry->second;
    if (!is_new && !known.agrees_with(now)) {
        return mismatch(fmt::format(
            "{}: found {} matches where the same context had {} before, or other proposals or confidences, expected "
            "equal outcomes of equal contexts; compare the captures and leave one out",
            place(), now.length, known.length));
    }
    const auto before = static_cast<std::size_t>(is_new ? 0 : known.seen());
    const auto after = static_cast<std::size_t>(now.seen());
    if (after <= before) return ++result_.duplicates, Status();
    const std::span<const float> taught = std::span(step.prefix_confidence).subspan(before, after - before);
    for (const float confidence : taught) {
        if (!std::isfinite(confidence) || (confidence >= 0 && confidence <= 1)) continue;
        return corrupt(
            fmt::format("{}: found a prefix confidence of {}, expected a probability; record the capture "
                        "again",
                        place(), confidence));
    }
    if (std::none_of(taught.begin(), taught.end(), [](float confidence) { return std::isfinite(confidence); }))
        return ++result_.not_finite, Status();
    budget::teach(result_.seed.upper_edges, step.prefix_confidence, before, after, static_cast<std::size_t>(now.length),
                  result_.seed.state);
    if (is_new) ++result_.seed.provenance.lane_cycles;
    known = now;
    return {};
}

Status Calibrator::add(const fs::path& path) {
    DP_ASSIGN_OR_RETURN(CaptureReader reader, CaptureReader::open(path));
    const CaptureHeader& header = reader.header();
    DP_RETURN_IF_ERROR(check_usable(path, header, options_.after_restore));
    if (!first_) {
        DP_RETURN_IF_ERROR(begin(path, header));
    } else {
        DP_RETURN_IF_ERROR(check_belongs(path, header));
    }
    digests_.insert(reader.digest());
    for (const std::string& note : header.notes) add_note(note);
    if (header.identity.build.digest != first_->identity.build.digest) {
        add_note("build: the captures come from different builds; a difference between them may be the build's");
    }
    StepRecord step;
    while (true) {
        DP_ASSIGN_OR_RETURN(const bool more, reader.next(step));
        if (!more) return {};
        DP_RETURN_IF_ERROR(add_step(path, header, step));
    }
}

Result<Calibration> Calibrator::finish() {
    result_.captures = digests_.size();
    result_.seed.provenance.captures.assign(digests_.begin(), digests_.end());
    if (result_.seed.provenance.lane_cycles == 0) {
        return invalid_argument(fmt::format(
            "calibrate: found no lane-cycle that teaches in {} captures ({} forced, {} not drafted, {} "
            "without verified rows, {} without a finite confidence), expected at least 1; record more "
            "cycles",
            result_.captures, result_.forced, result_.not_drafted, result_.not_at_risk, result_.not_finite));
    }
    return std::move(result_);
}

}  // namespace

Result<Calibration> calibrate(std::span<const fs::path> captures, const CalibrateOptions& options) {
    if (captures.empty()) return invalid_argument("calibrate: found no capture, expected at least 1; name some");
    Calibrator calibrator(options);
    for (const fs::path& path : captures) DP_RETURN_IF_ERROR(calibrator.add(path));
    return calibrator.finish();
}

}  // namespace draftprobe::replay
