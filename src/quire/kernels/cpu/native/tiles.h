// The tile instructions of AMX: eight registers of up to 16 rows of 64 bytes. Included inside a
// namespace. With QUIRE_PLAIN_TILES they are spelt out, to be tested on processors without them.

enum TileNumber { C00, C01, C10, C11, A0, A1, B0, B1 };  // sums, rows, weights

struct alignas(64) TileSizes {  // as LDTILECFG reads them
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {};
    // For blocks of 1 to 32 rows; tiles beyond them are not used.
    explicit TileSizes(int count) {
        const auto first = static_cast<uint8_t>(std::min(count, 16));
        const auto second = static_cast<uint8_t>(std::max(count - 16, 1));
        rows[C00] = rows[C01] = rows[A0] = first;
        rows[C10] = rows[C11] = rows[A1] = second;
        rows[B0] = rows[B1] = 16;
    }
};

#ifdef QUIRE_PLAIN_TILES
inline thread_local uint8_t tile_bytes[8][16][64];
inline thread_local TileSizes tile_sizes(1);

struct Tiles {
    explicit Tiles(int rows) { tile_sizes = TileSizes(rows); }
    template <int T>
    static void load(const void* p, int64_t stride) {
        for (int r = 0; r < tile_sizes.rows[T]; ++r)
            std::memcpy(tile_bytes[T][r], static_cast<const uint8_t*>(p) + r * stride, 64);
    }
    template <int T>
    static void store(void* p, int64_t stride) {
        for (int r = 0; r < tile_sizes.rows[T]; ++r)
            std::memcpy(static_cast<uint8_t*>(p) + r * stride, tile_bytes[T][r], 64);
    }
    template <int C, int A, int B, typename Sum, typename X, typename W>
    static void spelt_out() {
        constexpr int together = 4 / sizeof(X);  // k's of a lane
        for (int r = 0; r < tile_sizes.rows[C]; ++r)
            for (int k = 0; k < 64 / static_cast<int>(sizeof(X)); ++k)
                for (int o = 0; o < 16; ++o) {
                    X x;
                    W w;
                    Sum sum;
                    std::memcpy(&x, tile_bytes[A][r] + k * sizeof x, sizeof x);
                    std::memcpy(&w, tile_bytes[B][k / together] + 4 * o + k % together * sizeof w,
                                sizeof w);
                    std::memcpy(&sum, tile_bytes[C][r] + 4 * o, 4);
                    if constexpr (std::is_same_v<X, bf16>) sum += widen(x) * widen(w);
                    else sum += x * w;
                    std::memcpy(tile_bytes[C][r] + 4 * o, &sum, 4);
                }
    }
    template <int C, int A, int B>
    static void add_bytes() { spelt_out<C, A, B, int32_t, int8_t, uint8_t>(); }
    template <int C, int A, int B>
    static void add_pairs() { spelt_out<C, A, B, float, bf16, bf16>(); }
};
#else
struct Tiles {  // from its making to its end the thread has them
    explicit Tiles(int rows) {
        const TileSizes sizes(rows);
        asm volatile("ldtilecfg (%0)" : : "r"(&sizes) : "memory");  // and all is written before it
    }
    Tiles(const Tiles&) = delete;
    ~Tiles() { asm volatile("tilerelease" : : : "memory"); }
    template <int T>
    static void load(const void* p, int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(T));
    }
    template <int T>
    static void store(void* p, int64_t stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(T) : "memory");
    }
    // signed bytes of rows · unsigned ones of weights
    template <int C, int A, int B>
    static void add_bytes() {
        asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
    }
    template <int C, int A, int B>
    static void add_pairs() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
    }
};
#endif
