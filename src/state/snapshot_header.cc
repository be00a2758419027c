#include "state/snapshot_header.h"

#include <fmt/format.h>

#include "base/json.h"

namespace draftprobe::state {

namespace {

constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxDim = 1 << 16;
constexpr std::int64_t kMaxChannels = 1 << 24;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 40;
constexpr std::size_t kMaxStops = 4096;

struct ShapeField {
    std::string_view name;
    std::size_t StateShape::*member;
    std::int64_t max;
};
constexpr ShapeField kShapeFields[] = {
    {"attention_layers", &StateShape::attention_layers, kMaxLayers},
    {"kv_heads", &StateShape::kv_heads, kMaxHeads},
    {"head_dim", &StateShape::head_dim, kMaxDim},
    {"delta_layers", &StateShape::delta_layers, kMaxLayers},
    {"key_heads", &StateShape::key_heads, kMaxHeads},
    {"value_heads", &StateShape::value_heads, kMaxHeads},
    {"key_dim", &StateShape::key_dim, kMaxDim},
    {"value_dim", &StateShape::value_dim, kMaxDim},
    {"conv_rows", &StateShape::conv_rows, kMaxDim},
    {"conv_channels", &StateShape::conv_channels, kMaxChannels},
    {"draft_layers", &StateShape::draft_layers, kMaxLayers},
    {"draft_kv_heads", &StateShape::draft_kv_heads, kMaxHeads},
    {"draft_head_dim", &StateShape::draft_head_dim, kMaxDim},
    {"hidden", &StateShape::hidden, kMaxChannels},
    {"context_capacity", &StateShape::context_capacity, kMaxPositions},
    {"max_tokens", &StateShape::max_tokens, kMaxPositions},
};

constexpr std::string_view kSourceNames[] = {"none", "computed", "restored", "carried"};

std::string_view source_name(RowSource source) { return kSourceNames[static_cast<std::size_t>(source)]; }

Status broken(std::string_view subject, std::string_view place, std::string_view found, std::string_view expected) {
    return corrupt(fmt::format("{}: header: {}: found {}, expected {}", subject, place, found, expected));
}

void write_identity(JsonWriter& json, const StateIdentity& identity) {
    json.key("identity").begin_object();
    json.member("target", identity.target).member("draft", identity.draft).member("tokenizer", identity.tokenizer);
    json.member("template", identity.chat_template).member("thinking", identity.thinking);
    json.member("effort", identity.effort);
    json.key("settings").begin_array();
    for (const auto& [field, value] : identity.settings) {
        json.begin_object().member("field", field).member("value", value).end_object();
    }
    json.end_array().end_object();
}

void write_shape(JsonWriter& json, const StateShape& shape) {
    json.key("shape").begin_object();
    for (const ShapeField& field : kShapeFields) json.member(field.name, shape.*field.member);
    json.member("kv_format", kv_format_name(shape.kv_format));
    json.member("row_format", row_format_name(shape.row_format));
    json.end_object();
}

template <class Value>
void write_array(JsonWriter& json, std::string_view key, const std::vector<Value>& values) {
    json.key(key).begin_array();
    for (const Value& value : values) json.value(value);
    json.end_array();
}

void write_component(JsonWriter& json, const SnapshotComponent& part, const ComponentDigests& digests) {
    json.begin_object().member("component", component_name(part.component));
    json.member("first", part.first).member("last", part.last).member("base", part.base);
    // Equal: a snapshot holds no row that nobody wrote.
    json.member("rows_claimed", part.last - part.first).member("rows_written", part.last - part.first);
    json.key("sources").begin_array();
    for (const SourceRange& range : part.sources) {
        json.begin_object().member("first", range.first).member("last", range.last);
        json.member("source", source_name(range.source)).end_object();
    }
    json.end_array();
    if (is_recurrent_component(part.component)) json.member("consumed", part.consumed);
    json.member("bytes", digests.bytes).member("digest", digests.root);
    write_array(json, "pages", digests.pages);
    json.end_object();
}

void write_controller(JsonWriter& json, const std::optional<ControllerRecord>& controller) {
    json.key("controller");
    if (!controller) {
        json.null();
        return;
    }
    json.begin_object().member("kind", controller->kind).member("block", controller->block);
    json.member("lanes", controller->lanes);
    write_array(json, "successes", controller->successes);
    write_array(json, "failures", controller->failures);
    write_array(json, "cost", controller->cost);
    json.member("seed_digest", controller->seed_digest).end_object();
}

void write_request(JsonWriter& json, const std::optional<RequestRecord>& request) {
    json.key("request");
    if (!request) {
        json.null();
        return;
    }
    json.begin_object().member("anchor", request->anchor).member("emitted", request->emitted);
    json.member("max_new_tokens", request->max_new_tokens);
    write_array(json, "stop_ids", request->stop_ids);
    json.member("temperature", request->temperature).member("top_k", request->top_k);
    json.member("top_p", request->top_p).member("min_p", request->min_p);
    json.member("seed", request->seed).member("request", request->request);
    write_controller(json, request->controller);
    json.end_object();
}

Result<std::string> hex_digest(const Json& value, std::string_view place, std::string_view subject) {
    const std::string text = value.is_string() ? value.get<std::string>() : std::string();
    const bool good = text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (good) return text;
    return broken(subject, place, quoted_excerpt(value.dump()), "64 hexadecimal digits");
}

Result<StateIdentity> parse_identity(const Json& header, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json* object, json_get_object(header, "identity", subject));
    StateIdentity identity;
    DP_ASSIGN_OR_RETURN(identity.target, json_get_string(*object, "target", subject));
    DP_ASSIGN_OR_RETURN(identity.draft, json_get_string(*object, "draft", subject));
    DP_ASSIGN_OR_RETURN(identity.tokenizer, json_get_string(*object, "tokenizer", subject));
    DP_ASSIGN_OR_RETURN(identity.chat_template, json_get_string(*object, "template", subject));
    DP_ASSIGN_OR_RETURN(identity.thinking, json_get_string(*object, "thinking", subject));
    DP_ASSIGN_OR_RETURN(identity.effort, json_get_string(*object, "effort", subject));
    DP_ASSIGN_OR_RETURN(const Json* settings, json_get_array(*object, "settings", subject));
    for (const Json& setting : *settings) {
        DP_ASSIGN_OR_RETURN(std::string field, json_get_string(setting, "field", subject));
        DP_ASSIGN_OR_RETURN(std::string value, json_get_string(setting, "value", subject));
        identity.settings.emplace_back(std::move(field), std::move(value));
    }
    return identity;
}

template <class Format>
Result<Format> parse_format(const Json& object, std::string_view key, std::span<const Format> formats,
                            std::string_view (*name)(Format), std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const std::string text, json_get_string(object, key, subject));
    for (const Format format : formats) {
        if (name(format) == text) return format;
    }
    return broken(subject, key, quoted_excerpt(text), "a stored format");
}

