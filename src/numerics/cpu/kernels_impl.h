// Every kernel, written once over sixteen lanes and compiled once per instruction set by kernels_<isa>.cc, which
// defines DP_SIMD_HEADER (the lanes) and DP_KERNEL_TABLE (the name of the table) first.
//
// Everything here sits in an anonymous namespace and calls no function template or inline function of a shared header
// that could be emitted out of line: the linker keeps one copy of such a function, and a copy compiled for AVX-512
// would then run on a CPU without it. Only the table at the end has a name outside.
//
// Lanes. V16: 16 floats; U16: 16 uint32; M16: 16 booleans. fma(a, b, c) = a * b + c, rounded once. max(a, b) is
// a > b ? a : b, so its result for NaN and for zeros of either sign is fixed. tree_* reduce lane l with lane l + w for
// w = 8, 4, 2, 1.
#include <cstddef>
#include <cstdint>

#include "numerics/compute.h"
#include "numerics/cpu/kernel_set.h"
#include "numerics/cpu/packed_layout.h"
#include "numerics/exp_constants.h"

#if defined(DP_PLAIN_LOOPS)
// Arrays instead of registers: inlining and unrolling by force gains nothing and takes a sanitizer build minutes.
#define DP_INLINE inline
#define DP_INLINE_BODY
#define DP_UNROLL
#else
#define DP_INLINE __attribute__((always_inline)) inline
#define DP_INLINE_BODY __attribute__((always_inline))  // after a lambda's parameters
#if defined(__clang__)
#define DP_UNROLL _Pragma("clang loop unroll(full)")
#else
#define DP_UNROLL _Pragma("GCC unroll 16")
#endif
#endif

// AddressSanitizer watches every access here. UndefinedBehaviorSanitizer only watches the plain-loop build of the same
// templates: in the forcibly inlined ones its checks take minutes to compile.
#if defined(__clang__) && !defined(DP_PLAIN_LOOPS)
#pragma clang attribute push(__attribute__((no_sanitize("undefined"))), apply_to = function)
#define DP_ATTRIBUTES_PUSHED
#endif

namespace draftprobe::numerics {
namespace {

// Weights are read once and in order, but from several panels at once, where the hardware prefetcher alone lost about
// 15 %. Past the end of a matrix it is harmless.
DP_INLINE void prefetch_weights(const std::uint8_t* p) { __builtin_prefetch(p + 2048); }

using std::size_t;

#include DP_SIMD_HEADER

// ---- shared pieces ----

// exp_f32 (scalar_math.cc), lane by lane.
DP_INLINE V16 exp16(V16 x) {
    namespace k = exp_constants;
    const V16 magic = set1(k::kRoundMagic);
    const V16 t = fma(x, set1(k::kLog2E), magic);
    const V16 n = sub(t, magic);
    V16 r = fma(n, set1(-k::kLn2High), x);
    r = fma(n, set1(-k::kLn2Low), r);
    V16 p = set1(k::kC6);
    p = fma(p, r, set1(k::kC5));
    p = fma(p, r, set1(k::kC4));
    p = fma(p, r, set1(k::kC3));
    p = fma(p, r, set1(k::kC2));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    V16 y = from_bits(add_u(bits(p), shift_left<23>(sub_u(bits(t), bits(magic)))));
    y = select(greater(x, set1(k::kOverflow)), set1(__builtin_inff()), y);
    y = select(greater(set1(k::kUnderflow), x), set1(0.0f), y);
    return select(is_nan(x), x, y);
}

DP_INLINE V16 silu16(V16 x) { return div(x, add(set1(1.0f), exp16(neg(x)))); }
DP_INLINE V16 sigmoid16(V16 x) { return div(set1(1.0f), add(set1(1.0f), exp16(neg(x)))); }

// Calls body(i, n) for i = 0, 16, ...; n = 16 but for the last call.
template <typename Body>
DP_INLINE void for_lanes(size_t count, const Body& body) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) body(i, 16);
    if (i < count) body(i, static_cast<int>(count - i));
}
// Loads and stores of n <= 16 floats; n = 16 is a compile-time constant in the loop above.
DP_INLINE V16 take(const float* p, int n) { return n == 16 ? load(p) : load_n(p, n); }
DP_INLINE void put(float* p, V16 a, int n) {
    if (n == 16)
        store(p, a);
    else
        store_n(p, a, n);
}

