#include "state/kv_pages.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "base/float_bits.h"

namespace draftprobe::state {

namespace {

constexpr std::size_t kPage = static_cast<std::size_t>(kPageTokens);

template <typename T>
T load_as(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
}

// Symmetric int8 with one scale per row: scale = absmax / 127, q = rne(x * (127 / absmax)); all zero gives scale 0.
// Must stay the same arithmetic as Kernels::quantise_int8 (docs/numerics.md); kept here because storage owns the bytes.
void quantise_row(const float* x, std::size_t n, std::byte* q, float* scale) {
    float absmax = 0;
    for (std::size_t i = 0; i < n; ++i) absmax = std::max(absmax, std::fabs(x[i]));
    if (absmax == 0) {
        std::memset(q, 0, n);
        *scale = 0;
        return;
    }
    *scale = absmax / 127.0f;
    const float inverse = 127.0f / absmax;
    for (std::size_t i = 0; i < n; ++i) {
        const auto code = static_cast<std::int8_t>(std::nearbyint(x[i] * inverse));
        std::memcpy(q + i, &code, 1);
    }
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
    return pages_[page].get() + index * head_block_bytes();
}

Status KvPages::reserve(Position last) {
    if (last < 0 || static_cast<std::size_t>(last) >= shape_.max_tokens) {
        return exhausted(fmt::format("lane: position {} does not fit; a lane holds positions 0..{}; shorten the prompt or "
                                     "the number of cycles",
                                     last, static_cast<Position>(shape_.max_tokens) - 1));
    }
    const std::size_t needed = static_cast<std::size_t>(last / kPageTokens) + 1;
    while (pages_.size() < needed) {
        const std::size_t bytes = shape_.kv_page_bytes();
        auto page = std::make_unique<std::byte[]>(bytes);
        std::memset(page.get(), poison_ ? 0xff : 0, bytes);
        pages_.push_back(std::move(page));
    }
    return {};
}

void KvPages::truncate(Position length) {
    const std::size_t keep = static_cast<std::size_t>((length + kPageTokens - 1) / kPageTokens);
    if (pages_.size() > keep) pages_.resize(keep);
}

void KvPages::write(std::size_t layer, Position position, const float* k, const float* v) {
    const std::size_t page = static_cast<std::size_t>(position / kPageTokens);
    const std::size_t slot = static_cast<std::size_t>(position % kPageTokens);
    const std::size_t d = shape_.head_dim;
    for (int side = 0; side < 2; ++side) {
        const float* source = side ? v : k;
        for (std::size_t head = 0; head < shape_.kv_heads; ++head, source += d) {
            std::byte* block = head_block(page, layer, side == 1, head);
            std::byte* row = block + slot * d * element_bytes();
            switch (shape_.kv_format) {
                case KvFormat::f32: std::memcpy(row, source, d * sizeof(float)); break;
                case KvFormat::bf16:
                    for (std::size_t i = 0; i < d; ++i) {
                        const Bf16 bits = f32_to_bf16(source[i]);
                        std::memcpy(row + i * sizeof(Bf16), &bits, sizeof(Bf16));
                    }
                    break;
                case KvFormat::int8: {
                    float scale;
                    quantise_row(source, d, row, &scale);
                    std::memcpy(block + kPage * d + slot * sizeof(float), &scale, sizeof(float));
                    break;
                }
            }
        }
    }
}

void KvPages::load_page(std::size_t layer, Position page, std::size_t head, float* keys_t, float* values) const {
    const std::size_t d = shape_.head_dim;
    for (int side = 0; side < 2; ++side) {
        const std::byte* block = head_block(static_cast<std::size_t>(page), layer, side == 1, head);
        for (std::size_t slot = 0; slot < kPage; ++slot) {
            const std::byte* row = block + slot * d * element_bytes();
            float scale = 1;
            if (shape_.kv_format == KvFormat::int8) scale = load_as<float>(block + kPage * d + slot * sizeof(float));
            for (std::size_t i = 0; i < d; ++i) {
                float x = 0;
                switch (shape_.kv_format) {
                    case KvFormat::f32: x = load_as<float>(row + i * 4); break;
                    case KvFormat::bf16: x = bf16_to_f32(load_as<Bf16>(row + i * 2)); break;
                    case KvFormat::int8: x = scale * static_cast<float>(load_as<std::int8_t>(row + i)); break;
                }
                if (side == 0) {
                    keys_t[i * kPage + slot] = x;
                } else {
                    values[slot * d + i] = x;
                }
            }
        }
    }
}

void KvPages::canonical_bytes(std::size_t page, Position first, Position last, std::vector<std::byte>& out) const {
    const std::size_t begin = static_cast<std::size_t>(first % kPageTokens);
    const std::size_t count = static_cast<std::size_t>(last - first);
    const std::size_t row = shape_.head_dim * element_bytes();
    for (std::size_t layer = 0; layer < shape_.attention_layers; ++layer) {
        for (int side = 0; side < 2; ++side) {
            for (std::size_t head = 0; head < shape_.kv_heads; ++head) {
                const std::byte* block = head_block(page, layer, side == 1, head);
                out.insert(out.end(), block + begin * row, block + (begin + count) * row);
                if (shape_.kv_format == KvFormat::int8) {
                    const std::byte* scales = block + kPage * row;
                    out.insert(out.end(), scales + begin * sizeof(float), scales + (begin + count) * sizeof(float));
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
