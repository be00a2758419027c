#include "state/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace draftprobe::state {

namespace {

std::uint64_t chain_hash(std::uint64_t previous, std::span<const TokenId> page) {
    const std::uint64_t parts[2] = {previous, xxh3_64(std::as_bytes(page))};
    return xxh3_64(std::as_bytes(std::span(parts)));
}

// What the list and index nodes and the shared pointer's block take beside the snapshot.
constexpr std::size_t kEntryOverhead = 192;

std::size_t text_bytes(const StateIdentity& identity) {
    std::size_t total = 0;
    for (const std::string* text : {&identity.target, &identity.draft, &identity.tokenizer, &identity.chat_template,
                                    &identity.thinking, &identity.effort}) {
        total += text->capacity();
    }
    for (const auto& setting : identity.settings) {
        total += sizeof setting + setting.first.capacity() + setting.second.capacity();
    }
    return total;
}

}  // namespace

std::size_t resident_bytes(const Snapshot& snapshot) {
    std::size_t total = sizeof snapshot + text_bytes(snapshot.identity) + snapshot.tokens.capacity() * sizeof(TokenId);
    for (const SnapshotComponent& part : snapshot.components) {
        total += sizeof part + part.bytes.size() + part.checksums.capacity() * sizeof(std::uint64_t) +
                 part.sources.capacity() * sizeof(SourceRange);
    }
    return total;
}

PrefixStore::PrefixStore(std::size_t budget_bytes, ChainHash hash) : hash_(hash == nullptr ? chain_hash : hash) {
    usage_.budget = budget_bytes;
}

std::uint64_t PrefixStore::chain_start(const StateIdentity& identity) const {
    const std::string digest = identity_digest(identity);
    return xxh3_64(std::as_bytes(std::span(digest)));
}

Status PrefixStore::put(std::shared_ptr<const Snapshot> snapshot) {
    if (snapshot == nullptr || snapshot->length == 0 || snapshot->request) {
        return invalid_argument(
            "prefix store: found a snapshot of no tokens or in the middle of a request, expected a prefix");
    }
    DP_RETURN_IF_ERROR(check_snapshot(*snapshot, true).with_context("prefix store"));
    std::uint64_t hash = chain_start(snapshot->identity);
    const std::span<const TokenId> tokens(snapshot->tokens);
    for (std::size_t at = 0; at < tokens.size(); at += kPageTokens) hash = hash_(hash, tokens.subspan(at, kPageTokens));

    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto there = find(hash, snapshot->identity, tokens); there != entries_.end()) {
        use(there);
        return {};
    }
    const std::size_t bytes = resident_bytes(*snapshot) + kEntryOverhead;
    if (!make_room(bytes)) {
        return exhausted(fmt::format(
            "prefix store: no room for {} bytes in a budget of {}, expected less beside what is lent; raise "
            "the budget, or give back what is lent",
            bytes, usage_.budget));
    }
    entries_.push_back({hash, bytes, std::move(snapshot)});
    index_.emplace(hash, std::prev(entries_.end()));
    usage_.bytes += bytes;
    usage_.entries = entries_.size();
    return {};
}

std::shared_ptr<const Snapshot> PrefixStore::find_longest(const StateIdentity& identity,
                                                          std::span<const TokenId> tokens, Position limit) {
    const std::size_t longest = std::min(tokens.size(), static_cast<std::size_t>(std::max<Position>(limit, 0)));
    std::vector<std::uint64_t> hashes;  // of 1, 2, ... pages
    std::uint64_t hash = chain_start(identity);
    for (std::size_t at = 0; at + kPageTokens <= longest; at += kPageTokens) {
        hash = hash_(hash, tokens.subspan(at, kPageTokens));
        hashes.push_back(hash);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::size_t pages = hashes.size(); pages > 0; --pages) {
        const auto found = find(hashes[pages - 1], identity, tokens.first(pages * kPageTokens));
        if (found == entries_.end()) continue;
        use(found);
        ++usage_.hits;
        return found->snapshot;
    }
    ++usage_.misses;
    return nullptr;
}

std::size_t PrefixStore::evict_all() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t before = entries_.size();
    for (auto entry = entries_.begin(); entry != entries_.end();) {
        const auto next = std::next(entry);
        if (entry->snapshot.use_count() == 1) drop(entry);
        entry = next;
    }
    return before - entries_.size();
}

PrefixStore::Usage PrefixStore::usage() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return usage_;
}

PrefixStore::Entries::iterator PrefixStore::find(std::uint64_t hash, const StateIdentity& identity,
                                                 std::span<const TokenId> tokens) {
    const auto [first, last] = index_.equal_range(hash);
    for (auto at = first; at != last; ++at) {
        const Snapshot& snapshot = *at->second->snapshot;
        if (snapshot.identity == identity &&
            std::equal(snapshot.tokens.begin(), snapshot.tokens.end(), tokens.begin(), tokens.end())) {
            return at->second;
        }
    }
    return entries_.end();
}

// Lending happens under the lock alone, so a count of 1 stays 1 here; a borrower may only let go meanwhile.
bool PrefixStore::make_room(std::size_t bytes) {
    std::size_t kept = 0;
    std::vector<Entries::iterator> free;
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
        if (entry->snapshot.use_count() == 1) {
            free.push_back(entry);
        } else {
            kept += entry->bytes;
        }
    }
    if (kept > usage_.budget || bytes > usage_.budget - kept) return false;
    for (const auto entry : free) {
        if (usage_.bytes + bytes <= usage_.budget) break;
        drop(entry);
        ++usage_.evictions;
    }
    return true;
}

void PrefixStore::drop(Entries::iterator entry) {
    const auto [first, last] = index_.equal_range(entry->hash);
    for (auto at = first; at != last; ++at) {
        if (at->second != entry) continue;
        index_.erase(at);
        break;
    }
    usage_.bytes -= entry->bytes;
    entries_.erase(entry);
    usage_.entries = entries_.size();
}

}  // namespace draftprobe::state