// acc[l] gains term(i + l) for each feature i + l < count. Lanes past the end stay as they are: an fma with zeros would
// turn a lane of -0 into +0.
template <typename Step>
DP_INLINE float lane_sum(size_t count, const Step& step) {
    V16 acc = set1(0.0f);
    for_lanes(count, [&](size_t i, int n) DP_INLINE_BODY {
        const V16 next = step(i, n, acc);
        acc = n == 16 ? next : select(lanes_in(0, n), next, acc);
    });
    return tree_sum(acc);
}

DP_INLINE float sum_of_squares(const float* x, size_t n) {
    return lane_sum(n, [&](size_t i, int m, V16 acc) DP_INLINE_BODY {
        const V16 v = take(x + i, m);
        return fma(v, v, acc);
    });
}

DP_INLINE float inverse_root(float x) { return 1.0f / __builtin_sqrtf(x); }

// ---- norms and elementwise ----

void rms_norm(const float* x, const float* w, size_t n, float eps, float* y) {
    const V16 r = set1(inverse_root(sum_of_squares(x, n) / static_cast<float>(n) + eps));
    for_lanes(n, [&](size_t i, int m) DP_INLINE_BODY { put(y + i, mul(mul(take(x + i, m), r), take(w + i, m)), m); });
}

void l2_normalise(const float* x, size_t n, float eps, float scale, float* y) {
    const V16 r = set1(inverse_root(sum_of_squares(x, n) + eps));
    const V16 s = set1(scale);
    for_lanes(n, [&](size_t i, int m) DP_INLINE_BODY { put(y + i, mul(mul(take(x + i, m), r), s), m); });
}

void gated_rms_norm(const float* x, const float* w, const float* z, size_t n, float eps, float* y) {
    const V16 r = set1(inverse_root(sum_of_squares(x, n) / static_cast<float>(n) + eps));
    for_lanes(n, [&](size_t i, int m) DP_INLINE_BODY {
        const V16 normed = mul(mul(take(x + i, m), r), take(w + i, m));
        put(y + i, mul(normed, silu16(take(z + i, m))), m);
    });
}

void silu_mul(const float* gate, const float* up, size_t n, float* y) {
    for_lanes(n,
              [&](size_t i, int m) DP_INLINE_BODY { put(y + i, mul(silu16(take(gate + i, m)), take(up + i, m)), m); });
}

void sigmoid_mul(const float* x, const float* gate, size_t n, float* y) {
    for_lanes(
        n, [&](size_t i, int m) DP_INLINE_BODY { put(y + i, mul(take(x + i, m), sigmoid16(take(gate + i, m))), m); });
}

void add_rows(float* x, const float* y, size_t n) {
    for_lanes(n, [&](size_t i, int m) DP_INLINE_BODY { put(x + i, add(take(x + i, m), take(y + i, m)), m); });
}

void rope(float* x, const float* cos, const float* sin, size_t dims) {
    const size_t half = dims / 2;
    for_lanes(half, [&](size_t i, int m) DP_INLINE_BODY {
        const V16 a = take(x + i, m);
        const V16 b = take(x + half + i, m);
        const V16 c = take(cos + i, m);
        const V16 s = take(sin + i, m);
        put(x + i, fma(neg(b), s, mul(a, c)), m);
        put(x + half + i, fma(a, s, mul(b, c)), m);
    });
}

// ---- storage formats ----

// f32_to_bf16 of base/float_bits.h in the high half of each lane.
DP_INLINE U16 bf16_high(V16 x) {
    const U16 b = bits(x);
    const U16 odd = and_u(shift_right<16>(b), set1_u(1));
    const U16 rounded = add_u(b, add_u(set1_u(0x7fff), odd));
    const U16 quiet = or_u(b, set1_u(0x00400000));
    return and_u(select_u(is_nan(x), quiet, rounded), set1_u(0xffff0000));
}

void round_bf16(float* x, size_t n) {
    for_lanes(n, [&](size_t i, int m) DP_INLINE_BODY { put(x + i, from_bits(bf16_high(take(x + i, m))), m); });
}

void to_bf16(const float* x, size_t n, Bf16* y) {
    for_lanes(n, [&](size_t i, int m) DP_INLINE_BODY {
        const U16 narrow = shift_right<16>(bf16_high(take(x + i, m)));
        if (m == 16) return store_u16(y + i, narrow);
        Bf16 tail[16];
        store_u16(tail, narrow);
        for (int l = 0; l < m; ++l) y[i + static_cast<size_t>(l)] = tail[l];
    });
}

