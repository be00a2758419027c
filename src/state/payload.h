// The payload of a snapshot's component: immutable bytes that several snapshots may hold together.
//
// A payload is a sequence of blocks, each contiguous and counted by reference. The blocks of a snapshot are cut from
// one region of memory, so that a snapshot is one allocation; the region gives memory back in units (a huge page; a
// small page for a small region) as soon as no block that lies in the unit is alive. So a snapshot that shares the
// blocks of its first pages with another one keeps alive just those, whichever of the two goes first.
//
// Copying a payload shares its blocks. Writing (`writable`) first makes an own copy of what is shared: nobody else's
// bytes ever change. Blocks may be held by several threads; a payload itself is a plain value.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "state/page_memory.h"

namespace draftprobe::state {

// Bytes that the C++ heap takes for a block of `bytes`: its header and rounding (the usual 64-bit malloc).
std::size_t heap_bytes(std::size_t bytes);

// Memory of one or more payloads. Its units are counted by the blocks in them.
class PayloadRegion {
public:
    explicit PayloadRegion(std::size_t bytes);

    std::byte* data() const { return memory_.data() != nullptr ? memory_.data() : heap_.get(); }
    std::size_t units() const { return unit_count_; }
    // Of an offset below the region's size.
    std::size_t unit_of(std::size_t offset) const;
    std::size_t unit_bytes(std::size_t unit) const;  // resident while a block lies in the unit
    std::size_t own_bytes() const;                   // of the region's structures, resident while any block is alive

    void hold(std::size_t offset, std::size_t bytes);
    void release(std::size_t offset, std::size_t bytes);

private:
    std::size_t unit_start(std::size_t unit) const { return unit * unit_size_; }

    PageMemory memory_;                  // or
    std::unique_ptr<std::byte[]> heap_;  // too small for pages of its own: one unit
    std::size_t size_ = 0;
    std::size_t unit_size_ = 0;
    std::size_t unit_count_ = 0;
    std::unique_ptr<std::atomic<std::size_t>[]> held_;  // blocks per unit
};

// A stretch of a region.
class PayloadBlock {
public:
    PayloadBlock(std::shared_ptr<PayloadRegion> region, std::size_t offset, std::size_t size)
        : region_(std::move(region)), offset_(offset), size_(size) {
        region_->hold(offset_, size_);
    }
    ~PayloadBlock() { region_->release(offset_, size_); }
    PayloadBlock(const PayloadBlock&) = delete;
    PayloadBlock& operator=(const PayloadBlock&) = delete;

    std::span<const std::byte> bytes() const { return {region_->data() + offset_, size_}; }
    const PayloadRegion& region() const { return *region_; }
    std::size_t first_unit() const { return region_->unit_of(offset_); }
    std::size_t last_unit() const { return region_->unit_of(offset_ + size_ - 1); }

private:
    friend class Payload;
    std::shared_ptr<PayloadRegion> region_;
    std::size_t offset_;
    std::size_t size_;  // not 0
};

class Payload {
public:
    using Block = std::shared_ptr<const PayloadBlock>;
    struct Size {
        std::size_t bytes = 0;
        std::size_t block_bytes = 0;  // of every block but the last; not 0
    };

    Payload() = default;
    // Unwritten payloads of these sizes, in one region.
    static std::vector<Payload> unwritten(std::span<const Size> sizes);
    // Bytes of its own, in one block.
    static Payload copy_of(std::span<const std::byte> bytes);

    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    std::size_t block_bytes() const { return block_bytes_; }
    const std::vector<Block>& blocks() const { return blocks_; }

    // The bytes [offset, offset + count), which must lie in one block.
    std::span<const std::byte> view(std::size_t offset, std::size_t count) const;

    // The same for writing, while nobody else holds the block.
    std::span<std::byte> fill(std::size_t offset, std::size_t count);
    // All bytes in one stretch, for changing: copied first unless nobody else holds any of them.
    std::span<std::byte> writable();

    // Holds `block` in the place of block `index`, which has the same bytes.
    void share(std::size_t index, Block block) { blocks_[index] = std::move(block); }

    // Whether the bytes are equal.
    bool operator==(const Payload& other) const;

private:
    std::size_t size_ = 0;
    std::size_t block_bytes_ = 0;
    std::vector<Block> blocks_;
};

}  // namespace draftprobe::state
