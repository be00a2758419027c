// The JSON header of a snapshot file. Inside state/ only.
#pragma once

#include <string>
#include <string_view>

#include "state/snapshot.h"

namespace draftprobe::state {

struct ComponentDigests {
    Component component = Component::target_kv;
    std::uint64_t bytes = 0;  // as the header says
    std::string root;
    std::vector<std::string> pages;  // 64 hex digits each
};

struct SnapshotHeader {
    // Everything but tokens, payload and checksums.
    Snapshot snapshot;
    std::string tokens_digest;
    std::vector<ComponentDigests> digests;  // parallel to snapshot.components
};

// One line of JSON with fixed bytes, ended by LF.
std::string write_header(const SnapshotHeader& header);
// Errors: corrupt, naming `subject` and the member. Ranges and sizes are in bounds, the rest is the caller's to check.
Result<SnapshotHeader> parse_header(std::string_view text, std::string_view subject);

}  // namespace draftprobe::state
