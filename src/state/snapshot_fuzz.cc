// libFuzzer target: any bytes give a snapshot that agrees with itself or an error. The header's SHA-256 is mended
// first, since no mutation would get past it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/hash.h"
#include "state/snapshot_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace draftprobe;
    std::vector<std::uint8_t> bytes(data, data + size);
    constexpr std::size_t kPrologue = 64;
    std::uint64_t header = 0;
    if (size > kPrologue) {
        std::memcpy(&header, bytes.data() + 16, sizeof header);
        if (header <= size - kPrologue) {
            const std::uint64_t payload = size - kPrologue - header;
            std::memcpy(bytes.data() + 24, &payload, sizeof payload);
            Sha256 hash;
            hash.update(bytes.data() + kPrologue, header);
            const Sha256Digest digest = hash.finish();
            std::memcpy(bytes.data() + 32, digest.data(), digest.size());
        }
    }
    const auto snapshot = state::parse_snapshot(std::as_bytes(std::span(bytes)), "fuzz");
    if (snapshot.ok() && !state::check_snapshot(*snapshot, true).ok()) std::abort();
    return 0;
}
