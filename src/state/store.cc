#include "state/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace draftprobe::state {

namespace {

std::uint64_t chain_hash(std::uint64_t previous, std::span<const std::byte> link) {
    const std::uint64_t parts[2] = {previous, xxh3_64(link)};
    return xxh3_64(std::as_bytes(std::span(parts)));
}

// Nodes of the standard containers: a value behind one or two pointers, in a hash table with its hash and a bucket.
constexpr std::size_t kShared = 16;  // the counts beside what a shared pointer owns
template <class Value>
std::size_t list_node() {
    return heap_bytes(sizeof(Value) + 2 * sizeof(void*));
}
template <class Value>
std::size_t hash_node() {
    return heap_bytes(sizeof(Value) + 2 * sizeof(void*)) + 2 * sizeof(void*);
}

template <class Value>
std::size_t array_bytes(const std::vector<Value>& values) {
    return values.capacity() == 0 ? 0 : heap_bytes(values.capacity() * sizeof(Value));
}

std::size_t text_bytes(const std::string& text) {
    const bool inside = text.capacity() <= std::string().capacity();
    return inside ? 0 : heap_bytes(text.capacity() + 1);
}

std::size_t text_bytes(const StateIdentity& identity) {
    std::size_t total = array_bytes(identity.settings);
    for (const std::string* text : {&identity.target, &identity.draft, &identity.tokenizer, &identity.chat_template,
                                    &identity.thinking, &identity.effort}) {
        total += text_bytes(*text);
    }
    for (const auto& [field, value] : identity.settings) total += text_bytes(field) + text_bytes(value);
    return total;
}

// Of a snapshot behind a shared pointer, beside its payload.
std::size_t structure_bytes(const Snapshot& snapshot) {
    std::size_t total = heap_bytes(sizeof snapshot + kShared) + text_bytes(snapshot.identity) +
                        array_bytes(snapshot.tokens) + array_bytes(snapshot.components);
    for (const SnapshotComponent& part : snapshot.components)
        total += array_bytes(part.sources) + array_bytes(part.checksums) + array_bytes(part.bytes.blocks());
    return total;
}

const SnapshotComponent& kv_of(const Snapshot& snapshot) { return *snapshot.find(Component::target_kv); }

// Kept blocks are found by the checksums of their pages.
bool is_sealed(const Snapshot& snapshot) {
    return std::all_of(snapshot.components.begin(), snapshot.components.end(),
                       [](const SnapshotComponent& part) { return part.bytes.empty() || !part.checksums.empty(); });
}

std::shared_ptr<const Snapshot> sealed(std::shared_ptr<const Snapshot> snapshot) {
    if (is_sealed(*snapshot)) return snapshot;
    Snapshot copy = *snapshot;
    reseal(copy);
    return std::make_shared<const Snapshot>(std::move(copy));
}

// Memory of `region` that stays resident for the snapshot's blocks, and their bytes.
struct RegionUse {
    std::size_t resident = 0;
    std::size_t used = 0;
};

RegionUse use_of(const PayloadRegion& region, const Snapshot& snapshot) {
    RegionUse use;
    std::vector<bool> units(region.units());
    for (const SnapshotComponent& part : snapshot.components) {
        for (const Payload::Block& block : part.bytes.blocks()) {
            if (&block->region() != &region) continue;
            use.used += block->bytes().size();
            for (std::size_t unit = block->first_unit(); unit <= block->last_unit(); ++unit) {
                if (!units[unit]) use.resident += region.unit_bytes(unit);
                units[unit] = true;
            }
        }
    }
    return use;
}

// Moves the snapshot's blocks in `region` to one of their size.
void leave(const PayloadRegion& region, Snapshot& snapshot) {
    const auto in_region = [&region](const Payload::Block& block) { return &block->region() == &region; };
    std::vector<Payload::Size> sizes;
    for (const SnapshotComponent& part : snapshot.components) {
        Payload::Size& size = sizes.emplace_back(Payload::Size{0, std::max<std::size_t>(part.bytes.block_bytes(), 1)});
        for (const Payload::Block& block : part.bytes.blocks())
            if (in_region(block)) size.bytes += block->bytes().size();
    }
    std::vector<Payload> moved = Payload::unwritten(sizes);
    for (std::size_t p = 0; p < moved.size(); ++p) {
        Payload& payload = snapshot.components[p].bytes;
        std::size_t offset = 0;
        std::size_t next = 0;
        for (std::size_t i = 0; i < payload.blocks().size(); ++i) {
            if (!in_region(payload.blocks()[i])) continue;
            const std::span<const std::byte> bytes = payload.blocks()[i]->bytes();
            std::memcpy(moved[p].fill(offset, bytes.size()).data(), bytes.data(), bytes.size());
            offset += bytes.size();
            payload.share(i, moved[p].blocks()[next++]);
        }
    }
}

}  // namespace

