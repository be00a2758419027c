// The schema of capture.json and of a step line, written once and walked by the writer and by the reader, so that the
// two cannot drift. Inside capture/ only. docs/capture-format.md is the same list in prose.
//
// A visitor V has: object(key, walk), maybe(present, key), list(key, vector, walk), and one call per kind of value. The
// writing visitor emits; the reading visitor fills. maybe() says whether an optional member follows: when writing, the
// answer is `present`; when reading, whether `key` is next.
#pragma once

#include <bit>
#include <concepts>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/hash.h"
#include "base/json_writer.h"
#include "capture/capture.h"
#include "capture/json_cursor.h"
#include "capture/names.h"

namespace draftprobe::schema {

inline constexpr std::int64_t kMaxPosition = std::int64_t{1} << 40;
inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 53;

class Emit {
public:
    explicit Emit(JsonWriter& out) : out_(out) {}

    template <typename Walk>
    void object(std::string_view key, Walk walk) {
        out_.key(key).begin_object();
        walk();
        out_.end_object();
    }
    bool maybe(bool present, std::string_view) { return present; }
    template <typename T, typename Walk>
    void list(std::string_view key, const std::vector<T>& values, Walk walk) {
        out_.key(key).begin_array();
        for (const T& value : values) {
            out_.begin_object();
            walk(value);
            out_.end_object();
        }
        out_.end_array();
    }

    template <std::integral T>
    void integer(std::string_view key, T value, std::int64_t, std::int64_t) {
        out_.member(key, static_cast<std::int64_t>(value));
    }
    void word(std::string_view key, std::uint64_t value) { out_.member(key, value); }
    void number(std::string_view key, double value) { out_.member(key, value); }
    void single(std::string_view key, float value) { out_.key(key).value(value); }
    void flag(std::string_view key, bool value) { out_.member(key, value); }
    void text(std::string_view key, std::string_view value) { out_.key(key).value(value); }
    void digest(std::string_view key, std::string_view value) { out_.key(key).value(value); }
    template <typename E, std::size_t N>
    void choice(std::string_view key, E value, const std::array<std::string_view, N>& names) {
        out_.key(key).value(names[static_cast<std::size_t>(value)]);
    }
    void words(std::string_view key, const std::vector<std::uint64_t>& values) { plain(key, values); }
    void floats(std::string_view key, const std::vector<float>& values) { plain(key, values); }
    void doubles(std::string_view key, const std::vector<double>& values) { plain(key, values); }
    void texts(std::string_view key, const std::vector<std::string>& values) { plain(key, values); }
    void hash(std::string_view key, std::uint64_t value) { out_.key(key).value(hex64(value)); }
    void hashes(std::string_view key, const std::vector<std::uint64_t>& values) {
        out_.key(key).begin_array();
        for (std::uint64_t value : values) out_.value(hex64(value));
        out_.end_array();
    }

private:
    template <typename T>
    void plain(std::string_view key, const std::vector<T>& values) {
        out_.key(key).begin_array();
        for (const T& value : values) out_.value(value);
        out_.end_array();
    }

    JsonWriter& out_;
};

class Absorb {
public:
    explicit Absorb(JsonCursor& in) : in_(in) {}

    template <typename Walk>
    void object(std::string_view key, Walk walk) {
        expect(key);
        in_.begin_object();
        walk();
        in_.end_object();
    }
    bool maybe(bool, std::string_view key) { return in_.peek_key() == key; }
    template <typename T, typename Walk>
    void list(std::string_view key, std::vector<T>& values, Walk walk) {
        expect(key);
        in_.begin_array();
        values.clear();
        while (in_.more_elements()) {
            in_.begin_object();
            values.emplace_back();
            walk(values.back());
            in_.end_object();
        }
    }

