#include "compare/shift_search.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <unordered_map>
#include <vector>

namespace draftprobe {
namespace {

// Equal rows (an all-zero page, say) would vote for every distance between them; a few votes each are enough.
constexpr std::size_t kVotesPerRow = 8;

bool differs(const DigestRows& control, const DigestRows& treated, Position p) {
    return treated.at(p) != 0 && treated.at(p) != control.at(p);
}

}  // namespace

RowDifferences row_differences(const DigestRows& control, const DigestRows& treated) {
    RowDifferences result;
    bool found = false;
    const Position first = std::min(control.first, treated.first);
    const Position last = std::max(control.last(), treated.last());
    for (Position p = first; p < last; ++p) {
        const std::uint64_t c = control.at(p);
        const std::uint64_t t = treated.at(p);
        if (c != 0 && t != 0) ++result.compared;
        if (c == t) continue;
        if (c != 0 && t != 0) {
            ++result.different;
        } else if (t == 0) {
            if (p < treated.first || p >= treated.last()) continue;
            ++result.missing;
        } else {
            ++result.extra;
        }
        if (!found) result.first_different = p;
        found = true;
    }
    return result;
}

std::optional<ConstantShift> find_constant_shift(const DigestRows& control, const DigestRows& treated) {
    std::unordered_map<std::uint64_t, std::vector<Position>> positions;
    for (Position p = control.first; p < control.last(); ++p) {
        if (control.at(p) == 0) continue;
        std::vector<Position>& list = positions[control.at(p)];
        if (list.size() < kVotesPerRow) list.push_back(p);
    }
    std::map<std::int64_t, std::int64_t> votes;
    for (Position p = treated.first; p < treated.last(); ++p) {
        if (!differs(control, treated, p)) continue;
        const auto entry = positions.find(treated.at(p));
        if (entry == positions.end()) continue;
        for (Position q : entry->second) ++votes[p - q];
    }
    std::optional<ConstantShift> best;
    for (const auto& [shift, count] : votes) {
        const bool better = !best || count > best->matching ||
                            (count == best->matching && std::llabs(shift) < std::llabs(best->tokens));
        if (shift != 0 && better) best = ConstantShift{shift, count, 0};
    }
    if (!best) return std::nullopt;
    for (Position p = treated.first; p < treated.last(); ++p) {
        if (differs(control, treated, p) && control.at(p - best->tokens) != 0) ++best->candidates;
    }
    if (best->matching < 2 || best->matching * 2 <= best->candidates) return std::nullopt;
    return best;
}

std::optional<Position> position_of_row(const DigestRows& control, const DigestRows& treated, Position p) {
    if (!differs(control, treated, p)) return std::nullopt;
    std::optional<Position> found;
    for (Position q = control.first; q < control.last(); ++q) {
        if (control.at(q) != treated.at(p)) continue;
        if (found) return std::nullopt;
        found = q;
    }
    return found;
}

}  // namespace draftprobe
