// libFuzzer target: any bytes give a value or an error; a value survives being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace draftprobe;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    (void)quoted_excerpt(text);
    const auto json = parse_json(text, "fuzz");
    if (!json.ok()) return 0;
    const auto again = parse_json(json->dump(), "fuzz");
    if (!again.ok() || *again != *json) std::abort();
    for (const char* key : {"a", "b"}) {
        (void)json_get_int(*json, key, "fuzz", -5, 5).ok();
        (void)json_get_f32(*json, key, "fuzz").ok();
        (void)json_get_u64(*json, key, "fuzz").ok();
        (void)json_get_i64(*json, key, "fuzz").ok();
        (void)json_get_int_array(*json, key, "fuzz", 0, 9, 4).ok();
    }
    return 0;
}