std::size_t ResidentPayload::block_bytes(const SnapshotComponent& part) {
    const std::size_t found_by = part.component == Component::target_kv ? PrefixStore::shareable_bytes() : 0;
    return heap_bytes(sizeof(PayloadBlock) + kShared) + hash_node<std::pair<void*, std::uint32_t>>() + found_by;
}

std::size_t ResidentPayload::region_bytes(const PayloadRegion& region, const Region& held) {
    return region.own_bytes() + array_bytes(held.units) + hash_node<std::pair<void*, Region>>();
}

void ResidentPayload::add(const Snapshot& snapshot) {
    for (const SnapshotComponent& part : snapshot.components) {
        for (const Payload::Block& block : part.bytes.blocks()) {
            if (++blocks_[block.get()] > 1) continue;
            bytes_ += block_bytes(part);
            Region& region = regions_[&block->region()];
            if (region.blocks++ == 0) {
                region.units.resize(block->region().units());
                bytes_ += region_bytes(block->region(), region);
            }
            for (std::size_t unit = block->first_unit(); unit <= block->last_unit(); ++unit)
                if (region.units[unit]++ == 0) bytes_ += block->region().unit_bytes(unit);
        }
    }
}

void ResidentPayload::remove(const Snapshot& snapshot) {
    for (const SnapshotComponent& part : snapshot.components) {
        for (const Payload::Block& block : part.bytes.blocks()) {
            const auto held = blocks_.find(block.get());
            if (--held->second > 0) continue;
            blocks_.erase(held);
            bytes_ -= block_bytes(part);
            const auto region = regions_.find(&block->region());
            for (std::size_t unit = block->first_unit(); unit <= block->last_unit(); ++unit)
                if (--region->second.units[unit] == 0) bytes_ -= block->region().unit_bytes(unit);
            if (--region->second.blocks > 0) continue;
            bytes_ -= region_bytes(block->region(), region->second);
            regions_.erase(region);
        }
    }
}

std::size_t ResidentPayload::holders(const PayloadBlock& block) const {
    const auto held = blocks_.find(&block);
    return held == blocks_.end() ? 0 : held->second;
}

std::size_t resident_bytes(const Snapshot& snapshot) {
    ResidentPayload payload;
    payload.add(snapshot);
    return structure_bytes(snapshot) + payload.bytes();
}

PrefixStore::PrefixStore(std::size_t budget_bytes, ChainHash hash) : hash_(hash == nullptr ? chain_hash : hash) {
    usage_.budget = budget_bytes;
}

std::uint64_t PrefixStore::chain_start(std::string_view identity, std::string_view name) const {
    return hash_(hash_(0, std::as_bytes(std::span(identity))), std::as_bytes(std::span(name)));
}

std::uint64_t PrefixStore::key_hash(const StateIdentity& identity, std::span<const TokenId> tokens,
                                    std::string_view name) const {
    std::uint64_t hash = chain_start(identity_digest(identity), name);
    for (std::size_t at = 0; at < tokens.size(); at += kPageTokens)
        hash = hash_(hash, std::as_bytes(tokens.subspan(at, std::min<std::size_t>(kPageTokens, tokens.size() - at))));
    return hash;
}

std::uint64_t PrefixStore::block_hash(std::string_view identity, const SnapshotComponent& part,
                                      std::size_t index) const {
    // A prefix has complete pages alone; blocks are whole pages.
    const std::span<const std::uint64_t> checksums(part.checksums);
    const std::size_t each = part.bytes.block_bytes() / (part.bytes.size() / checksums.size());
    const std::size_t first = index * each;
    return hash_(hash_(index, std::as_bytes(std::span(identity))),
                 std::as_bytes(checksums.subspan(first, std::min(each, checksums.size() - first))));
}

