// The seed file of a frozen budget: everything the rule needs, as JSON with fixed bytes. docs/budget.md specifies it.
//
// The file's SHA-256 is part of the identity of every capture made with it, so equal seeds must have equal bytes:
// seed_json gives one text for one seed. A reader takes any spelling of the same JSON, and its digest is that of the
// bytes read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "budget/rule.h"

namespace draftprobe::budget {

inline constexpr std::int64_t kSeedVersion = 1;

// Where a seed came from. Nothing here changes a decision.
struct Provenance {
    std::string target;                 // digest of the target's identity group: 64 hex digits, or empty
    std::string draft;                  // the same for the draft
    std::vector<std::string> captures;  // capture digests, 64 hex digits, ascending, each once
    bool after_restore = false;         // made from restored arms alone
    std::int64_t lane_cycles = 0;       // lane-cycles that taught
    std::string note;                   // free text without line breaks
    bool operator==(const Provenance&) const = default;
};

struct Seed {
    std::size_t block = 0;            // rows of a full verification, anchor included
    std::size_t lanes = 0;            // lanes in the batch whose cycles the costs are of
    std::vector<double> upper_edges;  // strictly ascending, above 0; the last is 1
    State state;                      // a pair of counts per edge, each in (0, 2^53]; `block` costs
    Provenance provenance;
    std::string digest;  // SHA-256 of the bytes that were read; empty in a seed made in memory
};

// One seed, one text. Errors: invalid_argument, naming the field that parse_seed would refuse.
Result<std::string> seed_json(const Seed& seed);

// `subject` names the input in messages. Errors: corrupt (not JSON, a missing, unknown or repeated key, a value outside
// its bounds), unsupported (another format), mismatch (another version).
Result<Seed> parse_seed(std::string_view text, std::string_view subject);

// The same for a file of at most 1 MiB. Errors also: not_found, io, exhausted.
Result<Seed> read_seed(const std::filesystem::path& path);

}  // namespace draftprobe::budget
