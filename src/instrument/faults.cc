#include "instrument/faults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "numerics/compute.h"

namespace draftprobe::instrument {

using state::Component;
using state::DraftContext;
using state::Lane;
using state::RowSource;
using state::StoredRows;

namespace {

constexpr Position kLargestNumber = 1'000'000;

constexpr FaultDescription kFaults[] = {
    {"context-shift", "N",
     "restored draft context rows land N positions too high (negative: too low); the slots they miss keep the previous "
     "occupant's rows"},
    {"rows-unwritten", "N|all[:zeros|:poison]",
     "the N newest restored draft context rows are claimed and were never written: their slots hold the previous "
     "occupant's rows, zeros, or poison"},
    {"stale-occupant", "COMPONENT",
     "the restore marks the component as restored and copies nothing: it stays as the previous occupant left it"},
    {"stale-anchor", "token:N|row:N",
     "the first draft after the restore is conditioned on the token, or on the context row, of N positions before the "
     "right one"},
    {"window-off-by-one", "+1|-1", "after the restore the draft's attention window is one position too wide or narrow"},
    {"position-base", "N",
     "the draft numbers the positions of what follows the restore from N on instead of from the boundary"},
    {"missing-component", "COMPONENT",
     "the snapshot lacks the component: draft rows are not there, rings keep the previous occupant's, target keys and "
     "values too, recurrent state starts from zero"},
    {"mislabelled-checkpoint", "K",
     "the recurrent state in the snapshot has consumed K tokens more than its label says"},
    {"double-quantisation", "N", "restored INT8 keys and values are widened to BF16 and quantised again, N times"},
    {"alias-snapshot", "N",
     "an earlier borrower of the snapshot went on for N tokens of another request and wrote into it"},
    {"unwritten-cell", "N",
     "at the Nth cycle that rejects every proposal the idle recurrent cell is taken as current without being written"},
    {"flip", "COMPONENT:BYTE",
     "the bits of one byte of the restored component, counted in its canonical layout, are inverted"},
    {"empty-restore", "all", "the restore reports success and restores nothing; the engine computes the prefix again"},
    {"cached-control", "all", "in an arm that should compute everything, the prefix secretly comes from a snapshot"},
    {"draft-nothing", "N|all",
     "after the restore the draft offers no proposals, in the first N cycles or in all of them"},
    {"checkpoint-inside-step", "N",
     "the lane comes to the boundary by decode steps of N tokens, and the checkpoint holds the recurrent state behind "
     "the step that crossed it (with N 1: the state at the boundary)"},
    {"pending-row", "N",
     "the first draft after the restore reads as its newest context row the one that the lane's previous occupant left "
     "N positions behind it"},
    {"unreset-row", "all",
     "in an arm that should compute everything, the context row of position 0 is the last one of the request before"},
    {"prefix-again", "all", "after the restore the engine feeds the prompt again from its first token"},
    {"suffix-unwritten", "N",
     "of the rest of the prompt only the newest N context rows reach the draft; the other slots stay as they were"},
    {"split-slots", "N", "a verification of N rows or more reads the recurrent state from before the last commit"},
    {"unsaved-component", "COMPONENT",
     "the checkpoint was saved without the component, and lists what it holds; the restore goes on as with "
     "missing-component"},
};

std::string component_names() {
    std::vector<std::string_view> names;
    for (const Component component : state::kComponents) names.push_back(state::component_name(component));
    return fmt::format("{}", fmt::join(names, ", "));
}

std::optional<Component> component_of(std::string_view name) {
    for (const Component component : state::kComponents) {
        if (state::component_name(component) == name) return component;
    }
    return std::nullopt;
}

std::optional<Position> number_of(std::string_view text, Position min, Position max) {
    if (text.starts_with('+')) text.remove_prefix(1);
    Position number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < min || number > max) return std::nullopt;
    return number;
}

// Reads the argument into `fault`; false when it is not what the fault takes.
bool read_argument(std::string_view text, Fault& fault) {
    const std::size_t colon = text.find(':');
    const std::string_view head = text.substr(0, colon);
    const std::string_view tail = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
    const auto take = [&fault](std::optional<Position> number) {
        fault.number = number.value_or(0);
        return number.has_value();
    };
    const auto take_component = [&fault](std::string_view name) {
        const std::optional<Component> component = component_of(name);
        fault.component = component.value_or(Component::target_kv);
        return component.has_value();
    };
    switch (fault.kind) {
        case FaultKind::context_shift:
            return take(number_of(text, -kLargestNumber, kLargestNumber)) && fault.number != 0;
        case FaultKind::rows_unwritten:
            fault.all = head == "all";
            if (tail == "zeros") fault.content = UnwrittenContent::zeros;
            if (tail == "poison") fault.content = UnwrittenContent::poison;
            if (colon != std::string_view::npos && fault.content == UnwrittenContent::occupant) return false;
            return fault.all || take(number_of(head, 1, kLargestNumber));
        case FaultKind::stale_occupant:
        case FaultKind::missing_component:
        case FaultKind::unsaved_component: return take_component(text);
        case FaultKind::stale_anchor:
            if (head != "token" && head != "row") return false;
            fault.anchor = head == "row" ? StaleAnchor::row : StaleAnchor::token;
            return take(number_of(tail, 1, kLargestNumber));
        case FaultKind::window_off_by_one: return take(number_of(text, -1, 1)) && fault.number != 0;
        case FaultKind::position_base: return take(number_of(text, 0, kLargestNumber));
        case FaultKind::mislabelled_checkpoint:
        case FaultKind::alias_snapshot:
        case FaultKind::double_quantisation:
        case FaultKind::checkpoint_inside_step:
        case FaultKind::pending_row:
        case FaultKind::suffix_unwritten:
        case FaultKind::split_slots:
        case FaultKind::unwritten_cell: return take(number_of(text, 1, kLargestNumber));
        case FaultKind::flip: return take_component(head) && take(number_of(tail, 0, Position{1} << 40));
        case FaultKind::draft_nothing:
            fault.all = text == "all";
            return fault.all || take(number_of(text, 1, kLargestNumber));
        case FaultKind::empty_restore:
        case FaultKind::unreset_row:
        case FaultKind::prefix_again:
        case FaultKind::cached_control: fault.all = text == "all"; return fault.all;
    }
    return false;
}

// Position p's row moves to position p + shift; the other slots get `before`'s bytes back. A row that lands outside the
// claimed range is lost: in a linear buffer it would lie past the prefix, where the suffix overwrites it, or before the
// buffer.
void shift_block(StoredRows& block, const StoredRows& before, const DraftContext& context, Position shift) {
    const StoredRows restored = block;
    for (std::size_t slot = 0; slot < block.rows(); ++slot) {
        const auto old = before.bytes(slot);
        std::memcpy(block.bytes(slot).data(), old.data(), old.size());
    }
    for (Position p = context.first(); p < context.end(); ++p) {
        const Position landed = p + shift;
        if (landed < context.first() || landed >= context.end()) continue;
        const auto source = restored.bytes(context.slot(p));
        std::memcpy(block.bytes(context.slot(landed)).data(), source.data(), source.size());
    }
}

void copy_rows(StoredRows& to, const StoredRows& from, const DraftContext& context, Position first, Position last) {
    for (Position p = first; p < last; ++p) {
        const auto source = from.bytes(context.slot(p));
        std::memcpy(to.bytes(context.slot(p)).data(), source.data(), source.size());
    }
}

void fill_rows(StoredRows& rows, const DraftContext& context, Position first, Position last, int byte) {
    for (Position p = first; p < last; ++p) {
        const auto target = rows.bytes(context.slot(p));
        std::memset(target.data(), byte, target.size());
    }
}

// Calls body(block, before) for the context rows when `rows`, and for every ring when `rings`.
template <class Body>
void each_block(DraftContext& context, const LaneMemory& before, bool rows, bool rings, const Body& body) {
    if (rows) body(context.rows(), before.rows);
    if (!rings) return;
    for (std::size_t layer = 0; layer < context.layers(); ++layer) {
        body(context.keys(layer), before.keys[layer]);
        body(context.values(layer), before.values[layer]);
    }
}

// The same claim again with what was written said anew: `unwritten` newest rows by nobody, and the rings as told.
void claim_again(DraftContext& context, Position unwritten, bool rings) {
    const Position first = context.first();
    const Position end = context.end();
    const Position written = end - unwritten;
    context.reset();
    context.claim(first, written, RowSource::restored);
    if (unwritten > 0) context.advance(end, RowSource::none);
    for (Position p = first; p < written; ++p) {
        context.mark_written(p, false);
        if (rings) context.mark_written(p, true);
    }
}

void leave_rows_unwritten(Lane& lane, const LaneMemory& before, const Fault& fault, bool rings) {
    DraftContext& context = lane.draft;
    const Position held = context.end() - context.first();
    const Position count = fault.all ? held : std::min(fault.number, held);
    const Position first = context.end() - count;
    each_block(context, before, true, rings, [&](StoredRows& block, const StoredRows& old) {
        switch (fault.content) {
            case UnwrittenContent::occupant: copy_rows(block, old, context, first, context.end()); break;
            case UnwrittenContent::zeros: fill_rows(block, context, first, context.end(), 0); break;
            case UnwrittenContent::poison: fill_rows(block, context, first, context.end(), 0xff); break;
        }
    });
    claim_again(context, count, rings);
}

void put_pages_back(Lane& lane, const LaneMemory& before, Position boundary) {
    for (std::size_t page = 0; page < before.pages.size(); ++page) {
        const Position first = static_cast<Position>(page) * kPageTokens;
        lane.kv.set_canonical_bytes(page, first, std::min(first + kPageTokens, boundary), before.pages[page]);
    }
}

void keep_occupant(Lane& lane, const LaneMemory& before, Component component, Position boundary, bool rings) {
    DraftContext& context = lane.draft;
    switch (component) {
        case Component::target_kv: put_pages_back(lane, before, boundary); break;
        case Component::recurrent_matrix: lane.recurrent.current().matrix = before.cell.matrix; break;
        case Component::recurrent_conv: lane.recurrent.current().conv = before.cell.conv; break;
        case Component::draft_context:
        case Component::draft_rings:
            each_block(context, before, component == Component::draft_context, rings,
                       [&](StoredRows& block, const StoredRows& old) {
                           copy_rows(block, old, context, context.first(), context.end());
                       });
            break;
    }
}

void lose_component(Lane& lane, const LaneMemory& before, Component component, Position boundary, bool rings) {
    DraftContext& context = lane.draft;
    state::RecurrentCell zero(lane.shape());
    switch (component) {
        case Component::target_kv:
            put_pages_back(lane, before, boundary);
            lane.target_rows_written = 0;
            break;
        case Component::recurrent_matrix: lane.recurrent.current().matrix = zero.matrix; break;
        case Component::recurrent_conv: lane.recurrent.current().conv = zero.conv; break;
        case Component::draft_context: {
            const Position end = context.end();
            context.reset();
            context.claim(end, end, RowSource::restored);
            break;
        }
        case Component::draft_rings:
            keep_occupant(lane, before, component, boundary, rings);
            claim_again(context, 0, false);
            break;
    }
}

// What a path does that reads INT8 rows, widens them to BF16 for another cache, and stores them there as INT8.
void quantise_again(Lane& lane, Position boundary) {
    const state::StateShape& shape = lane.shape();
    const auto& kernels = numerics::kernels(numerics::best_isa());
    const auto page_rows = static_cast<std::size_t>(kPageTokens);
    const std::size_t d = shape.head_dim;
    std::vector<float> keys_t(d * page_rows);
    std::vector<float> values(page_rows * d);
    for (std::size_t layer = 0; layer < shape.attention_layers; ++layer) {
        for (Position page = 0; page * kPageTokens < boundary; ++page) {
            std::vector<float> k(page_rows * shape.kv_row_floats());
            std::vector<float> v(k.size());
            for (std::size_t head = 0; head < shape.kv_heads; ++head) {
                lane.kv.load_page(layer, page, head, keys_t.data(), values.data());
                for (std::size_t slot = 0; slot < page_rows; ++slot) {
                    const std::size_t at = slot * shape.kv_row_floats() + head * d;
                    for (std::size_t i = 0; i < d; ++i) k[at + i] = keys_t[i * page_rows + slot];
                    std::memcpy(v.data() + at, values.data() + slot * d, d * sizeof(float));
                }
            }
            kernels.round_bf16(k.data(), k.size());
            kernels.round_bf16(v.data(), v.size());
            for (Position slot = 0; slot < kPageTokens && page * kPageTokens + slot < boundary; ++slot) {
                const std::size_t at = static_cast<std::size_t>(slot) * shape.kv_row_floats();
                lane.kv.write(layer, page * kPageTokens + slot, k.data() + at, v.data() + at);
            }
        }
    }
}

// Canonical bytes of positions [first, last) of one page.
std::vector<std::byte> page_rows(const Lane& lane, Position first, Position last) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(last - first) * lane.shape().kv_token_bytes());
    lane.kv.canonical_bytes(static_cast<std::size_t>(first / kPageTokens), first, last, bytes.data());
    return bytes;
}