void from_bf16(const Bf16* x, size_t n, float* y) {
    for_lanes(n, [&](size_t i, int m) DP_INLINE_BODY {
        if (m == 16) return store(y + i, from_bits(shift_left<16>(load_u16(x + i))));
        Bf16 tail[16] = {};
        for (int l = 0; l < m; ++l) tail[l] = x[i + static_cast<size_t>(l)];
        store_n(y + i, from_bits(shift_left<16>(load_u16(tail))), m);
    });
}

void quantise_int8(const float* x, size_t n, std::int8_t* q, float* scale) {
    // Magnitudes as integers order like the floats and put infinity and NaN on top, so neither can slip through.
    U16 top = set1_u(0);
    for_lanes(
        n, [&](size_t i, int m) DP_INLINE_BODY { top = max_u(top, and_u(bits(take(x + i, m)), set1_u(0x7fffffff))); });
    const std::uint32_t magnitude = tree_max_u(top);
    const float absmax = __builtin_bit_cast(float, magnitude);
    const float inverse = 127.0f / absmax;
    if (magnitude >= 0x7f800000u || !(inverse <= __FLT_MAX__)) {
        *scale = magnitude >= 0x7f800000u ? __builtin_nanf("") : 0.0f;
        for (size_t i = 0; i < n; ++i) q[i] = 0;
        return;
    }
    *scale = absmax / 127.0f;
    const V16 inv = set1(inverse);
    const V16 magic = set1(exp_constants::kRoundMagic);
    for_lanes(n, [&](size_t i, int m) DP_INLINE_BODY {
        const U16 code = sub_u(bits(add(mul(take(x + i, m), inv), magic)), bits(magic));
        if (m == 16) return store_i8(q + i, code);
        std::int8_t tail[16];
        store_i8(tail, code);
        for (int l = 0; l < m; ++l) q[i + static_cast<size_t>(l)] = tail[l];
    });
}

void dequantise_int8(const std::int8_t* q, size_t n, float scale, float* y) {
    const V16 s = set1(scale);
    for_lanes(n, [&](size_t i, int m) DP_INLINE_BODY {
        if (m == 16) return store(y + i, mul(s, load_i8(q + i)));
        std::int8_t tail[16] = {};
        for (int l = 0; l < m; ++l) tail[l] = q[i + static_cast<size_t>(l)];
        store_n(y + i, mul(s, load_i8(tail)), m);
    });
}

// ---- convolutions ----

void conv_silu(const float* const* rows, const float* w, size_t taps, size_t n, float* y) {
    for_lanes(n, [&](size_t i, int m) DP_INLINE_BODY {
        V16 acc = set1(0.0f);
        for (size_t j = 0; j < taps; ++j) acc = fma(take(w + j * n + i, m), take(rows[j] + i, m), acc);
        put(y + i, silu16(acc), m);
    });
}

void dynamic_conv(const float* const* rows, const float* base, const float* delta, size_t taps, size_t group, size_t n,
                  float* y) {
    const size_t groups = n / group;
    for_lanes(n, [&](size_t i, int m) DP_INLINE_BODY {
        const size_t last = i + static_cast<size_t>(m) - 1;
        V16 acc = set1(0.0f);
        for (size_t j = 0; j < taps; ++j) {
            if (rows[j] == nullptr) continue;
            const float* d = delta + j * groups;
            V16 shift;
            if (i / group == last / group) {
                shift = set1(d[i / group]);
            } else {
                float lanes[16] = {};
                for (size_t c = i; c <= last; ++c) lanes[c - i] = d[c / group];
                shift = load(lanes);
            }
            acc = fma(add(take(base + j * n + i, m), shift), take(rows[j] + i, m), acc);
        }
        put(y + i, acc, m);
    });
}

// ---- mixture of experts ----

void weighted_sum(const float* const* rows, const float* w, size_t count, size_t n, float* y) {
    for_lanes(n, [&](size_t i, int m) DP_INLINE_BODY {
        V16 acc = set1(0.0f);
        for (size_t j = 0; j < count; ++j) acc = fma(set1(w[j]), take(rows[j] + i, m), acc);
        put(y + i, acc, m);
    });
}

// ---- gated delta net ----

