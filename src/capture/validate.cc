#include "capture/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/hash.h"

namespace draftprobe {
namespace {

template <typename Found, typename Expected>
Status broken(std::string_view field, const Found& found, const Expected& expected) {
    return corrupt(fmt::format("{}: found {}, expected {}", field, found, expected));
}

bool is_hex64_digits(std::string_view text) {
    if (text.size() != 64) return false;
    unsigned bad = 0;
    for (char c : text) bad |= static_cast<unsigned>(!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')));
    return bad == 0;
}

bool is_digest_or_empty(std::string_view text) { return text.empty() || is_hex64_digits(text); }

std::string prompt_group_digest(const std::vector<CapturedRequest>& requests) {
    std::string lines;
    for (const CapturedRequest& request : requests)
        lines += fmt::format("{}  {}\n", request.prompt_digest, request.key);
    return sha256_hex(lines);
}

std::string settings_digest(const std::vector<Setting>& settings) {
    std::string lines;
    for (const Setting& setting : settings) lines += fmt::format("{}={}\n", setting.field, setting.value);
    return sha256_hex(lines);
}

// Settings that were read from the draft are no input of the run beside it.
std::string non_draft_settings_digest(const std::vector<Setting>& settings) {
    std::vector<Setting> others;
    std::copy_if(settings.begin(), settings.end(), std::back_inserter(others),
                 [](const Setting& setting) { return !is_draft_setting(setting.field); });
    return settings_digest(others);
}

std::string non_draft_input_digest(const CaptureHeader& h) {
    const Identity& id = h.identity;
    const TemplateIdentity& chat = id.chat_template;
    const std::string rendered =
        chat.rendered_digest.empty() ? std::string() : fmt::format(" rendered={}", chat.rendered_digest);
    return sha256_hex(
        fmt::format("target {}\ntokenizer {}\ntemplate {} thinking={} effort={}{}\nprompt {}\nsettings {}\n"
                    "budget_seed {}\n",
                    id.target.digest, id.tokenizer.digest, chat.digest, chat.thinking, chat.effort, rendered,
                    id.prompt_digest, non_draft_settings_digest(h.settings), id.budget_seed.digest));
}

Status validate_group(std::string_view name, const IdentityGroup& group, bool sanitised) {
    if (!is_digest_or_empty(group.digest)) return broken(name, "'" + group.digest + "'", "64 hex digits or nothing");
    if (group.files.empty()) return {};
    for (const std::string& line : group.files) {
        if (line.size() < 67 || line.substr(64, 2) != "  " || !is_hex64_digits(line.substr(0, 64)) ||
            line.find('\n') != std::string::npos) {
            return broken(fmt::format("identity.{}.files", name), "'" + line.substr(0, 100) + "'",
                          "'<64 hex digits>  <name>'");
        }
    }
    if (sanitised) return {};
    const std::string expected = file_set_digest(group.files);
    if (group.digest != expected) return broken(fmt::format("identity.{}.digest", name), group.digest, expected);
    return {};
}

Status validate_ranges(std::string_view field, const std::vector<SourceRange>& ranges) {
    Position end = 0;
    for (const SourceRange& range : ranges) {
        if (range.first < end || range.last <= range.first) {
            return broken(field, fmt::format("range [{}, {}) after position {}", range.first, range.last, end),
                          "ascending ranges that do not overlap");
        }
        end = range.last;
    }
    return {};
}

Status validate_component(const LedgerEvent& event, const LedgerComponent& c) {
    const std::string field = fmt::format("ledger event '{}', component '{}'", event.event, c.component);
    if (c.component.empty()) return broken(field, "an empty name", "a component name");
    if (c.last < c.first) return broken(field, fmt::format("[{}, {})", c.first, c.last), "first <= last");
    for (const std::string& digest : {c.digest, c.expected}) {
        if (!is_digest_or_empty(digest)) return broken(field, "'" + digest + "'", "a digest or nothing");
    }
    return validate_ranges(field, c.sources);
}

Status validate_settings(const std::vector<Setting>& settings) {
    std::set<std::string_view> seen;
    for (const Setting& setting : settings) {
        if (setting.field.empty() || setting.field.find_first_of("=\n") != std::string::npos) {
            return broken("settings", "field '" + setting.field + "'", "a name without '=' and line breaks");
        }
        if (setting.value.find('\n') != std::string::npos) {
            return broken("settings." + setting.field, "a line break", "one line");
        }
        if (!seen.insert(setting.field).second) {
            return broken("settings", "field '" + setting.field + "' twice", "every field once");
        }
    }
    return {};
}

bool is_effort(std::string_view name) {
    return name.size() <= 32 && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") == name.npos;
}

Status validate_template(const TemplateIdentity& chat) {
    if (chat.digest.empty()) {
        if (chat.thinking.empty() && chat.effort.empty() && chat.rendered_digest.empty()) return {};
        return broken("identity.template", "a thinking mode, an effort or a rendered text without a digest",
                      "the template's digest, or none of them");
    }
    if (!is_hex64_digits(chat.digest)) {
        return broken("identity.template", "'" + chat.digest + "'", "a digest or nothing");
    }
    if (chat.thinking != "on" && chat.thinking != "off") {
        return broken("identity.template.thinking", "'" + chat.thinking + "'", "on or off");
    }
    if (!is_effort(chat.effort)) {
        return broken("identity.template.effort", "'" + chat.effort.substr(0, 100) + "'",
                      "at most 32 of a-z, 0-9, '_' and '-'");
    }
    if (!is_digest_or_empty(chat.rendered_digest)) {
        return broken("identity.template.rendered", "'" + chat.rendered_digest + "'", "a digest or nothing");
    }
    return {};
}

Status validate_identity(const CaptureHeader& h) {
    const Identity& id = h.identity;
    DP_RETURN_IF_ERROR(validate_group("target", id.target, h.sanitised));
    DP_RETURN_IF_ERROR(validate_group("draft", id.draft, h.sanitised));
    DP_RETURN_IF_ERROR(validate_group("tokenizer", id.tokenizer, h.sanitised));
    DP_RETURN_IF_ERROR(validate_group("budget_seed", id.budget_seed, h.sanitised));
    DP_RETURN_IF_ERROR(validate_group("build", id.build, h.sanitised));
    DP_RETURN_IF_ERROR(validate_template(id.chat_template));
    for (const std::string* digest : {&id.prompt_digest, &id.settings_digest, &id.non_draft_input_digest}) {
        if (!is_hex64_digits(*digest)) return broken("identity", "'" + *digest + "'", "64 hex digits");
    }
    if (h.sanitised) return {};
    if (const std::string expected = prompt_group_digest(h.requests); id.prompt_digest != expected) {
        return broken("identity.prompt", id.prompt_digest, expected);
    }
    if (const std::string expected = settings_digest(h.settings); id.settings_digest != expected) {
        return broken("identity.settings", id.settings_digest, expected);
    }
    if (const std::string expected = non_draft_input_digest(h); id.non_draft_input_digest != expected) {
        return broken("identity.non_draft_input", id.non_draft_input_digest, expected);
    }
    return {};
}

Status validate_requests(const CaptureHeader& h) {
    std::set<std::string_view> keys;
    for (const CapturedRequest& r : h.requests) {
        const std::string field = "requests." + r.key;
        if (r.key.empty() || r.key.find('\n') != std::string::npos || !keys.insert(r.key).second) {
            return broken("requests", "key '" + r.key + "'", "a unique one-line key");
        }
        if (r.boundary > r.prompt_length) {
            return broken(field + ".boundary", r.boundary, fmt::format("at most prompt_length {}", r.prompt_length));
        }
        if (!is_digest_or_empty(r.prompt_digest)) return broken(field, r.prompt_digest, "a digest or nothing");
        if (r.prompt_ids.empty() || h.sanitised) continue;
        if (static_cast<Position>(r.prompt_ids.size()) != r.prompt_length) {
            return broken(field + ".prompt_ids", r.prompt_ids.size(), fmt::format("{} ids", r.prompt_length));
        }
        for (CapturedId id : r.prompt_ids) {
            if (id >> 32 != 0) return broken(field + ".prompt_ids", id, "ids below 2^32");
        }
        if (const std::string expected = prompt_ids_digest(r.prompt_ids); r.prompt_digest != expected) {
            return broken(field + ".prompt_digest", r.prompt_digest, expected);
        }
    }
    const auto known = [&](std::string_view key) { return keys.count(key) != 0; };
    for (const LedgerEvent& event : h.ledger) {
        if (!known(event.request)) return broken("ledger.request", "'" + event.request + "'", "a key of requests");
    }
    for (const ForwardCall& call : h.schedule) {
        if (!known(call.request)) return broken("schedule.request", "'" + call.request + "'", "a key of requests");
    }
    for (const ComponentRows& rows : h.totals.rows) {
        if (!known(rows.request)) return broken("totals.rows.request", "'" + rows.request + "'", "a key of requests");
    }
    return {};
}

template <typename T>
Status check_size(std::string_view field, const std::vector<T>& values, std::int64_t expected) {
    if (static_cast<std::int64_t>(values.size()) == expected) return {};
    return broken(field, fmt::format("{} elements", values.size()), expected);
}

template <typename T>
Status check_size_if_any(std::string_view field, const std::vector<T>& values, std::int64_t expected) {
    return values.empty() ? Status() : check_size(field, values, expected);
}

Status check_cut(std::string_view field, std::int64_t value, std::int64_t limit, CutReason cut) {
    if (value > limit) return broken(field, value, fmt::format("at most {}", limit));
    if ((value < limit) == (cut != CutReason::none)) return {};
    return broken(fmt::format("cuts.{}", field), cut_reason_name(cut),
                  value < limit ? fmt::format("a reason for {} instead of {}", value, limit)
                                : fmt::format("none, because {} is not cut", value));
}

Status validate_counts(const StepRecord& s, const CaptureHeader& h) {
    DP_RETURN_IF_ERROR(check_cut("drafted", s.drafted, h.block - 1, s.drafted_cut));
    DP_RETURN_IF_ERROR(check_cut("offered", s.offered, s.drafted, s.offered_cut));
    DP_RETURN_IF_ERROR(check_cut("verified", s.verified, s.offered, s.verified_cut));
    DP_RETURN_IF_ERROR(check_cut("accepted", s.accepted, s.verified, s.accepted_cut));
    DP_RETURN_IF_ERROR(check_cut("retained", s.retained, s.accepted + 1, s.retained_cut));
    DP_RETURN_IF_ERROR(check_cut("emitted", s.emitted, s.accepted + 1, s.emitted_cut));
    const bool censored = !observed_acceptance(s).rejected;
    if (s.censored != censored) return broken("censored", s.censored, fmt::format("{} from the counts", censored));
    if (s.matches_beyond > s.drafted - s.verified) {
        return broken("matches_beyond", s.matches_beyond, fmt::format("at most {}", s.drafted - s.verified));
    }
    return {};
}

Status validate_arrays(const StepRecord& s, const CaptureHeader& h) {
    const std::int64_t drafted = s.drafted;
    const std::int64_t rows = s.verified + 1;
    DP_RETURN_IF_ERROR(check_size("proposals", s.proposals, drafted));
    DP_RETURN_IF_ERROR(check_size_if_any("q", s.q, drafted));
    DP_RETURN_IF_ERROR(check_size_if_any("confidence", s.prefix_confidence, drafted));
    DP_RETURN_IF_ERROR(check_size_if_any("candidate_ids", s.candidate_ids, drafted * h.candidates));
    DP_RETURN_IF_ERROR(
        check_size_if_any("candidate_scores", s.candidate_scores, static_cast<std::int64_t>(s.candidate_ids.size())));
    DP_RETURN_IF_ERROR(check_size("target_choices", s.target_choices, rows));
    DP_RETURN_IF_ERROR(check_size_if_any("target_top2", s.target_top2, 2 * rows));
    DP_RETURN_IF_ERROR(check_size_if_any("target_top2_logits", s.target_top2_logits, 2 * rows));
    DP_RETURN_IF_ERROR(check_size_if_any("margins.target", s.target_margins, rows));
    DP_RETURN_IF_ERROR(check_size_if_any("margins.selector", s.selector_margins, drafted));
    DP_RETURN_IF_ERROR(check_size_if_any("margins.candidate", s.candidate_margins, drafted));
    DP_RETURN_IF_ERROR(check_size_if_any("digests.draft_hidden", s.draft_hidden_digests, drafted));
    DP_RETURN_IF_ERROR(check_size_if_any("digests.target_hidden", s.target_hidden_digests, rows));
    if (!s.forced) DP_RETURN_IF_ERROR(check_size("committed", s.committed, s.retained));
    if (!s.committed.empty() && s.committed.front() != s.anchor) {
        return broken("committed[0]", "another id", "the anchor");
    }
    return {};
}

// `accepted` is a derived number: the leading proposals that the target chose too, whether it chose greedily or by a
// draw. A count that the record itself contradicts is no evidence, even when both arms carry the same one.
Status validate_acceptance(const StepRecord& s) {
    std::int64_t matches = 0;
    for (; matches < s.verified; ++matches) {
        const auto at = static_cast<std::size_t>(matches);
        if (s.proposals[at] != s.target_choices[at]) break;
    }
    const bool cut_by_choice = s.accepted_cut == CutReason::none || s.accepted_cut == CutReason::mismatch;
    if (cut_by_choice ? s.accepted == matches : s.accepted <= matches) return {};
    return broken("accepted", s.accepted,
                  fmt::format("{}{}, the leading proposals that the target's choices match",
                              cut_by_choice ? "" : "at most ", matches));
}

}  // namespace

std::string file_set_digest(std::vector<std::string> lines) {
    std::sort(lines.begin(), lines.end());
    Sha256 sha;
    for (const std::string& line : lines) {
        sha.update(line);
        sha.update("\n", 1);
    }
    return hex(sha.finish());
}

std::string prompt_ids_digest(const std::vector<CapturedId>& ids) {
    std::string bytes;
    bytes.reserve(ids.size() * 4);
    for (CapturedId id : ids) {
        for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(static_cast<unsigned char>(id >> shift));
    }
    return sha256_hex(bytes);
}

void finish_identity(CaptureHeader& header) {
    Identity& id = header.identity;
    for (IdentityGroup* group : {&id.target, &id.draft, &id.tokenizer, &id.budget_seed, &id.build}) {
        if (group->files.empty()) continue;
        std::sort(group->files.begin(), group->files.end());
        if (!header.sanitised) group->digest = file_set_digest(group->files);
    }
    if (header.sanitised) return;
    for (CapturedRequest& request : header.requests) {
        if (!request.prompt_ids.empty()) request.prompt_digest = prompt_ids_digest(request.prompt_ids);
    }
    id.prompt_digest = prompt_group_digest(header.requests);
    id.settings_digest = settings_digest(header.settings);
    id.non_draft_input_digest = non_draft_input_digest(header);
}

Status validate_header(const CaptureHeader& h) {
    if (h.requests.empty()) return broken("requests", "none", "at least one request");
    if (h.level < 0 || h.level > 3) return broken("level", h.level, "0..3");
    if ((h.hidden > 0) != (h.level == 3)) {
        return broken("hidden", h.hidden, h.level == 3 ? "a positive width at level 3" : "0 below level 3");
    }
    if (h.level < 2 && !h.ledger.empty()) return broken("ledger", "events", "none below level 2");
    DP_RETURN_IF_ERROR(validate_settings(h.settings));
    DP_RETURN_IF_ERROR(validate_requests(h));
    DP_RETURN_IF_ERROR(validate_identity(h));
    for (const LedgerEvent& event : h.ledger) {
        if (!is_digest_or_empty(event.previous_occupant)) {
            return broken("ledger.previous_occupant", "'" + event.previous_occupant + "'", "a digest or nothing");
        }
        for (const LedgerComponent& component : event.components) {
            DP_RETURN_IF_ERROR(validate_component(event, component));
        }
    }
    if (h.near_tie) {
        for (double value : {h.near_tie->target, h.near_tie->selector, h.near_tie->width, h.near_tie->candidate}) {
            if (!std::isfinite(value) || value < 0) return broken("near_tie", value, "a finite number, 0 or more");
        }
    }
    return {};
}

Status validate_step(const StepRecord& s, const CaptureHeader& h) {
    if (!is_hex64_digits(s.context_hash)) return broken("context", "'" + s.context_hash + "'", "64 hex digits");
    const Exposure& e = s.exposure;
    if (e.total != e.computed + e.restored + e.carried + e.none) {
        return broken("exposure.total", e.total,
                      fmt::format("{} from its parts", e.computed + e.restored + e.carried + e.none));
    }
    for (const CapturedRequest& r : h.requests) {
        if (r.key != s.request) continue;
        const Position oldest = r.window == 0 ? 0 : std::max<Position>(0, s.length - r.window + 1);
        const Position visible = std::max<Position>(0, r.boundary - oldest);
        if (e.total != visible) {
            return broken(
                "exposure.total", e.total,
                fmt::format("{} from boundary {}, window {} and length {}", visible, r.boundary, r.window, s.length));
        }
    }
    if (s.draft_context.rows_valid > s.draft_context.rows_claimed) {
        return broken("draft_context.rows_valid", s.draft_context.rows_valid,
                      fmt::format("at most rows_claimed {}", s.draft_context.rows_claimed));
    }
    DP_RETURN_IF_ERROR(validate_ranges("draft_context.provenance", s.draft_context.provenance));
    Position above = -1;
    for (const RowPairing& pair : s.draft_context.pairing) {
        const bool known = pair.request.empty() || h.requests.empty() ||
                           std::any_of(h.requests.begin(), h.requests.end(),
                                       [&](const CapturedRequest& r) { return r.key == pair.request; });
        if (!known)
            return broken("draft_context.pairing.request", "'" + pair.request + "'", "a key of requests or \"\"");
        if (pair.row <= above) return broken("draft_context.pairing.row", pair.row, "ascending rows");
        above = pair.row;
    }
    DP_RETURN_IF_ERROR(validate_counts(s, h));
    DP_RETURN_IF_ERROR(validate_arrays(s, h));
    DP_RETURN_IF_ERROR(validate_acceptance(s));
    if (s.width_margin && std::isnan(*s.width_margin)) return broken("margins.width", "NaN", "a number");
    for (const StateDigest& digest : s.state_digests) {
        if (digest.component.empty() || !is_hex64_digits(digest.digest)) {
            return broken("digests.state", "'" + digest.digest + "'", "a component and 64 hex digits");
        }
    }
    return {};
}

void add_to_totals(const StepRecord& step, CaptureTotals& totals) {
    ++totals.lane_cycles;
    totals.drafted += step.drafted;
    totals.offered += step.offered;
    totals.verified += step.verified;
    totals.accepted += step.accepted;
    totals.retained += step.retained;
    totals.emitted += step.emitted;
}

}  // namespace draftprobe
