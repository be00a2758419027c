#include "instrument/faults.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>

namespace draftprobe::instrument {

namespace {

constexpr FaultDescription kFaults[] = {
    {"context-shift", "N positions, not 0",
     "restored draft context rows land N positions too high (negative: too low); the slots they miss keep the previous "
     "occupant's rows"},
};

// Position p's row moves to position p + shift; the other slots get `before`'s bytes back. A row that lands outside the
// claimed range is lost: in a linear buffer it would lie past the prefix, where the suffix overwrites it, or before the
// buffer.
void shift_block(state::StoredRows& block, const state::StoredRows& before, const state::DraftContext& context,
                 Position shift) {
    const state::StoredRows restored = block;
    block = before;
    for (Position p = context.first(); p < context.end(); ++p) {
        const Position landed = p + shift;
        if (landed < context.first() || landed >= context.end()) continue;
        const auto source = restored.bytes(context.slot(p));
        std::memcpy(block.bytes(context.slot(landed)).data(), source.data(), source.size());
    }
}

}  // namespace

std::span<const FaultDescription> list_faults() { return kFaults; }

Result<Fault> parse_fault(std::string_view text) {
    const std::size_t equals = text.find('=');
    const std::string_view name = text.substr(0, equals);
    if (name != "context-shift") {
        return invalid_argument(
            fmt::format("--inject {}: unknown fault '{}'; known: context-shift=N (see --list-faults)", text, name));
    }
    const std::string_view argument = equals == std::string_view::npos ? std::string_view() : text.substr(equals + 1);
    const std::string_view digits = argument.starts_with('+') ? argument.substr(1) : argument;
    Fault fault;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), fault.shift);
    constexpr Position kLimit = 1'000'000;
    if (error != std::errc() || end != digits.data() + digits.size() || fault.shift == 0 || fault.shift > kLimit ||
        fault.shift < -kLimit) {
        return invalid_argument(
            fmt::format("--inject {}: argument '{}'; expected a number of positions other than 0 and within "
                        "±{}, for example context-shift=32",
                        text, argument, kLimit));
    }
    fault.spelling = fmt::format("context-shift={}", fault.shift);
    return fault;
}

DraftMemory remember_draft_memory(const state::Lane& lane) {
    DraftMemory memory;
    memory.rows = lane.draft.rows();
    for (std::size_t layer = 0; layer < lane.draft.layers(); ++layer) {
        memory.keys.push_back(lane.draft.keys(layer));
        memory.values.push_back(lane.draft.values(layer));
    }
    return memory;
}

void shift_context_rows(state::Lane& lane, const DraftMemory& before, Position shift, bool rings) {
    state::DraftContext& context = lane.draft;
    if (context.capacity() == 0) return;
    shift_block(context.rows(), before.rows, context, shift);
    if (!rings) return;
    for (std::size_t layer = 0; layer < context.layers(); ++layer) {
        shift_block(context.keys(layer), before.keys[layer], context, shift);
        shift_block(context.values(layer), before.values[layer], context, shift);
    }
}

}  // namespace draftprobe::instrument
