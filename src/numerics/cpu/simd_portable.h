// Sixteen lanes in plain C++; see kernels_impl.h for what the names mean. Included inside its anonymous namespace.
//
// __builtin_fmaf is a call into libm where the compiler may not assume FMA hardware. IEEE 754 leaves fma a single
// result, so no version of libm can change a bit.

struct V16 {
    float v[16];
};
struct U16 {
    std::uint32_t v[16];
};
struct M16 {
    bool v[16];
};

#define DP_LANES for (int l = 0; l < 16; ++l)

constexpr int kLaneRegisters = 1;

DP_INLINE V16 load(const float* p) {
    V16 r;
    DP_LANES r.v[l] = p[l];
    return r;
}
DP_INLINE void store(float* p, V16 a) { DP_LANES p[l] = a.v[l]; }
DP_INLINE V16 load_n(const float* p, int n) {
    V16 r;
    DP_LANES r.v[l] = l < n ? p[l] : 0.0f;
    return r;
}
DP_INLINE void store_n(float* p, V16 a, int n) {
    for (int l = 0; l < n; ++l) p[l] = a.v[l];
}
DP_INLINE V16 set1(float x) {
    V16 r;
    DP_LANES r.v[l] = x;
    return r;
}
DP_INLINE V16 add(V16 a, V16 b) {
    DP_LANES a.v[l] = a.v[l] + b.v[l];
    return a;
}
DP_INLINE V16 sub(V16 a, V16 b) {
    DP_LANES a.v[l] = a.v[l] - b.v[l];
    return a;
}
DP_INLINE V16 mul(V16 a, V16 b) {
    DP_LANES a.v[l] = a.v[l] * b.v[l];
    return a;
}
DP_INLINE V16 div(V16 a, V16 b) {
    DP_LANES a.v[l] = a.v[l] / b.v[l];
    return a;
}
DP_INLINE V16 fma(V16 a, V16 b, V16 c) {
    DP_LANES c.v[l] = __builtin_fmaf(a.v[l], b.v[l], c.v[l]);
    return c;
}
DP_INLINE V16 neg(V16 a) {
    DP_LANES a.v[l] = -a.v[l];
    return a;
}
DP_INLINE V16 max(V16 a, V16 b) {
    DP_LANES a.v[l] = a.v[l] > b.v[l] ? a.v[l] : b.v[l];
    return a;
}
DP_INLINE M16 greater(V16 a, V16 b) {
    M16 m;
    DP_LANES m.v[l] = a.v[l] > b.v[l];
    return m;
}
DP_INLINE M16 is_nan(V16 a) {
    M16 m;
    DP_LANES m.v[l] = a.v[l] != a.v[l];
    return m;
}
DP_INLINE M16 lanes_in(int begin, int end) {
    M16 m;
    DP_LANES m.v[l] = l >= begin && l < end;
    return m;
}
DP_INLINE V16 select(M16 m, V16 a, V16 b) {
    DP_LANES a.v[l] = m.v[l] ? a.v[l] : b.v[l];
    return a;
}

DP_INLINE U16 bits(V16 a) { return __builtin_bit_cast(U16, a); }
DP_INLINE V16 from_bits(U16 a) { return __builtin_bit_cast(V16, a); }
DP_INLINE U16 set1_u(std::uint32_t x) {
    U16 r;
    DP_LANES r.v[l] = x;
    return r;
}
DP_INLINE U16 add_u(U16 a, U16 b) {
    DP_LANES a.v[l] = a.v[l] + b.v[l];
    return a;
}
DP_INLINE U16 sub_u(U16 a, U16 b) {
    DP_LANES a.v[l] = a.v[l] - b.v[l];
    return a;
}
DP_INLINE U16 and_u(U16 a, U16 b) {
    DP_LANES a.v[l] = a.v[l] & b.v[l];
    return a;
}
DP_INLINE U16 or_u(U16 a, U16 b) {
    DP_LANES a.v[l] = a.v[l] | b.v[l];
    return a;
}
DP_INLINE U16 max_u(U16 a, U16 b) {
    DP_LANES a.v[l] = a.v[l] > b.v[l] ? a.v[l] : b.v[l];
    return a;
}
template <int N>
DP_INLINE U16 shift_left(U16 a) {
    DP_LANES a.v[l] = a.v[l] << N;
    return a;
}
template <int N>
DP_INLINE U16 shift_right(U16 a) {
    DP_LANES a.v[l] = a.v[l] >> N;
    return a;
}
DP_INLINE U16 select_u(M16 m, U16 a, U16 b) {
    DP_LANES a.v[l] = m.v[l] ? a.v[l] : b.v[l];
    return a;
}

DP_INLINE U16 load_u16(const std::uint16_t* p) {
    U16 r;
    DP_LANES r.v[l] = p[l];
    return r;
}
DP_INLINE void store_u16(std::uint16_t* p, U16 a) { DP_LANES p[l] = static_cast<std::uint16_t>(a.v[l]); }
DP_INLINE V16 load_i8(const std::int8_t* p) {
    V16 r;
    DP_LANES r.v[l] = static_cast<float>(p[l]);
    return r;
}
DP_INLINE void store_i8(std::int8_t* p, U16 a) {
    DP_LANES p[l] = static_cast<std::int8_t>(static_cast<std::int32_t>(a.v[l]));
}

