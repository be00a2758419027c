// The plan reader takes any bytes: it gives a plan whose steps name what exists, or an error.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "study/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace draftprobe::study;
    const auto plan = parse_plan({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (!plan.ok()) {
        if (plan.status().message().empty()) std::abort();
        return 0;
    }
    for (const PlanStep& step : plan->steps) {
        if (step.request >= plan->requests.size() || step.lane < 0 || step.lane >= plan->lanes) std::abort();
        for (const int lane : step.lanes) {
            if (lane < 0 || lane >= plan->lanes) std::abort();
        }
    }
    return 0;
}
