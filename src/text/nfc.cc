#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <vector>

namespace draftprobe {
namespace {

constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

struct CodeRange {
    utf8proc_int32_t first;
    utf8proc_int32_t last;
};

// Characters that Unicode 10 to 16 added and that take part in normalisation: a combining class, a canonical
// decomposition, or a part of one. Unicode 9 does not know them, so they neither move nor compose.
constexpr std::array<CodeRange, 60> kLaterThanUnicode9 = {{
    {0x07fd, 0x07fd},   {0x0897, 0x089f},   {0x08ca, 0x08d3},   {0x09fe, 0x09fe},   {0x0c3c, 0x0c3c},
    {0x0d3b, 0x0d3c},   {0x0eba, 0x0eba},   {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
    {0xa82c, 0xa82c},   {0x105c9, 0x105c9}, {0x105d2, 0x105d2}, {0x105da, 0x105da}, {0x105e4, 0x105e4},
    {0x10d24, 0x10d27}, {0x10d69, 0x10d6d}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50},
    {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x11382, 0x11385}, {0x1138b, 0x1138b},
    {0x1138e, 0x1138e}, {0x11390, 0x11391}, {0x113b8, 0x113b8}, {0x113bb, 0x113bb}, {0x113c2, 0x113c2},
    {0x113c5, 0x113c5}, {0x113c7, 0x113c9}, {0x113ce, 0x113d0}, {0x113e1, 0x113e2}, {0x1145e, 0x1145e},
    {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193d, 0x1193e},
    {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
    {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x1611d, 0x16129},
    {0x1612f, 0x1612f}, {0x16d63, 0x16d63}, {0x16d67, 0x16d6a}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef},
}};

bool later_than_unicode9(utf8proc_int32_t code) {
    const auto range = std::lower_bound(kLaterThanUnicode9.begin(), kLaterThanUnicode9.end(), code,
                                        [](const CodeRange& r, utf8proc_int32_t c) { return r.last < c; });
    return range != kLaterThanUnicode9.end() && range->first <= code;
}

utf8proc_propval_t combining_class(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

// Canonical ordering: each run of characters with a non-zero class, stably by class. utf8proc's own whole-text
// functions do this by swapping neighbours, which is quadratic in the length of a run.
void order_marks(std::vector<utf8proc_int32_t>& codes) {
    std::size_t begin = 0;
    while (begin < codes.size()) {
        if (combining_class(codes[begin]) == 0) {
            ++begin;
            continue;
        }
        std::size_t end = begin;
        while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
        std::stable_sort(codes.begin() + static_cast<std::ptrdiff_t>(begin),
                         codes.begin() + static_cast<std::ptrdiff_t>(end),
                         [](auto a, auto b) { return combining_class(a) < combining_class(b); });
        begin = end;
    }
}

// Orders and composes the decomposed `codes`, appends them to `out` and clears them.
void append_composed(std::vector<utf8proc_int32_t>& codes, std::string& out) {
    if (codes.empty()) return;
    order_marks(codes);
    // Composes and encodes in place: a character takes at most the four bytes of its place; one more for the final NUL.
    const auto length = static_cast<utf8proc_ssize_t>(codes.size());
    codes.push_back(0);
    const utf8proc_ssize_t bytes = utf8proc_reencode(codes.data(), length, kOptions);
    assert(bytes >= 0);
    out.append(reinterpret_cast<const char*>(codes.data()), static_cast<std::size_t>(bytes));
    codes.clear();
}

}  // namespace

std::string to_nfc(std::string_view text) {
    // No character below U+0300 takes part in a change on its own or with another such character.
    if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xCC; })) {
        return std::string(text);
    }
    std::string out;
    out.reserve(text.size());
    std::vector<utf8proc_int32_t> codes;
    const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const auto* const end = at + text.size();
    while (at < end) {
        utf8proc_int32_t code = 0;
        const utf8proc_ssize_t used = utf8proc_iterate(at, end - at, &code);
        assert(used > 0 && "the caller gives UTF-8");
        if (later_than_unicode9(code)) {
            append_composed(codes, out);
            out.append(reinterpret_cast<const char*>(at), static_cast<std::size_t>(used));
            at += used;
            continue;
        }
        at += used;
        std::array<utf8proc_int32_t, 8> parts{};  // canonical decompositions have at most 4 characters
        int boundary = 0;
        const utf8proc_ssize_t count = utf8proc_decompose_char(code, parts.data(), parts.size(), kOptions, &boundary);
        assert(count >= 1 && count <= static_cast<utf8proc_ssize_t>(parts.size()));
        codes.insert(codes.end(), parts.begin(), parts.begin() + count);
    }
    append_composed(codes, out);
    return out;
}

}  // namespace draftprobe
