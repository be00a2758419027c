// libFuzzer target: any bytes give valid views or an error, and every view can be read to its end.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace draftprobe;
    const auto file = SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
    if (!file.ok()) return 0;
    for (const auto& [name, view] : file->tensors()) {
        if (view.bytes.size() != view.elements() * dtype_bytes(view.dtype)) std::abort();
        std::vector<float> values(view.elements());
        const Status loaded = load_f32(view, values);
        const bool dense = view.dtype == DType::bf16 || view.dtype == DType::f16 || view.dtype == DType::f32;
        if (loaded.ok() != (dense || values.empty())) std::abort();
        (void)first_nonfinite(view);
    }
    return 0;
}
