#include "budget/seed.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/json_writer.h"

namespace draftprobe::budget {
namespace {

constexpr std::string_view kFormat = "draftprobe-budget-seed";
constexpr std::uint64_t kMaxSeedBytes = std::uint64_t{1} << 20;
constexpr std::int64_t kMaxBlock = 1024;
constexpr std::int64_t kMaxLanes = 1024;
constexpr std::size_t kMaxBuckets = 256;
constexpr std::size_t kMaxCaptures = 8192;
constexpr std::size_t kMaxNoteBytes = 1000;
constexpr double kMaxCount = 0x1p53;
constexpr std::int64_t kMaxLaneCycles = std::int64_t{1} << 53;

Status broken(std::string_view subject, std::string_view field, std::string_view found, std::string_view expected) {
    return corrupt(fmt::format("{}: {}: found {}, expected {}; make the seed again with 'draftprobe budget calibrate'",
                               subject, field, found, expected));
}

bool is_digest(std::string_view text) {
    return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Status check_edges(std::span<const double> edges, std::string_view subject) {
    if (edges.empty() || edges.size() > kMaxBuckets) {
        return broken(subject, "upper_edges", fmt::format("{} edges", edges.size()),
                      fmt::format("1 to {}", kMaxBuckets));
    }
    double before = 0;
    for (std::size_t i = 0; i < edges.size(); ++i) {
        if (!(edges[i] > before && edges[i] <= 1)) {
            return broken(subject, fmt::format("upper_edges[{}]", i), fmt::format("{}", edges[i]),
                          fmt::format("more than {} and at most 1", before));
        }
        before = edges[i];
    }
    if (before != 1) return broken(subject, "upper_edges", fmt::format("{} as the last edge", before), "1");
    return {};
}

Status check_counts(std::span<const double> counts, std::size_t buckets, std::string_view field,
                    std::string_view subject) {
    if (counts.size() != buckets) {
        return broken(subject, field, fmt::format("{} counts", counts.size()),
                      fmt::format("{}, one for each upper edge", buckets));
    }
    for (std::size_t i = 0; i < counts.size(); ++i) {
        if (counts[i] > 0 && counts[i] <= kMaxCount) continue;
        return broken(subject, fmt::format("{}[{}]", field, i), fmt::format("{}", counts[i]),
                      "a count above 0 and at most 2^53 (the prior is part of it)");
    }
    return {};
}

Status check_provenance(const Provenance& p, std::string_view subject) {
    for (const std::string* digest : {&p.target, &p.draft}) {
        if (digest->empty() || is_digest(*digest)) continue;
        return broken(subject, digest == &p.target ? "provenance.target" : "provenance.draft", quoted_excerpt(*digest),
                      "64 hex digits or nothing");
    }
    if (p.captures.size() > kMaxCaptures) {
        return broken(subject, "provenance.captures", fmt::format("{} digests", p.captures.size()),
                      fmt::format("at most {}", kMaxCaptures));
    }
    for (std::size_t i = 0; i < p.captures.size(); ++i) {
        if (is_digest(p.captures[i]) && (i == 0 || p.captures[i - 1] < p.captures[i])) continue;
        return broken(subject, fmt::format("provenance.captures[{}]", i), quoted_excerpt(p.captures[i]),
                      "64 hex digits, ascending, each once");
    }
    if (p.lane_cycles < 0 || p.lane_cycles > kMaxLaneCycles) {
        return broken(subject, "provenance.lane_cycles", fmt::format("{}", p.lane_cycles), "0 to 2^53");
    }
    if (p.note.size() > kMaxNoteBytes || p.note.find_first_of("\n\r") != std::string::npos) {
        return broken(subject, "provenance.note", quoted_excerpt(p.note),
                      fmt::format("one line of at most {} bytes", kMaxNoteBytes));
    }
    return {};
}

Status check_seed(const Seed& seed, std::string_view subject) {
    if (seed.block < 1 || seed.block > static_cast<std::size_t>(kMaxBlock)) {
        return broken(subject, "block", fmt::format("{}", seed.block), fmt::format("1 to {}", kMaxBlock));
    }
    if (seed.lanes < 1 || seed.lanes > static_cast<std::size_t>(kMaxLanes)) {
        return broken(subject, "lanes", fmt::format("{}", seed.lanes), fmt::format("1 to {}", kMaxLanes));
    }
    DP_RETURN_IF_ERROR(check_edges(seed.upper_edges, subject));
    DP_RETURN_IF_ERROR(check_counts(seed.state.successes, seed.upper_edges.size(), "successes", subject));
    DP_RETURN_IF_ERROR(check_counts(seed.state.failures, seed.upper_edges.size(), "failures", subject));
    DP_RETURN_IF_ERROR(check_costs(seed.state.cost, seed.block, fmt::format("{}: cost", subject)));
    return check_provenance(seed.provenance, subject);
}

void write_numbers(JsonWriter& json, std::string_view key, std::span<const double> values) {
    json.key(key).begin_array();
    for (const double value : values) json.value(value);
    json.end_array();
}

// Present keys are exactly `keys`: what a reader would skip would still be part of the digest.
Status check_keys(const Json& object, std::span<const std::string_view> keys, std::string_view subject) {
    if (!object.is_object()) return broken(subject, "document", object.type_name(), "an object");
    for (const auto& [name, value] : object.items()) {
        if (std::find(keys.begin(), keys.end(), name) != keys.end()) continue;
        return broken(subject, "key", quoted_excerpt(name), fmt::format("only {}", fmt::join(keys, ", ")));
    }
    return {};
}

Result<std::vector<double>> numbers(const Json& object, std::string_view key, std::size_t max_count,
                                    std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json* array, json_get_array(object, key, subject));
    if (array->size() > max_count) {
        return broken(subject, key, fmt::format("{} numbers", array->size()), fmt::format("at most {}", max_count));
    }
    std::vector<double> values;
    for (const Json& value : *array) {
        DP_ASSIGN_OR_RETURN(const double number, json_to_f64(value, fmt::format("{}: {}", subject, key)));
        values.push_back(number);
    }
    return values;
}

Result<Provenance> parse_provenance(const Json& object, std::string_view subject) {
    constexpr std::string_view kKeys[] = {"target", "draft", "captures", "after_restore", "lane_cycles", "note"};
    DP_RETURN_IF_ERROR(check_keys(object, kKeys, subject));
    Provenance p;
    DP_ASSIGN_OR_RETURN(p.target, json_get_string(object, "target", subject));
    DP_ASSIGN_OR_RETURN(p.draft, json_get_string(object, "draft", subject));
    DP_ASSIGN_OR_RETURN(const Json* captures, json_get_array(object, "captures", subject));
    for (const Json& digest : *captures) {
        if (!digest.is_string()) return broken(subject, "captures", digest.type_name(), "strings of 64 hex digits");
        p.captures.push_back(digest.get<std::string>());
    }
    DP_ASSIGN_OR_RETURN(p.after_restore, json_get_bool(object, "after_restore", subject));
    DP_ASSIGN_OR_RETURN(p.lane_cycles, json_get_i64(object, "lane_cycles", subject));
    DP_ASSIGN_OR_RETURN(p.note, json_get_string(object, "note", subject));
    return p;
}

Status check_header(const Json& document, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const std::string format, json_get_string(document, "format", subject));
    if (format != kFormat) {
        return unsupported(fmt::format("{}: format: found {}, expected \"{}\"; give a seed of a verify budget", subject,
                                       quoted_excerpt(format), kFormat));
    }
    DP_ASSIGN_OR_RETURN(const std::int64_t version, json_get_i64(document, "version", subject));
    if (version == kSeedVersion) return {};
    return mismatch(fmt::format(
        "{}: version: found {}, expected {}; make the seed again with this version's 'draftprobe budget calibrate'",
        subject, version, kSeedVersion));
}

}  // namespace

