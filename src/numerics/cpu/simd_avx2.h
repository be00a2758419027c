// Sixteen lanes in two 256-bit registers; see kernels_impl.h for what the names mean. Included inside its anonymous
// namespace.

struct V16 {
    __m256 lo;
    __m256 hi;
};
struct U16 {
    __m256i lo;
    __m256i hi;
};
using M16 = U16;  // all ones or all zeros per lane

DP_INLINE __m256i lane_numbers() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
DP_INLINE M16 lanes_in(int begin, int end) {
    const __m256i first = _mm256_set1_epi32(begin - 1);
    const __m256i last = _mm256_set1_epi32(end);
    const __m256i lo = lane_numbers();
    const __m256i hi = _mm256_add_epi32(lo, _mm256_set1_epi32(8));
    return {_mm256_and_si256(_mm256_cmpgt_epi32(lo, first), _mm256_cmpgt_epi32(last, lo)),
            _mm256_and_si256(_mm256_cmpgt_epi32(hi, first), _mm256_cmpgt_epi32(last, hi))};
}

constexpr int kLaneRegisters = 2;

DP_INLINE V16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
DP_INLINE void store(float* p, V16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
// Masked-off elements are not accessed, so p may end right after its n floats.
DP_INLINE V16 load_n(const float* p, int n) {
    const M16 m = lanes_in(0, n);
    return {_mm256_maskload_ps(p, m.lo), n > 8 ? _mm256_maskload_ps(p + 8, m.hi) : _mm256_setzero_ps()};
}
DP_INLINE void store_n(float* p, V16 a, int n) {
    const M16 m = lanes_in(0, n);
    _mm256_maskstore_ps(p, m.lo, a.lo);
    if (n > 8) _mm256_maskstore_ps(p + 8, m.hi, a.hi);
}
DP_INLINE V16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
DP_INLINE V16 add(V16 a, V16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
DP_INLINE V16 sub(V16 a, V16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
DP_INLINE V16 mul(V16 a, V16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
DP_INLINE V16 div(V16 a, V16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
DP_INLINE V16 fma(V16 a, V16 b, V16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
DP_INLINE V16 neg(V16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
DP_INLINE V16 max(V16 a, V16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
DP_INLINE M16 greater(V16 a, V16 b) {
    return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ)),
            _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))};
}
DP_INLINE M16 is_nan(V16 a) {
    return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q)),
            _mm256_castps_si256(_mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q))};
}
DP_INLINE V16 select(M16 m, V16 a, V16 b) {
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(m.lo)),
            _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(m.hi))};
}

DP_INLINE U16 bits(V16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
DP_INLINE V16 from_bits(U16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
DP_INLINE U16 set1_u(std::uint32_t x) {
    const __m256i v = _mm256_set1_epi32(static_cast<int>(x));
    return {v, v};
}
DP_INLINE U16 add_u(U16 a, U16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
DP_INLINE U16 sub_u(U16 a, U16 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
DP_INLINE U16 and_u(U16 a, U16 b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
DP_INLINE U16 or_u(U16 a, U16 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
DP_INLINE U16 max_u(U16 a, U16 b) { return {_mm256_max_epu32(a.lo, b.lo), _mm256_max_epu32(a.hi, b.hi)}; }
template <int N>
DP_INLINE U16 shift_left(U16 a) {
    return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
template <int N>
DP_INLINE U16 shift_right(U16 a) {
    return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
}
DP_INLINE U16 select_u(M16 m, U16 a, U16 b) {
    return {_mm256_blendv_epi8(b.lo, a.lo, m.lo), _mm256_blendv_epi8(b.hi, a.hi, m.hi)};
}

DP_INLINE U16 load_u16(const std::uint16_t* p) {
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
// Values must fit 16 bits: the packs saturate. They also work per 128-bit lane, which the permute undoes.
DP_INLINE void store_u16(std::uint16_t* p, U16 a) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(a.lo, a.hi), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}
DP_INLINE V16 load_i8(const std::int8_t* p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)))};
}
DP_INLINE void store_i8(std::int8_t* p, U16 a) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packs_epi16(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1)));
}

DP_INLINE float tree_sum(V16 a) {
    const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
DP_INLINE float tree_max(V16 a) {
    const __m256 s8 = _mm256_max_ps(a.lo, a.hi);
    const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
DP_INLINE std::uint32_t tree_max_u(U16 a) {
    const __m256i s8 = _mm256_max_epu32(a.lo, a.hi);
    const __m128i s4 = _mm_max_epu32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
    const __m128i s2 = _mm_max_epu32(s4, _mm_shuffle_epi32(s4, 0x4e));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(s2, _mm_shuffle_epi32(s2, 0xb1))));
}

// Matrix products: a tile is kTile outputs of a panel. Half a panel: 16 registers hold eight rows of one tile.
constexpr int kTile = 8;
constexpr size_t kInlineWork = size_t{1} << 18;
constexpr int kMaxRowBlock = 8;
struct Tile {
    __m256 v;
};
struct Raw {
    __m256i v;
};

