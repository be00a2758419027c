#include "capture/context_hash.h"

#include <array>
#include <cassert>

#include "base/hash.h"

namespace draftprobe {
namespace {

template <std::size_t N>
std::array<std::uint8_t, N> little_endian(std::uint64_t value) {
    std::array<std::uint8_t, N> bytes{};
    for (std::size_t i = 0; i < N; ++i) bytes[i] = static_cast<std::uint8_t>(value >> (8 * i));
    return bytes;
}

}  // namespace

std::string context_hash(std::string_view tokenizer_digest, std::span<const TokenId> ids, TokenId anchor) {
    assert(tokenizer_digest.empty() || tokenizer_digest.size() == 64);
    Sha256 sha;
    sha.update(kContextHashTag);
    sha.update(&kContextHashVersion, 1);
    sha.update(tokenizer_digest);
    const auto length = little_endian<8>(ids.size());
    sha.update(length.data(), length.size());
    std::array<std::uint8_t, 4096> block{};
    std::size_t used = 0;
    const auto put = [&](TokenId id) {
        const auto bytes = little_endian<4>(id);
        for (std::uint8_t byte : bytes) block[used++] = byte;
        if (used == block.size()) {
            sha.update(block.data(), used);
            used = 0;
        }
    };
    for (TokenId id : ids) put(id);
    put(anchor);
    sha.update(block.data(), used);
    const auto digest = sha.finish();
    return hex(digest);
}

}  // namespace draftprobe
