#include "state/lane.h"

#include <span>

#include "base/hash.h"

namespace draftprobe::state {

Lane::Lane(int id, const StateShape& shape, bool poison)
    : kv(shape, poison), recurrent(shape), draft(shape, poison), id_(id), shape_(shape) {
    if (poison) recurrent.idle().poison();
}

void Lane::reset() {
    if (!tokens.empty()) previous_occupant = sha256_hex(std::as_bytes(std::span<const TokenId>(tokens)));
    length = 0;
    tokens.clear();
    has_anchor = false;
    anchor = 0;
    recurrent.current().clear();
    draft.reset();
    target_sources.clear();
    target_rows_written = 0;
}

}  // namespace draftprobe::state
