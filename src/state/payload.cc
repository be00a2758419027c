#include "state/payload.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "state/copy.h"

namespace draftprobe::state {

namespace {

// Regions below this come from the heap, which packs them tighter than pages would.
constexpr std::size_t kSmallestMapping = std::size_t{64} << 10;
// Where a payload may start in a region: for aligned copies.
constexpr std::size_t kPayloadAlignment = 64;

}  // namespace

std::size_t heap_bytes(std::size_t bytes) {
    constexpr std::size_t kHeader = 8;
    constexpr std::size_t kGranule = 16;
    constexpr std::size_t kLeast = 32;
    return std::max(kLeast, (bytes + kHeader + kGranule - 1) / kGranule * kGranule);
}

PayloadRegion::PayloadRegion(std::size_t bytes) : size_(bytes) {
    if (bytes < kSmallestMapping) {
        heap_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
        unit_size_ = std::max<std::size_t>(bytes, 1);
        unit_count_ = 1;
    } else {
        memory_ = PageMemory(bytes);
        size_ = memory_.size();
        unit_size_ = size_ < kHugePage ? kSmallPage : kHugePage;
        unit_count_ = (size_ + unit_size_ - 1) / unit_size_;
    }
    held_ = std::make_unique<std::atomic<std::size_t>[]>(unit_count_);
}

std::size_t PayloadRegion::unit_of(std::size_t offset) const { return offset / unit_size_; }

std::size_t PayloadRegion::unit_bytes(std::size_t unit) const {
    if (heap_ != nullptr) return heap_bytes(size_);
    return std::min(unit_size_, size_ - unit_start(unit));
}

std::size_t PayloadRegion::own_bytes() const {
    // With the counts of the shared pointer that holds it.
    return heap_bytes(sizeof *this + 16) + heap_bytes(unit_count_ * sizeof held_[0]);
}

void PayloadRegion::hold(std::size_t offset, std::size_t bytes) {
    for (std::size_t unit = unit_of(offset); unit <= unit_of(offset + bytes - 1); ++unit) ++held_[unit];
}

void PayloadRegion::release(std::size_t offset, std::size_t bytes) {
    // Units are let go in one call per run of them. The first and the last may still be held by neighbours.
    std::size_t begin = unit_of(offset);
    const std::size_t end = unit_of(offset + bytes - 1) + 1;
    const auto discard = [this](std::size_t from, std::size_t to) {
        if (from == to || heap_ != nullptr) return;
        memory_.discard(unit_start(from), std::min(unit_start(to), size_) - unit_start(from));
    };
    for (std::size_t unit = begin; unit < end; ++unit) {
        if (--held_[unit] == 0) continue;
        discard(begin, unit);
        begin = unit + 1;
    }
    discard(begin, end);
}

std::vector<Payload> Payload::unwritten(std::span<const Size> sizes) {
    std::size_t total = 0;
    for (const Size& size : sizes)
        total += (size.bytes + kPayloadAlignment - 1) / kPayloadAlignment * kPayloadAlignment;
    const auto region = std::make_shared<PayloadRegion>(total);
    std::vector<Payload> payloads;
    std::size_t start = 0;
    for (const Size& size : sizes) {
        Payload& payload = payloads.emplace_back();
        payload.size_ = size.bytes;
        payload.block_bytes_ = size.block_bytes;
        payload.blocks_.reserve((size.bytes + size.block_bytes - 1) / size.block_bytes);
        for (std::size_t at = 0; at < size.bytes; at += size.block_bytes) {
            payload.blocks_.push_back(
                std::make_shared<const PayloadBlock>(region, start + at, std::min(size.block_bytes, size.bytes - at)));
        }
        start += (size.bytes + kPayloadAlignment - 1) / kPayloadAlignment * kPayloadAlignment;
    }
    return payloads;
}

Payload Payload::copy_of(std::span<const std::byte> bytes) {
    const Size size{bytes.size(), std::max<std::size_t>(bytes.size(), 1)};
    Payload payload = std::move(unwritten({&size, 1}).front());
    if (!bytes.empty()) copy_bytes(payload.fill(0, bytes.size()).data(), bytes.data(), bytes.size());
    return payload;
}

std::span<const std::byte> Payload::view(std::size_t offset, std::size_t count) const {
    if (count == 0) return {};
    return blocks_[offset / block_bytes_]->bytes().subspan(offset % block_bytes_, count);
}

std::span<std::byte> Payload::fill(std::size_t offset, std::size_t count) {
    if (count == 0) return {};
    const PayloadBlock& block = *blocks_[offset / block_bytes_];
    assert(blocks_[offset / block_bytes_].use_count() == 1 && offset % block_bytes_ + count <= block.size_);
    return {block.region_->data() + block.offset_ + offset % block_bytes_, count};
}

std::span<std::byte> Payload::writable() {
    if (size_ == 0) return {};
    const std::byte* start = blocks_.front()->bytes().data();
    bool own = true;
    for (std::size_t i = 0; i < blocks_.size() && own; ++i)
        own = blocks_[i].use_count() == 1 && blocks_[i]->bytes().data() == start + i * block_bytes_;
    if (!own) {
        const Size size{size_, block_bytes_};
        Payload copy = std::move(unwritten({&size, 1}).front());
        for (std::size_t i = 0; i < blocks_.size(); ++i) {
            const auto bytes = blocks_[i]->bytes();
            std::memcpy(copy.fill(i * block_bytes_, bytes.size()).data(), bytes.data(), bytes.size());
        }
        *this = std::move(copy);
    }
    return {blocks_.front()->region_->data() + blocks_.front()->offset_, size_};
}

bool Payload::operator==(const Payload& other) const {
    if (size_ != other.size_) return false;
    for (std::size_t at = 0; at < size_;) {
        const auto left = blocks_[at / block_bytes_]->bytes().subspan(at % block_bytes_);
        const auto right = other.blocks_[at / other.block_bytes_]->bytes().subspan(at % other.block_bytes_);
        const std::size_t count = std::min(left.size(), right.size());
        if (std::memcmp(left.data(), right.data(), count) != 0) return false;
        at += count;
    }
    return true;
}

}  // namespace draftprobe::state
