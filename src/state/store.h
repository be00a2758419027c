// Snapshots of prefixes kept in memory, found by the tokens of a prompt.
//
// Keys are exact: identity and tokens decide, a hash only finds. The namespace is the whole StateIdentity, thinking
// mode and template included, so nothing crosses between models, drafts, settings or modes. Several prefixes of one
// prompt may be kept; the longest wins.
//
// Lending: a found snapshot is shared, immutable, and stays whole as long as somebody holds it. What is lent is never
// evicted, since that would free nothing; so everything that the store keeps alive is counted against its budget, and
// the sum never exceeds it. Eviction is least recently used first: a put or a find uses an entry.
//
// All functions may be called from several threads at once. The same calls in the same order evict the same entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>

#include "state/snapshot.h"

namespace draftprobe::state {

// Bytes that a snapshot really occupies: payload, tokens, checksums, texts, and its own structures.
std::size_t resident_bytes(const Snapshot& snapshot);

class PrefixStore {
public:
    // Next link of the hash chain over a key's pages; tests replace it to make every key collide.
    using ChainHash = std::uint64_t (*)(std::uint64_t previous, std::span<const TokenId> page);

    explicit PrefixStore(std::size_t budget_bytes, ChainHash hash = nullptr);

    // Keeps the snapshot; an equal key that is there already stays, and is used instead. Evicts what it must. Errors:
    // invalid_argument (empty, or in the middle of a request), corrupt (check_snapshot), exhausted (larger than the
    // budget, or everything else is lent); the store is unchanged then.
    Status put(std::shared_ptr<const Snapshot> snapshot);

    // The longest kept prefix of `tokens` of at most `limit` positions; null when there is none.
    std::shared_ptr<const Snapshot> find_longest(const StateIdentity& identity, std::span<const TokenId> tokens,
                                                 Position limit);

    // Drops every entry that is not lent; says how many.
    std::size_t evict_all();

    struct Usage {
        std::size_t budget = 0;
        std::size_t bytes = 0;  // resident, lent ones included
        std::size_t entries = 0;
        std::uint64_t hits = 0;
        std::uint64_t misses = 0;
        std::uint64_t evictions = 0;
    };
    Usage usage() const;

private:
    struct Entry {
        std::uint64_t hash = 0;
        std::size_t bytes = 0;
        std::shared_ptr<const Snapshot> snapshot;
    };
    using Entries = std::list<Entry>;  // least recently used first

    std::uint64_t chain_start(const StateIdentity& identity) const;
    Entries::iterator find(std::uint64_t hash, const StateIdentity& identity, std::span<const TokenId> tokens);
    void use(Entries::iterator entry) { entries_.splice(entries_.end(), entries_, entry); }
    // Whether dropping what is not lent can make room, and the dropping.
    bool make_room(std::size_t bytes);
    void drop(Entries::iterator entry);

    const ChainHash hash_;
    mutable std::mutex mutex_;
    Entries entries_;
    std::unordered_multimap<std::uint64_t, Entries::iterator> index_;
    Usage usage_;
};

}  // namespace draftprobe::state
