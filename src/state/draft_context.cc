#include "state/draft_context.h"

#include <algorithm>

namespace draftprobe::state {

void append_source(std::vector<SourceRange>& ranges, Position first, Position last, RowSource source) {
    if (first >= last) return;
    if (!ranges.empty() && ranges.back().last == first && ranges.back().source == source) {
        ranges.back().last = last;
    } else {
        ranges.push_back({first, last, source});
    }
}

DraftContext::DraftContext(const StateShape& shape, bool poison)
    : capacity_(shape.context_capacity),
      poison_(poison),
      rows_(shape.context_capacity, shape.hidden, shape.row_format),
      row_stamp_(shape.context_capacity, -1),
      ring_stamp_(shape.context_capacity, -1),
      origins_(shape.context_capacity),
      page_digests_(shape.context_capacity / static_cast<std::size_t>(kPageTokens) + 1) {
    for (std::size_t layer = 0; layer < shape.draft_layers; ++layer) {
        keys_.emplace_back(capacity_, shape.draft_kv_floats(), shape.row_format);
        values_.emplace_back(capacity_, shape.draft_kv_floats(), shape.row_format);
    }
    if (poison_) {
        rows_.poison();
        for (std::size_t layer = 0; layer < keys_.size(); ++layer) {
            keys_[layer].poison();
            values_[layer].poison();
        }
    }
}

void DraftContext::reset() {
    ++request_;
    first_ = end_ = 0;
    sources_.clear();
    std::fill(row_stamp_.begin(), row_stamp_.end(), Position{-1});
    std::fill(ring_stamp_.begin(), ring_stamp_.end(), Position{-1});
}

void DraftContext::advance(Position end, RowSource source) {
    append_source(sources_, end_, end, source);
    end_ = end;
    first_ = std::max(first_, end_ - static_cast<Position>(capacity_));
    while (!sources_.empty() && sources_.front().last <= first_) sources_.erase(sources_.begin());
    if (!sources_.empty()) sources_.front().first = std::max(sources_.front().first, first_);
}

void DraftContext::claim(Position first, Position end, RowSource source) {
    first_ = first;
    end_ = end;
    sources_.clear();
    append_source(sources_, first, end, source);
}

Sha256Digest DraftContext::page_digest(Position page) const {
    const Position begin = page * kPageTokens;
    std::uint64_t writes = 0;
    for (Position p = begin; p < begin + kPageTokens; ++p) writes += rows_.writes(slot(p));
    PageDigest& kept = page_digests_[static_cast<std::size_t>(page) % page_digests_.size()];
    if (kept.page != page || kept.writes != writes) {
        Sha256 hash;
        for (Position p = begin; p < begin + kPageTokens; ++p) hash.update(rows_.bytes(slot(p)));
        kept = {page, writes, hash.finish()};
        ++pages_hashed_;
    }
    return kept.digest;
}

namespace {
std::size_t count_stamped(const DraftContext& context, const std::vector<Position>& stamps) {
    std::size_t count = 0;
    for (Position p = context.first(); p < context.end(); ++p) count += stamps[context.slot(p)] == p;
    return count;
}
}  // namespace

std::size_t DraftContext::rows_written() const { return count_stamped(*this, row_stamp_); }
std::size_t DraftContext::rings_written() const { return count_stamped(*this, ring_stamp_); }

}  // namespace draftprobe::state
