#include "probe/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/float_bits.h"
#include "base/hash.h"
#include "capture/context_hash.h"
#include "decode/ranking.h"
#include "state/ledger.h"

namespace draftprobe::probe {

namespace {

RowSource source_of(state::RowSource source) {
    switch (source) {
        case state::RowSource::computed: return RowSource::computed;
        case state::RowSource::restored: return RowSource::restored;
        case state::RowSource::carried: return RowSource::carried;
        case state::RowSource::none: return RowSource::none;
    }
    return RowSource::none;
}

std::vector<SourceRange> ranges_of(const std::vector<state::SourceRange>& ranges, Position first, Position last) {
    std::vector<SourceRange> result;
    for (const auto& range : ranges) {
        const Position begin = std::max(range.first, first);
        const Position end = std::min(range.last, last);
        if (begin < end) result.push_back({begin, end, source_of(range.source)});
    }
    return result;
}

// Adds the positions of `ranges` inside [first, last) to the counts by source; uncovered positions count as none.
template <typename Counts>
void count_sources(const std::vector<state::SourceRange>& ranges, Position first, Position last, Counts& counts) {
    std::int64_t covered = 0;
    for (const SourceRange& range : ranges_of(ranges, first, last)) {
        const std::int64_t rows = range.last - range.first;
        covered += rows;
        switch (range.source) {
            case RowSource::computed: counts.computed += rows; break;
            case RowSource::restored: counts.restored += rows; break;
            case RowSource::carried: counts.carried += rows; break;
            case RowSource::none: counts.none += rows; break;
        }
    }
    counts.none += std::max<std::int64_t>(0, last - first - covered);
}

// The oldest row that the draft reads and the newest, with the target rows that they came from.
std::vector<RowPairing> pairing_of(const state::DraftContext& context, const std::string& request) {
    std::vector<RowPairing> pairing;
    const Position newest = context.end() - 1;
    for (const Position row : {context.first(), newest}) {
        if (row > newest || !context.row_written(row)) continue;
        const state::RowOrigin origin = context.origin(row);
        RowPairing pair{row, origin.request == context.request() ? request : "", origin.position};
        if (pairing.empty() || pairing.back() != pair) pairing.push_back(std::move(pair));
    }
    return pairing;
}

std::string_view source_name(decode::ProposalSource source) {
    switch (source) {
        case decode::ProposalSource::selector: return "selector";
        case decode::ProposalSource::argmax: return "argmax";
        case decode::ProposalSource::script: return "scripted";
    }
    return "none";
}

ControllerState controller_state(const budget::Controller& controller) {
    const budget::State& state = controller.state();
    return {state.successes, state.failures, state.cost};
}

// Rows as BF16 and the digest of each float32 row before that rounding.
void keep_rows(numerics::ConstRows rows, std::vector<Bf16>& bits, std::vector<std::uint64_t>& digests) {
    bits.clear();
    digests.clear();
    for (std::size_t r = 0; r < rows.rows; ++r) {
        const std::span<const float> row(rows.row(r), rows.cols);
        digests.push_back(xxh3_64(std::as_bytes(row)));
        for (const float value : row) bits.push_back(f32_to_bf16(value));
    }
}

ForwardKind kind_of(decode::ForwardKind kind) {
    switch (kind) {
        case decode::ForwardKind::prefill: return ForwardKind::prefill;
        case decode::ForwardKind::verify: return ForwardKind::verify;
        case decode::ForwardKind::plain: return ForwardKind::plain;
    }
    return ForwardKind::prefill;
}

// The chosen token is state that a request needs to go on. One row, at the position where it will be written.
LedgerComponent anchor_component(const state::Lane& lane) {
    LedgerComponent component;
    component.component = kAnchor;
    component.first = component.base = lane.length;
    component.last = lane.length + 1;
    component.rows_claimed = component.rows_written = 1;
    component.sources = {{component.first, component.last, RowSource::computed}};
    component.bytes = sizeof(lane.anchor);
    component.digest = sha256_hex(fmt::format("anchor {}", lane.anchor));
    return component;
}

}  // namespace

void Recorder::ledger_event(const std::string& name, const state::Lane& lane, std::string_view tier,
                            std::span<const TokenId> prompt, std::span<const TokenId> occupant) {
    if (options_.level < 2) return;
    LedgerEvent event;
    event.event = name;
    event.request = options_.request;
    event.lane = lane.id();
    event.position = lane.length;
    for (const state::LedgerEntry& entry : state::lane_ledger(lane, true)) {
        LedgerComponent component;
        component.component = state::component_name(entry.component);
        component.first = entry.first;
        component.last = entry.last;
        component.base = entry.base;
        component.rows_claimed = static_cast<std::int64_t>(entry.rows_claimed);
        component.rows_written = static_cast<std::int64_t>(entry.rows_written);
        component.sources = ranges_of(entry.sources, entry.first, entry.last);
        component.tier = tier;
        component.bytes = entry.bytes;
        component.digest = entry.digest;
        event.components.push_back(std::move(component));
    }
    if (lane.has_anchor) event.components.push_back(anchor_component(lane));
    event.row_first = lane.draft.first();
    event.row_digests = state::context_row_digests(lane);
    if (name == "prefill") event.anchor_margin = anchor_margin_;
    event.previous_occupant = lane.previous_occupant;
    if (!lane.previous_occupant.empty()) {
        const std::size_t limit = std::min(prompt.size(), occupant.size());
        std::size_t shared = 0;
        while (shared < limit && prompt[shared] == occupant[shared]) ++shared;
        event.previous_shared_tokens = static_cast<Position>(shared);
    }
    ledger.push_back(std::move(event));
}

void Recorder::ledger_request(const state::RequestRecord& record, const state::Lane& lane) {
    if (options_.level < 2) return;
    const std::string content = state::canonical_request(record);
    LedgerComponent component;
    component.component = state::kRequestComponent;
    component.first = component.base = lane.length;
    component.last = lane.length + 1;
    component.rows_claimed = component.rows_written = 1;
    component.sources = {{component.first, component.last, RowSource::computed}};
    component.bytes = content.size();
    component.digest = sha256_hex(content);
    ledger.back().components.push_back(std::move(component));
}

void Recorder::count_rows(const state::Lane& lane) {
    for (const state::LedgerEntry& entry : state::lane_ledger(lane, false)) {
        ComponentRows counts;
        counts.request = options_.request;
        counts.component = state::component_name(entry.component);
        // Recurrent components count tokens consumed: all of [0, P).
        const bool draft =
            entry.component == state::Component::draft_context || entry.component == state::Component::draft_rings;
        count_sources(entry.sources, draft ? entry.first : 0, lane.length, counts);
        rows.push_back(std::move(counts));
    }
}

void Recorder::on_forward(decode::ForwardKind kind, const state::Lane& lane, Position start, std::size_t row_count) {
    if (kind == decode::ForwardKind::verify) return;  // its StepRecord says it
    ForwardCall call;
    call.kind = kind_of(kind);
    call.phase = phase_;
    call.request = options_.request;
    call.lane = lane.id();
    call.start = start;
    call.rows = static_cast<std::int64_t>(row_count);
    call.numerics_class = options_.numerics_class;
    schedule.push_back(std::move(call));
}

void Recorder::on_anchor(const state::Lane&, std::span<const float> logits) {
    const auto best = decode::top_logits(logits, 2);
    anchor_margin_ = best[0].logit - best[1].logit;
}

void Recorder::on_propose(const state::Lane& lane, const decode::DraftChoice& choice, numerics::ConstRows hidden) {
    step_ = StepRecord();
    step_.cycle = static_cast<std::int64_t>(cycle_);
    step_.lane = lane.id();
    step_.request = options_.request;
    step_.length = lane.length;
    step_.anchor = lane.anchor;
    step_.context_hash = context_hash(options_.tokenizer_digest, lane.tokens, lane.anchor);

    const Position oldest_visible = std::max<Position>(0, lane.length - static_cast<Position>(options_.window) + 1);
    if (oldest_visible < options_.boundary) {
        count_sources(lane.draft.sources(), oldest_visible, options_.boundary, step_.exposure);
        step_.exposure.total = options_.boundary - oldest_visible;
    }
    step_.draft_context.rows_claimed = static_cast<std::int64_t>(lane.draft.rows_claimed());
    step_.draft_context.rows_valid =
        static_cast<std::int64_t>(std::min(lane.draft.rows_written(), lane.draft.rings_written()));
    step_.draft_context.first_position = lane.draft.first();
    step_.draft_context.provenance = ranges_of(lane.draft.sources(), lane.draft.first(), lane.draft.end());
    step_.draft_context.pairing = pairing_of(lane.draft, options_.request);
    if (options_.level >= 2)
        step_.draft_context.digest = state::component_digest(lane, state::Component::draft_context);

    step_.candidate_ids.assign(choice.candidates.begin(), choice.candidates.end());
    step_.candidate_scores = choice.unary;
    step_.proposals.assign(choice.proposals.begin(), choice.proposals.end());
    step_.q = choice.q;
    step_.prefix_confidence = choice.prefix_confidence;
    for (std::size_t t = 0; t < choice.proposals.size() && choice.top_k > 1; ++t) {
        step_.candidate_margins.push_back(choice.unary[(t + 1) * choice.top_k - 1] - choice.next_unary[t]);
        if (choice.scores.empty()) continue;
        std::vector<float> scores(choice.scores.begin() + static_cast<std::ptrdiff_t>(t * choice.top_k),
                                  choice.scores.begin() + static_cast<std::ptrdiff_t>((t + 1) * choice.top_k));
        std::partial_sort(scores.begin(), scores.begin() + 2, scores.end(), std::greater<>());
        step_.selector_margins.push_back(scores[0] - scores[1]);
    }
    for (std::size_t r = 0; options_.require_finite && status_.ok() && r < hidden.rows; ++r) {
        if (std::all_of(hidden.row(r), hidden.row(r) + hidden.cols, [](float x) { return std::isfinite(x); })) continue;
        status_ =
            corrupt(fmt::format("draft: hidden row {} of the block at position {} is not finite, expected finite "
                                "numbers; the draft's weights overflow float32",
                                r + 1, lane.length));
    }
    keep_rows(hidden, draft_hidden_, step_.draft_hidden_digests);
    // Without a draft there are no rows to be right or wrong: the step says itself that nothing was drafted.
    if (expected_draft_ && !choice.proposals.empty())
        step_.witness.push_back({"draft_hidden", hash_of_rows(hidden), *expected_draft_});
    expected_draft_.reset();
    step_.drafted = static_cast<std::int64_t>(choice.proposals.size());
    if (choice.proposals.size() + 1 < options_.block) step_.drafted_cut = CutReason::no_draft;
}

void Recorder::on_verify(const decode::VerifyView& view) {
    const decode::CycleResult& result = view.result;
    step_.proposal_source =
        view.sampled && view.source != decode::ProposalSource::script ? "sampled" : source_name(view.source);
    if (step_.drafted == 0) step_.proposal_source = "none";
    step_.width_margin = result.width_margin;
    if (view.controller != nullptr) step_.controller_in = controller_state(*view.controller);
    step_.offered = static_cast<std::int64_t>(result.offered);
    step_.verified = static_cast<std::int64_t>(result.verified);
    step_.accepted = static_cast<std::int64_t>(result.accepted);
    step_.retained = static_cast<std::int64_t>(result.retained);
    step_.emitted = static_cast<std::int64_t>(result.emitted.size());
    if (step_.offered < step_.drafted) step_.offered_cut = CutReason::budget;
    if (step_.accepted < step_.verified) step_.accepted_cut = CutReason::mismatch;
    if (step_.retained < step_.accepted + 1) {
        step_.retained_cut = step_.emitted_cut = result.cut == decode::Cut::stop ? CutReason::stop : CutReason::limit;
    }
    step_.censored = !observed_acceptance(step_).rejected;
    step_.target_choices.assign(view.target_choices.begin(), view.target_choices.end());
    for (std::size_t r = 0; r < view.logits.rows; ++r) {
        const auto best = decode::top_logits({view.logits.row(r), view.logits.cols}, 2);
        for (const auto& entry : best) {
            step_.target_top2.push_back(entry.token);
            step_.target_top2_logits.push_back(entry.logit);
        }
        step_.target_margins.push_back(best[0].logit - best[1].logit);
    }
    keep_rows(view.hidden, target_hidden_, step_.target_hidden_digests);
    step_.forced = view.forced;
    step_.committed.assign(view.committed.begin(), view.committed.end());
    step_.next_anchor = view.next_anchor;
    commit_.reset();
    // Forced tokens behind the verified rows are computed by another forward, whose operands are not here.
    const bool verified =
        std::equal(view.committed.begin(), view.committed.end(), view.rows.begin(),
                   view.rows.begin() + static_cast<std::ptrdiff_t>(std::min(view.committed.size(), view.rows.size())));
    if (options_.witness && verified) commit_.emplace().before(view.lane, view.rows.size(), view.committed.size());
    if (!options_.require_finite) cut_at_non_finite(view);
}

// Rows up to the first one that is not finite are evidence, nothing behind them is, and no token of this cycle is given
// out. The anchor's row stays even when it is that row: a step has one.
void Recorder::cut_at_non_finite(const decode::VerifyView& view) {
    const auto finite = [&](std::size_t row) {
        return std::all_of(view.hidden.row(row), view.hidden.row(row) + view.hidden.cols,
                           [](float x) { return std::isfinite(x); });
    };
    std::size_t first = 0;
    while (first < view.hidden.rows && finite(first)) ++first;
    if (first == view.hidden.rows) return;
    ended_early_ = fmt::format(
        "the arm ended at cycle {}: the target's hidden row {} of that cycle is not finite; state was read that nobody "
        "wrote, or that was damaged",
        cycle_, first);
    const std::size_t kept = std::max<std::size_t>(first, 1);
    const auto verified = static_cast<std::int64_t>(kept) - 1;
    if (verified < step_.verified) step_.verified_cut = CutReason::error;
    step_.verified = verified;
    step_.accepted = std::min(step_.accepted, verified);
    step_.accepted_cut = step_.accepted < verified ? CutReason::mismatch : CutReason::none;
    step_.retained = step_.emitted = 0;
    step_.retained_cut = step_.emitted_cut = CutReason::error;
    step_.censored = !observed_acceptance(step_).rejected;
    step_.target_choices.resize(kept);
    step_.target_top2.resize(2 * kept);
    step_.target_top2_logits.resize(2 * kept);
    step_.target_margins.resize(kept);
    step_.target_hidden_digests.resize(kept);
    target_hidden_.resize(kept * view.hidden.cols);
    step_.committed.clear();
    step_.next_anchor = step_.anchor;
}

bool Recorder::digests_recurrent_state(const decode::CycleResult& result) {
    if (result.accepted != 0) return cycle_ == 1;
    ++full_rejects_;
    const bool power_of_four = std::has_single_bit(full_rejects_) && std::countr_zero(full_rejects_) % 2 == 0;
    return cycle_ == 1 || power_of_four;
}

void Recorder::on_commit(const state::Lane& lane, const decode::CycleResult& result,
                         const budget::Controller* controller) {
    ++cycle_;
    if (controller != nullptr) step_.controller_out = controller_state(*controller);
    const bool recurrent = digests_recurrent_state(result);
    const bool all = options_.digest_every != 0 && cycle_ % options_.digest_every == 0;
    for (const state::Component component : state::kComponents) {
        const bool taken = all || (recurrent && state::is_recurrent_component(component));
        if (options_.level < 2 || !taken || !state::has_component(lane.shape(), component)) continue;
        step_.state_digests.push_back(
            {std::string(state::component_name(component)), state::component_digest(lane, component)});
    }
    if (commit_) {
        if (std::optional<Witness> witness = commit_->after(lane)) step_.witness.push_back(std::move(*witness));
    }
    if (!status_.ok()) return;
    status_ = writer_.add_step(step_, {draft_hidden_.data(), target_hidden_.data()});
}

}  // namespace draftprobe::probe
