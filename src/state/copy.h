// Copies of state. Inside state/ only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace draftprobe::state {

// From this size on a copy goes past the caches: it would not stay in them, and reading the target's lines first costs
// a third of the memory traffic (what the system's memcpy does for sizes that single pages of state never reach).
inline constexpr std::size_t kStreamedCopy = std::size_t{256} << 10;

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t count) {
#if defined(__SSE2__)
    if (count >= kStreamedCopy) {
        const std::size_t head = (16 - reinterpret_cast<std::uintptr_t>(to) % 16) % 16;
        std::memcpy(to, from, head);
        const std::size_t blocks = (count - head) / 64;
        auto* target = reinterpret_cast<__m128i*>(to + head);
        const auto* source = reinterpret_cast<const __m128i*>(from + head);
        for (std::size_t i = 0; i < blocks; ++i, target += 4, source += 4) {
            const __m128i a = _mm_loadu_si128(source);
            const __m128i b = _mm_loadu_si128(source + 1);
            const __m128i c = _mm_loadu_si128(source + 2);
            const __m128i d = _mm_loadu_si128(source + 3);
            _mm_stream_si128(target, a);
            _mm_stream_si128(target + 1, b);
            _mm_stream_si128(target + 2, c);
            _mm_stream_si128(target + 3, d);
        }
        _mm_sfence();
        const std::size_t done = head + blocks * 64;
        std::memcpy(to + done, from + done, count - done);
        return;
    }
#endif
    std::memcpy(to, from, count);
}

}  // namespace draftprobe::state