LaneMemory remember(Lane& lane, Position boundary) {
    LaneMemory memory;
    memory.rows = lane.draft.rows();
    for (std::size_t layer = 0; layer < lane.draft.layers(); ++layer) {
        memory.keys.push_back(lane.draft.keys(layer));
        memory.values.push_back(lane.draft.values(layer));
    }
    memory.cell = lane.recurrent.current();
    for (Position first = 0; first < boundary; first += kPageTokens) {
        memory.pages.push_back(page_rows(lane, first, std::min(first + kPageTokens, boundary)));
    }
    return memory;
}

bool acts_on_copy(const Fault& fault) {
    switch (fault.kind) {
        case FaultKind::context_shift:
        case FaultKind::rows_unwritten:
        case FaultKind::stale_occupant:
        case FaultKind::missing_component:
        case FaultKind::unsaved_component:
        case FaultKind::double_quantisation: return true;
        // Before a rebuild, which reads the rows. Any other component is flipped when the restore is done.
        case FaultKind::flip: return fault.component == Component::draft_context;
        default: return false;
    }
}

std::size_t restored_bytes(Component component, const state::StateShape& shape, Position boundary) {
    const std::size_t element = state::row_element_bytes(shape.row_format);
    const std::size_t rows = std::min(static_cast<std::size_t>(boundary), shape.context_capacity);
    switch (component) {
        case Component::target_kv: return static_cast<std::size_t>(boundary) * shape.kv_token_bytes();
        case Component::recurrent_matrix: return shape.delta_layers * shape.matrix_floats() * sizeof(float);
        case Component::recurrent_conv: return shape.delta_layers * shape.conv_rows * shape.conv_channels * element;
        case Component::draft_context: return rows * shape.hidden * element;
        case Component::draft_rings: return rows * shape.draft_layers * 2 * shape.draft_kv_floats() * element;
    }
    return 0;
}

