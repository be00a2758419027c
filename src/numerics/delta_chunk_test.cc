// The chunked delta scan against the token scan, and that its bits depend on where a chunk starts.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "numerics/delta_chunk.h"
#include "numerics/scalar_math.h"

namespace draftprobe::numerics {
namespace {

struct Case {
    std::size_t rows, dk, dv;
    std::vector<float> query, key, value, log_decay, beta, state;

    Case(std::size_t row_count, std::size_t key_dim, std::size_t value_dim)
        : rows(row_count), dk(key_dim), dv(value_dim) {
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        const auto fill = [&](std::vector<float>& values, std::size_t count) {
            values.resize(count);
            for (float& x : values) x = normal(random);
        };
        fill(query, rows * dk);
        fill(key, rows * dk);
        fill(value, rows * dv);
        fill(state, dk * dv);
        for (std::size_t i = 0; i < rows; ++i) {
            kernels(best_isa()).l2_normalise(query.data() + i * dk, dk, 1e-6f, 0.2f, query.data() + i * dk);
            kernels(best_isa()).l2_normalise(key.data() + i * dk, dk, 1e-6f, 1.0f, key.data() + i * dk);
            log_decay.push_back(-0.05f * std::fabs(normal(random)));
            beta.push_back(sigmoid_f32(normal(random)));
        }
    }

    // Rows first .. last-1 in one call.
    void chunked(std::size_t first, std::size_t last, float* cell, float* out) const {
        DeltaRows in;
        in.query = query.data() + first * dk;
        in.key = key.data() + first * dk;
        in.value = value.data() + first * dv;
        in.log_decay = log_decay.data() + first;
        in.beta = beta.data() + first;
        in.scalar_stride = 1;
        in.out = out + first * dv;
        in.out_stride = dv;
        in.rows = last - first;
        in.dk = dk;
        in.dv = dv;
        // query and key rows are dk apart, value rows dv: one stride serves both when they are equal.
        in.stride = dk;
        delta_scan_chunked(in, cell, cell);
    }

    void by_token(float* cell, float* out) const {
        for (std::size_t i = 0; i < rows; ++i) {
            kernels(best_isa())
                .delta_step(cell, cell, query.data() + i * dk, key.data() + i * dk, value.data() + i * dv,
                            exp_f32(log_decay[i]), beta[i], dk, dv, out + i * dv);
        }
    }
};

double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0;
    double norm = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
        norm += double(b[i]) * b[i];
    }
    return std::sqrt(difference / norm);
}

TEST(DeltaChunk, EqualsTheTokenScanUpToRounding) {
    for (const std::size_t rows : {1u, 2u, 8u, 63u, 64u, 65u, 200u}) {
        const Case c(rows, 32, 32);
        std::vector<float> chunk_state = c.state;
        std::vector<float> token_state = c.state;
        std::vector<float> chunk_out(rows * c.dv);
        std::vector<float> token_out(rows * c.dv);
        c.chunked(0, rows, chunk_state.data(), chunk_out.data());
        c.by_token(token_state.data(), token_out.data());
        EXPECT_LE(relative_l2(chunk_out, token_out), 2e-6) << rows;
        EXPECT_LE(relative_l2(chunk_state, token_state), 2e-6) << rows;
    }
}

TEST(DeltaChunk, BitsDependOnWhereACallStartsAndOnNothingElse) {
    const Case c(100, 32, 32);
    const auto run = [&c](std::size_t cut) {
        std::vector<float> result = c.state;
        std::vector<float> out(c.rows * c.dv);
        if (cut > 0) c.chunked(0, cut, result.data(), out.data());
        c.chunked(cut, c.rows, result.data(), out.data());
        result.insert(result.end(), out.begin(), out.end());
        return result;
    };
    EXPECT_EQ(run(0), run(0));
    EXPECT_EQ(run(0), run(64)) << "a cut at a chunk's own end moves no chunk";
    EXPECT_NE(run(0), run(30));
    EXPECT_LE(relative_l2(run(30), run(0)), 2e-6);
}

// qwen35-hybrid's worked example: two tokens, one head of 2 x 2.
TEST(DeltaChunk, WorkedExample) {
    const float query[] = {3, 4, 1, 1};
    const float key[] = {1, 0, 0.6f, 0.8f};
    const float value[] = {2, -1, 1, 1};
    const float log_decay[] = {-2.342201f, -1.488793f};
    const float beta[] = {0.689974f, 0.622459f};
    float scaled[4];
    for (std::size_t i = 0; i < 2; ++i)
        kernels(best_isa()).l2_normalise(query + 2 * i, 2, 1e-6f, 1 / std::sqrt(2.0f), scaled + 2 * i);
    float state[4] = {};
    float out[4];
    DeltaRows in;
    in.query = scaled;
    in.key = key;
    in.value = value;
    in.stride = 2;
    in.log_decay = log_decay;
    in.beta = beta;
    in.scalar_stride = 1;
    in.out = out;
    in.out_stride = 2;
    in.rows = in.dk = in.dv = 2;
    delta_scan_chunked(in, state, state);
    const float expected_state[] = {0.615078f, 0.252674f, 0.404934f, 0.544484f};
    const float expected_out[] = {0.585462f, -0.292731f, 0.510006f, 0.398579f};
    for (int i = 0; i < 4; ++i) {
        EXPECT_NEAR(state[i], expected_state[i], 2e-6) << i;
        EXPECT_NEAR(out[i], expected_out[i], 2e-6) << i;
    }
}

}  // namespace
}  // namespace draftprobe::numerics
