// Small synthetic captures for tests of capture/, compare/ and report/: a prompt of P tokens restored at B, and a few
// greedy cycles whose content is a function of the position alone. For tests only.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/hash.h"
#include "capture/capture.h"
#include "capture/context_hash.h"
#include "capture/validate.h"
#include "capture/writer.h"

namespace draftprobe::fixture {

struct Options {
    int level = 3;
    Position prompt = 256;
    Position boundary = 192;
    Position window = 128;
    std::vector<std::int64_t> accepted = {3, 7, 0, 5, 2, 6};
    std::string numerics = "f32";
    std::string budget = "full";
    std::string request = "r0";
    std::uint64_t seed = 1;
};

struct ArmData {
    CaptureShape shape;
    CaptureHeader header;
    std::vector<StepRecord> steps;
    std::vector<std::vector<Bf16>> draft_hidden;
    std::vector<std::vector<Bf16>> target_hidden;
};

inline constexpr std::int64_t kBlock = 8;
inline constexpr std::int64_t kCandidates = 4;
inline constexpr std::int64_t kHidden = 6;

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b = 0) {
    std::uint64_t z = (a + 1) * 0x9e3779b97f4a7c15ULL + b * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

inline std::string digest_of(std::string_view what) { return sha256_hex(what); }
inline TokenId token_at(Position p, std::uint64_t seed) {
    return static_cast<TokenId>(mix(static_cast<std::uint64_t>(p), seed) % 1000);
}
inline std::uint64_t row_digest(Position p) { return mix(static_cast<std::uint64_t>(p), 77) | 1; }
inline float fraction(std::uint64_t word) { return static_cast<float>(word % 4096) / 4096.0f; }

inline std::vector<std::uint64_t> row_digests(Position first, Position last) {
    std::vector<std::uint64_t> rows;
    for (Position p = first; p < last; ++p) rows.push_back(row_digest(p));
    return rows;
}

inline LedgerComponent component(std::string_view name, Position last, bool restored, Position boundary) {
    LedgerComponent c;
    c.component = name;
    c.last = last;
    c.rows_claimed = c.rows_written = last;
    const Position cut = restored ? std::min(boundary, last) : 0;
    if (cut > 0) c.sources.push_back({0, cut, RowSource::restored});
    if (cut < last) c.sources.push_back({cut, last, RowSource::computed});
    c.bytes = static_cast<std::uint64_t>(last) * 64;
    c.digest = digest_of(fmt::format("{} {}", name, last));
    return c;
}

inline LedgerEvent event(std::string name, const Options& o, Position position, std::int32_t lane, bool restored) {
    LedgerEvent e;
    e.event = std::move(name);
    e.request = o.request;
    e.lane = lane;
    e.position = position;
    for (std::string_view part : {kTargetKv, kRecurrent, kConv, kDraftContext, kDraftRing}) {
        e.components.push_back(component(part, position, restored, o.boundary));
    }
    e.row_first = 0;
    e.row_digests = row_digests(0, position);
    return e;
}

inline IdentityGroup group(std::string_view name) {
    IdentityGroup g;
    g.files = {fmt::format("{}  {}.safetensors", digest_of(name), name),
               fmt::format("{}  config.json", digest_of("config"))};
    return g;
}

inline StepRecord make_step(const Options& o, const CaptureHeader& h, std::int64_t cycle, std::int32_t lane,
                            Position length, std::int64_t accepted, bool restored) {
    StepRecord s;
    s.cycle = cycle;
    s.lane = lane;
    s.request = o.request;
    s.length = length;
    std::vector<TokenId> ids;
    for (Position p = 0; p < length; ++p) ids.push_back(token_at(p, o.seed));
    s.anchor = token_at(length, o.seed);
    s.context_hash = context_hash(h.identity.tokenizer.digest, ids, token_at(length, o.seed));
    s.exposure.total = std::max<Position>(0, o.boundary - std::max<Position>(0, length - o.window + 1));
    (restored ? s.exposure.restored : s.exposure.computed) = s.exposure.total;
    s.draft_context = {std::min(length, o.window - 1),
                       std::min(length, o.window - 1),
                       std::max<Position>(0, length - o.window + 1),
                       {{0, length, RowSource::computed}},
                       digest_of(fmt::format("context {}", length))};
    s.drafted = s.offered = s.verified = kBlock - 1;
    s.accepted = accepted;
    s.retained = s.emitted = accepted + 1;
    s.accepted_cut = accepted < s.verified ? CutReason::mismatch : CutReason::none;
    s.censored = accepted == s.verified;
    for (std::int64_t i = 0; i < s.drafted; ++i) {
        const std::uint64_t word = mix(static_cast<std::uint64_t>(length + i), 5);
        const CapturedId truth = token_at(length + 1 + i, o.seed);
        s.proposals.push_back(i == accepted ? truth + 1 : truth);
        for (std::int64_t k = 0; k < kCandidates; ++k) {
            s.candidate_ids.push_back(s.proposals.back() + static_cast<std::uint64_t>(k) * 1000);
            s.candidate_scores.push_back(10.0f - static_cast<float>(k) + fraction(word));
        }
        s.q.push_back(0.5f + fraction(word) / 4);
        s.prefix_confidence.push_back(0.9f - 0.05f * static_cast<float>(i));
        s.selector_margins.push_back(1.0f + fraction(word));
        s.candidate_margins.push_back(0.25f);
        s.draft_hidden_digests.push_back(mix(word, 1));
    }
    s.proposal_source = "selector";
    for (std::int64_t row = 0; row <= s.verified; ++row) {
        const CapturedId choice = token_at(length + 1 + row, o.seed);
        s.target_choices.push_back(choice);
        s.target_top2.insert(s.target_top2.end(), {choice, choice + 2000});
        s.target_top2_logits.insert(s.target_top2_logits.end(), {9.0f, 6.5f});
        s.target_margins.push_back(2.5f);
        s.target_hidden_digests.push_back(mix(static_cast<std::uint64_t>(length + row), 2));
    }
    for (std::int64_t i = 0; i < s.retained; ++i) s.committed.push_back(token_at(length + i, o.seed));
    s.next_anchor = token_at(length + s.retained, o.seed);
    s.state_digests = {{std::string(kTargetKv), digest_of(fmt::format("kv {}", length + s.retained))}};
    return s;
}

inline std::vector<Bf16> hidden_rows(std::int64_t rows, std::uint64_t seed) {
    std::vector<Bf16> values;
    for (std::int64_t i = 0; i < rows * kHidden; ++i) {
        values.push_back(static_cast<Bf16>(0x3f80 + mix(seed, static_cast<std::uint64_t>(i)) % 64));
    }
    return values;
}

inline ArmData make_arm(Arm arm, const Options& o = {}) {
    ArmData data;
    data.shape = {o.level, kBlock, kCandidates, kHidden, false};
    CaptureHeader& h = data.header;
    h.arm = arm;
    const bool restored = arm == Arm::restored;
    const std::int32_t lane = restored ? 1 : 0;
    h.identity.target = group("target");
    h.identity.draft = group("draft");
    h.identity.tokenizer = group("tokenizer");
    h.identity.build = group("build");
    h.settings = {{"kv_format", "bf16"},
                  {"numerics", o.numerics},
                  {"budget", o.budget},
                  {"block", "8"},
                  {"window", fmt::format("{}", o.window)},
                  {"chunk_tokens", "128"}};
    h.environment = {{"threads", "2"}, {"isa", "avx2"}};
    h.near_tie = NearTie{0.2, 0.1, 0.01, 5000};
    if (restored) h.treatment = {"exact", "exact", "memory", 0, 1, std::nullopt, false, {}};
    CapturedRequest request;
    request.key = o.request;
    request.prompt_length = o.prompt;
    request.boundary = o.boundary;
    request.window = o.window;
    for (Position p = 0; p < o.prompt; ++p) request.prompt_ids.push_back(token_at(p, o.seed));
    h.requests = {request};
    for (Position start = 0; start < o.prompt;) {
        const Position limit = start < o.boundary ? o.boundary : o.prompt;
        const Position end = std::min(start + 128, limit);
        const bool before = start < o.boundary;
        h.schedule.push_back({ForwardKind::prefill, before ? ForwardPhase::materialise : ForwardPhase::resume,
                              o.request, before ? 0 : lane, start, end - start, o.numerics});
        start = end;
    }
    for (std::string_view part : {kTargetKv, kRecurrent, kDraftContext}) {
        ComponentRows rows{o.request, std::string(part), o.prompt, 0, 0, 0};
        if (restored) rows = {o.request, std::string(part), o.prompt - o.boundary, o.boundary, 0, 0};
        h.totals.rows.push_back(rows);
    }
    h.ledger.push_back(event("materialise", o, o.boundary, 0, false));
    if (restored) {
        h.ledger.push_back(event("snapshot", o, o.boundary, 0, false));
        h.ledger.push_back(event("restore", o, o.boundary, 1, true));
        h.ledger.back().previous_occupant = digest_of("another request");
    }
    h.ledger.push_back(event("prefill", o, o.prompt, lane, restored));
    finish_identity(h);

    Position length = o.prompt;
    std::int64_t cycle = 0;
    for (std::int64_t accepted : o.accepted) {
        data.steps.push_back(make_step(o, h, cycle++, lane, length, accepted, restored));
        data.draft_hidden.push_back(hidden_rows(kBlock - 1, static_cast<std::uint64_t>(length)));
        data.target_hidden.push_back(
            hidden_rows(data.steps.back().verified + 1, static_cast<std::uint64_t>(length) + 9999));
        length += accepted + 1;
    }
    h.ledger.push_back(event("end", o, length, lane, restored));
    return data;
}

// The step with a changed number of accepted proposals keeps every rule of the format.
inline void set_accepted(StepRecord& s, std::int64_t accepted, const Options& o = {}) {
    s.accepted = accepted;
    s.retained = s.emitted = accepted + 1;
    s.accepted_cut = accepted < s.verified ? CutReason::mismatch : CutReason::none;
    s.retained_cut = s.emitted_cut = CutReason::none;
    s.censored = accepted == s.verified;
    s.committed.clear();
    for (std::int64_t i = 0; i < s.retained; ++i) s.committed.push_back(token_at(s.length + i, o.seed));
    s.next_anchor = token_at(s.length + s.retained, o.seed);
}

// The draft proposes the target's own choice `accepted` times and then another id.
inline void set_matches(StepRecord& s, std::int64_t accepted, const Options& o = {}) {
    for (std::int64_t i = 0; i < s.drafted; ++i) {
        const auto at = static_cast<std::size_t>(i);
        s.proposals[at] = token_at(s.length + 1 + i, o.seed) + (i == accepted ? 1 : 0);
    }
    set_accepted(s, accepted, o);
}

inline void set_verified(StepRecord& s, std::int64_t verified) {
    s.verified = verified;
    s.verified_cut = verified < s.offered ? CutReason::budget : CutReason::none;
    const auto rows = static_cast<std::size_t>(verified + 1);
    s.target_choices.resize(rows);
    s.target_top2.resize(rows * 2);
    s.target_top2_logits.resize(rows * 2);
    s.target_margins.resize(rows);
    s.target_hidden_digests.resize(rows);
    set_accepted(s, std::min(s.accepted, verified));
}

inline LedgerEvent* find_event(ArmData& data, std::string_view name) {
    for (LedgerEvent& e : data.header.ledger) {
        if (e.event == name) return &e;
    }
    return nullptr;
}

inline LedgerComponent* find_part(ArmData& data, std::string_view event_name, std::string_view name) {
    LedgerEvent* e = find_event(data, event_name);
    if (e == nullptr) return nullptr;
    for (LedgerComponent& c : e->components) {
        if (c.component == name) return &c;
    }
    return nullptr;
}

// The draft read other context rows at this step: everything that follows from them differs, from proposal `at` on.
inline void disturb_draft(ArmData& data, std::size_t index, std::int64_t at, const Options& o = {}) {
    StepRecord& s = data.steps[index];
    s.draft_context.digest = digest_of("disturbed " + s.draft_context.digest);
    for (auto& digest : s.draft_hidden_digests) digest ^= 1;
    for (auto& value : data.draft_hidden[index]) value ^= 1;
    for (std::size_t i = static_cast<std::size_t>(at); i < s.proposals.size(); ++i) s.proposals[i] += 500;
    if (s.accepted > at) set_accepted(s, at, o);
}

inline void keep_steps(ArmData& data, std::size_t count) {
    data.steps.resize(count);
    data.draft_hidden.resize(count);
    data.target_hidden.resize(count);
}

// Nobody wrote the draft's rows [first, last) in the restored arm, which claims them all the same.
inline void leave_unwritten(ArmData& data, Position first, Position last) {
    for (std::string_view event_name : {"restore", "prefill"}) {
        LedgerEvent& e = *find_event(data, event_name);
        for (Position p = first; p < std::min(last, e.position); ++p) {
            e.row_digests[static_cast<std::size_t>(p - e.row_first)] = 0xdead;
        }
        for (std::string_view name : {kDraftContext, kDraftRing}) {
            LedgerComponent& c = *find_part(data, event_name, name);
            c.rows_written = c.rows_claimed - (std::min(last, e.position) - first);
            c.sources = {{first, last, RowSource::none}};
            if (last < e.position) c.sources.push_back({last, e.position, RowSource::computed});
            c.digest = digest_of("poison");
        }
    }
    for (ComponentRows& rows : data.header.totals.rows) {
        if (rows.component == kDraftContext) rows = {rows.request, rows.component, rows.computed, 0, 0, last - first};
    }
    for (StepRecord& s : data.steps) {
        const Position oldest = s.draft_context.first_position;
        const std::int64_t missing = std::max<Position>(0, last - std::max(first, oldest));
        s.draft_context.rows_valid = s.draft_context.rows_claimed - missing;
        s.draft_context.provenance = {{first, last, RowSource::none}, {last, s.length, RowSource::computed}};
        s.exposure.none = s.exposure.total;
        s.exposure.restored = 0;
    }
}

// The restored arm declares that its draft sees nothing below the boundary.
inline void mask(ArmData& data, const Options& o = {}) {
    data.header.treatment.restore_draft = "masked";
    for (LedgerEvent& e : data.header.ledger) {
        if (e.event == "materialise") continue;
        if (e.event == "snapshot") {
            std::erase_if(e.components, [](const LedgerComponent& c) {
                return c.component == kDraftContext || c.component == kDraftRing;
            });
            e.row_digests.clear();
            e.row_first = 0;
            continue;
        }
        for (std::string_view name : {kDraftContext, kDraftRing}) {
            LedgerComponent& c = *find_part(data, e.event, name);
            c.first = c.base = o.boundary;
            c.rows_claimed = c.rows_written = e.position - o.boundary;
            c.sources.clear();
            if (e.position > o.boundary) c.sources.push_back({o.boundary, e.position, RowSource::computed});
            c.digest = digest_of(fmt::format("masked {} {}", name, e.position));
        }
        e.row_first = o.boundary;
        e.row_digests = row_digests(o.boundary, e.position);
    }
    for (ComponentRows& rows : data.header.totals.rows) {
        if (rows.component == kDraftContext) rows.restored = 0;
    }
    for (StepRecord& s : data.steps) {
        s.draft_context.first_position = std::max(s.draft_context.first_position, o.boundary);
        s.draft_context.rows_claimed = s.draft_context.rows_valid = s.length - s.draft_context.first_position;
        s.draft_context.provenance = {{s.draft_context.first_position, s.length, RowSource::computed}};
        s.draft_context.digest = digest_of(fmt::format("masked {} {}", kDraftContext, s.length));
        s.exposure.none = s.exposure.total;
        s.exposure.restored = 0;
    }
}

inline Result<std::string> write_arm(const std::filesystem::path& path, const ArmData& data, bool force = false) {
    DP_ASSIGN_OR_RETURN(CaptureWriter writer, CaptureWriter::create(path, force, data.shape));
    for (std::size_t i = 0; i < data.steps.size(); ++i) {
        StepTensors tensors;
        if (data.shape.level == 3) tensors = {data.draft_hidden[i].data(), data.target_hidden[i].data()};
        DP_RETURN_IF_ERROR(writer.add_step(data.steps[i], tensors));
    }
    return writer.finish(data.header);
}

}  // namespace draftprobe::fixture