DP_INLINE Tile tile_load(const float* p) { return {_mm256_loadu_ps(p)}; }
DP_INLINE void tile_store(float* p, Tile a) { _mm256_storeu_ps(p, a.v); }
DP_INLINE Tile tile_zero() { return {_mm256_setzero_ps()}; }
DP_INLINE Tile tile_set1(float x) { return {_mm256_set1_ps(x)}; }
DP_INLINE Tile tile_add(Tile a, Tile b) { return {_mm256_add_ps(a.v, b.v)}; }
DP_INLINE Tile tile_mul(Tile a, Tile b) { return {_mm256_mul_ps(a.v, b.v)}; }
DP_INLINE Tile tile_fma(Tile a, Tile b, Tile c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
DP_INLINE Tile tile_bf16(const std::uint8_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
DP_INLINE Raw raw_load(const std::uint8_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
template <int N>
DP_INLINE Tile nibble(Raw a) {
    const __m256i shifted = N == 0 ? a.v : _mm256_srli_epi32(a.v, 4 * N);
    return {_mm256_cvtepi32_ps(N == 7 ? shifted : _mm256_and_si256(shifted, _mm256_set1_epi32(15)))};
}
template <int N>
DP_INLINE Tile byte(Raw a) {
    const __m256i shifted = N == 0 ? a.v : _mm256_srli_epi32(a.v, 8 * N);
    return {_mm256_cvtepi32_ps(N == 3 ? shifted : _mm256_and_si256(shifted, _mm256_set1_epi32(255)))};
}

using IntTile = Raw;
DP_INLINE Tile to_float(IntTile a) { return {_mm256_cvtepi32_ps(a.v)}; }

// Products of two: 2 * 15 * 127 = 3810. Eight of them are 30480, below 32768, so half a group is summed in 16 bits.
template <int R>
DP_INLINE void group_dot4(const std::uint8_t* w, const std::uint32_t* xq, IntTile (&sum)[R]) {
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i ones = _mm256_set1_epi16(1);
    DP_UNROLL for (int half = 0; half < 2; ++half) {
        __m256i pairs[R];
        DP_UNROLL for (int r = 0; r < R; ++r) pairs[r] = _mm256_setzero_si256();
        DP_UNROLL for (int b = 4 * half; b < 4 * half + 4; ++b) {
            const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + b * 64));
            prefetch_weights(w + b * 64);
            const __m256i w0 = _mm256_and_si256(raw, mask);
            const __m256i w1 = _mm256_and_si256(_mm256_srli_epi32(raw, 4), mask);
            DP_UNROLL for (int r = 0; r < R; ++r) {
                const __m256i x0 = _mm256_set1_epi32(static_cast<int>(xq[(2 * b) * R + r]));
                const __m256i x1 = _mm256_set1_epi32(static_cast<int>(xq[(2 * b + 1) * R + r]));
                pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(w0, x0));
                pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(w1, x1));
            }
        }
        DP_UNROLL for (int r = 0; r < R; ++r) {
            const __m256i wide = _mm256_madd_epi16(pairs[r], ones);
            sum[r].v = half == 0 ? wide : _mm256_add_epi32(sum[r].v, wide);
        }
    }
}

// 255 * 127 * 2 overflows 16 bits, so even and odd columns are multiplied as 16-bit pairs into 32.
template <int R>
DP_INLINE void group_dot8(const std::uint8_t* w, const std::uint32_t* xq, IntTile (&sum)[R]) {
    const __m256i mask = _mm256_set1_epi32(0x00ff00ff);
    DP_UNROLL for (int r = 0; r < R; ++r) sum[r].v = _mm256_setzero_si256();
    for (int b = 0; b < 16; ++b) {
        const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + b * 64));
        prefetch_weights(w + b * 64);
        const __m256i even = _mm256_and_si256(raw, mask);
        const __m256i odd = _mm256_srli_epi16(raw, 8);
        DP_UNROLL for (int r = 0; r < R; ++r) {
            const __m256i x = _mm256_set1_epi32(static_cast<int>(xq[b * R + r]));
            const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8);
            const __m256i x_odd = _mm256_srai_epi16(x, 8);
            sum[r].v = _mm256_add_epi32(sum[r].v, _mm256_madd_epi16(even, x_even));
            sum[r].v = _mm256_add_epi32(sum[r].v, _mm256_madd_epi16(odd, x_odd));
        }
    }
}

// Tiles worked at once for R rows: enough independent chains to cover the FMA latency, few enough accumulators for 16
// registers, and no more streams of weights than that needs (two tiles are one panel).
constexpr int tiles_at_once(WeightKind kind, int rows) {
    if (rows == 1) return kind == WeightKind::affine4 ? 4 : 2;
    return rows <= 4 ? 2 : 1;
}