// Columns v .. v + 16 B - 1 of one head (or the last m < 16 columns with B = 1). S' is recomputed in the second sweep
// rather than stored: the product has the same bits, and state_out may be state_in.
template <int B>
DP_INLINE void delta_columns(const float* state_in, float* state_out, const float* query, const float* key,
                             const float* value, float decay, float beta, size_t dk, size_t dv, size_t v, int m,
                             float* out) {
    const V16 dec = set1(decay);
    V16 acc[B];
    DP_UNROLL for (int b = 0; b < B; ++b) acc[b] = set1(0.0f);
    for (size_t k = 0; k < dk; ++k) {
        const float* s = state_in + k * dv + v;
        const V16 kk = set1(key[k]);
        DP_UNROLL for (int b = 0; b < B; ++b) acc[b] = fma(mul(dec, take(s + 16 * b, m)), kk, acc[b]);
    }
    V16 d[B];
    DP_UNROLL for (int b = 0; b < B; ++b) {
        d[b] = mul(set1(beta), sub(take(value + v + 16 * b, m), acc[b]));
        acc[b] = set1(0.0f);
    }
    for (size_t k = 0; k < dk; ++k) {
        const float* s = state_in + k * dv + v;
        float* t = state_out + k * dv + v;
        const V16 kk = set1(key[k]);
        const V16 qq = set1(query == nullptr ? 0.0f : query[k]);
        DP_UNROLL for (int b = 0; b < B; ++b) {
            const V16 next = fma(kk, d[b], mul(dec, take(s + 16 * b, m)));
            put(t + 16 * b, next, m);
            acc[b] = fma(next, qq, acc[b]);
        }
    }
    if (query == nullptr) return;
    DP_UNROLL for (int b = 0; b < B; ++b) put(out + v + 16 * b, acc[b], m);
}

void delta_step(const float* state_in, float* state_out, const float* query, const float* key, const float* value,
                float decay, float beta, size_t dk, size_t dv, float* out) {
    size_t v = 0;
    for (; v + 64 <= dv; v += 64)
        delta_columns<4>(state_in, state_out, query, key, value, decay, beta, dk, dv, v, 16, out);
    for (; v + 16 <= dv; v += 16)
        delta_columns<1>(state_in, state_out, query, key, value, decay, beta, dk, dv, v, 16, out);
    if (v < dv)
        delta_columns<1>(state_in, state_out, query, key, value, decay, beta, dk, dv, v, static_cast<int>(dv - v), out);
}

// ---- attention ----

// N queries against one page: each query has its own chains, so the bits are those of N separate calls, but every key
// and value is loaded once.

// score[n][32] = scale * (chain over d).
template <int N>
DP_INLINE void page_scores(const float* const (&q)[N], const float* keys_t, float scale, size_t d, V16 (&score)[N][2]) {
    constexpr int kVectors = N * kLaneRegisters > 4 ? 1 : 2;  // of 16 keys, at once
    const V16 factor = set1(scale);
    DP_UNROLL for (int first = 0; first < 2; first += kVectors) {
        V16 s[N][kVectors];
        DP_UNROLL for (int n = 0; n < N; ++n) DP_UNROLL for (int v = 0; v < kVectors; ++v) s[n][v] = set1(0.0f);
        for (size_t i = 0; i < d; ++i) {
            V16 keys[kVectors];
            DP_UNROLL for (int v = 0; v < kVectors; ++v) keys[v] = load(keys_t + i * 32 + 16 * (first + v));
            DP_UNROLL for (int n = 0; n < N; ++n) {
                const V16 qi = set1(q[n][i]);
                DP_UNROLL for (int v = 0; v < kVectors; ++v) s[n][v] = fma(qi, keys[v], s[n][v]);
            }
        }
        DP_UNROLL for (int n = 0; n < N; ++n) DP_UNROLL for (int v = 0; v < kVectors; ++v) score[n][first + v] =
            mul(factor, s[n][v]);
    }
}

// out[n][v ..] = out * c, then the chain over visible keys, for 16 B values.
template <int N, int B>
DP_INLINE void weigh_values(const float (&p)[N][32], const float (&c)[N], const float* values, int begin, int end,
                            size_t d, size_t v, int m, float* const (&out)[N]) {
    V16 acc[N][B];
    DP_UNROLL for (int n = 0; n < N; ++n) DP_UNROLL for (int b = 0; b < B; ++b) acc[n][b] =
        mul(take(out[n] + v + 16 * b, m), set1(c[n]));
    for (int j = begin; j < end; ++j) {
        const float* row = values + static_cast<size_t>(j) * d + v;
        V16 value[B];
        DP_UNROLL for (int b = 0; b < B; ++b) value[b] = take(row + 16 * b, m);
        DP_UNROLL for (int n = 0; n < N; ++n) {
            const V16 pj = set1(p[n][j]);
            DP_UNROLL for (int b = 0; b < B; ++b) acc[n][b] = fma(pj, value[b], acc[n][b]);
        }
    }
    DP_UNROLL for (int n = 0; n < N; ++n) DP_UNROLL for (int b = 0; b < B; ++b) put(out[n] + v + 16 * b, acc[n][b], m);
}