std::span<std::byte> whole_layer(std::vector<float>& layer) { return std::as_writable_bytes(std::span<float>(layer)); }

}  // namespace

std::span<const FaultDescription> list_faults() { return kFaults; }

Result<Fault> parse_fault(std::string_view text) {
    const std::size_t equals = text.find('=');
    const std::string_view name = text.substr(0, equals);
    const std::string_view argument = equals == std::string_view::npos ? std::string_view() : text.substr(equals + 1);
    std::vector<std::string> known;
    for (std::size_t i = 0; i < std::size(kFaults); ++i) {  // in the order of FaultKind
        known.push_back(fmt::format("{}={}", kFaults[i].name, kFaults[i].argument));
        if (kFaults[i].name != name) continue;
        Fault fault;
        fault.kind = static_cast<FaultKind>(i);
        if (!read_argument(argument, fault)) {
            return invalid_argument(fmt::format(
                "--inject {}: argument '{}'; expected {}={} (N and K: numbers within ±{}, not 0 where 0 would do "
                "nothing; COMPONENT: {})",
                text, argument, name, kFaults[i].argument, kLargestNumber, component_names()));
        }
        const std::string_view sign = fault.kind == FaultKind::window_off_by_one && fault.number > 0 ? "+" : "";
        fault.spelling = fmt::format("{}={}{}", name, sign, argument.starts_with('+') ? argument.substr(1) : argument);
        return fault;
    }
    return invalid_argument(fmt::format("--inject {}: unknown fault '{}'; known: {} (see --list-faults)", text, name,
                                        fmt::join(known, ", ")));
}