Result<StateShape> parse_shape(const Json& header, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json* object, json_get_object(header, "shape", subject));
    StateShape shape;
    for (const ShapeField& field : kShapeFields) {
        DP_ASSIGN_OR_RETURN(const std::int64_t value, json_get_int(*object, field.name, subject, 0, field.max));
        shape.*field.member = static_cast<std::size_t>(value);
    }
    constexpr KvFormat kKvFormats[] = {KvFormat::f32, KvFormat::bf16, KvFormat::int8};
    constexpr RowFormat kRowFormats[] = {RowFormat::f32, RowFormat::bf16};
    DP_ASSIGN_OR_RETURN(shape.kv_format,
                        parse_format<KvFormat>(*object, "kv_format", kKvFormats, kv_format_name, subject));
    DP_ASSIGN_OR_RETURN(shape.row_format,
                        parse_format<RowFormat>(*object, "row_format", kRowFormats, row_format_name, subject));
    return shape;
}

// Ascending, inside [0, last), not overlapping.
Result<std::vector<SourceRange>> parse_sources(const Json& object, Position last, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json* array, json_get_array(object, "sources", subject));
    std::vector<SourceRange> ranges;
    Position at = 0;
    for (const Json& entry : *array) {
        SourceRange range;
        DP_ASSIGN_OR_RETURN(range.first, json_get_int(entry, "first", subject, at, last));
        DP_ASSIGN_OR_RETURN(range.last, json_get_int(entry, "last", subject, range.first, last));
        DP_ASSIGN_OR_RETURN(const std::string source, json_get_string(entry, "source", subject));
        const auto* found = std::find(std::begin(kSourceNames), std::end(kSourceNames), source);
        if (found == std::end(kSourceNames)) {
            return broken(subject, "sources", quoted_excerpt(source), "computed, restored, carried or none");
        }
        range.source = static_cast<RowSource>(found - std::begin(kSourceNames));
        at = range.last;
        ranges.push_back(range);
    }
    return ranges;
}

