// What a lane's request needs besides its rows to go on where it stopped: the pending anchor, how it draws, what it has
// given out and may still give out, and its budget controller. Plain values, so that a snapshot taken in the middle of
// a request can carry them; decode/request_record.h makes them from an engine's request and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace draftprobe::state {

struct ControllerRecord {
    std::string kind;  // "full" | "adaptive" | "frozen"
    std::uint64_t block = 0;
    std::uint64_t lanes = 0;
    // Adaptive only: what it has learned (budget/rule.h).
    std::vector<double> successes;
    std::vector<double> failures;
    std::vector<double> cost;
    std::string seed_digest;  // frozen only: the seed file it reads

    bool operator==(const ControllerRecord&) const = default;
};

struct RequestRecord {
    TokenId anchor = 0;         // selected, not yet consumed; belongs to the position after the last committed one
    std::uint64_t emitted = 0;  // tokens given out so far
    std::uint64_t max_new_tokens = 0;
    std::vector<TokenId> stop_ids;
    // Random numbers are a function of (seed, request, position, stream): no generator state.
    float temperature = 0;
    std::int64_t top_k = 0;
    float top_p = 1;
    float min_p = 0;
    std::uint64_t seed = 0;
    std::uint64_t request = 0;
    std::optional<ControllerRecord> controller;  // none: every row is verified

    bool operator==(const RequestRecord&) const = default;
};

// A ledger's entry for a record: the name of the component, and its canonical content, one line a field. Floats are
// their bits, so equal content is equal state.
inline constexpr std::string_view kRequestComponent = "request";
std::string canonical_request(const RequestRecord& record);

}  // namespace draftprobe::state