Result<std::string> seed_json(const Seed& seed) {
    if (const Status status = check_seed(seed, "seed"); !status.ok()) return invalid_argument(status.message());
    JsonWriter json(JsonWriter::Style::pretty);
    json.begin_object().member("format", kFormat).member("version", kSeedVersion);
    json.member("block", seed.block).member("lanes", seed.lanes);
    write_numbers(json, "upper_edges", seed.upper_edges);
    write_numbers(json, "successes", seed.state.successes);
    write_numbers(json, "failures", seed.state.failures);
    write_numbers(json, "cost", seed.state.cost);
    const Provenance& p = seed.provenance;
    json.key("provenance").begin_object().member("target", p.target).member("draft", p.draft);
    json.key("captures").begin_array();
    for (const std::string& digest : p.captures) json.value(digest);
    json.end_array();
    json.member("after_restore", p.after_restore).member("lane_cycles", p.lane_cycles).member("note", p.note);
    return json.end_object().end_object().take() + "\n";
}

Result<Seed> parse_seed(std::string_view text, std::string_view subject) {
    DP_ASSIGN_OR_RETURN(const Json document, parse_json(text, subject));
    DP_RETURN_IF_ERROR(check_header(document, subject));
    constexpr std::string_view kKeys[] = {"format",    "version",  "block", "lanes",     "upper_edges",
                                          "successes", "failures", "cost",  "provenance"};
    DP_RETURN_IF_ERROR(check_keys(document, kKeys, subject));
    Seed seed;
    DP_ASSIGN_OR_RETURN(const std::int64_t block, json_get_int(document, "block", subject, 1, kMaxBlock));
    DP_ASSIGN_OR_RETURN(const std::int64_t lanes, json_get_int(document, "lanes", subject, 1, kMaxLanes));
    seed.block = static_cast<std::size_t>(block);
    seed.lanes = static_cast<std::size_t>(lanes);
    DP_ASSIGN_OR_RETURN(seed.upper_edges, numbers(document, "upper_edges", kMaxBuckets, subject));
    DP_ASSIGN_OR_RETURN(seed.state.successes, numbers(document, "successes", kMaxBuckets, subject));
    DP_ASSIGN_OR_RETURN(seed.state.failures, numbers(document, "failures", kMaxBuckets, subject));
    DP_ASSIGN_OR_RETURN(seed.state.cost, numbers(document, "cost", static_cast<std::size_t>(kMaxBlock), subject));
    DP_ASSIGN_OR_RETURN(const Json* provenance, json_get_object(document, "provenance", subject));
    DP_ASSIGN_OR_RETURN(seed.provenance, parse_provenance(*provenance, fmt::format("{}: provenance", subject)));
    DP_RETURN_IF_ERROR(check_seed(seed, subject));
    seed.digest = sha256_hex(text);
    return seed;
}

Result<Seed> read_seed(const std::filesystem::path& path) {
    DP_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxSeedBytes));
    return parse_seed(text, path.string());
}

}  // namespace draftprobe::budget
