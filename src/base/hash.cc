#include "base/hash.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <cassert>

#include "base/files.h"

namespace draftprobe {

struct Sha256::Context {
    EVP_MD_CTX* evp = EVP_MD_CTX_new();
    Context() {
        // Fails only when memory is out or the library has no SHA-256; neither leaves a digest to report.
        [[maybe_unused]] const int ok = EVP_DigestInit_ex(evp, EVP_sha256(), nullptr);
        assert(ok == 1);
    }
    ~Context() { EVP_MD_CTX_free(evp); }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(const void* data, std::size_t size_bytes) {
    if (size_bytes == 0) return;
    [[maybe_unused]] const int ok = EVP_DigestUpdate(context_->evp, data, size_bytes);
    assert(ok == 1);
}

void Sha256::update(std::span<const std::byte> bytes) { update(bytes.data(), bytes.size()); }

std::array<std::uint8_t, 32> Sha256::finish() {
    std::array<std::uint8_t, 32> digest{};
    unsigned int written = 0;
    [[maybe_unused]] const int ok = EVP_DigestFinal_ex(context_->evp, digest.data(), &written);
    assert(ok == 1 && written == digest.size());
    return digest;
}

std::string hex(std::span<const std::uint8_t> bytes) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    text.reserve(bytes.size() * 2);
    for (const std::uint8_t byte : bytes) {
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
    Sha256 hash;
    hash.update(bytes);
    return hex(hash.finish());
}

std::string sha256_hex(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

Result<std::string> sha256_file(const std::filesystem::path& path) {
    Sha256 hash;
    DP_RETURN_IF_ERROR(read_file_blocks(path, [&](std::span<const std::byte> block) { hash.update(block); }));
    return hex(hash.finish());
}

std::uint64_t xxh3_64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hex64(std::uint64_t value) {
    std::array<std::uint8_t, 8> bytes{};
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(value >> (56 - 8 * i));
    return hex(bytes);
}

}  // namespace draftprobe
