// Unicode normalisation form C as tokenizers know it: with the character data of Unicode 9, which the Hugging Face
// library has, whatever newer version utf8proc has. So ids do not depend on the installed library either.
#pragma once

#include <string>
#include <string_view>

namespace draftprobe {

// NFC of `text`, which must be UTF-8. Characters that are newer than Unicode 9 stay where they are. Time n log n: a run
// of combining marks is sorted, however long it is.
std::string to_nfc(std::string_view text);

}  // namespace draftprobe
