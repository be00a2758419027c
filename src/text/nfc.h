// Unicode normalisation form C, with the character data of utf8proc.
#pragma once

#include <string>
#include <string_view>

namespace draftprobe {

// NFC of `text`, which must be UTF-8. Time n log n: a run of combining marks is sorted, however long it is.
std::string to_nfc(std::string_view text);

}  // namespace draftprobe
