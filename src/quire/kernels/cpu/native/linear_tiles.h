// Products by tiles, with weights in bytes and in bfloat16, packed as for the dot instructions: what
// lies side by side there is a tile's row here. Included inside a namespace, behind tiles.h.
//
// Two tiles of rows by two of 16 outputs at a time; sums stay in tiles over a stretch of k. Their
// order does not depend on the stretch or on the number of rows.

constexpr int64_t ROW_BYTES = 1024;    // of a stretch: 32 rows, the first cache's
constexpr int64_t LINE = 64;
constexpr int64_t TILE_AHEAD = 4096;   // how far before its use a line is asked for

// Where the weights of 16 outputs are: their tiles are `step` bytes apart, a tile's rows `stride`.
template <typename X>
struct Weights;
template <>
struct Weights<uint8_t> {  // blocks of 32 outputs, their scales before them (see linear_int.h)
    static constexpr int64_t STRIDE = 128, STEP = 2048, SCALES = 128;
    static int64_t block(const LinearArgs& a) { return 32 * (a.k + 4); }
    static const uint8_t* at(const LinearArgs& a, int64_t output, int64_t k) {
        return static_cast<const uint8_t*>(a.weight) + output / 32 * block(a) + SCALES +
               output % 32 * 4 + k * 32;
    }
    template <int C, int A, int B>
    static void add() { Tiles::add_bytes<C, A, B>(); }
};
template <>
struct Weights<bf16> {
    static constexpr int64_t STRIDE = 64, STEP = 1024;
    static const uint8_t* at(const LinearArgs& a, int64_t output, int64_t k) {
        return static_cast<const uint8_t*>(a.weight) + (output * a.k + k * 16) * 2;
    }
    template <int C, int A, int B>
    static void add() { Tiles::add_pairs<C, A, B>(); }
};

// sums [.., ld] += x · one or two times 16 outputs. x: rows `row` bytes apart, in lines.
template <typename X, bool more_rows, bool more_outputs>
void tiles(const uint8_t* x, int64_t row, const uint8_t* first, const uint8_t* second, int64_t lines,
           float* sums, int64_t ld) {
    using Way = Weights<X>;
    float* const below = sums + 16 * ld;
    Tiles::load<C00>(sums, 4 * ld);
    if constexpr (more_outputs) Tiles::load<C01>(sums + 16, 4 * ld);
    if constexpr (more_rows) Tiles::load<C10>(below, 4 * ld);
    if constexpr (more_rows && more_outputs) Tiles::load<C11>(below + 16, 4 * ld);
    for (int64_t i = 0; i < lines; ++i) {
        const uint8_t *w = first + i * Way::STEP, *v = second + i * Way::STEP;
        for (int64_t line = 0; line < 16; ++line) {
            prefetch(w + TILE_AHEAD + line * Way::STRIDE);
            if constexpr (more_outputs) prefetch(v + TILE_AHEAD + line * Way::STRIDE);
        }
        Tiles::load<B0>(w, Way::STRIDE);
        if constexpr (more_outputs) Tiles::load<B1>(v, Way::STRIDE);
        Tiles::load<A0>(x + i * LINE, row);
        Way::template add<C00, A0, B0>();
        if constexpr (more_outputs) Way::template add<C01, A0, B1>();
        if constexpr (more_rows) Tiles::load<A1>(x + 16 * row + i * LINE, row);
        if constexpr (more_rows) Way::template add<C10, A1, B0>();
        if constexpr (more_rows && more_outputs) Way::template add<C11, A1, B1>();
    }
    Tiles::store<C00>(sums, 4 * ld);
    if constexpr (more_outputs) Tiles::store<C01>(sums + 16, 4 * ld);
    if constexpr (more_rows) Tiles::store<C10>(below, 4 * ld);
    if constexpr (more_rows && more_outputs) Tiles::store<C11>(below + 16, 4 * ld);
}

// A form as linear.h takes it. A row that was taken in has a line before it, in which bytes keep
// their scale and start.
template <typename Number>
struct Tiled {
    using X = uint8_t;
    static constexpr bool BYTES = std::is_same_v<Number, uint8_t>;
    static constexpr int ROWS = 32;
    static constexpr int64_t OUTPUTS = 256, SIZE = sizeof(Number);
    static int64_t stretch(const LinearArgs& a) { return a.rows > ROWS ? ROW_BYTES / SIZE : a.k; }
    static int64_t row_size(const LinearArgs& a) { return LINE + a.k * SIZE; }

    static void take(const LinearArgs& a, int64_t row, int rows, X* taken) {
        for (int r = 0; r < rows; ++r, taken += row_size(a))
            a.dtype == Dtype::bf16 ? take_row<bf16>(a, row + r, taken)
                                   : take_row<float>(a, row + r, taken);
    }

    static void multiply(const LinearArgs& a, const X* taken, int rows, int64_t first,
                         int64_t outputs, int64_t k, int64_t count, float* sums) {
        const Tiles configured(rows);
        const X* x = taken + LINE + k * SIZE;
        for (int64_t o = 0; o < outputs; o += 32) {
            const bool more = outputs - o > 16;
            const uint8_t* w = Weights<Number>::at(a, first + o, k);
            const uint8_t* v = more ? Weights<Number>::at(a, first + o + 16, k) : w;
            const auto make = rows > 16 ? more ? tiles<Number, true, true> : tiles<Number, true, false>
                              : more    ? tiles<Number, false, true>
                                        : tiles<Number, false, false>;
            make(x, row_size(a), w, v, count * SIZE / LINE, sums + o, outputs);
        }
        if (BYTES && k + count == a.k)
            for (int r = 0; r < rows; ++r)
                scale_sums(a, taken + r * row_size(a), first, outputs, sums + r * outputs);
    }

   private:
    template <typename T>
    static void take_row(const LinearArgs& a, int64_t row, X* taken) {
        if constexpr (BYTES) return round_row8<T>(a, row, taken + LINE - 8, 1, 0);
        const Stream<T> x = stream<T>(a, row);
        for (int64_t k = 0; k < a.k; k += 16) x.at(k).store(reinterpret_cast<bf16*>(taken + LINE) + k);
    }

    // Whole numbers in place of sums become what they stand for.
    static void scale_sums(const LinearArgs& a, const X* row, int64_t first, int64_t outputs,
                           float* sums) {
        float scale_x;
        int32_t start;
        std::memcpy(&scale_x, row + LINE - 8, 4);
        std::memcpy(&start, row + LINE - 4, 4);
        for (int64_t o = 0; o < outputs; o += 16) {
            const int64_t output = first + o;
            const uint8_t* block = static_cast<const uint8_t*>(a.weight) +
                                   output / 32 * Weights<uint8_t>::block(a);
            const F32 scale = F32::load(reinterpret_cast<const float*>(block) + output % 32);
            const Sum sum{_mm512_add_epi32(_mm512_loadu_si512(sums + o), _mm512_set1_epi32(start))};
            (sum.total() * (scale * F32::all(scale_x))).store(sums + o);
        }
    }
};

void linear_bytes(const LinearArgs& a) { multiply<Tiled<uint8_t>>(a); }
void linear_bf16(const LinearArgs& a) { multiply<Tiled<bf16>>(a); }