DP_INLINE float tree_sum(V16 a) {
    for (int w = 8; w > 0; w /= 2)
        for (int l = 0; l < w; ++l) a.v[l] = a.v[l] + a.v[l + w];
    return a.v[0];
}
DP_INLINE float tree_max(V16 a) {
    for (int w = 8; w > 0; w /= 2)
        for (int l = 0; l < w; ++l) a.v[l] = a.v[l] > a.v[l + w] ? a.v[l] : a.v[l + w];
    return a.v[0];
}
DP_INLINE std::uint32_t tree_max_u(U16 a) {
    for (int w = 8; w > 0; w /= 2)
        for (int l = 0; l < w; ++l) a.v[l] = a.v[l] > a.v[l + w] ? a.v[l] : a.v[l + w];
    return a.v[0];
}

// Matrix products: a tile is kTile outputs of a panel.
constexpr int kTile = 16;
constexpr size_t kInlineWork = size_t{1} << 14;
constexpr int kMaxRowBlock = 1;  // the fma calls cost far more than decoding a weight again for each row
using Tile = V16;
using Raw = U16;

DP_INLINE Tile tile_load(const float* p) { return load(p); }
DP_INLINE void tile_store(float* p, Tile a) { store(p, a); }
DP_INLINE Tile tile_zero() { return set1(0.0f); }
DP_INLINE Tile tile_set1(float x) { return set1(x); }
DP_INLINE Tile tile_add(Tile a, Tile b) { return add(a, b); }
DP_INLINE Tile tile_mul(Tile a, Tile b) { return mul(a, b); }
DP_INLINE Tile tile_fma(Tile a, Tile b, Tile c) { return fma(a, b, c); }
DP_INLINE Tile tile_bf16(const std::uint8_t* p) {
    std::uint16_t half[16];
    __builtin_memcpy(half, p, sizeof half);
    return from_bits(shift_left<16>(load_u16(half)));
}
DP_INLINE Raw raw_load(const std::uint8_t* p) {
    Raw r;
    __builtin_memcpy(r.v, p, sizeof r.v);
    return r;
}
template <int N>
DP_INLINE Tile nibble(Raw a) {
    Tile r;
    DP_LANES r.v[l] = static_cast<float>((a.v[l] >> (4 * N)) & 15u);
    return r;
}
template <int N>
DP_INLINE Tile byte(Raw a) {
    Tile r;
    DP_LANES r.v[l] = static_cast<float>((a.v[l] >> (8 * N)) & 255u);
    return r;
}

struct IntTile {
    std::int32_t v[16];
};
DP_INLINE Tile to_float(IntTile a) {
    Tile r;
    DP_LANES r.v[l] = static_cast<float>(a.v[l]);
    return r;
}

DP_INLINE std::int32_t signed_byte(std::uint32_t word, int j) {
    return static_cast<std::int8_t>(static_cast<std::uint8_t>(word >> (8 * j)));
}

template <int R>
DP_INLINE void group_dot4(const std::uint8_t* w, const std::uint32_t* xq, IntTile (&sum)[R]) {
    for (int r = 0; r < R; ++r) DP_LANES sum[r].v[l] = 0;
    for (int b = 0; b < 8; ++b) {
        const Raw raw = raw_load(w + b * 64);
        for (int r = 0; r < R; ++r) {
            const std::uint32_t low = xq[(2 * b) * R + r];
            const std::uint32_t high = xq[(2 * b + 1) * R + r];
            for (int j = 0; j < 4; ++j) {
                const std::int32_t x0 = signed_byte(low, j);
                const std::int32_t x1 = signed_byte(high, j);
                DP_LANES {
                    const std::uint32_t pair = (raw.v[l] >> (8 * j)) & 255u;
                    sum[r].v[l] +=
                        static_cast<std::int32_t>(pair & 15u) * x0 + static_cast<std::int32_t>(pair >> 4) * x1;
                }
            }
        }
    }
}

template <int R>
DP_INLINE void group_dot8(const std::uint8_t* w, const std::uint32_t* xq, IntTile (&sum)[R]) {
    for (int r = 0; r < R; ++r) DP_LANES sum[r].v[l] = 0;
    for (int b = 0; b < 16; ++b) {
        const Raw raw = raw_load(w + b * 64);
        for (int r = 0; r < R; ++r)
            for (int j = 0; j < 4; ++j) {
                const std::int32_t x = signed_byte(xq[b * R + r], j);
                DP_LANES sum[r].v[l] += static_cast<std::int32_t>((raw.v[l] >> (8 * j)) & 255u) * x;
            }
    }
}
#undef DP_LANES

// Tiles worked at once: nothing to gain without registers.
constexpr int tiles_at_once(WeightKind, int) { return 1; }
