// Compute: every arithmetic operator of the engine, on the CPU, with one bit pattern per result.
//
// Contract (docs/numerics.md states it per operator): the value of an output element is a function of its own input
// row, the weights and the class alone. It never depends on how many other rows are in the call, on the thread count or
// on the instruction set. All operators read and write float32; rounding to a stored format is an operator of its own.
//
// A Compute owns its thread pool and holds no model state. One caller at a time (loops inside are parallel).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "base/threads.h"
#include "base/types.h"
#include "numerics/matrix.h"

namespace draftprobe::numerics {

enum class Isa { portable, avx2, avx512 };
std::string_view isa_name(Isa isa);
// What this CPU runs. avx512 means F, BW, DQ, VL and VNNI together; avx2 means AVX2 and FMA.
bool isa_supported(Isa isa);
Isa best_isa();

// Numerics classes of docs/numerics.md. `i8dot` changes only products with quantised weights. `schedule_sensitive` is
// `f32` with the gated delta rule in chunks (numerics/delta_chunk.h), whose bits depend on where forward calls start.
enum class NumericsClass { f32, i8dot, schedule_sensitive };
std::string_view numerics_class_name(NumericsClass cls);

// Round to nearest, FTZ and DAZ off. Set on every thread that computes; `float_environment_ok` checks the calling
// thread.
void set_float_environment();
bool float_environment_ok();

// Row-major float32 views. `stride` counts floats between row starts.
struct ConstRows {
    const float* data = nullptr;
    std::size_t rows = 0;
    std::size_t cols = 0;
    std::size_t stride = 0;
    const float* row(std::size_t i) const { return data + i * stride; }
};
struct Rows {
    float* data = nullptr;
    std::size_t rows = 0;
    std::size_t cols = 0;
    std::size_t stride = 0;
    float* row(std::size_t i) const { return data + i * stride; }
    operator ConstRows() const { return {data, rows, cols, stride}; }
};

// Kernels of one instruction set, all serial. Pointers need no alignment. n counts floats. In-place use (y == x) is
// allowed where the comment says so. Defined once in numerics/cpu/kernels_impl.h and compiled per instruction set.
struct Kernels {
    // y = (x * r) * w with r = 1 / sqrt(sum(x^2)/n + eps); the sum in 16 lanes (feature i in lane i % 16, ascending,
    // fma), then the tree 8-4-2-1. y may equal x.
    void (*rms_norm)(const float* x, const float* w, std::size_t n, float eps, float* y);
    // y = (x * r) * scale with r = 1 / sqrt(sum(x^2) + eps); same sum order. y may equal x.
    void (*l2_normalise)(const float* x, std::size_t n, float eps, float scale, float* y);
    // y = ((x * r) * w) * silu(z), r as in rms_norm. y may equal x.
    void (*gated_rms_norm)(const float* x, const float* w, const float* z, std::size_t n, float eps, float* y);
    void (*silu_mul)(const float* gate, const float* up, std::size_t n, float* y);    // silu(gate) * up; y may alias
    void (*sigmoid_mul)(const float* x, const float* gate, std::size_t n, float* y);  // x * sigmoid(gate); y may alias
    void (*add)(float* x, const float* y, std::size_t n);                             // x += y
    // Half-split rotation of the first `dims` values of one head: pairs (i, i + dims/2), cos and sin [dims/2].
    // x'_i = fma(-x_{i+h}, sin_i, x_i * cos_i); x'_{i+h} = fma(x_i, sin_i, x_{i+h} * cos_i). In place.
    void (*rope)(float* x, const float* cos, const float* sin, std::size_t dims);
    void (*round_bf16)(float* x, std::size_t n);  // in place, to nearest even
    void (*to_bf16)(const float* x, std::size_t n, Bf16* y);
    void (*from_bf16)(const Bf16* x, std::size_t n, float* y);
    // Symmetric int8: scale = absmax / 127, q = rne(x * (127 / absmax)). Value = scale * q.
    // Where 127 / absmax is not finite (all zeros, or below 3.8e-37) scale and q are 0. Where an input is NaN or
    // infinite, scale is NaN and q is 0.
    void (*quantise_int8)(const float* x, std::size_t n, std::int8_t* q, float* scale);
    void (*dequantise_int8)(const std::int8_t* q, std::size_t n, float scale, float* y);
    // Depthwise causal convolution, one output row: y[c] = silu(chain of fma(w[j][c], rows[j][c], acc)), j ascending
    // from acc = 0. rows: `taps` pointers, oldest first; w: [taps][n] (tap-major).
    void (*conv_silu)(const float* const* rows, const float* w, std::size_t taps, std::size_t n, float* y);
    // One gated-delta step of one value head (qwen35-hybrid.md section 5): S is [dk][dv].
    //   S' = decay * S;  m[v] = chain over k of fma(S'[k][v], key[k], m);  d[v] = beta * (value[v] - m[v]);
    //   S''[k][v] = fma(key[k], d[v], S'[k][v]);  out[v] = chain over k of fma(S''[k][v], query[k], out).
    // query and out may both be null (state update only: same state bits). state_out may equal state_in.
    void (*delta_step)(const float* state_in, float* state_out, const float* query, const float* key,
                       const float* value, float decay, float beta, std::size_t dk, std::size_t dv, float* out);
    // One 32-key page of one query row of online softmax; see numerics/attention.h.
    //   q [d], keys_t [d][32], values [32][d]; out [d], unnormalised; running_max, running_sum: one float each.
    //   Keys begin..end-1 of the page are visible (0 <= begin < end <= 32); the others are neither weighted nor able to
    //   poison.
    //   s_j = scale * chain over d of fma(q[d], keys_t[d][j], s);
    //   new_max = max(running_max, max_j s_j);  c = exp(running_max - new_max);
    //   p_j = exp(s_j - new_max), 0 outside;
    //   running_sum = fma(running_sum, c, tree(p)), tree adding p_l + p_{l+16}, then 8-4-2-1;
    //   out = out * c, then for j ascending over visible keys out = fma(p_j, v_j, out).
    void (*attention_page)(const float* q, const float* keys_t, const float* values, int begin, int end, float scale,
                           std::size_t d, float* running_max, float* running_sum, float* out);
    // Dot product in 16 lanes (fma, ascending), tree 8-4-2-1.
    float (*dot)(const float* a, const float* b, std::size_t n);
    // sum_i (a[i] * b[i]) * c[i] in 16 lanes: acc_l = fma(a[i] * b[i], c[i], acc_l), tree 8-4-2-1. (Selector score.)
    float (*dot3)(const float* a, const float* b, const float* c, std::size_t n);
    // One output row of the draft's grouped dynamic convolution (dflash2.md section 4):
    //   y[c] = chain over taps j of fma(base[j][c] + delta[j][c / group], rows[j][c], y) from 0; rows[j] = row t-j, or
    //   null for zero (that tap is skipped). base [taps][n], delta [taps][n / group].
    void (*dynamic_conv)(const float* const* rows, const float* base, const float* delta, std::size_t taps,
                         std::size_t group, std::size_t n, float* y);
    // y[c] = chain over rows j of fma(w[j], rows[j][c], y) from 0. y may not alias a row.
    void (*weighted_sum)(const float* const* rows, const float* w, std::size_t count, std::size_t n, float* y);
};

const Kernels& kernels(Isa isa);  // requires isa_supported(isa)

class Compute {
public:
    struct Options {
        Isa isa = Isa::portable;
        NumericsClass cls = NumericsClass::f32;
        int threads = 1;
    };
    // Fails with unsupported when the CPU lacks the instruction set, invalid_argument for threads < 1.
    static Result<std::unique_ptr<Compute>> create(const Options& options);

