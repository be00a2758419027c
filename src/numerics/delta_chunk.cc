#include "numerics/delta_chunk.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "numerics/scalar_math.h"

namespace draftprobe::numerics {

namespace {

float dot(const float* a, const float* b, std::size_t n) {
    float sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

// y[v] = sum over k ascending of state[k][v] * x[k]
void state_product(const float* state, const float* x, std::size_t dk, std::size_t dv, float* y) {
    std::fill(y, y + dv, 0.0f);
    for (std::size_t k = 0; k < dk; ++k) {
        for (std::size_t v = 0; v < dv; ++v) y[v] += state[k * dv + v] * x[k];
    }
}

void add_scaled(float factor, const float* x, std::size_t n, float* y) {
    for (std::size_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

// One chunk of at most kDeltaChunk rows; `state` is read and then moved behind the chunk.
void scan_chunk(const DeltaRows& in, std::size_t first, std::size_t count, float* state) {
    const std::size_t dk = in.dk;
    const std::size_t dv = in.dv;
    const auto key = [&](std::size_t i) { return in.key + (first + i) * in.stride; };
    const auto query = [&](std::size_t i) { return in.query + (first + i) * in.stride; };
    const auto value = [&](std::size_t i) { return in.value + (first + i) * in.stride; };
    std::vector<float> cumulative(count);  // G: sum of g from the chunk's first row on
    float sum = 0;
    for (std::size_t i = 0; i < count; ++i) cumulative[i] = sum += in.log_decay[(first + i) * in.scalar_stride];

    // Forward substitution: correction_i = beta_i (v_i - e^{G_i} S^T k_i - sum_{j<i} e^{G_i - G_j} (k_i . k_j)
    // correction_j), S being the state before the chunk.
    std::vector<float> corrections(count * dv);
    std::vector<float> from_state(dv);
    for (std::size_t i = 0; i < count; ++i) {
        float* correction = corrections.data() + i * dv;
        state_product(state, key(i), dk, dv, from_state.data());
        std::memcpy(correction, value(i), dv * sizeof(float));
        add_scaled(-exp_f32(cumulative[i]), from_state.data(), dv, correction);
        for (std::size_t j = 0; j < i; ++j) {
            const float weight = dot(key(i), key(j), dk) * exp_f32(cumulative[i] - cumulative[j]);
            add_scaled(-weight, corrections.data() + j * dv, dv, correction);
        }
        const float beta = in.beta[(first + i) * in.scalar_stride];
        for (std::size_t v = 0; v < dv; ++v) correction[v] *= beta;
    }
    for (std::size_t i = 0; i < count; ++i) {
        float* out = in.out + (first + i) * in.out_stride;
        state_product(state, query(i), dk, dv, from_state.data());
        std::fill(out, out + dv, 0.0f);
        add_scaled(exp_f32(cumulative[i]), from_state.data(), dv, out);
        for (std::size_t j = 0; j <= i; ++j) {
            const float weight = dot(query(i), key(j), dk) * exp_f32(cumulative[i] - cumulative[j]);
            add_scaled(weight, corrections.data() + j * dv, dv, out);
        }
    }
    const float last = cumulative[count - 1];
    const float decay = exp_f32(last);
    for (std::size_t at = 0; at < dk * dv; ++at) state[at] *= decay;
    for (std::size_t j = 0; j < count; ++j) {
        const float weight = exp_f32(last - cumulative[j]);
        for (std::size_t k = 0; k < dk; ++k)
            add_scaled(weight * key(j)[k], corrections.data() + j * dv, dv, state + k * dv);
    }
}

}  // namespace

void delta_scan_chunked(const DeltaRows& rows, const float* state_in, float* state_out) {
    if (state_in != state_out) std::memcpy(state_out, state_in, rows.dk * rows.dv * sizeof(float));
    for (std::size_t first = 0; first < rows.rows; first += kDeltaChunk)
        scan_chunk(rows, first, std::min(kDeltaChunk, rows.rows - first), state_out);
}

}  // namespace draftprobe::numerics
