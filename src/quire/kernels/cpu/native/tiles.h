// The tile instructions of AMX: eight registers of up to 16 rows of 64 bytes. Included inside a
// namespace. With QUIRE_PLAIN_TILES they are spelt out, to be tested on processors without them.

enum TileNumber { C00, C01, C10, C11, A0, A1, B0, B1 };  // sums, rows, columns

template <int T>
using Number = std::integral_constant<int, T>;

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
    template <int T>
    static void zero() { std::memset(tile_bytes[T], 0, sizeof tile_bytes[T]); }
    static float number(bf16 x) { return as_float(x); }
    static int32_t number(int32_t x) { return x; }
    template <int C, int A, int B, typename Sum, typename X, typename W>
    static void spelt_out() {
        constexpr int depth = 64 / sizeof(X), together = 4 / sizeof(X);  // k's, of a lane
        for (int r = 0; r < tile_sizes.rows[C]; ++r) {
            Sum sums[16];
            X x[depth];
            W w[depth];
            std::memcpy(sums, tile_bytes[C][r], 64);
            std::memcpy(x, tile_bytes[A][r], 64);
            for (int k = 0; k < depth; ++k) {
                if (k % together == 0) std::memcpy(w, tile_bytes[B][k / together], 64);
                for (int o = 0; o < 16; ++o)
                    sums[o] += number(x[k]) * number(w[o * together + k % together]);
            }
            std::memcpy(tile_bytes[C][r], sums, 64);
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
        asm volatile("ldtilecfg (%0)" : : "r"(&sizes) : "memory");
    }
    Tiles(const Tiles&) = delete;
    ~Tiles() { asm volatile("tilerelease" : : : "memory"); }
    template <int T>
    static void load(const void* p, int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(T) : "memory");
    }
    template <int T>
    static void store(void* p, int64_t stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(T) : "memory");
    }
    template <int T>
    static void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(T)); }
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

// Two tiles that lie side by side in a product, and where the next ones are along its sums.
struct Side {
    const uint8_t *first, *second;  // the first row of each
    int64_t stride, step;           // bytes from row to row, and to the next tiles
};

// Lines that later calls will read; of each of two runs some are asked for at every step.
struct Ahead {
    const uint8_t *first = nullptr, *second = nullptr;
    int64_t stride = 0, lines = 0;
    void ask(int64_t step) const {
        for (int64_t line = step * lines; line < (step + 1) * lines; ++line) {
            prefetch(first + line * stride);
            prefetch(second + line * stride);
        }
    }
};

struct ByBytes {
    template <int C, int A, int B>
    static void add() { Tiles::add_bytes<C, A, B>(); }
};
struct ByPairs {
    template <int C, int A, int B>
    static void add() { Tiles::add_pairs<C, A, B>(); }
};

// Up to two tiles of rows by two of columns of sums: from zero, or from what `sums` [.., ld] hold,
// the products of `steps` tiles each, in their order.
template <typename Dot, bool from_zero, bool more_rows, bool more_columns>
void add_block(const Side& rows, const Side& columns, int64_t steps, float* sums, int64_t ld,
               const Ahead& ahead) {
    float* const below = sums + 16 * ld;
    const auto begin = [&]<int T>(std::integral_constant<int, T>, const float* from) {
        if constexpr (from_zero) Tiles::zero<T>();
        else Tiles::load<T>(from, 4 * ld);
    };
    begin(Number<C00>(), sums);
    if constexpr (more_columns) begin(Number<C01>(), sums + 16);
    if constexpr (more_rows) begin(Number<C10>(), below);
    if constexpr (more_rows && more_columns) begin(Number<C11>(), below + 16);
    for (int64_t i = 0; i < steps; ++i) {
        ahead.ask(i);
        Tiles::load<B0>(columns.first + i * columns.step, columns.stride);
        Tiles::load<A0>(rows.first + i * rows.step, rows.stride);
        Dot::template add<C00, A0, B0>();
        if constexpr (more_columns) Tiles::load<B1>(columns.second + i * columns.step, columns.stride);
        if constexpr (more_columns) Dot::template add<C01, A0, B1>();
        if constexpr (more_rows) Tiles::load<A1>(rows.second + i * rows.step, rows.stride);
        if constexpr (more_rows) Dot::template add<C10, A1, B0>();
        if constexpr (more_rows && more_columns) Dot::template add<C11, A1, B1>();
    }
    Tiles::store<C00>(sums, 4 * ld);
    if constexpr (more_columns) Tiles::store<C01>(sums + 16, 4 * ld);
    if constexpr (more_rows) Tiles::store<C10>(below, 4 * ld);
    if constexpr (more_rows && more_columns) Tiles::store<C11>(below + 16, 4 * ld);
}
