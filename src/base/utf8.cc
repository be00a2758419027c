#include "base/utf8.h"

#include <algorithm>

namespace draftprobe {

std::size_t utf8_sequence(std::string_view text, std::size_t offset) {
    const auto byte = [&](std::size_t i) -> unsigned {
        return offset + i < text.size() ? static_cast<unsigned char>(text[offset + i]) : 0u;  // 0 continues nothing
    };
    const auto within = [](unsigned value, unsigned low, unsigned high) { return value >= low && value <= high; };
    const unsigned first = byte(0);
    if (first < 0x80) return 1;
    if (within(first, 0xC2, 0xDF)) return within(byte(1), 0x80, 0xBF) ? 2 : 0;
    if (within(first, 0xE0, 0xEF)) {
        const unsigned low = first == 0xE0 ? 0xA0 : 0x80;
        const unsigned high = first == 0xED ? 0x9F : 0xBF;
        return within(byte(1), low, high) && within(byte(2), 0x80, 0xBF) ? 3 : 0;
    }
    if (within(first, 0xF0, 0xF4)) {
        const unsigned low = first == 0xF0 ? 0x90 : 0x80;
        const unsigned high = first == 0xF4 ? 0x8F : 0xBF;
        const bool good = within(byte(1), low, high) && within(byte(2), 0x80, 0xBF) && within(byte(3), 0x80, 0xBF);
        return good ? 4 : 0;
    }
    return 0;
}

std::optional<std::size_t> utf8_first_error(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
        const std::size_t length = utf8_sequence(text, at);
        if (length == 0) return at;
        at += length;
    }
    return std::nullopt;
}

namespace {

// Code point of a well-formed sequence.
char32_t decoded(std::string_view sequence) {
    const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(sequence[i])); };
    switch (sequence.size()) {
        case 1: return byte(0);
        case 2: return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
        case 3: return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
        default: return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
    }
}

bool is_printable(char32_t c) {
    const bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
    const bool separator = c == 0x2028 || c == 0x2029;
    const bool direction = (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0x200e || c == 0x200f;
    return !control && !separator && !direction;
}

}  // namespace

std::string printable_text(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t length = utf8_sequence(text, i);
        const std::string_view sequence = text.substr(i, std::max<std::size_t>(length, 1));
        if (length > 0 && is_printable(decoded(sequence))) {
            out += sequence;
        } else {
            out += '?';
        }
        i += sequence.size();
    }
    return out;
}

}  // namespace draftprobe