    template <std::integral T>
    void integer(std::string_view key, T& value, std::int64_t min, std::int64_t max) {
        expect(key);
        value = static_cast<T>(in_.integer(min, max));
    }
    void word(std::string_view key, std::uint64_t& value) {
        expect(key);
        value = in_.unsigned_integer();
    }
    void number(std::string_view key, double& value) {
        expect(key);
        value = in_.f64();
    }
    void single(std::string_view key, float& value) {
        expect(key);
        value = in_.f32();
    }
    void flag(std::string_view key, bool& value) {
        expect(key);
        value = in_.boolean();
    }
    void text(std::string_view key, std::string& value) {
        expect(key);
        in_.string(value);
    }
    void digest(std::string_view key, std::string& value) {
        expect(key);
        value = in_.hex_string(64, true);
    }
    template <typename E, std::size_t N>
    void choice(std::string_view key, E& value, const std::array<std::string_view, N>& names) {
        expect(key);
        in_.string(scratch_);
        for (std::size_t i = 0; i < N; ++i) {
            if (names[i] == scratch_) {
                value = static_cast<E>(i);
                return;
            }
        }
        in_.fail(fmt::format("\"{}\"", scratch_), fmt::format("one of {}", fmt::join(names, ", ")));
    }
    void words(std::string_view key, std::vector<std::uint64_t>& values) {
        expect(key);
        in_.unsigned_array(values);
    }
    void floats(std::string_view key, std::vector<float>& values) {
        expect(key);
        in_.f32_array(values);
    }
    void doubles(std::string_view key, std::vector<double>& values) {
        expect(key);
        in_.f64_array(values);
    }
    void texts(std::string_view key, std::vector<std::string>& values) {
        expect(key);
        in_.begin_array();
        values.clear();
        while (in_.more_elements()) {
            in_.string(scratch_);
            values.push_back(scratch_);
        }
    }
    void hash(std::string_view key, std::uint64_t& value) {
        expect(key);
        value = in_.hash16();
    }
    void hashes(std::string_view key, std::vector<std::uint64_t>& values) {
        expect(key);
        in_.hash16_array(values);
    }

private:
    void expect(std::string_view key) {
        if (in_.take_key_if(key)) return;
        const std::string_view found = in_.peek_key();
        if (!in_.ok()) return;
        if (found != key) {
            in_.fail(found.empty() ? std::string("the end of the object") : fmt::format("key '{}'", found),
                     fmt::format("key '{}' (keys come once, in the documented order)", key));
            return;
        }
        in_.take_key();
    }

