// Finds out whether rows of one arm are the other arm's rows moved by a constant number of positions. Works on row
// digests by absolute position; a digest of 0 means that nothing is known there. Time is linear in the rows. Inside
// compare/ only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/types.h"

namespace draftprobe {

struct DigestRows {
    Position first = 0;
    std::span<const std::uint64_t> digests;

    Position last() const { return first + static_cast<Position>(digests.size()); }
    std::uint64_t at(Position p) const {
        return p < first || p >= last() ? 0 : digests[static_cast<std::size_t>(p - first)];
    }
};

struct RowDifferences {
    std::int64_t compared = 0;     // positions known in both arms
    std::int64_t different = 0;    // of those
    std::int64_t missing = 0;      // known in the control only, inside the treated arm's list
    std::int64_t extra = 0;        // known in the treated arm only
    Position first_different = 0;  // valid when different + missing + extra > 0
};

struct ConstantShift {
    std::int64_t tokens = 0;      // treated row p equals control row p - tokens
    std::int64_t matching = 0;    // rows that are explained by it
    std::int64_t candidates = 0;  // differing treated rows whose counterpart p - tokens is known
};

RowDifferences row_differences(const DigestRows& control, const DigestRows& treated);

// The shift that explains a clear majority (more than half, at least two) of the treated rows that differ from the
// control or stand where the control has none. Among equally good ones, the smallest in magnitude.
std::optional<ConstantShift> find_constant_shift(const DigestRows& control, const DigestRows& treated);

// The control position whose row stands at treated position p, when p's own row does not and there is exactly one.
std::optional<Position> position_of_row(const DigestRows& control, const DigestRows& treated, Position p);

}  // namespace draftprobe
