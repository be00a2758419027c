// One snapshot in one file: docs/snapshot-format.md specifies the bytes.
//
// Writing is crash-safe: the file appears under its name complete and synced, or not at all. Reading trusts nothing:
// sizes follow from the header's shape and must add up to the file's length before anything is allocated, and every
// page is checked against its SHA-256 while it is read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "state/snapshot.h"

namespace draftprobe::state {

inline constexpr std::uint32_t kSnapshotVersion = 1;
inline constexpr std::string_view kSnapshotMagic = "DPSNAPSH";

// Writes `path` (mode 0666 less umask). Errors: corrupt (the snapshot contradicts itself: nothing is written), those of
// write_file_atomically (invalid_argument when it exists without force, not_found, io, exhausted on a full disk).
Status write_snapshot(const Snapshot& snapshot, const std::filesystem::path& path, bool force);

// Reads and checks a whole file. Page checksums for later restores are made on the way. Errors: not_found, io, corrupt
// (not a snapshot, truncated, flipped, contradicting itself), unsupported (another version), exhausted (header above
// its limit). Messages name file, place, found and expected.
Result<Snapshot> read_snapshot(const std::filesystem::path& path);
// The same from memory; `subject` stands for the file in messages.
Result<Snapshot> parse_snapshot(std::span<const std::byte> bytes, std::string_view subject);

// Whether a file starts as a snapshot does, whatever follows.
bool looks_like_snapshot(const std::filesystem::path& path);

}  // namespace draftprobe::state
