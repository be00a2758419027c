// Snapshots of prefixes kept in memory, found by the tokens of a prompt.
//
// Keys are exact: identity and tokens decide, a hash only finds. The namespace is the whole StateIdentity, thinking
// mode and template included, so nothing crosses between models, drafts, settings or modes. Several prefixes of one
// prompt may be kept; the longest wins.
//
// Sharing: prefixes of one text have equal KV pages. A block of KV pages (state/payload.h) whose bytes equal those of a
// block that an entry of the same identity holds at the same place is held once; a checksum only finds it. Nothing
// else is shared: recurrent state differs at every length, and the draft's window has moved on.
//
// Lending: a found snapshot is shared, immutable, and stays whole as long as somebody holds it. What is lent is never
// evicted, since that would free nothing; so everything that the store keeps alive is counted against its budget, and
// the sum never exceeds it. Eviction is least recently used first: a put or a find uses an entry.
//
// Counted is what is resident: units of memory in which a kept block lies, each once, and the structures around them
// with the heap's own rounding.
//
// All functions may be called from several threads at once. The same calls in the same order evict the same entries.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "state/snapshot.h"

namespace draftprobe::state {

// Counts the memory that payloads keep resident: blocks, units and regions, each once however many snapshots hold it.
class ResidentPayload {
public:
    void add(const Snapshot& snapshot);
    void remove(const Snapshot& snapshot);  // one that was added
    std::size_t bytes() const { return bytes_; }
    std::size_t holders(const PayloadBlock& block) const;

private:
    struct Region {
        std::vector<std::uint32_t> units;  // blocks in each
        std::size_t blocks = 0;
    };
    static std::size_t block_bytes(const SnapshotComponent& part);
    static std::size_t region_bytes(const PayloadRegion& region, const Region& held);

    std::size_t bytes_ = 0;
    std::unordered_map<const PayloadBlock*, std::uint32_t> blocks_;
    std::unordered_map<const PayloadRegion*, Region> regions_;
};

// Bytes that a snapshot occupies alone: payload, tokens, checksums, texts, and its own structures.
std::size_t resident_bytes(const Snapshot& snapshot);

class PrefixStore {
public:
    // Next link of the hash chain over a key; tests replace it to make everything collide.
    using ChainHash = std::uint64_t (*)(std::uint64_t previous, std::span<const std::byte> link);

    explicit PrefixStore(std::size_t budget_bytes, ChainHash hash = nullptr);

    // Keeps the snapshot; an equal key that is there already stays, and is used instead. `name` is part of the key: it
    // tells apart snapshots of the same tokens that are asked for by name. Evicts what it must. Errors:
    // invalid_argument (empty, or in the middle of a request), corrupt (check_snapshot), exhausted (larger than the
    // budget, or everything else is lent); the store is unchanged then.
    Status put(std::shared_ptr<const Snapshot> snapshot, std::string_view name = {});

    // The longest kept prefix of `tokens` of at most `limit` positions; null when there is none.
    std::shared_ptr<const Snapshot> find_longest(const StateIdentity& identity, std::span<const TokenId> tokens,
                                                 Position limit);
    // The one of exactly these tokens under that name; null when there is none.
    std::shared_ptr<const Snapshot> find_named(const StateIdentity& identity, std::span<const TokenId> tokens,
                                               std::string_view name);

    // Drops every entry that is not lent; says how many.
    std::size_t evict_all();
    // Drops one entry, unless it is lent; says whether.
    bool evict_named(const StateIdentity& identity, std::span<const TokenId> tokens, std::string_view name);

    struct Usage {
        std::size_t budget = 0;
        std::size_t bytes = 0;  // resident, lent ones included; what is shared counts once
        std::size_t apart = 0;  // payloads and tokens of all entries, if nothing were shared
        std::size_t entries = 0;
        std::uint64_t hits = 0;
        std::uint64_t misses = 0;
        std::uint64_t evictions = 0;  // for room
    };
    Usage usage() const;

private:
    friend class ResidentPayload;
    struct Entry {
        std::uint64_t hash = 0;
        std::size_t bytes = 0;  // beside its payload
        std::string name;
        std::shared_ptr<const Snapshot> snapshot;
    };
    using Entries = std::list<Entry>;  // least recently used first

    // A block that later snapshots may hold as well.
    struct Shareable {
        std::array<char, 64> identity;  // its SHA-256
        std::size_t index = 0;          // among the blocks of target_kv
        Payload::Block block;
    };

    std::uint64_t chain_start(std::string_view identity, std::string_view name) const;
    std::uint64_t key_hash(const StateIdentity& identity, std::span<const TokenId> tokens, std::string_view name) const;
    std::uint64_t block_hash(std::string_view identity, const SnapshotComponent& part, std::size_t index) const;
    Entries::iterator find(std::uint64_t hash, const StateIdentity& identity, std::span<const TokenId> tokens,
                           std::string_view name);
    void use(Entries::iterator entry) { entries_.splice(entries_.end(), entries_, entry); }
    // The snapshot with every block that is there already in the place of its own.
    std::shared_ptr<const Snapshot> sharing(std::shared_ptr<const Snapshot> snapshot, std::string_view identity) const;
    void add(Entry entry);
    // Drops what is not lent, oldest first, until the newest entry fits; false, and nothing dropped, if it cannot.
    bool make_room();
    void drop(Entries::iterator entry);
    static std::size_t shareable_bytes();  // of the node of a Shareable
    std::size_t resident() const;

    const ChainHash hash_;
    mutable std::mutex mutex_;
    Entries entries_;
    std::unordered_multimap<std::uint64_t, Entries::iterator> index_;
    std::unordered_multimap<std::uint64_t, Shareable> blocks_;
    ResidentPayload payload_;
    std::size_t structures_ = 0;  // of entries, beside their payloads
    Usage usage_;
};

}  // namespace draftprobe::state
