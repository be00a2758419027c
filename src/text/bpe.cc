#include "text/bpe.h"

#include <algorithm>
#include <queue>

namespace draftprobe {
namespace {

constexpr std::uint32_t kEnd = 0xffffffffu;

struct Symbol {
    TokenId id;  // kNoToken once it is merged into the symbol before it
    std::uint32_t previous;
    std::uint32_t next;
};

struct Candidate {
    std::uint32_t rank;
    std::uint32_t position;  // of the left symbol
    TokenId merged;

    bool operator>(const Candidate& other) const {
        return rank != other.rank ? rank > other.rank : position > other.position;
    }
};

}  // namespace

void merge_symbols(const MergeTable& table, std::span<const TokenId> symbols, std::vector<TokenId>& out) {
    if (symbols.size() < 2) {
        out.insert(out.end(), symbols.begin(), symbols.end());
        return;
    }
    std::vector<Symbol> list(symbols.size());
    for (std::uint32_t i = 0; i < list.size(); ++i) list[i] = {symbols[i], i == 0 ? kEnd : i - 1, i + 1};
    list.back().next = kEnd;

    std::vector<Candidate> initial;
    for (std::uint32_t i = 0; i + 1 < list.size(); ++i) {
        if (const auto* merge = table.find(list[i].id, list[i + 1].id))
            initial.push_back({merge->rank, i, merge->merged});
    }
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(), std::move(initial));

    const auto offer = [&](std::uint32_t left) {
        if (left == kEnd || list[left].next == kEnd) return;
        if (const auto* merge = table.find(list[left].id, list[list[left].next].id)) {
            queue.push({merge->rank, left, merge->merged});
        }
    };
    while (!queue.empty()) {
        const Candidate best = queue.top();
        queue.pop();
        Symbol& left = list[best.position];
        if (left.id == kNoToken || left.next == kEnd) continue;
        Symbol& right = list[left.next];
        // Stale when either side has changed since: then the pair there now has another merge, or none.
        const auto* merge = table.find(left.id, right.id);
        if (merge == nullptr || merge->rank != best.rank) continue;
        left.id = best.merged;
        right.id = kNoToken;
        left.next = right.next;
        if (left.next != kEnd) list[left.next].previous = best.position;
        offer(left.previous);
        offer(best.position);
    }
    for (std::uint32_t i = 0; i != kEnd; i = list[i].next) out.push_back(list[i].id);
}

}  // namespace draftprobe
