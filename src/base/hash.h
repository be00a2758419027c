// SHA-256 (OpenSSL) for identities and digests, XXH3-64 (xxhash) for fast equality of rows. All functions are pure;
// a Sha256 object belongs to one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace draftprobe {

using Sha256Digest = std::array<std::uint8_t, 32>;

// Incremental SHA-256 (FIPS 180-4). finish() ends the message; afterwards only destruction and assignment are allowed.
class Sha256 {
public:
    Sha256();
    ~Sha256();
    Sha256(Sha256&&) noexcept;
    Sha256& operator=(Sha256&&) noexcept;

    void update(std::span<const std::byte> bytes);
    void update(const void* data, std::size_t size_bytes);
    void update(std::string_view text) { update(text.data(), text.size()); }
    Sha256Digest finish();

private:
    struct Context;
    std::unique_ptr<Context> context_;
};

// Lower-case hexadecimal.
std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);
std::string hex(std::span<const std::uint8_t> bytes);

// Digest of a regular file's whole content, read in blocks. Errors: not_found, io.
Result<std::string> sha256_file(const std::filesystem::path& path);

// XXH3 64-bit, seed 0, of the bytes in memory order.
std::uint64_t xxh3_64(std::span<const std::byte> bytes);

// 16 lower-case digits, most significant first.
std::string hex64(std::uint64_t value);

}  // namespace draftprobe
