#include "base/utf8.h"

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

}  // namespace draftprobe
