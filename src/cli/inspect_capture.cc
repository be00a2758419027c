#include <fmt/format.h>

#include "base/json_writer.h"
#include "base/utf8.h"
#include "capture/reader.h"
#include "cli/inspect.h"

namespace draftprobe::cli {

namespace {

struct Group {
    std::string_view name;
    std::string digest;
    std::size_t files = 0;
};

std::vector<Group> groups_of(const Identity& identity) {
    return {{"target", identity.target.digest, identity.target.files.size()},
            {"draft", identity.draft.digest, identity.draft.files.size()},
            {"tokenizer", identity.tokenizer.digest, identity.tokenizer.files.size()},
            {"template", identity.chat_template.digest, 0},
            {"prompt", identity.prompt_digest, 0},
            {"settings", identity.settings_digest, 0},
            {"budget_seed", identity.budget_seed.digest, identity.budget_seed.files.size()},
            {"build", identity.build.digest, identity.build.files.size()},
            {"non_draft_input", identity.non_draft_input_digest, 0}};
}

// Text of a foreign capture passes here.
std::string line(std::string_view label, std::string_view text) {
    return fmt::format("{:<16}{}\n", label, printable_text(text));
}

std::string treatment_text(const CaptureHeader& header) {
    const Treatment& treatment = header.treatment;
    if (header.arm != Arm::restored) return "none";
    std::string text = fmt::format("target {}, draft {}, tier {}, lane {} to {}", treatment.restore_target,
                                   treatment.restore_draft, treatment.tier, treatment.lane_from, treatment.lane_to);
    for (const std::string& fault : treatment.faults) text += fmt::format(", injected fault {}", fault);
    return text;
}

std::string capture_text(const std::filesystem::path& path, const CaptureReader& reader) {
    const CaptureHeader& header = reader.header();
    const CaptureTotals& totals = header.totals;
    std::string out = line("capture", path.string());
    out += line("digest", reader.digest());
    out += line("checksums", fmt::format("hold; {} steps were read and keep the format's rules", totals.lane_cycles));
    out += line("arm", arm_name(header.arm));
    out += line("treatment", treatment_text(header));
    out += line("level", fmt::format("{}{}{}", header.level, header.sanitised ? ", sanitised" : "",
                                     header.timing_confounded ? ", timing-confounded" : ""));
    for (const CapturedRequest& request : header.requests) {
        out += line("request", fmt::format("{}: prompt {} tokens, boundary {}, draft window {}", request.key,
                                           request.prompt_length, request.boundary,
                                           request.window == 0 ? "unlimited" : fmt::format("{}", request.window)));
    }
    out += line("totals",
                fmt::format("{} lane-cycles: drafted {}, offered {}, verified {}, accepted {}, retained {}, emitted {}",
                            totals.lane_cycles, totals.drafted, totals.offered, totals.verified, totals.accepted,
                            totals.retained, totals.emitted));
    for (const ComponentRows& rows : totals.rows) {
        out += line("rows", fmt::format("{} {}: {} computed, {} restored, {} carried, {} none", rows.request,
                                        rows.component, rows.computed, rows.restored, rows.carried, rows.none));
    }
    for (const Group& group : groups_of(header.identity)) {
        if (group.digest.empty()) continue;
        out += line("identity", fmt::format("{:<16}{}{}", group.name, group.digest,
                                            group.files == 0 ? "" : fmt::format("  ({} files)", group.files)));
    }
    if (const TemplateIdentity& chat = header.identity.chat_template; !chat.digest.empty()) {
        out += line("chat", fmt::format("thinking {}, {}", chat.thinking,
                                        chat.effort.empty() ? "no effort" : "effort " + chat.effort));
    }
    for (const Setting& setting : header.settings)
        out += line("setting", fmt::format("{} = {}", setting.field, setting.value));
    for (const Setting& setting : header.environment) {
        out += line("environment", fmt::format("{} = {}", setting.field, setting.value));
    }
    for (const LedgerEvent& event : header.ledger) {
        out += line(
            "ledger",
            fmt::format("{} of {} in lane {} at position {}{}", event.event, event.request, event.lane, event.position,
                        event.previous_occupant.empty() ? ""
                                                        : fmt::format("; the lane had another occupant, {} "
                                                                      "leading tokens shared",
                                                                      event.previous_shared_tokens)));
        for (const LedgerComponent& component : event.components) {
            out += line(
                "", fmt::format(
                        "{}: [{}, {}), {} of {} claimed rows written, {}{}", component.component, component.first,
                        component.last, component.rows_written, component.rows_claimed, bytes_text(component.bytes),
                        component.digest.empty() ? "" : fmt::format(", digest {}", component.digest.substr(0, 16))));
        }
    }
    for (const std::string& note : header.notes) out += line("note", note);
    return out;
}

void write_settings(JsonWriter& json, std::string_view key, const std::vector<Setting>& settings) {
    json.key(key).begin_object();
    for (const Setting& setting : settings) json.member(setting.field, setting.value);
    json.end_object();
}

void write_ledger(JsonWriter& json, const CaptureHeader& header) {
    json.key("ledger").begin_array();
    for (const LedgerEvent& event : header.ledger) {
        json.begin_object()
            .member("event", event.event)
            .member("request", event.request)
            .member("lane", event.lane)
            .member("position", event.position);
        json.key("components").begin_array();
        for (const LedgerComponent& component : event.components) {
            json.begin_object()
                .member("component", component.component)
                .member("first", component.first)
                .member("last", component.last)
                .member("rows_claimed", component.rows_claimed)
                .member("rows_written", component.rows_written)
                .member("bytes", component.bytes)
                .member("digest", component.digest)
                .end_object();
        }
        json.end_array().end_object();
    }
    json.end_array();
}

std::string capture_json(const std::filesystem::path& path, const CaptureReader& reader) {
    const CaptureHeader& header = reader.header();
    const CaptureTotals& totals = header.totals;
    JsonWriter json;
    json.begin_object()
        .member("kind", "capture")
        .member("path", path.string())
        .member("digest", reader.digest())
        .member("checksums", "hold")
        .member("arm", arm_name(header.arm))
        .member("level", header.level)
        .member("sanitised", header.sanitised);
    json.key("treatment")
        .begin_object()
        .member("restore_target", header.treatment.restore_target)
        .member("restore_draft", header.treatment.restore_draft)
        .member("tier", header.treatment.tier)
        .member("lane_from", header.treatment.lane_from)
        .member("lane_to", header.treatment.lane_to);
    json.key("faults").begin_array();
    for (const std::string& fault : header.treatment.faults) json.value(fault);
    json.end_array().end_object();
    json.key("requests").begin_array();
    for (const CapturedRequest& request : header.requests) {
        json.begin_object()
            .member("key", request.key)
            .member("prompt_length", request.prompt_length)
            .member("boundary", request.boundary)
            .member("window", request.window)
            .end_object();
    }
    json.end_array();
    json.key("totals")
        .begin_object()
        .member("lane_cycles", totals.lane_cycles)
        .member("drafted", totals.drafted)
        .member("offered", totals.offered)
        .member("verified", totals.verified)
        .member("accepted", totals.accepted)
        .member("retained", totals.retained)
        .member("emitted", totals.emitted)
        .end_object();
    json.key("identity").begin_object();
    for (const Group& group : groups_of(header.identity)) json.member(group.name, group.digest);
    json.end_object();
    json.key("chat")
        .begin_object()
        .member("thinking", header.identity.chat_template.thinking)
        .member("effort", header.identity.chat_template.effort)
        .end_object();
    write_settings(json, "settings", header.settings);
    write_settings(json, "environment", header.environment);
    write_ledger(json, header);
    return json.end_object().take() + "\n";
}

}  // namespace

Result<std::string> inspect_capture(const std::filesystem::path& path, InspectForm form) {
    DP_ASSIGN_OR_RETURN(CaptureReader reader, CaptureReader::open(path));
    StepRecord step;
    bool more = true;
    while (more) {
        DP_ASSIGN_OR_RETURN(more, reader.next(step));
    }
    DP_RETURN_IF_ERROR(check_timing(path));
    return form == InspectForm::json ? capture_json(path, reader) : capture_text(path, reader);
}

}  // namespace draftprobe::cli
