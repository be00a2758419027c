// Byte-pair merging: the lowest-ranked adjacent pair is merged first, the leftmost of equal ones.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/types.h"

namespace draftprobe {

inline constexpr TokenId kNoToken = 0xffffffffu;

// Ranks of pairs. Filled once, then immutable; any number of threads.
class MergeTable {
public:
    struct Merge {
        std::uint32_t rank;
        TokenId merged;
    };

    void reserve(std::size_t merges) { merges_.reserve(merges); }
    // A pair given again takes the later rank, as in the Hugging Face library.
    void put(TokenId left, TokenId right, Merge merge) { merges_.insert_or_assign(key(left, right), merge); }
    const Merge* find(TokenId left, TokenId right) const {
        const auto found = merges_.find(key(left, right));
        return found == merges_.end() ? nullptr : &found->second;
    }

private:
    // The keys come from a file: mixed, so that close ids do not share buckets.
    struct Mix {
        std::size_t operator()(std::uint64_t x) const {
            x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
            x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
            return x ^ (x >> 31);
        }
    };
    static std::uint64_t key(TokenId left, TokenId right) { return std::uint64_t{left} << 32 | right; }

    std::unordered_map<std::uint64_t, Merge, Mix> merges_;
};

// Merges `symbols` as far as the table allows and appends the result to `out`. Time n log n, memory linear in n.
void merge_symbols(const MergeTable& table, std::span<const TokenId> symbols, std::vector<TokenId>& out);

}  // namespace draftprobe