template <int N>
DP_INLINE void attention_rows(const float* const (&q)[N], const float* keys_t, const float* values, int begin, int end,
                              float scale, size_t d, float* const (&running_max)[N], float* const (&running_sum)[N],
                              float* const (&out)[N]) {
    V16 score[N][2];
    page_scores<N>(q, keys_t, scale, d, score);
    const M16 m0 = lanes_in(begin, end);
    const M16 m1 = lanes_in(begin - 16, end - 16);
    const V16 hidden = set1(-__builtin_inff());
    float p[N][32];
    float c[N];
    for (int n = 0; n < N; ++n) {
        // Selecting before any reduction keeps whatever an invisible entry holds, NaN included, out of everything
        // below.
        const V16 s0 = select(m0, score[n][0], hidden);
        const V16 s1 = select(m1, score[n][1], hidden);
        const float old_max = *running_max[n];
        const float page_max = tree_max(max(s0, s1));
        const float new_max = old_max > page_max ? old_max : page_max;
        float lanes[16];
        store(lanes, exp16(set1(old_max - new_max)));
        c[n] = lanes[0];
        const V16 shift = set1(new_max);
        const V16 p0 = exp16(sub(s0, shift));  // exactly 0 for hidden keys: exp16(-inf)
        const V16 p1 = exp16(sub(s1, shift));
        *running_max[n] = new_max;
        *running_sum[n] = __builtin_fmaf(*running_sum[n], c[n], tree_sum(add(p0, p1)));
        store(p[n], p0);
        store(p[n] + 16, p1);
    }
    constexpr int kB =
        N == 1 ? 4 / kLaneRegisters : 4 / (kLaneRegisters * kLaneRegisters);  // N B sums stay in registers
    size_t v = 0;
    for (; v + 16 * kB <= d; v += 16 * kB) weigh_values<N, kB>(p, c, values, begin, end, d, v, 16, out);
    for (; v + 16 <= d; v += 16) weigh_values<N, 1>(p, c, values, begin, end, d, v, 16, out);
    if (v < d) weigh_values<N, 1>(p, c, values, begin, end, d, v, static_cast<int>(d - v), out);
}

void attention_page(const float* q, const float* keys_t, const float* values, int begin, int end, float scale, size_t d,
                    float* running_max, float* running_sum, float* out) {
    const float* const qs[1] = {q};
    float* const maxima[1] = {running_max};
    float* const sums[1] = {running_sum};
    float* const outs[1] = {out};
    attention_rows<1>(qs, keys_t, values, begin, end, scale, d, maxima, sums, outs);
}

void attention_page4(const AttentionQueries& a, const float* keys_t, const float* values, int begin, int end,
                     float scale, size_t d) {
    attention_rows<4>(a.q, keys_t, values, begin, end, scale, d, a.running_max, a.running_sum, a.out);
}

// ---- dot products ----

float dot(const float* a, const float* b, size_t n) {
    return lane_sum(n,
                    [&](size_t i, int m, V16 acc) DP_INLINE_BODY { return fma(take(a + i, m), take(b + i, m), acc); });
}

float dot3(const float* a, const float* b, const float* c, size_t n) {
    return lane_sum(n, [&](size_t i, int m, V16 acc)
                           DP_INLINE_BODY { return fma(mul(take(a + i, m), take(b + i, m)), take(c + i, m), acc); });
}

// ---- matrix products ----

constexpr size_t kGroup = kGroupColumns;
constexpr size_t kHalf = kGroupColumns / 2;
constexpr size_t kTilesPerPanel = kPanelOutputs / kTile;

void pack_f32(const float* x, size_t stride, int rows, size_t in, float* packed, float* sums) {
    const size_t r_count = static_cast<size_t>(rows);
    for (size_t r = 0; r < r_count; ++r) {
        const float* row = x + r * stride;
        if (packed != nullptr)
            for (size_t c = 0; c < in; ++c) packed[c * r_count + r] = row[c];
        if (sums == nullptr) continue;
        for (size_t g = 0; g < in / kGroup; ++g) {
            float t0 = 0.0f;
            float t1 = 0.0f;
            for (size_t c = 0; c < kHalf; ++c) {
                t0 = t0 + row[g * kGroup + c];
                t1 = t1 + row[g * kGroup + kHalf + c];
            }
            sums[g * r_count + r] = t0 + t1;
        }
    }
}

