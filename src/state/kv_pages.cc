#include "state/kv_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "numerics/compute.h"
#include "state/copy.h"

namespace draftprobe::state {

namespace {

constexpr std::size_t kPage = static_cast<std::size_t>(kPageTokens);

// Any instruction set gives the same bits (docs/numerics.md), so storage takes the best one here.
const numerics::Kernels& kernels() {
    static const numerics::Kernels& table = numerics::kernels(numerics::best_isa());
    return table;
}

}  // namespace

std::size_t KvPages::element_bytes() const {
    switch (shape_.kv_format) {
        case KvFormat::f32: return 4;
        case KvFormat::bf16: return 2;
        case KvFormat::int8: return 1;
    }
    return 0;
}

std::size_t KvPages::head_block_bytes() const {
    const std::size_t scales = shape_.kv_format == KvFormat::int8 ? kPage * sizeof(float) : 0;
    return kPage * shape_.head_dim * element_bytes() + scales;
}

std::byte* KvPages::head_block(std::size_t page, std::size_t layer, bool value, std::size_t head) const {
    const std::size_t index = (layer * 2 + (value ? 1 : 0)) * shape_.kv_heads + head;
    return pages_[page].bytes + index * head_block_bytes();
}

Status KvPages::reserve(Position last) {
    if (last < 0 || static_cast<std::size_t>(last) >= shape_.max_tokens) {
        return exhausted(
            fmt::format("lane: position {} does not fit; a lane holds positions 0..{}; shorten the prompt or "
                        "the number of cycles",
                        last, static_cast<Position>(shape_.max_tokens) - 1));
    }
    const std::size_t needed = static_cast<std::size_t>(last / kPageTokens) + 1;
    while (pages_.size() < needed) {
        const std::size_t bytes = shape_.kv_page_bytes();
        if (pages_.size() == slab_pages_) add_slab();
        std::byte* page = slabs_.back().data() + slab_used_;
        slab_used_ += bytes;
        if (poison_) std::memset(page, 0xff, bytes);  // new slabs hold zeros
        pages_.push_back({page});
    }
    return {};
}

void KvPages::add_slab() {
    constexpr std::size_t kLargestSlab = std::size_t{8} << 20;
    constexpr std::size_t kSmallestSlab = std::size_t{64} << 10;
    const std::size_t bytes = std::max<std::size_t>(shape_.kv_page_bytes(), 1);
    const std::size_t left = (shape_.max_tokens + kPage - 1) / kPage - pages_.size();
    const std::size_t wanted = std::max(pages_.size(), kSmallestSlab / bytes);
    const std::size_t count =
        std::min(left, std::clamp<std::size_t>(wanted, 1, std::max<std::size_t>(1, kLargestSlab / bytes)));
    slabs_.emplace_back(count * bytes);
    slab_pages_ += count;
    slab_used_ = 0;
}

// Rows of one page are written by several threads at once.
void KvPages::touch(std::size_t page) {
    const std::atomic_ref<bool> hashed(pages_[page].hashed);
    if (hashed.load(std::memory_order_relaxed)) hashed.store(false, std::memory_order_relaxed);
}

Sha256Digest KvPages::page_digest(std::size_t page) const {
    const Page& entry = pages_[page];
    if (!entry.hashed) {
        Sha256 hash;
        hash.update(page_bytes(page));
        entry.digest = hash.finish();
        entry.hashed = true;
        ++pages_hashed_;
    }
    return entry.digest;
}

void KvPages::write(std::size_t layer, Position position, const float* k, const float* v) {
    const std::size_t page = static_cast<std::size_t>(position / kPageTokens);
    const std::size_t slot = static_cast<std::size_t>(position % kPageTokens);
    const std::size_t d = shape_.head_dim;
    touch(page);
    for (int side = 0; side < 2; ++side) {
        const float* source = side ? v : k;
        for (std::size_t head = 0; head < shape_.kv_heads; ++head, source += d) {
            std::byte* block = head_block(page, layer, side == 1, head);
            std::byte* row = block + slot * d * element_bytes();
            switch (shape_.kv_format) {
                case KvFormat::f32: std::memcpy(row, source, d * sizeof(float)); break;
                // A page row of 2-byte elements starts at an even offset of a slab, so it is aligned for Bf16.
                case KvFormat::bf16: kernels().to_bf16(source, d, reinterpret_cast<Bf16*>(row)); break;
                case KvFormat::int8: {
                    float scale;
                    kernels().quantise_int8(source, d, reinterpret_cast<std::int8_t*>(row), &scale);
                    std::memcpy(block + kPage * d + slot * sizeof(float), &scale, sizeof(float));
                    break;
                }
            }
        }
    }
}

void KvPages::load_page(std::size_t layer, Position page, std::size_t head, float* keys_t, float* values) const {
    const std::size_t d = shape_.head_dim;
    std::vector<float> key(d);
    for (int side = 0; side < 2; ++side) {
        const std::byte* block = head_block(static_cast<std::size_t>(page), layer, side == 1, head);
        for (std::size_t slot = 0; slot < kPage; ++slot) {
            const std::byte* row = block + slot * d * element_bytes();
            float* target = side == 0 ? key.data() : values + slot * d;
            switch (shape_.kv_format) {
                case KvFormat::f32: std::memcpy(target, row, d * sizeof(float)); break;
                case KvFormat::bf16: kernels().from_bf16(reinterpret_cast<const Bf16*>(row), d, target); break;
                case KvFormat::int8: {
                    float scale;
                    std::memcpy(&scale, block + kPage * d + slot * sizeof(float), sizeof(float));
                    kernels().dequantise_int8(reinterpret_cast<const std::int8_t*>(row), d, scale, target);
                    break;
                }
            }
            if (side == 1) continue;
            for (std::size_t i = 0; i < d; ++i) keys_t[i * kPage + slot] = key[i];
        }
    }
}

void KvPages::canonical_bytes(std::size_t page, Position first, Position last, std::byte* out) const {
    const std::size_t begin = static_cast<std::size_t>(first % kPageTokens);
    const std::size_t count = static_cast<std::size_t>(last - first);
    if (count == kPage) {
        copy_bytes(out, page_bytes(page).data(), shape_.kv_page_bytes());
        return;
    }
    const std::size_t row = shape_.head_dim * element_bytes();
    for (std::size_t layer = 0; layer < shape_.attention_layers; ++layer) {
        for (int side = 0; side < 2; ++side) {
            for (std::size_t head = 0; head < shape_.kv_heads; ++head) {
                const std::byte* block = head_block(page, layer, side == 1, head);
                out = std::copy(block + begin * row, block + (begin + count) * row, out);
                if (shape_.kv_format == KvFormat::int8) {
                    const std::byte* scales = block + kPage * row;
                    out = std::copy(scales + begin * sizeof(float), scales + (begin + count) * sizeof(float), out);
                }
            }
        }
    }
}

void KvPages::set_canonical_bytes(std::size_t page, Position first, Position last, std::span<const std::byte> bytes) {
    const std::size_t begin = static_cast<std::size_t>(first % kPageTokens);
    const std::size_t count = static_cast<std::size_t>(last - first);
    const std::size_t row = shape_.head_dim * element_bytes();
    const std::byte* source = bytes.data();
    touch(page);
    if (count == kPage) {
        copy_bytes(pages_[page].bytes, source, shape_.kv_page_bytes());
        return;
    }
    for (std::size_t layer = 0; layer < shape_.attention_layers; ++layer) {
        for (int side = 0; side < 2; ++side) {
            for (std::size_t head = 0; head < shape_.kv_heads; ++head) {
                std::byte* block = head_block(page, layer, side == 1, head);
                std::memcpy(block + begin * row, source, count * row);
                source += count * row;
                if (shape_.kv_format == KvFormat::int8) {
                    std::memcpy(block + kPage * row + begin * sizeof(float), source, count * sizeof(float));
                    source += count * sizeof(float);
                }
            }
        }
    }
}

}  // namespace draftprobe::state