    JsonCursor& in_;
    std::string scratch_;
};

// Walks below take the struct by the reference kind the visitor needs: const when writing, mutable when reading.

template <typename V, typename Ranges>
void source_ranges(V& v, std::string_view key, Ranges& ranges) {
    v.list(key, ranges, [&](auto& range) {
        v.integer("first", range.first, 0, kMaxPosition);
        v.integer("last", range.last, 0, kMaxPosition);
        v.choice("source", range.source, kRowSourceNames);
    });
}

template <typename V, typename Group>
void identity_group(V& v, std::string_view key, Group& group) {
    v.object(key, [&] {
        v.digest("digest", group.digest);
        if (v.maybe(!group.files.empty(), "files")) v.texts("files", group.files);
        if (v.maybe(group.cached, "cached")) v.flag("cached", group.cached);
    });
}

template <typename V, typename Settings>
void settings_list(V& v, std::string_view key, Settings& settings) {
    v.list(key, settings, [&](auto& setting) {
        v.text("field", setting.field);
        v.text("value", setting.value);
    });
}

template <typename V, typename Header>
void identity(V& v, Header& h) {
    v.object("identity", [&] {
        auto& id = h.identity;
        identity_group(v, "target", id.target);
        identity_group(v, "draft", id.draft);
        identity_group(v, "tokenizer", id.tokenizer);
        v.object("template", [&] {
            v.digest("digest", id.chat_template.digest);
            v.text("thinking", id.chat_template.thinking);
            v.text("effort", id.chat_template.effort);
            if (v.maybe(!id.chat_template.rendered_digest.empty(), "rendered")) {
                v.digest("rendered", id.chat_template.rendered_digest);
            }
        });
        v.digest("prompt", id.prompt_digest);
        v.digest("settings", id.settings_digest);
        identity_group(v, "budget_seed", id.budget_seed);
        identity_group(v, "build", id.build);
        v.digest("non_draft_input", id.non_draft_input_digest);
    });
}

template <typename V, typename Header>
void treatment(V& v, Header& h) {
    v.object("treatment", [&] {
        auto& t = h.treatment;
        v.text("restore_target", t.restore_target);
        v.text("restore_draft", t.restore_draft);
        v.text("tier", t.tier);
        v.integer("lane_from", t.lane_from, 0, 1 << 20);
        v.integer("lane_to", t.lane_to, 0, 1 << 20);
        if (v.maybe(t.recompute_start.has_value(), "recompute_start")) {
            Position start = t.recompute_start.value_or(0);
            v.integer("recompute_start", start, 0, kMaxPosition);
            if constexpr (std::same_as<V, Absorb>) t.recompute_start = start;
        }
        v.flag("lockstep", t.lockstep);
        v.texts("faults", t.faults);
    });
}

template <typename V, typename Event>
void ledger_event(V& v, Event& event) {
    v.text("event", event.event);
    v.text("request", event.request);
    v.integer("lane", event.lane, 0, 1 << 20);
    v.integer("position", event.position, 0, kMaxPosition);
    v.list("components", event.components, [&](auto& c) {
        v.text("component", c.component);
        v.integer("first", c.first, 0, kMaxPosition);
        v.integer("last", c.last, 0, kMaxPosition);
        v.integer("base", c.base, 0, kMaxPosition);
        v.integer("rows_claimed", c.rows_claimed, 0, kMaxPosition);
        v.integer("rows_written", c.rows_written, 0, kMaxPosition);
        source_ranges(v, "sources", c.sources);
        v.text("tier", c.tier);
        v.word("bytes", c.bytes);
        v.digest("digest", c.digest);
        if (v.maybe(!c.expected.empty(), "expected")) v.digest("expected", c.expected);
    });
    if (v.maybe(!event.row_digests.empty(), "row_first")) {
        v.integer("row_first", event.row_first, 0, kMaxPosition);
        v.hashes("row_digests", event.row_digests);
    }
    if (v.maybe(!event.expected_row_digests.empty(), "expected_row_first")) {
        v.integer("expected_row_first", event.expected_row_first, 0, kMaxPosition);
        v.hashes("expected_row_digests", event.expected_row_digests);
    }
    if (v.maybe(event.anchor_margin.has_value(), "anchor_margin")) {
        float margin = event.anchor_margin.value_or(0);
        v.single("anchor_margin", margin);
        if constexpr (std::same_as<V, Absorb>) event.anchor_margin = margin;
    }
    if (v.maybe(!event.previous_occupant.empty() || event.previous_shared_tokens != 0, "previous_occupant")) {
        v.digest("previous_occupant", event.previous_occupant);
        v.integer("previous_shared_tokens", event.previous_shared_tokens, 0, kMaxPosition);
    }
    if (v.maybe(event.read_step != 0, "read_step")) {
        v.integer("read_step", event.read_step, 1, kMaxCount);
        v.integer("written_step", event.written_step, 0, kMaxCount);
    }
}

template <typename V, typename Header>
void totals(V& v, Header& h) {
    v.object("totals", [&] {
        auto& t = h.totals;
        v.integer("lane_cycles", t.lane_cycles, 0, kMaxCount);
        v.integer("drafted", t.drafted, 0, kMaxCount);
        v.integer("offered", t.offered, 0, kMaxCount);
        v.integer("verified", t.verified, 0, kMaxCount);
        v.integer("accepted", t.accepted, 0, kMaxCount);
        v.integer("retained", t.retained, 0, kMaxCount);
        v.integer("emitted", t.emitted, 0, kMaxCount);
        v.list("rows", t.rows, [&](auto& rows) {
            v.text("request", rows.request);
            v.text("component", rows.component);
            v.integer("computed", rows.computed, 0, kMaxPosition);
            v.integer("restored", rows.restored, 0, kMaxPosition);
            v.integer("carried", rows.carried, 0, kMaxPosition);
            v.integer("none", rows.none, 0, kMaxPosition);
        });
    });
}

// Everything of capture.json after "format" and "version".
template <typename V, typename Header>
void header(V& v, Header& h) {
    v.integer("level", h.level, 0, 3);
    v.flag("sanitised", h.sanitised);
    v.choice("arm", h.arm, kArmNames);
    treatment(v, h);
    identity(v, h);
    settings_list(v, "settings", h.settings);
    settings_list(v, "environment", h.environment);
    v.integer("block", h.block, 1, 1024);
    v.integer("candidates", h.candidates, 0, 1 << 16);
    v.integer("hidden", h.hidden, 0, 1 << 24);
    v.flag("timing_confounded", h.timing_confounded);
    if (v.maybe(h.near_tie.has_value(), "near_tie")) {
        if constexpr (std::same_as<V, Absorb>) h.near_tie.emplace();
        v.object("near_tie", [&] {
            v.number("target", h.near_tie->target);
            v.number("selector", h.near_tie->selector);
            v.number("width", h.near_tie->width);
            if (v.maybe(h.near_tie->candidate != 0, "candidate")) v.number("candidate", h.near_tie->candidate);
            v.integer("samples", h.near_tie->samples, 0, kMaxCount);
        });
    }
    v.texts("notes", h.notes);
    v.list("requests", h.requests, [&](auto& r) {
        v.text("key", r.key);
        v.digest("prompt_digest", r.prompt_digest);
        if (v.maybe(!r.prompt_ids.empty(), "prompt_ids")) v.words("prompt_ids", r.prompt_ids);
        v.integer("prompt_length", r.prompt_length, 0, kMaxPosition);
        v.integer("boundary", r.boundary, 0, kMaxPosition);
        v.integer("window", r.window, 0, kMaxPosition);
    });
    totals(v, h);
    v.list("schedule", h.schedule, [&](auto& call) {
        v.choice("kind", call.kind, kForwardKindNames);
        v.choice("phase", call.phase, kForwardPhaseNames);
        v.text("request", call.request);
        v.integer("lane", call.lane, 0, 1 << 20);
        v.integer("start", call.start, 0, kMaxPosition);
        v.integer("rows", call.rows, 1, kMaxPosition);
        v.text("class", call.numerics_class);
    });
    if (v.maybe(h.level >= 2, "ledger")) {
        v.list("ledger", h.ledger, [&](auto& event) { ledger_event(v, event); });
    }
}

template <typename V, typename State>
void controller_state(V& v, std::string_view key, State& state) {
    if (!v.maybe(state.has_value(), key)) return;
    if constexpr (std::same_as<V, Absorb>) state.emplace();
    v.object(key, [&] {
        v.doubles("successes", state->successes);
        v.doubles("failures", state->failures);
        v.doubles("cost", state->cost);
    });
}

template <typename V, typename Step>
void step_counts(V& v, Step& s) {
    v.integer("drafted", s.drafted, 0, 1024);
    v.integer("offered", s.offered, 0, 1024);
    v.integer("verified", s.verified, 0, 1024);
    v.integer("accepted", s.accepted, 0, 1024);
    v.integer("retained", s.retained, 0, 1024);
    v.integer("emitted", s.emitted, 0, 1024);
    v.object("cuts", [&] {
        v.choice("drafted", s.drafted_cut, kCutReasonNames);
        v.choice("offered", s.offered_cut, kCutReasonNames);
        v.choice("verified", s.verified_cut, kCutReasonNames);
        v.choice("accepted", s.accepted_cut, kCutReasonNames);
        v.choice("retained", s.retained_cut, kCutReasonNames);
        v.choice("emitted", s.emitted_cut, kCutReasonNames);
    });
}

// One line of steps.jsonl. `level` is the capture's: below 2 the digests do not exist.
template <typename V, typename Step>
void step(V& v, Step& s, int level) {
    v.integer("cycle", s.cycle, 0, kMaxCount);
    v.integer("lane", s.lane, 0, 1 << 20);
    v.text("request", s.request);
    v.integer("length", s.length, 0, kMaxPosition);
    v.word("anchor", s.anchor);
    v.digest("context", s.context_hash);
    if (v.maybe(s.forced, "forced")) v.flag("forced", s.forced);
    v.object("exposure", [&] {
        v.integer("total", s.exposure.total, 0, kMaxPosition);
        v.integer("computed", s.exposure.computed, 0, kMaxPosition);
        v.integer("restored", s.exposure.restored, 0, kMaxPosition);
        v.integer("carried", s.exposure.carried, 0, kMaxPosition);
        v.integer("none", s.exposure.none, 0, kMaxPosition);
    });
    v.object("draft_context", [&] {
        v.integer("rows_claimed", s.draft_context.rows_claimed, 0, kMaxPosition);
        v.integer("rows_valid", s.draft_context.rows_valid, 0, kMaxPosition);
        v.integer("first_position", s.draft_context.first_position, 0, kMaxPosition);
        source_ranges(v, "provenance", s.draft_context.provenance);
        if (v.maybe(!s.draft_context.pairing.empty(), "pairing")) {
            v.list("pairing", s.draft_context.pairing, [&](auto& pair) {
                v.integer("row", pair.row, 0, kMaxPosition);
                v.text("request", pair.request);
                v.integer("position", pair.position, 0, kMaxPosition);
            });
        }
        if (v.maybe(level >= 2 && !s.draft_context.digest.empty(), "digest")) {
            v.digest("digest", s.draft_context.digest);
        }
    });
    step_counts(v, s);
    v.words("proposals", s.proposals);
    v.text("proposal_source", s.proposal_source);
    if (v.maybe(!s.q.empty(), "q")) v.floats("q", s.q);
    if (v.maybe(!s.prefix_confidence.empty(), "confidence")) v.floats("confidence", s.prefix_confidence);
    if (v.maybe(!s.candidate_ids.empty(), "candidate_ids")) {
        v.words("candidate_ids", s.candidate_ids);
    }
    if (v.maybe(!s.candidate_scores.empty(), "candidate_scores")) v.floats("candidate_scores", s.candidate_scores);
    v.words("target_choices", s.target_choices);
    if (v.maybe(!s.target_top2.empty(), "target_top2")) v.words("target_top2", s.target_top2);
    if (v.maybe(!s.target_top2_logits.empty(), "target_top2_logits")) {
        v.floats("target_top2_logits", s.target_top2_logits);
    }
    v.integer("matches_beyond", s.matches_beyond, 0, 1024);
    v.flag("censored", s.censored);
    v.object("margins", [&] {
        if (v.maybe(!s.target_margins.empty(), "target")) v.floats("target", s.target_margins);
        if (v.maybe(!s.selector_margins.empty(), "selector")) v.floats("selector", s.selector_margins);
        if (v.maybe(!s.candidate_margins.empty(), "candidate")) v.floats("candidate", s.candidate_margins);
        if (v.maybe(s.width_margin.has_value(), "width")) {
            double margin = s.width_margin.value_or(0);
            v.number("width", margin);
            if constexpr (std::same_as<V, Absorb>) s.width_margin = margin;
        }
    });
    controller_state(v, "controller_in", s.controller_in);
    controller_state(v, "controller_out", s.controller_out);
    v.words("committed", s.committed);
    v.word("next_anchor", s.next_anchor);
    if (!v.maybe(level >= 2, "digests")) return;
    v.object("digests", [&] {
        v.list("state", s.state_digests, [&](auto& digest) {
            v.text("component", digest.component);
            v.digest("digest", digest.digest);
        });
        v.hashes("draft_hidden", s.draft_hidden_digests);
        v.hashes("target_hidden", s.target_hidden_digests);
        if (v.maybe(!s.witness.empty(), "witness")) {
            v.list("witness", s.witness, [&](auto& w) {
                v.text("component", w.component);
                v.hash("found", w.found);
                v.hash("expected", w.expected);
            });
        }
    });
}

}  // namespace draftprobe::schema
