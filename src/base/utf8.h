// UTF-8 well-formedness (Unicode standard, table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace draftprobe {

// Bytes of the well-formed sequence that starts at `offset` (1..4), or 0 when none starts there. Requires offset <
// size.
std::size_t utf8_sequence(std::string_view text, std::size_t offset);

// Offset of the first byte that starts no well-formed sequence; nullopt when all of `text` is UTF-8.
std::optional<std::size_t> utf8_first_error(std::string_view text);

// `text` for a terminal: controls (C0, DEL, C1), bidirectional overrides and ill-formed bytes become '?', so that text
// of foreign files can neither forge lines nor drive the terminal.
std::string printable_text(std::string_view text);

}  // namespace draftprobe
