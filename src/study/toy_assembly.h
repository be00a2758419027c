// The toy pair of tests/golden, loaded once. For tests that run arms.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/hash.h"
#include "study/case.h"

namespace draftprobe::study {

inline const probe::Assembly& toys() {
    static const probe::Assembly assembly = [] {
        const std::string golden = std::string(DRAFTPROBE_SOURCE_DIR) + "/tests/golden/";
        auto loaded = probe::load_assembly(golden + "target-r2", golden + "draft-w64", true);
        EXPECT_TRUE(loaded.ok()) << loaded.status().message();
        return std::move(loaded).value();
    }();
    return assembly;
}

// 150 tokens, restored exactly at 96, two cycles.
inline Case toy_case() {
    Case item;
    for (std::uint32_t i = 0, state = 7; i < 150; ++i) {
        state = state * 1664525u + 1013904223u;
        item.request.prompt.push_back((state >> 16) % 240);
    }
    item.request.boundary = 96;
    item.request.cycles = 2;
    item.settings.engine.isa = numerics::best_isa();
    item.settings.engine.threads = 2;
    item.settings.engine.chunk_tokens = 64;
    item.settings.level = 2;
    item.settings.build_digest = sha256_hex(std::string_view("study"));
    return item;
}

}  // namespace draftprobe::study