    const Options& options() const { return options_; }
    const Kernels& kernels() const { return *kernels_; }
    ThreadPool& pool() const { return *pool_; }

    // out[r][o] = sum_c x[r][c] * w[o][c]. Requires x.cols == w.in(), out.cols == w.out(), equal rows. out may not
    // alias x.
    // f32 order per output: groups of 64 columns ascending; inside a group two fma chains from 0 over columns 0..31
    // and 32..63 ascending, t0 and t1.
    //   dense:  acc = acc + t0; acc = acc + t1.
    //   affine: chains run over q (as float) * x; acc = fma(s, t0, acc); acc = fma(s, t1, acc);
    //           acc = fma(b, sum_x, acc), where sum_x = (chain of adds over columns 0..31) + (chain of adds over
    //           32..63), each ascending from 0.
    // i8dot (affine only): x per row and group to int8 as quantise_int8 does; i = exact int32 sum of q * xq;
    //   n = exact int32 sum of xq; acc = fma(s, sx * float(i), acc); acc = fma(b, sx * float(n), acc).
    void matmul(const Matrix& w, ConstRows x, Rows out) const { matmul(w, x, out, options_.cls); }
    // The same in a class of the caller's choice (a router is computed in f32 whatever the settings say).
    void matmul(const Matrix& w, ConstRows x, Rows out, NumericsClass cls) const;
    // Outputs first .. first+count-1 of the same product, bit for bit, on the calling thread alone: for bodies of
    // parallel_for. Other columns of out are left as they are. Requires first % 16 == 0, and count % 16 == 0 or the
    // last output included.
    void matmul_outputs(const Matrix& w, ConstRows x, std::size_t first, std::size_t count, Rows out) const;

    // The parallel loop of the pool, run inline when count is 1.
    void parallel_for(std::size_t count, const std::function<void(std::size_t)>& body) const {
        pool_->parallel_for(count, body);
    }

private:
    explicit Compute(const Options& options);
    Options options_;
    const Kernels* kernels_ = nullptr;
    std::unique_ptr<ThreadPool> pool_;
};

}  // namespace draftprobe::numerics