namespace {

bool needs_recurrent(const Fault& fault) {
    switch (fault.kind) {
        case FaultKind::mislabelled_checkpoint:
        case FaultKind::checkpoint_inside_step:
        case FaultKind::split_slots:
        case FaultKind::unwritten_cell: return true;
        case FaultKind::stale_occupant:
        case FaultKind::missing_component:
        case FaultKind::unsaved_component:
        case FaultKind::flip: return state::is_recurrent_component(fault.component);
        default: return false;
    }
}

// Faults of the draft's context as the restore leaves it, and faults of how the draft reads it.
bool of_restored_context(const Fault& fault) {
    switch (fault.kind) {
        case FaultKind::context_shift:
        case FaultKind::rows_unwritten: return true;
        case FaultKind::stale_occupant:
        case FaultKind::missing_component:
        case FaultKind::unsaved_component:
        case FaultKind::flip: return state::is_draft_component(fault.component);
        default: return false;
    }
}
bool of_reading_draft(const Fault& fault) {
    return fault.kind == FaultKind::stale_anchor || fault.kind == FaultKind::window_off_by_one ||
           fault.kind == FaultKind::position_base || fault.kind == FaultKind::pending_row;
}

// What the draft's restore form has to do with it; empty when nothing is in the way.
std::string form_needs(const Fault& fault, const FaultRun& run) {
    using state::DraftRestore;
    const std::string_view form = state::draft_restore_name(run.draft);
    const bool context = of_restored_context(fault);
    if (run.draft == DraftRestore::none && (context || of_reading_draft(fault))) {
        return fmt::format(
            "the draft form {} is a defect of the same rows already: found --restore-draft {}, expected "
            "a form that restores them, such as exact",
            form, form);
    }
    if (run.draft == DraftRestore::masked && context) {
        return fmt::format(
            "the draft form {} restores no row that it could act on: found --restore-draft {}, expected "
            "a form that does, such as exact",
            form, form);
    }
    const bool overwritten = (fault.kind == FaultKind::stale_occupant || fault.kind == FaultKind::missing_component ||
                              fault.kind == FaultKind::unsaved_component) &&
                             fault.component == Component::draft_rings && state::rebuilds_rings(run.draft);
    if (overwritten) {
        return fmt::format(
            "the draft form {} makes the rings again from the rows before anything reads them: found "
            "--restore-draft {}, expected exact or recompute, or the fault in draft_context",
            form, form);
    }
    const bool checkpoint = fault.kind == FaultKind::mislabelled_checkpoint ||
                            fault.kind == FaultKind::alias_snapshot ||
                            (fault.kind == FaultKind::unsaved_component && !of_restored_context(fault)) ||
                            (fault.kind == FaultKind::checkpoint_inside_step && fault.number > 1);
    if (checkpoint && run.draft == DraftRestore::recompute) {
        return fmt::format(
            "the draft form {} refuses a snapshot that its own tokens do not explain, so nothing would "
            "be restored: found --restore-draft {}, expected another form",
            form, form);
    }
    return {};
}

// What the sizes of this run have to do with it; empty when nothing is in the way.
std::string size_needs(const Fault& fault, const state::StateShape& shape, const FaultRun& run) {
    const auto capacity = static_cast<Position>(shape.context_capacity);
    const Position restored = std::min(run.boundary, capacity);
    const bool masked = run.draft == state::DraftRestore::masked;
    // Rows that the draft has at its first cycle.
    const Position held = std::min(masked ? run.prompt_length - run.boundary : run.prompt_length, capacity);
    switch (fault.kind) {
        case FaultKind::rows_unwritten:
            if (fault.all || fault.number <= restored) return {};
            return fmt::format("the restore writes {} draft context rows, expected a number up to that", restored);
        case FaultKind::stale_anchor:
            if (fault.anchor == StaleAnchor::row && fault.number >= held) {
                return fmt::format("the draft holds {} context rows at its first cycle, expected a smaller number",
                                   held);
            }
            if (fault.number < run.boundary) return {};
            return fmt::format("found {} positions, expected fewer than the boundary {}", fault.number, run.boundary);
        case FaultKind::window_off_by_one:
            if (held == capacity && run.prompt_length > capacity) return {};
            return fmt::format(
                "the draft's window is not full at its first cycle: found {} rows behind {} tokens, "
                "expected {} behind more; give a longer prompt{}",
                held, run.prompt_length, capacity, masked ? " behind the boundary" : "");
        case FaultKind::position_base:
            if (fault.number < run.boundary) return {};
            return fmt::format("found base {}, expected one below the boundary {}", fault.number, run.boundary);
        case FaultKind::mislabelled_checkpoint:
            if (fault.number <= run.prompt_length - run.boundary) return {};
            return fmt::format(
                "found {} prompt tokens behind the boundary, expected at least {}; give a smaller "
                "number or a longer prompt",
                run.prompt_length - run.boundary, fault.number);
        case FaultKind::checkpoint_inside_step:
            if (fault.number + 1 < run.boundary && fault.number <= run.prompt_length - run.boundary) return {};
            return fmt::format(
                "found steps of {} tokens, expected fewer than the boundary {} less one, and at most the {} tokens "
                "behind it",
                fault.number, run.boundary, run.prompt_length - run.boundary);
        case FaultKind::alias_snapshot:
            if (fault.number <= std::min(run.boundary, static_cast<Position>(shape.max_tokens) - run.boundary))
                return {};
            return fmt::format(
                "found {} tokens, expected at most the boundary {}, and that they fit behind it in a lane of {}",
                fault.number, run.boundary, shape.max_tokens);
        case FaultKind::flip: {
            const std::size_t bytes = restored_bytes(fault.component, shape, run.boundary);
            if (static_cast<std::size_t>(fault.number) < bytes) return {};
            return fmt::format("the component has {} bytes at the boundary, expected a smaller offset", bytes);
        }
        default: return {};
    }
}

// What the fault needs and does not find; empty when it can act.
std::string missing_need(const Fault& fault, const state::StateShape& shape, const FaultRun& run) {
    if ((of_restored_context(fault) || of_reading_draft(fault)) && shape.draft_layers == 0)
        return "there is no draft to put it into; give --draft";
    if (needs_recurrent(fault) && shape.delta_layers == 0) return "the target has no recurrent layer to put it into";
    if (fault.kind == FaultKind::double_quantisation && shape.kv_format != state::KvFormat::int8) {
        return fmt::format("found keys and values in {}, expected int8 (--kv int8)",
                           state::kv_format_name(shape.kv_format));
    }
    if (fault.kind == FaultKind::stale_occupant && !run.move) {
        return "the lane that is restored held the same request, whose bytes are the right ones; expected a restore "
               "into another lane";
    }
    if (run.boundary == 0 && !spoils_computing_arm(fault.kind))
        return "the boundary is 0, so nothing is restored; expected a boundary above 0";
    const std::string form = form_needs(fault, run);
    return form.empty() ? size_needs(fault, shape, run) : form;
}

}  // namespace