void pack_i8(const float* x, size_t stride, int rows, size_t in, std::uint32_t* packed, float* scales, float* sums) {
    const size_t r_count = static_cast<size_t>(rows);
    for (size_t r = 0; r < r_count; ++r) {
        for (size_t g = 0; g < in / kGroup; ++g) {
            std::int8_t q[kGroup];
            float scale;
            quantise_int8(x + r * stride + g * kGroup, kGroup, q, &scale);
            std::int32_t sum = 0;
            for (size_t c = 0; c < kGroup; ++c) sum += q[c];
            for (size_t k = 0; k < kGroup / 4; ++k)
                __builtin_memcpy(&packed[(g * (kGroup / 4) + k) * r_count + r], q + 4 * k, 4);
            scales[g * r_count + r] = scale;
            sums[g * r_count + r] = scale * static_cast<float>(sum);
        }
    }
}

template <int N>
struct Index {
    static constexpr int value = N;
};
template <int J, int End, typename Body>
DP_INLINE void unroll(const Body& body) {
    if constexpr (J < End) {
        body(Index<J>{});
        unroll<J + 1, End>(body);
    }
}

// How one kind decodes: Block is what one load brings (kColumns columns of one tile); column<J> its column J as floats.
template <WeightKind K>
struct Decoder;
template <>
struct Decoder<WeightKind::affine4> {
    using Block = Raw;
    static constexpr int kColumns = 8;
    static DP_INLINE Block read(const std::uint8_t* p) { return raw_load(p); }
    template <int J>
    static DP_INLINE Tile column(Block b) {
        return nibble < J < 4 ? 2 * J : 2 * (J - 4) + 1 > (b);
    }
};
template <>
struct Decoder<WeightKind::affine8> {
    using Block = Raw;
    static constexpr int kColumns = 4;
    static DP_INLINE Block read(const std::uint8_t* p) { return raw_load(p); }
    template <int J>
    static DP_INLINE Tile column(Block b) {
        return byte<J>(b);
    }
};
template <>
struct Decoder<WeightKind::bf16> {
    using Block = Tile;
    static constexpr int kColumns = 1;
    static DP_INLINE Block read(const std::uint8_t* p) { return tile_bf16(p); }
    template <int J>
    static DP_INLINE Tile column(Block b) {
        return b;
    }
};
template <>
struct Decoder<WeightKind::f32> {
    using Block = Tile;
    static constexpr int kColumns = 1;
    static DP_INLINE Block read(const std::uint8_t* p) { return tile_load(reinterpret_cast<const float*>(p)); }
    template <int J>
    static DP_INLINE Tile column(Block b) {
        return b;
    }
};

constexpr bool is_affine(WeightKind kind) { return kind == WeightKind::affine4 || kind == WeightKind::affine8; }

// Bytes from one panel's start to the block of a column, and to a tile inside a block.
template <WeightKind K>
DP_INLINE size_t column_offset(size_t column) {
    return column / block_columns(K) * block_bytes(K);
}
template <WeightKind K>
constexpr size_t kTileBytes = block_bytes(K) / kTilesPerPanel;

// The chains over columns first .. first + count - 1 for R rows and P tiles. The two chains of a group run one after
// the other: side by side they read twice as many places at once, and one row of a large matrix took twice as long.
template <WeightKind K, int R, int P>
DP_INLINE void run_chains(const std::uint8_t* const (&weights)[P], const float* x, size_t first, size_t count,
                          Tile (&t)[R][P]) {
    using D = Decoder<K>;
    DP_UNROLL for (int r = 0; r < R; ++r) DP_UNROLL for (int p = 0; p < P; ++p) t[r][p] = tile_zero();
    for (size_t c = first; c < first + count; c += D::kColumns) {
        typename D::Block block[P];
        DP_UNROLL for (int p = 0; p < P; ++p) {
            const std::uint8_t* at = weights[p] + column_offset<K>(c);
            block[p] = D::read(at);
            prefetch_weights(at);
        }
        unroll<0, D::kColumns>([&](auto j) DP_INLINE_BODY {
            constexpr int kJ = decltype(j)::value;
            Tile w[P];
            DP_UNROLL for (int p = 0; p < P; ++p) w[p] = D::template column<kJ>(block[p]);
            const float* column = x + (c + kJ) * R;
            DP_UNROLL for (int r = 0; r < R; ++r) {
                const Tile xr = tile_set1(column[r]);
                DP_UNROLL for (int p = 0; p < P; ++p) t[r][p] = tile_fma(w[p], xr, t[r][p]);
            }
        });
    }
}

