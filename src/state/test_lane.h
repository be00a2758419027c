// Lanes with random state, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "state/snapshot.h"

namespace draftprobe::state {

inline const StateIdentity kIdentity{.target = "target", .draft = "draft", .settings = {{"kv_format", "any"}}};

inline StateShape small_shape(KvFormat kv) {
    StateShape shape;
    shape.attention_layers = 2;
    shape.kv_heads = 2;
    shape.head_dim = 16;
    shape.kv_format = kv;
    shape.delta_layers = 3;
    shape.key_heads = 1;
    shape.value_heads = 2;
    shape.key_dim = 4;
    shape.value_dim = 8;
    shape.conv_rows = 3;
    shape.conv_channels = 24;
    shape.draft_layers = 2;
    shape.draft_kv_heads = 1;
    shape.draft_head_dim = 16;
    shape.hidden = 8;
    shape.context_capacity = 40;
    shape.max_tokens = 200;
    return shape;
}

class Random {
public:
    explicit Random(unsigned seed) : engine_(seed) {}
    std::vector<float> row(std::size_t n) {
        std::vector<float> values(n);
        for (float& value : values) value = static_cast<float>(static_cast<int>(engine_() % 2001) - 1000) / 250.0f;
        return values;
    }
    std::size_t below(std::size_t n) { return engine_() % n; }

private:
    std::mt19937 engine_;
};

// Fills everything below `length` with random state.
inline void fill(Lane& lane, Position length, unsigned seed) {
    Random random(seed);
    const StateShape& shape = lane.shape();
    ASSERT_TRUE(lane.kv.reserve(length - 1).ok());
    for (Position p = 0; p < length; ++p) {
        for (std::size_t layer = 0; layer < shape.attention_layers; ++layer) {
            const auto k = random.row(shape.kv_row_floats());
            const auto v = random.row(shape.kv_row_floats());
            lane.kv.write(layer, p, k.data(), v.data());
        }
        const auto row = random.row(shape.hidden);
        lane.draft.rows().write(lane.draft.slot(p), row.data());
        lane.draft.mark_written(p, false);
        for (std::size_t layer = 0; layer < shape.draft_layers; ++layer) {
            const auto k = random.row(shape.draft_kv_floats());
            lane.draft.keys(layer).write(lane.draft.slot(p), k.data());
            lane.draft.values(layer).write(lane.draft.slot(p), random.row(shape.draft_kv_floats()).data());
        }
        lane.draft.mark_written(p, true);
        lane.tokens.push_back(static_cast<TokenId>(random.below(100)));
    }
    for (auto& matrix : lane.recurrent.current().matrix) matrix = random.row(matrix.size());
    for (auto& rows : lane.recurrent.current().conv) {
        for (std::size_t r = 0; r < rows.rows(); ++r) rows.write(r, random.row(rows.cols()).data());
    }
    lane.recurrent.current().consumed = length;
    lane.draft.advance(length, RowSource::computed);
    append_source(lane.target_sources, 0, length, RowSource::computed);
    lane.length = length;
    lane.target_rows_written = static_cast<std::size_t>(length);
}

}  // namespace draftprobe::state
