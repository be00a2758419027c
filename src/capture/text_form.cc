#include "capture/text_form.h"

#include "capture/schema.h"
#include "capture/validate.h"

namespace draftprobe {
namespace {

constexpr std::string_view kFormatName = "draftprobe-capture";

void clear(StepRecord& step) {
    step.forced = false;
    step.draft_context.digest.clear();
    step.draft_context.pairing.clear();
    step.q.clear();
    step.prefix_confidence.clear();
    step.candidate_ids.clear();
    step.candidate_scores.clear();
    step.target_top2.clear();
    step.target_top2_logits.clear();
    step.target_margins.clear();
    step.selector_margins.clear();
    step.candidate_margins.clear();
    step.width_margin.reset();
    step.controller_in.reset();
    step.controller_out.reset();
    step.state_digests.clear();
    step.draft_hidden_digests.clear();
    step.target_hidden_digests.clear();
    step.witness.clear();
}

}  // namespace

std::string format_capture_header(const CaptureHeader& header) {
    JsonWriter out(JsonWriter::Style::pretty);
    out.begin_object();
    out.member("format", kFormatName);
    out.member("version", kCaptureVersion);
    schema::Emit emit(out);
    schema::header(emit, header);
    out.end_object();
    return out.take() + "\n";
}

Result<CaptureHeader> parse_capture_header(std::string_view text, std::string_view subject) {
    JsonCursor in(text, subject);
    schema::Absorb absorb(in);
    CaptureHeader header;
    std::string format;
    std::int64_t version = 0;
    in.begin_object();
    absorb.text("format", format);
    absorb.integer("version", version, 0, schema::kMaxCount);
    DP_RETURN_IF_ERROR(in.status());
    if (format != kFormatName) {
        return unsupported(fmt::format("{}: format '{}', expected '{}'; this is not a draftprobe capture", subject,
                                       format, kFormatName));
    }
    if (version != kCaptureVersion) {
        return mismatch(fmt::format("{}: capture format version {}, this program reads version {}; {}", subject,
                                    version, kCaptureVersion,
                                    version > kCaptureVersion ? "read it with a newer draftprobe"
                                                              : "make the capture again, or use an older draftprobe"));
    }
    schema::header(absorb, header);
    in.end_object();
    in.finish();
    DP_RETURN_IF_ERROR(in.status());
    if (Status status = validate_header(header); !status.ok()) return status.with_context(subject);
    return header;
}

std::string format_step(const StepRecord& step, int level) {
    JsonWriter out;
    out.begin_object();
    schema::Emit emit(out);
    schema::step(emit, step, level);
    out.end_object();
    return out.take();
}

Status parse_step(std::string_view line, std::string_view subject, const CaptureHeader& header, StepRecord& out) {
    JsonCursor in(line, subject);
    schema::Absorb absorb(in);
    clear(out);
    in.begin_object();
    schema::step(absorb, out, header.level);
    in.end_object();
    in.finish();
    DP_RETURN_IF_ERROR(in.status());
    return validate_step(out, header).with_context(subject);
}

}  // namespace draftprobe
