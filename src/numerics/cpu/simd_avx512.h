// Sixteen lanes in one 512-bit register; see kernels_impl.h for what the names mean. Included inside its anonymous
// namespace.

struct V16 {
    __m512 v;
};
struct U16 {
    __m512i v;
};
struct M16 {
    __mmask16 v;
};

DP_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

constexpr int kLaneRegisters = 1;

DP_INLINE V16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
DP_INLINE void store(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }
DP_INLINE V16 load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
DP_INLINE void store_n(float* p, V16 a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
DP_INLINE V16 set1(float x) { return {_mm512_set1_ps(x)}; }
DP_INLINE V16 add(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
DP_INLINE V16 sub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
DP_INLINE V16 mul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
DP_INLINE V16 div(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
DP_INLINE V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
DP_INLINE V16 neg(V16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
DP_INLINE V16 max(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
DP_INLINE M16 greater(V16 a, V16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
DP_INLINE M16 is_nan(V16 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
DP_INLINE M16 lanes_in(int begin, int end) {
    begin = begin < 0 ? 0 : begin > 16 ? 16 : begin;
    end = end < begin ? begin : end > 16 ? 16 : end;
    return {static_cast<__mmask16>(((1u << end) - 1u) & ~((1u << begin) - 1u))};
}
DP_INLINE V16 select(M16 m, V16 a, V16 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }

DP_INLINE U16 bits(V16 a) { return {_mm512_castps_si512(a.v)}; }
DP_INLINE V16 from_bits(U16 a) { return {_mm512_castsi512_ps(a.v)}; }
DP_INLINE U16 set1_u(std::uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
DP_INLINE U16 add_u(U16 a, U16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
DP_INLINE U16 sub_u(U16 a, U16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
DP_INLINE U16 and_u(U16 a, U16 b) { return {_mm512_and_si512(a.v, b.v)}; }
DP_INLINE U16 or_u(U16 a, U16 b) { return {_mm512_or_si512(a.v, b.v)}; }
DP_INLINE U16 max_u(U16 a, U16 b) { return {_mm512_max_epu32(a.v, b.v)}; }
template <int N>
DP_INLINE U16 shift_left(U16 a) {
    return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
DP_INLINE U16 shift_right(U16 a) {
    return {_mm512_srli_epi32(a.v, N)};
}
DP_INLINE U16 select_u(M16 m, U16 a, U16 b) { return {_mm512_mask_blend_epi32(m.v, b.v, a.v)}; }

DP_INLINE U16 load_u16(const std::uint16_t* p) {
    return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
DP_INLINE void store_u16(std::uint16_t* p, U16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
DP_INLINE V16 load_i8(const std::int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
DP_INLINE void store_i8(std::int8_t* p, U16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

DP_INLINE __m256 low_half(V16 a) { return _mm512_castps512_ps256(a.v); }
DP_INLINE __m256 high_half(V16 a) { return _mm512_extractf32x8_ps(a.v, 1); }
DP_INLINE float tree_sum(V16 a) {
    const __m256 s8 = _mm256_add_ps(low_half(a), high_half(a));
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
DP_INLINE float tree_max(V16 a) {
    const __m256 s8 = _mm256_max_ps(low_half(a), high_half(a));
    const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
DP_INLINE std::uint32_t tree_max_u(U16 a) { return static_cast<std::uint32_t>(_mm512_reduce_max_epu32(a.v)); }

// Matrix products: a tile is kTile outputs of a panel.
constexpr int kTile = 16;
constexpr size_t kInlineWork = size_t{1} << 19;
constexpr int kMaxRowBlock = 16;
using Tile = V16;
using Raw = U16;

DP_INLINE Tile tile_load(const float* p) { return load(p); }
DP_INLINE void tile_store(float* p, Tile a) { store(p, a); }
DP_INLINE Tile tile_zero() { return {_mm512_setzero_ps()}; }
DP_INLINE Tile tile_set1(float x) { return set1(x); }
DP_INLINE Tile tile_add(Tile a, Tile b) { return add(a, b); }
DP_INLINE Tile tile_mul(Tile a, Tile b) { return mul(a, b); }
DP_INLINE Tile tile_fma(Tile a, Tile b, Tile c) { return fma(a, b, c); }
DP_INLINE Tile tile_bf16(const std::uint8_t* p) {
    return {_mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16))};
}
DP_INLINE Raw raw_load(const std::uint8_t* p) { return {_mm512_loadu_si512(p)}; }
// The permute reads only the low four bits of each index, so it masks, converts and (for N = 0) needs no shift.
template <int N>
DP_INLINE Tile nibble(Raw a) {
    const __m512 digits = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return {_mm512_permutexvar_ps(N == 0 ? a.v : _mm512_srli_epi32(a.v, 4 * N), digits)};
}
template <int N>
DP_INLINE Tile byte(Raw a) {
    const __m512i shifted = N == 0 ? a.v : _mm512_srli_epi32(a.v, 8 * N);
    return {_mm512_cvtepi32_ps(N == 3 ? shifted : _mm512_and_si512(shifted, _mm512_set1_epi32(255)))};
}

using IntTile = U16;
DP_INLINE Tile to_float(IntTile a) { return {_mm512_cvtepi32_ps(a.v)}; }

template <int R>
DP_INLINE void group_dot4(const std::uint8_t* w, const std::uint32_t* xq, IntTile (&sum)[R]) {
    const __m512i mask = _mm512_set1_epi8(15);
    __m512i low[R];
    __m512i high[R];
    DP_UNROLL for (int r = 0; r < R; ++r) low[r] = high[r] = _mm512_setzero_si512();
    DP_UNROLL for (int b = 0; b < 8; ++b) {
        const __m512i raw = _mm512_loadu_si512(w + b * 64);
        prefetch_weights(w + b * 64);
        const __m512i w0 = _mm512_and_si512(raw, mask);
        const __m512i w1 = _mm512_and_si512(_mm512_srli_epi32(raw, 4), mask);
        // Two chains for few rows, one otherwise: int32 addition has no order.
        DP_UNROLL for (int r = 0; r < R; ++r) {
            __m512i& second = R <= 4 ? high[r] : low[r];
            low[r] = _mm512_dpbusd_epi32(low[r], w0, _mm512_set1_epi32(static_cast<int>(xq[(2 * b) * R + r])));
            second = _mm512_dpbusd_epi32(second, w1, _mm512_set1_epi32(static_cast<int>(xq[(2 * b + 1) * R + r])));
        }
    }
    DP_UNROLL for (int r = 0; r < R; ++r) sum[r].v = R <= 4 ? _mm512_add_epi32(low[r], high[r]) : low[r];
}

template <int R>
DP_INLINE void group_dot8(const std::uint8_t* w, const std::uint32_t* xq, IntTile (&sum)[R]) {
    DP_UNROLL for (int r = 0; r < R; ++r) sum[r].v = _mm512_setzero_si512();
    DP_UNROLL for (int b = 0; b < 16; ++b) {
        const __m512i raw = _mm512_loadu_si512(w + b * 64);
        prefetch_weights(w + b * 64);
        DP_UNROLL for (int r = 0; r < R; ++r) sum[r].v =
            _mm512_dpbusd_epi32(sum[r].v, raw, _mm512_set1_epi32(static_cast<int>(xq[b * R + r])));
    }
}

// Tiles worked at once for R rows: enough independent chains to cover the FMA latency, few enough accumulators for 32
// registers, and no more streams of weights than that needs.
constexpr int tiles_at_once(WeightKind kind, int rows) {
    if (rows == 1) return kind == WeightKind::affine4 ? 4 : 2;
    return rows <= 5 ? 2 : 1;
}
