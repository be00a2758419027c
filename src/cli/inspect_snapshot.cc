#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/json_writer.h"
#include "base/utf8.h"
#include "cli/inspect.h"
#include "cli/inspect_parts.h"
#include "state/snapshot_file.h"

namespace draftprobe::cli {

namespace {

using state::RowSource;
using state::Snapshot;
using state::SnapshotComponent;

std::string_view source_name(RowSource source) {
    switch (source) {
        case RowSource::none: return "none";
        case RowSource::computed: return "computed";
        case RowSource::restored: return "restored";
        case RowSource::carried: return "carried";
    }
    return "unknown";
}

// Text of a file that anybody may have written: no control character reaches the terminal.
std::string shown(const std::string& value) { return value.empty() ? "none" : printable_text(value); }

std::string identity_text(const state::StateIdentity& identity) {
    std::string out = view_line("target", shown(identity.target));
    out += view_line("draft", shown(identity.draft)) + view_line("tokenizer", shown(identity.tokenizer));
    if (identity.chat_template.empty()) {
        out += view_line("template", "none");
    } else {
        out += view_line("template", fmt::format("{}, thinking {}, effort {}", shown(identity.chat_template),
                                                 shown(identity.thinking), shown(identity.effort)));
    }
    for (const auto& [field, value] : identity.settings) out += fmt::format("  {:<22}{}\n", shown(field), shown(value));
    return out;
}

std::string component_text(const Snapshot& snapshot, const SnapshotComponent& part) {
    std::vector<std::string> sources;
    for (const auto& range : part.sources) {
        sources.push_back(fmt::format("{} [{}, {})", source_name(range.source), range.first, range.last));
    }
    const bool mislabelled = state::is_recurrent_component(part.component) && part.consumed != snapshot.length;
    return fmt::format(
        "  {:<14}[{}, {}) {}, {}, digest {}{}\n", state::component_name(part.component), part.first, part.last,
        bytes_text(part.bytes.size()), fmt::join(sources, " "),
        state::snapshot_digest(snapshot, part.component).substr(0, 16),
        mislabelled ? fmt::format("; covers {}, labelled {}: a restore refuses it", part.consumed, snapshot.length)
                    : "");
}

std::string snapshot_text(const std::filesystem::path& path, const Snapshot& snapshot) {
    std::string out = view_line("snapshot", path.string());
    out += view_line("version", fmt::format("{}", state::kSnapshotVersion)) + view_line("checksums", "hold");
    out += view_line("length", fmt::format("{} tokens, {}", snapshot.length, bytes_text(snapshot.bytes())));
    if (snapshot.request) {
        const state::RequestRecord& request = *snapshot.request;
        out += view_line("request", fmt::format("in progress: anchor {}, {} of at most {} tokens given out",
                                                request.anchor, request.emitted, request.max_new_tokens));
    } else {
        out += view_line("request", "none: a prefix");
    }
    out += identity_text(snapshot.identity) + "components\n";
    for (const SnapshotComponent& part : snapshot.components) out += component_text(snapshot, part);
    return out;
}

void write_component(JsonWriter& json, const Snapshot& snapshot, const SnapshotComponent& part) {
    json.begin_object().member("component", state::component_name(part.component)).member("first", part.first);
    json.member("last", part.last).member("base", part.base).member("bytes", part.bytes.size());
    json.member("digest", state::snapshot_digest(snapshot, part.component));
    if (state::is_recurrent_component(part.component)) json.member("consumed", part.consumed);
    json.key("sources").begin_array();
    for (const auto& range : part.sources) {
        json.begin_object().member("first", range.first).member("last", range.last);
        json.member("source", source_name(range.source)).end_object();
    }
    json.end_array().end_object();
}

std::string snapshot_json(const std::filesystem::path& path, const Snapshot& snapshot) {
    const state::StateIdentity& identity = snapshot.identity;
    JsonWriter json;
    json.begin_object().member("kind", "snapshot").member("path", path.string());
    json.member("version", state::kSnapshotVersion).member("checksums", "hold");
    json.member("length", snapshot.length).member("bytes", snapshot.bytes());
    json.key("request");
    if (snapshot.request) {
        json.begin_object().member("anchor", snapshot.request->anchor).member("emitted", snapshot.request->emitted);
        json.member("max_new_tokens", snapshot.request->max_new_tokens).end_object();
    } else {
        json.null();
    }
    json.key("identity").begin_object().member("target", identity.target).member("draft", identity.draft);
    json.member("tokenizer", identity.tokenizer).member("template", identity.chat_template);
    json.member("thinking", identity.thinking).member("effort", identity.effort);
    json.key("settings").begin_object();
    for (const auto& [field, value] : identity.settings) json.member(field, value);
    json.end_object().end_object();
    json.key("components").begin_array();
    for (const SnapshotComponent& part : snapshot.components) write_component(json, snapshot, part);
    return json.end_array().end_object().take() + "\n";
}

}  // namespace

Result<std::string> inspect_snapshot(const std::filesystem::path& path, InspectForm form) {
    DP_ASSIGN_OR_RETURN(const Snapshot snapshot, state::read_snapshot(path));
    return form == InspectForm::json ? snapshot_json(path, snapshot) : snapshot_text(path, snapshot);
}

}  // namespace draftprobe::cli
