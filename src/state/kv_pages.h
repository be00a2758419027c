// Paged keys and values of the target's attention layers for one lane.
//
// A page covers 32 absolute positions (32p .. 32p+31) of every attention layer. Rows at positions below the lane's
// committed length are state; rows at or past it are scratch of the current verification and may be overwritten.
//
// Page bytes, in this order (also the canonical order of digests and snapshots):
//   for layer, for K then V, for head: 32 rows x head_dim elements (f32, bf16 or int8), ascending position;
//   int8 only, after the elements of that head: 32 float32 scales.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/hash.h"
#include "state/page_memory.h"
#include "state/shape.h"

namespace draftprobe::state {

class KvPages {
public:
    KvPages() = default;
    // `poison`: new pages are filled with NaN patterns instead of zeros.
    KvPages(const StateShape& shape, bool poison) : shape_(shape), poison_(poison) {}

    // Makes pages exist up to and including the one that holds `last`. Fails with exhausted beyond max_tokens.
    Status reserve(Position last);

    // Rounds (or quantises) and stores one row of one layer; k and v are [kv_heads * head_dim]. Requires
    // reserve(position).
    void write(std::size_t layer, Position position, const float* k, const float* v);

    // Dequantised page of one layer and head: keys_t [head_dim][32], values [32][head_dim]. Slots never written hold
    // whatever is stored there; callers mask by position.
    void load_page(std::size_t layer, Position page, std::size_t head, float* keys_t, float* values) const;

    // Whoever takes the mutable span writes now: the page's digest is forgotten.
    std::span<std::byte> page_bytes(std::size_t page) {
        touch(page);
        return {pages_[page].bytes, shape_.kv_page_bytes()};
    }
    std::span<const std::byte> page_bytes(std::size_t page) const {
        return {pages_[page].bytes, shape_.kv_page_bytes()};
    }

    // SHA-256 of a whole page, made once and kept until something is written to the page. Not for a page that is being
    // written at the same time.
    Sha256Digest page_digest(std::size_t page) const;
    // Pages hashed so far by page_digest: what is not hashed again is not counted again.
    std::size_t pages_hashed() const { return pages_hashed_; }

    // Writes the canonical bytes of positions [first, last) that lie inside one page, same order as the page, only
    // those rows (and their scales), to `out`: (last - first) * kv_token_bytes() bytes.
    void canonical_bytes(std::size_t page, Position first, Position last, std::byte* out) const;
    // The inverse; requires out.size() bytes as canonical_bytes makes them. Requires the page to exist.
    void set_canonical_bytes(std::size_t page, Position first, Position last, std::span<const std::byte> bytes);

private:
    struct Page {
        std::byte* bytes = nullptr;  // in a slab
        mutable bool hashed = false;
        mutable Sha256Digest digest{};
    };

    void add_slab();
    void touch(std::size_t page);
    std::size_t head_block_bytes() const;  // one layer, K or V, one head, 32 rows, with scales
    std::size_t element_bytes() const;
    std::byte* head_block(std::size_t page, std::size_t layer, bool value, std::size_t head) const;

    StateShape shape_;
    bool poison_ = false;
    // Pages lie in slabs that grow with the lane, up to several huge pages: a page of its own each would cost a fault
    // per 4 KiB when it is first written, and a miss per 4 KiB of address translation whenever it is copied.
    std::vector<PageMemory> slabs_;
    std::size_t slab_pages_ = 0;  // that all slabs hold together
    std::size_t slab_used_ = 0;   // bytes of the last slab
    std::vector<Page> pages_;
    mutable std::size_t pages_hashed_ = 0;
};

}  // namespace draftprobe::state
