// The name of the parsed JSON value, for headers that only pass it on. The full type costs seconds a translation unit.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace draftprobe {

using Json = nlohmann::json;

}  // namespace draftprobe