Status parse_component(const Json& object, SnapshotHeader& header, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const std::string name, json_get_string(object, "component", subject));
    const auto* found = std::find_if(std::begin(kComponents), std::end(kComponents),
                                     [&name](Component component) { return component_name(component) == name; });
    if (found == std::end(kComponents)) {
        return broken(subject, "component", quoted_excerpt(name), "a component of version 1");
    }
    SnapshotComponent part;
    ComponentDigests digests;
    part.component = digests.component = *found;
    const Position length = header.snapshot.length;
    DP_ASSIGN_OR_RETURN(part.last, json_get_int(object, "last", subject, 0, length));
    DP_ASSIGN_OR_RETURN(part.first, json_get_int(object, "first", subject, 0, part.last));
    DP_ASSIGN_OR_RETURN(part.base, json_get_int(object, "base", subject, 0, part.last));
    for (const std::string_view key : {"rows_claimed", "rows_written"}) {
        const std::int64_t rows = part.last - part.first;
        DP_RETURN_IF_ERROR(json_get_int(object, key, subject, rows, rows).status());
    }
    DP_ASSIGN_OR_RETURN(part.sources, parse_sources(object, part.last, subject));
    if (is_recurrent_component(part.component)) {
        DP_ASSIGN_OR_RETURN(part.consumed, json_get_int(object, "consumed", subject, 0, kMaxPositions));
    }
    DP_ASSIGN_OR_RETURN(digests.bytes, json_get_u64(object, "bytes", subject));
    const Json* root = json_find(object, "digest");
    DP_ASSIGN_OR_RETURN(digests.root, hex_digest(root == nullptr ? Json() : *root, "digest", subject));
    DP_ASSIGN_OR_RETURN(const Json* pages, json_get_array(object, "pages", subject));
    for (const Json& page : *pages) {
        DP_ASSIGN_OR_RETURN(std::string digest, hex_digest(page, "pages", subject));
        digests.pages.push_back(std::move(digest));
    }
    header.snapshot.components.push_back(std::move(part));
    header.digests.push_back(std::move(digests));
    return {};
}

Result<std::vector<double>> parse_doubles(const Json& object, std::string_view key, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json* array, json_get_array(object, key, subject));
    std::vector<double> values;
    for (const Json& value : *array) {
        DP_ASSIGN_OR_RETURN(const double number, json_to_f64(value, subject));
        values.push_back(number);
    }
    return values;
}

Result<ControllerRecord> parse_controller(const Json& object, std::string_view subject) {
    ControllerRecord controller;
    DP_ASSIGN_OR_RETURN(controller.kind, json_get_string(object, "kind", subject));
    DP_ASSIGN_OR_RETURN(controller.block, json_get_u64(object, "block", subject));
    DP_ASSIGN_OR_RETURN(controller.lanes, json_get_u64(object, "lanes", subject));
    DP_ASSIGN_OR_RETURN(controller.successes, parse_doubles(object, "successes", subject));
    DP_ASSIGN_OR_RETURN(controller.failures, parse_doubles(object, "failures", subject));
    DP_ASSIGN_OR_RETURN(controller.cost, parse_doubles(object, "cost", subject));
    DP_ASSIGN_OR_RETURN(controller.seed_digest, json_get_string(object, "seed_digest", subject));
    return controller;
}