Status check_faults(std::span<const Fault> faults, const state::StateShape& shape, const FaultRun& run) {
    for (const Fault& fault : faults) {
        const std::string needs = missing_need(fault, shape, run);
        if (needs.empty()) continue;
        return invalid_argument(
            fmt::format("--inject {}: it could not act: {}; nothing was injected", fault.spelling, needs));
    }
    return {};
}

Status flip_restored_byte(Lane& lane, const Fault& fault) {
    if (flip_byte(lane, fault.component, static_cast<std::size_t>(fault.number))) return {};
    return invalid_argument(
        fmt::format("--inject {}: the component ends before that byte, expected a smaller offset", fault.spelling));
}

Result<CopyFaults> CopyFaults::before_restore(std::span<const Fault> faults, Lane& lane, Position boundary) {
    CopyFaults result;
    result.boundary_ = boundary;
    for (const Fault& fault : faults) {
        if (acts_on_copy(fault)) result.faults_.push_back(fault);
    }
    if (result.faults_.empty()) return result;
    // A lane whose occupant was shorter has no page there yet: what the restore would find is fresh storage.
    DP_RETURN_IF_ERROR(lane.kv.reserve(boundary - 1));
    result.before_ = remember(lane, boundary);
    return result;
}

Status CopyFaults::apply(Lane& lane, bool rings) const {
    Status idle;
    for (const Fault& fault : faults_) {
        const bool draft = fault.kind == FaultKind::context_shift || fault.kind == FaultKind::rows_unwritten ||
                           (fault.kind != FaultKind::double_quantisation && state::is_draft_component(fault.component));
        if (draft && lane.draft.capacity() == 0) continue;
        switch (fault.kind) {
            case FaultKind::context_shift:
                each_block(lane.draft, before_, true, rings, [&](StoredRows& block, const StoredRows& old) {
                    shift_block(block, old, lane.draft, fault.number);
                });
                break;
            case FaultKind::rows_unwritten: leave_rows_unwritten(lane, before_, fault, rings); break;
            case FaultKind::stale_occupant: keep_occupant(lane, before_, fault.component, boundary_, rings); break;
            case FaultKind::unsaved_component:
            case FaultKind::missing_component: lose_component(lane, before_, fault.component, boundary_, rings); break;
            case FaultKind::double_quantisation:
                for (Position pass = 0; pass < fault.number; ++pass) quantise_again(lane, boundary_);
                break;
            case FaultKind::flip:
                if (const Status flipped = flip_restored_byte(lane, fault); idle.ok()) idle = flipped;
                break;
            default: break;
        }
    }
    return idle;
}

