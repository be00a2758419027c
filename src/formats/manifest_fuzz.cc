// libFuzzer target: any bytes give a manifest whose members keep their rules, or an error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string_view>

#include "base/json.h"
#include "formats/manifest.h"

namespace {

void check(bool holds) {
    if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace draftprobe;
    const auto json = parse_json(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    if (!json.ok()) return 0;
    const auto manifest = parse_manifest(*json, "fuzz");
    if (!manifest.ok()) return 0;
    check(!manifest->files.empty());
    std::set<std::string_view> names;
    for (const ManifestFile& file : manifest->files) {
        check(names.insert(file.name).second);
        check(!file.name.empty() && file.name.front() != '.' && file.name.find('/') == std::string::npos);
        check(file.name.find('\0') == std::string::npos && file.sha256.size() == 64);
    }
    const DraftConditions& conditions = manifest->conditions;
    check(conditions.thinking == "none" || conditions.thinking == "on" || conditions.thinking == "off");
    check(effectiveness_note(conditions, conditions).empty());
    check(!effectiveness_note(conditions, DraftConditions()).empty());
    return 0;
}
