// libFuzzer target: any bytes give a seed or an error; a seed is written to text that reads back to the same text, and
// the rule decides with it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "budget/controller.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace draftprobe::budget;
    const auto seed = parse_seed({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (!seed.ok()) return 0;
    const auto text = seed_json(*seed);
    if (!text.ok()) std::abort();
    const auto again = parse_seed(*text, "fuzz");
    if (!again.ok() || *seed_json(*again) != *text) std::abort();

    const std::array<float, 3> confidence = {0.9f, 0.4f, 0.001f};
    const std::size_t proposals = std::min(confidence.size(), seed->block - 1);
    const Controller controller = Controller::frozen(std::make_shared<const Seed>(*seed));
    const Decision decision = controller.decide({confidence.data(), proposals});
    if (decision.rows < 1 || decision.rows > proposals + 1) std::abort();
    if (decision.margin && !(*decision.margin >= 0)) std::abort();
    return 0;
}
