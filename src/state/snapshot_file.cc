#include "state/snapshot_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "base/files.h"
#include "base/json.h"
#include "state/snapshot_header.h"

namespace draftprobe::state {

namespace {

namespace fs = std::filesystem;

// Prologue: magic [8], version u32, zero u32, header bytes u64, payload bytes u64, SHA-256 of the header [32].
constexpr std::size_t kPrologueBytes = 64;
constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{256} << 20;

using Prologue = std::array<std::byte, kPrologueBytes>;

struct PrologueFields {
    std::uint64_t header_bytes = 0;
    std::uint64_t payload_bytes = 0;
    Sha256Digest header_digest{};
};

// Little-endian, as on every machine that this program is built for (base/float_bits.h assumes the same).
Prologue make_prologue(const PrologueFields& fields) {
    Prologue prologue{};
    std::memcpy(prologue.data(), kSnapshotMagic.data(), kSnapshotMagic.size());
    std::memcpy(prologue.data() + 8, &kSnapshotVersion, 4);
    std::memcpy(prologue.data() + 16, &fields.header_bytes, 8);
    std::memcpy(prologue.data() + 24, &fields.payload_bytes, 8);
    std::memcpy(prologue.data() + 32, fields.header_digest.data(), fields.header_digest.size());
    return prologue;
}

Result<PrologueFields> read_prologue(const Prologue& prologue, std::uint64_t file_bytes, std::string_view subject) {
    if (std::memcmp(prologue.data(), kSnapshotMagic.data(), kSnapshotMagic.size()) != 0) {
        const std::string_view found(reinterpret_cast<const char*>(prologue.data()), kSnapshotMagic.size());
        return corrupt(fmt::format("{}: starts with {}, expected \"{}\"; this is not a snapshot file", subject,
                                   quoted_excerpt(found), kSnapshotMagic));
    }
    std::uint32_t version = 0;
    std::uint32_t zero = 0;
    PrologueFields fields;
    std::memcpy(&version, prologue.data() + 8, 4);
    std::memcpy(&zero, prologue.data() + 12, 4);
    std::memcpy(&fields.header_bytes, prologue.data() + 16, 8);
    std::memcpy(&fields.payload_bytes, prologue.data() + 24, 8);
    std::memcpy(fields.header_digest.data(), prologue.data() + 32, fields.header_digest.size());
    if (version != kSnapshotVersion) {
        return unsupported(fmt::format("{}: snapshot version {}, supported: {}; use the program that wrote it", subject,
                                       version, kSnapshotVersion));
    }
    if (zero != 0) return corrupt(fmt::format("{}: bytes 12..15 are {:#x}, expected 0", subject, zero));
    if (fields.header_bytes > kMaxHeaderBytes) {
        return exhausted(fmt::format("{}: a header of {} bytes, expected at most {}", subject, fields.header_bytes,
                                     kMaxHeaderBytes));
    }
    const std::uint64_t rest = file_bytes - kPrologueBytes;
    if (fields.header_bytes > rest || fields.payload_bytes != rest - fields.header_bytes) {
        return corrupt(fmt::format(
            "{}: {} bytes, expected {} of prologue, {} of header and {} of payload; the file was cut off or grew",
            subject, file_bytes, kPrologueBytes, fields.header_bytes, fields.payload_bytes));
    }
    return fields;
}

// Tokens and every component must fill the payload exactly: after this, allocations are bounded by the file's length.
Status check_sizes(const SnapshotHeader& header, std::uint64_t payload_bytes, std::string_view subject) {
    const Snapshot& snapshot = header.snapshot;
    std::uint64_t left = payload_bytes;
    const auto take = [&left](std::uint64_t bytes) {
        const bool fits = bytes <= left;
        left -= fits ? bytes : 0;
        return fits;
    };
    bool fits = take(static_cast<std::uint64_t>(snapshot.length) * sizeof(TokenId));
    for (std::size_t i = 0; fits && i < snapshot.components.size(); ++i) {
        const SnapshotComponent& part = snapshot.components[i];
        const std::uint64_t bytes = canonical_size(snapshot.shape, part.component, part.first, part.last);
        if (bytes != header.digests[i].bytes) {
            return corrupt(fmt::format("{}: component {} says {} bytes, expected {} for [{}, {})", subject,
                                       component_name(part.component), header.digests[i].bytes, bytes, part.first,
                                       part.last));
        }
        fits = take(bytes);
    }
    if (fits && left == 0) return {};
    return corrupt(fmt::format(
        "{}: labelled {} positions, whose tokens and components do not make a payload of {} bytes ({} left over); the "
        "label or the shape is not that of the payload",
        subject, snapshot.length, payload_bytes, fits ? left : 0));
}

using ReadBytes = std::function<Status(std::span<std::byte>)>;

Status read_tokens(const SnapshotHeader& header, const ReadBytes& read, Snapshot& snapshot, std::string_view subject) {
    snapshot.tokens.resize(static_cast<std::size_t>(snapshot.length));
    DP_RETURN_IF_ERROR(read(std::as_writable_bytes(std::span(snapshot.tokens))));
    const std::string found = sha256_hex(std::as_bytes(std::span<const TokenId>(snapshot.tokens)));
    if (found == header.tokens_digest) return {};
    return corrupt(fmt::format("{}: tokens have SHA-256 {}.., expected {}..", subject, found.substr(0, 16),
                               header.tokens_digest.substr(0, 16)));
}

Status read_component(const ComponentDigests& digests, const ReadBytes& read, const StateShape& shape,
                      SnapshotComponent& part, std::string_view subject) {
    const std::vector<CanonicalPage> pages = canonical_pages(shape, part.component, part.first, part.last);
    if (pages.size() != digests.pages.size()) {
        return corrupt(fmt::format("{}: component {} lists {} pages, expected {}", subject,
                                   component_name(part.component), digests.pages.size(), pages.size()));
    }
    std::vector<Sha256Digest> found;
    for (const CanonicalPage& page : pages) {
        const std::span<std::byte> target = part.bytes.fill(page.offset, page.bytes);
        DP_RETURN_IF_ERROR(read(target));
        Sha256 hash;
        hash.update(target);
        found.push_back(hash.finish());
        part.checksums.push_back(xxh3_64(target));
        if (hex(found.back()) == digests.pages[page.index]) continue;
        return corrupt(fmt::format("{}: page {} of component {} (positions [{}, {})) has SHA-256 {}.., expected {}..",
                                   subject, page.index, component_name(part.component), page.first, page.last,
                                   hex(found.back()).substr(0, 16), digests.pages[page.index].substr(0, 16)));
    }
    if (merkle_root(found) == digests.root) return {};
    return corrupt(fmt::format("{}: component {} has digest {}.., expected {}.. over its pages", subject,
                               component_name(part.component), merkle_root(found).substr(0, 16),
                               digests.root.substr(0, 16)));
}

Result<Snapshot> read_from(const ReadBytes& read, std::uint64_t file_bytes, std::string_view subject) {
    Prologue prologue;
    if (file_bytes < prologue.size()) {
        return corrupt(fmt::format("{}: {} bytes, expected at least {}; this is not a snapshot file", subject,
                                   file_bytes, prologue.size()));
    }
    DP_RETURN_IF_ERROR(read(prologue));
    DP_ASSIGN_OR_RETURN(const PrologueFields fields, read_prologue(prologue, file_bytes, subject));
    std::string text(fields.header_bytes, '\0');
    DP_RETURN_IF_ERROR(read(std::as_writable_bytes(std::span(text))));
    Sha256 hash;
    hash.update(text);
    if (hash.finish() != fields.header_digest) {
        return corrupt(fmt::format("{}: the header's SHA-256 differs from the one in the prologue", subject));
    }
    DP_ASSIGN_OR_RETURN(SnapshotHeader header, parse_header(text, subject));
    DP_RETURN_IF_ERROR(check_sizes(header, fields.payload_bytes, subject));
    Snapshot& snapshot = header.snapshot;
    DP_RETURN_IF_ERROR(read_tokens(header, read, snapshot, subject));
    // Before any page is read: pages of another range would not be those that memory is cut for.
    DP_RETURN_IF_ERROR(check_layout(snapshot).with_context(subject));
    make_room(snapshot);
    for (std::size_t i = 0; i < snapshot.components.size(); ++i) {
        DP_RETURN_IF_ERROR(read_component(header.digests[i], read, snapshot.shape, snapshot.components[i], subject));
    }
    DP_RETURN_IF_ERROR(check_snapshot(snapshot, false).with_context(subject));
    return std::move(snapshot);
}

SnapshotHeader header_of(const Snapshot& snapshot) {
    SnapshotHeader header;
    header.snapshot.identity = snapshot.identity;
    header.snapshot.shape = snapshot.shape;
    header.snapshot.length = snapshot.length;
    header.snapshot.request = snapshot.request;
    header.tokens_digest = sha256_hex(std::as_bytes(std::span<const TokenId>(snapshot.tokens)));
    for (const SnapshotComponent& part : snapshot.components) {
        SnapshotComponent& described = header.snapshot.components.emplace_back();
        described.component = part.component;
        described.first = part.first;
        described.last = part.last;
        described.base = part.base;
        described.sources = part.sources;
        described.consumed = part.consumed;
        const std::vector<Sha256Digest> pages = page_digests(snapshot, part);
        ComponentDigests& digests = header.digests.emplace_back();
        digests.component = part.component;
        digests.bytes = part.bytes.size();
        digests.root = merkle_root(pages);
        for (const Sha256Digest& page : pages) digests.pages.push_back(hex(page));
    }
    return header;
}

}  // namespace

Status write_snapshot(const Snapshot& snapshot, const fs::path& path, bool force) {
    DP_RETURN_IF_ERROR(check_snapshot(snapshot, true).with_context(path.string() + ": not written"));
    const std::string header = write_header(header_of(snapshot));
    PrologueFields fields;
    fields.header_bytes = header.size();
    fields.payload_bytes = snapshot.bytes();
    Sha256 hash;
    hash.update(header);
    fields.header_digest = hash.finish();
    const Prologue prologue = make_prologue(fields);
    std::vector<std::span<const std::byte>> parts = {prologue, std::as_bytes(std::span(header)),
                                                     std::as_bytes(std::span(snapshot.tokens))};
    for (const SnapshotComponent& part : snapshot.components) {
        for (const Payload::Block& block : part.bytes.blocks()) parts.push_back(block->bytes());
    }
    return write_file_atomically(path, parts, force);
}

Result<Snapshot> read_snapshot(const fs::path& path) {
    DP_ASSIGN_OR_RETURN(FileReader file, FileReader::open(path));
    return read_from([&file](std::span<std::byte> out) { return file.read(out); }, file.size(), path.string());
}

Result<Snapshot> parse_snapshot(std::span<const std::byte> bytes, std::string_view subject) {
    std::span<const std::byte> left = bytes;
    const auto read = [&](std::span<std::byte> out) -> Status {
        if (out.size() > left.size()) return corrupt(fmt::format("{}: ends too early", subject));
        std::copy_n(left.begin(), out.size(), out.begin());
        left = left.subspan(out.size());
        return {};
    };
    return read_from(read, bytes.size(), subject);
}

bool looks_like_snapshot(const fs::path& path) {
    Result<FileReader> file = FileReader::open(path);
    std::array<std::byte, kSnapshotMagic.size()> start;
    return file.ok() && file->size() >= start.size() && file->read(start).ok() &&
           std::memcmp(start.data(), kSnapshotMagic.data(), start.size()) == 0;
}

}  // namespace draftprobe::state