Result<RequestRecord> parse_request(const Json& object, std::string_view subject) {
    constexpr std::int64_t kMaxId = std::numeric_limits<TokenId>::max();
    RequestRecord request;
    DP_ASSIGN_OR_RETURN(const std::int64_t anchor, json_get_int(object, "anchor", subject, 0, kMaxId));
    request.anchor = static_cast<TokenId>(anchor);
    DP_ASSIGN_OR_RETURN(request.emitted, json_get_u64(object, "emitted", subject));
    DP_ASSIGN_OR_RETURN(request.max_new_tokens, json_get_u64(object, "max_new_tokens", subject));
    DP_ASSIGN_OR_RETURN(const auto stops, json_get_int_array(object, "stop_ids", subject, 0, kMaxId, kMaxStops));
    request.stop_ids.assign(stops.begin(), stops.end());
    DP_ASSIGN_OR_RETURN(request.temperature, json_get_f32(object, "temperature", subject));
    DP_ASSIGN_OR_RETURN(request.top_k, json_get_i64(object, "top_k", subject));
    DP_ASSIGN_OR_RETURN(request.top_p, json_get_f32(object, "top_p", subject));
    DP_ASSIGN_OR_RETURN(request.min_p, json_get_f32(object, "min_p", subject));
    DP_ASSIGN_OR_RETURN(request.seed, json_get_u64(object, "seed", subject));
    DP_ASSIGN_OR_RETURN(request.request, json_get_u64(object, "request", subject));
    DP_ASSIGN_OR_RETURN(const Json* controller, json_object_or_null(object, "controller", subject));
    if (controller != nullptr) {
        DP_ASSIGN_OR_RETURN(request.controller, parse_controller(*controller, subject));
    }
    return request;
}

}  // namespace

std::string write_header(const SnapshotHeader& header) {
    const Snapshot& snapshot = header.snapshot;
    JsonWriter json;
    json.begin_object().member("format", "draftprobe-snapshot");
    write_identity(json, snapshot.identity);
    write_shape(json, snapshot.shape);
    json.member("length", snapshot.length).member("tokens_digest", header.tokens_digest);
    json.key("components").begin_array();
    for (std::size_t i = 0; i < snapshot.components.size(); ++i) {
        write_component(json, snapshot.components[i], header.digests[i]);
    }
    json.end_array();
    write_request(json, snapshot.request);
    return json.end_object().take() + "\n";
}

Result<SnapshotHeader> parse_header(std::string_view text, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json json, parse_json(text, subject));
    SnapshotHeader header;
    DP_ASSIGN_OR_RETURN(const std::string format, json_get_string(json, "format", subject));
    if (format != "draftprobe-snapshot") {
        return broken(subject, "format", quoted_excerpt(format), "\"draftprobe-snapshot\"");
    }
    DP_ASSIGN_OR_RETURN(header.snapshot.identity, parse_identity(json, subject));
    DP_ASSIGN_OR_RETURN(header.snapshot.shape, parse_shape(json, subject));
    DP_ASSIGN_OR_RETURN(header.snapshot.length, json_get_int(json, "length", subject, 0, kMaxPositions));
    const Json* tokens = json_find(json, "tokens_digest");
    DP_ASSIGN_OR_RETURN(header.tokens_digest,
                        hex_digest(tokens == nullptr ? Json() : *tokens, "tokens_digest", subject));
    DP_ASSIGN_OR_RETURN(const Json* components, json_get_array(json, "components", subject));
    for (const Json& component : *components) {
        DP_RETURN_IF_ERROR(parse_component(component, header, subject));
    }
    DP_ASSIGN_OR_RETURN(const Json* request, json_object_or_null(json, "request", subject));
    if (request != nullptr) {
        DP_ASSIGN_OR_RETURN(header.snapshot.request, parse_request(*request, subject));
    }
    return header;
}

}  // namespace draftprobe::state