Status PrefixStore::put(std::shared_ptr<const Snapshot> snapshot, std::string_view name) {
    if (snapshot == nullptr || snapshot->length == 0 || snapshot->request) {
        return invalid_argument(
            "prefix store: found a snapshot of no tokens or in the middle of a request, expected a prefix");
    }
    DP_RETURN_IF_ERROR(check_snapshot(*snapshot, true).with_context("prefix store"));
    const std::string identity = identity_digest(snapshot->identity);
    const std::uint64_t hash = key_hash(snapshot->identity, snapshot->tokens, name);
    snapshot = sealed(std::move(snapshot));

    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto there = find(hash, snapshot->identity, snapshot->tokens, name); there != entries_.end()) {
        use(there);
        return {};
    }
    snapshot = sharing(std::move(snapshot), identity);
    const std::size_t before = resident();
    Entry entry{hash, 0, std::string(name), std::move(snapshot)};
    entry.bytes = structure_bytes(*entry.snapshot) + text_bytes(entry.name) + list_node<Entry>() +
                  hash_node<std::pair<std::uint64_t, Entries::iterator>>();
    add(std::move(entry));
    if (!make_room()) {
        const std::size_t needed = resident() - before;
        drop(std::prev(entries_.end()));
        return exhausted(fmt::format(
            "prefix store: no room for {} bytes in a budget of {}, expected less beside what is lent; raise "
            "the budget, or give back what is lent",
            needed, usage_.budget));
    }
    return {};
}

std::shared_ptr<const Snapshot> PrefixStore::find_longest(const StateIdentity& identity,
                                                          std::span<const TokenId> tokens, Position limit) {
    const std::size_t longest = std::min(tokens.size(), static_cast<std::size_t>(std::max<Position>(limit, 0)));
    std::vector<std::uint64_t> hashes;  // of 1, 2, ... pages
    std::uint64_t hash = chain_start(identity_digest(identity), {});
    for (std::size_t at = 0; at + kPageTokens <= longest; at += kPageTokens) {
        hash = hash_(hash, std::as_bytes(tokens.subspan(at, kPageTokens)));
        hashes.push_back(hash);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::size_t pages = hashes.size(); pages > 0; --pages) {
        const auto found = find(hashes[pages - 1], identity, tokens.first(pages * kPageTokens), {});
        if (found == entries_.end()) continue;
        use(found);
        ++usage_.hits;
        return found->snapshot;
    }
    ++usage_.misses;
    return nullptr;
}

std::shared_ptr<const Snapshot> PrefixStore::find_named(const StateIdentity& identity, std::span<const TokenId> tokens,
                                                        std::string_view name) {
    const std::uint64_t hash = key_hash(identity, tokens, name);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = find(hash, identity, tokens, name);
    ++(found == entries_.end() ? usage_.misses : usage_.hits);
    if (found == entries_.end()) return nullptr;
    use(found);
    return found->snapshot;
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

bool PrefixStore::evict_named(const StateIdentity& identity, std::span<const TokenId> tokens, std::string_view name) {
    const std::uint64_t hash = key_hash(identity, tokens, name);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = find(hash, identity, tokens, name);
    if (found == entries_.end() || found->snapshot.use_count() > 1) return false;
    drop(found);
    return true;
}

PrefixStore::Usage PrefixStore::usage() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    Usage usage = usage_;
    usage.bytes = resident();
    usage.entries = entries_.size();
    for (const Entry& entry : entries_) usage.apart += entry.snapshot->bytes();
    return usage;
}

std::size_t PrefixStore::shareable_bytes() { return hash_node<std::pair<std::uint64_t, Shareable>>(); }

std::size_t PrefixStore::resident() const { return structures_ + payload_.bytes(); }

