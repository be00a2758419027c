// What this program is. tests/cli checks that the number equals the one of CMakeLists.txt.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace draftprobe::cli {

inline constexpr std::string_view kVersion = "0.1.0";

// "g++ 12.2.0", "clang 14.0.6".
std::string compiler_name();

// SHA-256 of the running executable, 64 hex digits. Error: io.
Result<std::string> build_digest();

}  // namespace draftprobe::cli