// acc gains one finished chain, in the order of Compute::matmul.
template <WeightKind K, int R, int P>
DP_INLINE void take_chain(const Tile (&t)[R][P], const float* const (&scales)[P], size_t g, Tile (&acc)[R][P]) {
    DP_UNROLL for (int p = 0; p < P; ++p) {
        if constexpr (is_affine(K)) {
            const Tile s = tile_load(scales[p] + g * kPanelOutputs);
            DP_UNROLL for (int r = 0; r < R; ++r) acc[r][p] = tile_fma(s, t[r][p], acc[r][p]);
        } else {
            DP_UNROLL for (int r = 0; r < R; ++r) acc[r][p] = tile_add(acc[r][p], t[r][p]);
        }
    }
}

DP_INLINE void store_outputs(float* row, size_t output, size_t out, Tile value) {
    if (output + kTile <= out) return tile_store(row + output, value);
    float lanes[kTile];
    tile_store(lanes, value);
    for (size_t o = output; o < out; ++o) row[o] = lanes[o - output];
}

// Tiles first_tile .. first_tile + P - 1 for the R rows of the block.
template <WeightKind K, int R, int P>
DP_INLINE void tiles_f32(const MatmulBlock& a, size_t first_tile) {
    const size_t groups = group_count(a.in);
    const std::uint8_t* weights[P];
    const float* scales[P];
    const float* biases[P];
    DP_UNROLL for (int p = 0; p < P; ++p) {
        const size_t panel = (first_tile + static_cast<size_t>(p)) / kTilesPerPanel;
        const size_t part = (first_tile + static_cast<size_t>(p)) % kTilesPerPanel;
        weights[p] = a.packed + panel * panel_bytes(K, a.in) + part * kTileBytes<K>;
        scales[p] = biases[p] = nullptr;
        if constexpr (is_affine(K)) {
            scales[p] = a.scales + panel * groups * kPanelOutputs + part * kTile;
            biases[p] = a.biases + panel * groups * kPanelOutputs + part * kTile;
        }
    }
    Tile acc[R][P];
    DP_UNROLL for (int r = 0; r < R; ++r) DP_UNROLL for (int p = 0; p < P; ++p) acc[r][p] = tile_zero();
    for (size_t g = 0; g < groups; ++g) {
        const size_t first = g * kGroup;
        const size_t count = is_affine(K) || first + kGroup <= a.in ? kGroup : a.in - first;
        const size_t low = count < kHalf ? count : kHalf;
        Tile t[R][P];
        run_chains<K, R, P>(weights, a.x, first, low, t);
        take_chain<K, R, P>(t, scales, g, acc);
        run_chains<K, R, P>(weights, a.x, first + low, count - low, t);
        take_chain<K, R, P>(t, scales, g, acc);
        if constexpr (is_affine(K)) {
            DP_UNROLL for (int p = 0; p < P; ++p) {
                const Tile b = tile_load(biases[p] + g * kPanelOutputs);
                DP_UNROLL for (int r = 0; r < R; ++r) acc[r][p] =
                    tile_fma(b, tile_set1(a.sums[g * R + static_cast<size_t>(r)]), acc[r][p]);
            }
        }
    }
    DP_UNROLL for (int r = 0; r < R; ++r) DP_UNROLL for (int p = 0; p < P; ++p) store_outputs(
        a.y + static_cast<size_t>(r) * a.y_stride, (first_tile + static_cast<size_t>(p)) * kTile, a.out, acc[r][p]);
}

template <WeightKind K, int R>
void block_f32(const MatmulBlock& a) {
    constexpr int kP = tiles_at_once(K, R);
    const size_t last = a.last_panel * kTilesPerPanel;
    size_t tile = a.first_panel * kTilesPerPanel;
    for (; tile + kP <= last; tile += kP) tiles_f32<K, R, kP>(a, tile);
    if constexpr (kP > 1)
        for (; tile < last; ++tile) tiles_f32<K, R, 1>(a, tile);
}