bool flip_byte(Lane& lane, Component component, std::size_t offset) {
    // Visits writable pieces in canonical order until one holds the byte.
    const auto flip_in = [&offset](std::span<std::byte> piece) {
        if (offset >= piece.size()) {
            offset -= piece.size();
            return false;
        }
        piece[offset] ^= std::byte{0xff};
        return true;
    };
    DraftContext& context = lane.draft;
    switch (component) {
        case Component::target_kv:
            for (Position first = 0; first < lane.length; first += kPageTokens) {
                const auto page = static_cast<std::size_t>(first / kPageTokens);
                const Position last = std::min(first + kPageTokens, lane.length);
                std::vector<std::byte> bytes = page_rows(lane, first, last);
                if (!flip_in(bytes)) continue;
                lane.kv.set_canonical_bytes(page, first, last, bytes);
                return true;
            }
            break;
        case Component::recurrent_matrix:
            for (auto& layer : lane.recurrent.current().matrix) {
                if (flip_in(whole_layer(layer))) return true;
            }
            break;
        case Component::recurrent_conv:
            for (StoredRows& rows : lane.recurrent.current().conv) {
                for (std::size_t row = 0; row < rows.rows(); ++row) {
                    if (flip_in(rows.bytes(row))) return true;
                }
            }
            break;
        case Component::draft_context:
            for (Position p = context.first(); p < context.end(); ++p) {
                if (flip_in(context.rows().bytes(context.slot(p)))) return true;
            }
            break;
        case Component::draft_rings:
            for (std::size_t layer = 0; layer < context.layers(); ++layer) {
                for (StoredRows* rows : {&context.keys(layer), &context.values(layer)}) {
                    for (Position p = context.first(); p < context.end(); ++p) {
                        if (flip_in(rows->bytes(context.slot(p)))) return true;
                    }
                }
            }
            break;
    }
    return false;
}

}  // namespace draftprobe::instrument