PrefixStore::Entries::iterator PrefixStore::find(std::uint64_t hash, const StateIdentity& identity,
                                                 std::span<const TokenId> tokens, std::string_view name) {
    const auto [first, last] = index_.equal_range(hash);
    for (auto at = first; at != last; ++at) {
        const Snapshot& snapshot = *at->second->snapshot;
        if (at->second->name == name && snapshot.identity == identity &&
            std::equal(snapshot.tokens.begin(), snapshot.tokens.end(), tokens.begin(), tokens.end())) {
            return at->second;
        }
    }
    return entries_.end();
}

std::shared_ptr<const Snapshot> PrefixStore::sharing(std::shared_ptr<const Snapshot> snapshot,
                                                     std::string_view identity) const {
    const SnapshotComponent& part = kv_of(*snapshot);
    std::optional<Snapshot> made;
    for (std::size_t index = 0; index < part.bytes.blocks().size(); ++index) {
        const std::span<const std::byte> bytes = part.bytes.blocks()[index]->bytes();
        const auto [first, last] = blocks_.equal_range(block_hash(identity, part, index));
        for (auto at = first; at != last; ++at) {
            const Shareable& there = at->second;
            const std::span<const std::byte> other = there.block->bytes();
            if (there.index != index || std::string_view(there.identity.data(), there.identity.size()) != identity ||
                other.size() != bytes.size())
                continue;
            if (std::memcmp(other.data(), bytes.data(), bytes.size()) != 0) continue;
            if (!made) made = *snapshot;
            made->components[static_cast<std::size_t>(&part - snapshot->components.data())].bytes.share(index,
                                                                                                        there.block);
            break;
        }
    }
    if (!made) return snapshot;
    // What it does not share lies scattered in a region of which only whole units go back.
    for (const SnapshotComponent& own : snapshot->components) {
        if (own.bytes.empty()) continue;
        const std::shared_ptr<const PayloadBlock> keep = own.bytes.blocks().front();
        const RegionUse use = use_of(keep->region(), *made);
        if (use.resident > use.used + use.used / 8) leave(keep->region(), *made);
    }
    return std::make_shared<const Snapshot>(std::move(*made));
}

void PrefixStore::add(Entry entry) {
    payload_.add(*entry.snapshot);
    const SnapshotComponent& part = kv_of(*entry.snapshot);
    const std::string identity = identity_digest(entry.snapshot->identity);
    for (std::size_t index = 0; index < part.bytes.blocks().size(); ++index) {
        const Payload::Block& block = part.bytes.blocks()[index];
        if (payload_.holders(*block) > 1) continue;
        Shareable shareable{{}, index, block};
        std::copy_n(identity.begin(), shareable.identity.size(), shareable.identity.begin());
        blocks_.emplace(block_hash(identity, part, index), std::move(shareable));
    }
    structures_ += entry.bytes;
    entries_.push_back(std::move(entry));
    index_.emplace(entries_.back().hash, std::prev(entries_.end()));
}

// Lending happens under the lock alone, so a count of 1 stays 1 here; a borrower may only let go meanwhile.
bool PrefixStore::make_room() {
    if (resident() <= usage_.budget) return true;
    std::vector<Entries::iterator> free;
    ResidentPayload kept;
    std::size_t needed = 0;
    const auto newest = std::prev(entries_.end());
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
        if (entry != newest && entry->snapshot.use_count() == 1) {
            free.push_back(entry);
            continue;
        }
        kept.add(*entry->snapshot);
        needed += entry->bytes;
    }
    if (needed + kept.bytes() > usage_.budget) return false;
    for (const auto entry : free) {
        if (resident() <= usage_.budget) break;
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
    const SnapshotComponent& part = kv_of(*entry->snapshot);
    const std::string identity = identity_digest(entry->snapshot->identity);
    for (std::size_t index = 0; index < part.bytes.blocks().size(); ++index) {
        const Payload::Block& block = part.bytes.blocks()[index];
        if (payload_.holders(*block) > 1) continue;
        const auto [begin, end] = blocks_.equal_range(block_hash(identity, part, index));
        const auto there = std::find_if(begin, end, [&](const auto& one) { return one.second.block == block; });
        if (there != end) blocks_.erase(there);
    }
    payload_.remove(*entry->snapshot);
    structures_ -= entry->bytes;
    entries_.erase(entry);
}

}  // namespace draftprobe::state
