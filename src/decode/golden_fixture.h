// Test support: the golden checkpoints of tests/golden and relative L2 against their reference stages.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "decode/engine.h"
#include "formats/checkpoint.h"

namespace draftprobe::decode {

inline std::string golden_dir(const std::string& name) {
    return std::string(DRAFTPROBE_SOURCE_DIR) + "/tests/golden/" + name;
}

inline std::shared_ptr<const model::TargetModel> load_target(const std::filesystem::path& dir) {
    auto config = read_target_config(dir);
    EXPECT_TRUE(config.ok()) << config.status().message();
    auto checkpoint = Checkpoint::open(dir);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    auto model = model::TargetModel::load(checkpoint.value(), config.value());
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.value();
}

inline std::shared_ptr<const model::TargetModel> load_golden_target(const std::string& name) {
    return load_target(golden_dir(name));
}

// With another target than the one it was made for, the draft's stated target depth is dropped.
inline std::shared_ptr<const model::DraftModel> load_golden_draft(
    const std::string& name, model::DraftPrecision precision = model::DraftPrecision::stored,
    bool other_target = false) {
    auto config = read_draft_config(golden_dir(name));
    EXPECT_TRUE(config.ok()) << config.status().message();
    if (other_target) config.value().target_layers = 0;
    auto checkpoint = Checkpoint::open(golden_dir(name));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    auto model = model::DraftModel::load(checkpoint.value(), config.value(), precision);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.value();
}

// The reference's stage dumps.
class Stages {
public:
    explicit Stages(const std::string& name) {
        auto file = SafetensorsFile::open(golden_dir(name) + "/stages.safetensors");
        EXPECT_TRUE(file.ok()) << file.status().message();
        file_ = std::make_unique<SafetensorsFile>(std::move(file).value());
    }
    std::vector<float> floats(const std::string& name) const {
        const TensorView* view = file_->find(name);
        EXPECT_NE(view, nullptr) << name;
        std::vector<float> values(view->elements());
        EXPECT_TRUE(load_f32(*view, values).ok()) << name;
        return values;
    }
    std::vector<TokenId> ids(const std::string& name) const {
        const TensorView* view = file_->find(name);
        EXPECT_NE(view, nullptr) << name;
        std::vector<std::int64_t> wide(view->elements());
        std::memcpy(wide.data(), view->bytes.data(), view->bytes.size());
        return {wide.begin(), wide.end()};
    }

private:
    std::unique_ptr<SafetensorsFile> file_;
};

// ||a - b|| / ||b|| in double; NaN when anything is not finite, so that "not (x <= bound)" fails.
inline double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
    if (a.size() != b.size() || a.empty()) return std::nan("");
    double difference = 0;
    double norm = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double d = static_cast<double>(a[i]) - b[i];
        difference += d * d;
        norm += static_cast<double>(b[i]) * b[i];
    }
    return std::sqrt(difference / norm);
}

inline EngineSettings golden_settings(state::RowFormat rows, state::KvFormat kv) {
    EngineSettings settings;
    settings.isa = numerics::best_isa();
    settings.threads = 2;
    settings.lanes = 4;
    settings.kv_format = kv;
    settings.row_format = rows;
    settings.max_tokens = 512;
    settings.chunk_tokens = 64;
    settings.block = 8;
    settings.poison = true;
    return settings;
}

inline std::unique_ptr<EngineCore> make_core(ModelPair models, const EngineSettings& settings) {
    auto core = EngineCore::create(std::move(models), settings);
    EXPECT_TRUE(core.ok()) << core.status().message();
    return std::move(core).value();
}

}  // namespace draftprobe::decode
