// The canonical layout of a component's valid range: the bytes that digests, snapshots and files hold, cut into pages.
//
//   target_kv         one page per 32 absolute positions, each as state/kv_pages.h orders it (a tail holds its rows
//   only) recurrent_matrix  one page per delta layer, float32 [value_heads][key_dim][value_dim] recurrent_conv    one
//   page per delta layer, [conv_rows][conv_channels], oldest first draft_context     one page per 32 absolute
//   positions, [rows][hidden], ascending position draft_rings       one page per draft layer: its keys, then its
//   values, each [rows][draft_kv_floats], ascending
//
// Slots, parity and capacities do not enter, so equal state has equal bytes whatever lane it lies in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "state/lane.h"

namespace draftprobe::state {

enum class Component { target_kv, recurrent_matrix, recurrent_conv, draft_context, draft_rings };
inline constexpr Component kComponents[] = {Component::target_kv, Component::recurrent_matrix,
                                            Component::recurrent_conv, Component::draft_context,
                                            Component::draft_rings};
std::string_view component_name(Component component);
inline bool is_recurrent_component(Component component) {
    return component == Component::recurrent_matrix || component == Component::recurrent_conv;
}
inline bool is_draft_component(Component component) {
    return component == Component::draft_context || component == Component::draft_rings;
}
// Without a draft, shapes have no draft components.
inline bool has_component(const StateShape& shape, Component component) {
    return shape.draft_layers > 0 || !is_draft_component(component);
}

struct CanonicalPage {
    std::size_t index = 0;  // among the component's pages
    Position first = 0;     // rows of a paged component or ring; the component's whole range otherwise
    Position last = 0;
    std::size_t offset = 0;  // in the component's bytes
    std::size_t bytes = 0;
};

// Bytes of the range [first, last); the largest uint64 when it does not fit, so that a hostile shape compares as too
// large. Requires 0 <= first <= last.
std::uint64_t canonical_size(const StateShape& shape, Component component, Position first, Position last);
// Requires that canonical_size fits memory.
std::vector<CanonicalPage> canonical_pages(const StateShape& shape, Component component, Position first, Position last);

// Copies a page out of a lane (page.bytes bytes to `out`) and into one. Into: KV pages must be reserved; stamps and
// claims are the caller's.
void read_canonical(const Lane& lane, Component component, const CanonicalPage& page, std::byte* out);
void write_canonical(Lane& lane, Component component, const CanonicalPage& page, std::span<const std::byte> bytes);

}  // namespace draftprobe::state
