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

}  // namespace

std::string to_nfc(std::string_view text) {
    // No character below U+0300 takes part in a change on its own or with another such character.
    if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xCC; })) {
        return std::string(text);
    }
    std::vector<utf8proc_int32_t> codes;
    codes.reserve(text.size() + 1);
    const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const auto* const end = at + text.size();
    while (at < end) {
        utf8proc_int32_t code = 0;
        const utf8proc_ssize_t used = utf8proc_iterate(at, end - at, &code);
        assert(used > 0 && "the caller gives UTF-8");
        at += used;
        std::array<utf8proc_int32_t, 8> parts{};  // canonical decompositions have at most 4 characters
        int boundary = 0;
        const utf8proc_ssize_t count = utf8proc_decompose_char(code, parts.data(), parts.size(), kOptions, &boundary);
        assert(count >= 1 && count <= static_cast<utf8proc_ssize_t>(parts.size()));
        codes.insert(codes.end(), parts.begin(), parts.begin() + count);
    }
    order_marks(codes);
    // Composes and encodes in place: a character takes at most the four bytes of its place; one more for the final NUL.
    const auto length = static_cast<utf8proc_ssize_t>(codes.size());
    codes.push_back(0);
    const utf8proc_ssize_t bytes = utf8proc_reencode(codes.data(), length, kOptions);
    assert(bytes >= 0);
    return std::string(reinterpret_cast<const char*>(codes.data()), static_cast<std::size_t>(bytes));
}

}  // namespace draftprobe