template <WeightKind K, int R>
void block_i8(const MatmulBlock& a) {
    const size_t groups = group_count(a.in);
    const size_t last = a.last_panel * kTilesPerPanel;
    for (size_t tile = a.first_panel * kTilesPerPanel; tile < last; ++tile) {
        const size_t panel = tile / kTilesPerPanel;
        const size_t part = tile % kTilesPerPanel;
        const std::uint8_t* weights = a.packed + panel * panel_bytes(K, a.in) + part * kTileBytes<K>;
        const float* scales = a.scales + panel * groups * kPanelOutputs + part * kTile;
        const float* biases = a.biases + panel * groups * kPanelOutputs + part * kTile;
        Tile acc[R];
        DP_UNROLL for (int r = 0; r < R; ++r) acc[r] = tile_zero();
        for (size_t g = 0; g < groups; ++g) {
            IntTile sum[R];
            const std::uint8_t* w = weights + column_offset<K>(g * kGroup);
            if constexpr (K == WeightKind::affine4)
                group_dot4<R>(w, a.xq + g * (kGroup / 4) * R, sum);
            else
                group_dot8<R>(w, a.xq + g * (kGroup / 4) * R, sum);
            const Tile s = tile_load(scales + g * kPanelOutputs);
            const Tile b = tile_load(biases + g * kPanelOutputs);
            DP_UNROLL for (int r = 0; r < R; ++r) {
                const size_t at = g * R + static_cast<size_t>(r);
                acc[r] = tile_fma(s, tile_mul(tile_set1(a.x_scales[at]), to_float(sum[r])), acc[r]);
                acc[r] = tile_fma(b, tile_set1(a.x_sums[at]), acc[r]);
            }
        }
        DP_UNROLL for (int r = 0; r < R; ++r)
            store_outputs(a.y + static_cast<size_t>(r) * a.y_stride, tile * kTile, a.out, acc[r]);
    }
}

// Row blocks come in kMaxRowBlock rows and in every count up to min(8, kMaxRowBlock).
constexpr int smaller_block(int rows) { return rows > 8 ? 8 : rows - 1; }

template <WeightKind K, int R = kMaxRowBlock>
void rows_f32(const MatmulBlock& a) {
    if (a.rows == R) return block_f32<K, R>(a);
    if constexpr (R > 1) rows_f32<K, smaller_block(R)>(a);
}

template <WeightKind K, int R = kMaxRowBlock>
void rows_i8(const MatmulBlock& a) {
    if (a.rows == R) return block_i8<K, R>(a);
    if constexpr (R > 1) rows_i8<K, smaller_block(R)>(a);
}

void matmul_f32(const MatmulBlock& a) {
    switch (a.kind) {
        case WeightKind::f32: return rows_f32<WeightKind::f32>(a);
        case WeightKind::bf16: return rows_f32<WeightKind::bf16>(a);
        case WeightKind::affine4: return rows_f32<WeightKind::affine4>(a);
        case WeightKind::affine8: return rows_f32<WeightKind::affine8>(a);
    }
}

void matmul_i8(const MatmulBlock& a) {
    if (a.kind == WeightKind::affine4) return rows_i8<WeightKind::affine4>(a);
    return rows_i8<WeightKind::affine8>(a);
}

}  // namespace

constinit const IsaKernels DP_KERNEL_TABLE = {
    .ops =
        {
            .rms_norm = rms_norm,
            .l2_normalise = l2_normalise,
            .gated_rms_norm = gated_rms_norm,
            .silu_mul = silu_mul,
            .sigmoid_mul = sigmoid_mul,
            .add = add_rows,
            .rope = rope,
            .round_bf16 = round_bf16,
            .to_bf16 = to_bf16,
            .from_bf16 = from_bf16,
            .quantise_int8 = quantise_int8,
            .dequantise_int8 = dequantise_int8,
            .conv_silu = conv_silu,
            .delta_step = delta_step,
            .attention_page = attention_page,
            .dot = dot,
            .dot3 = dot3,
            .dynamic_conv = dynamic_conv,
            .weighted_sum = weighted_sum,
        },
    .max_row_block = kMaxRowBlock,
    .inline_work = kInlineWork,
    .attention_page4 = attention_page4,
    .pack_f32 = pack_f32,
    .pack_i8 = pack_i8,
    .matmul_f32 = matmul_f32,
    .matmul_i8 = matmul_i8,
};

}  // namespace draftprobe::numerics

#if defined(DP_ATTRIBUTES_PUSHED)
#pragma clang attribute pop
#endif
