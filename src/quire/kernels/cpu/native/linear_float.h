// GEMMs with float and bfloat16 weights, which are converted to float as they are read where the
// processor has no dot products of them. Included inside a namespace that has the vector types,
// after linear.h.

constexpr int64_t K_STRETCH = 512;  // with a block of rows: what the first cache keeps

// How many blocks of 16 outputs fit in the registers beside so many rows.
constexpr int blocks_beside(int rows) { return rows <= SUMS / 4 ? 4 : rows <= SUMS / 2 ? 2 : 1; }

// How many weights of a block are asked for before they are read: a step of more rows takes longer,
// but one of four rows reads from twice as many blocks.
constexpr int64_t weights_ahead(int rows) { return rows <= 4 ? 1 << 10 : 1 << 11; }

template <int half>
inline F32 columns(const float* block, int64_t k) {
    return F32::load(block + (k + half) * 16);
}
template <int half>
inline F32 columns(const bf16* block, int64_t k) {
    return half ? F32::seconds(block + k * 16) : F32::firsts(block + k * 16);
}

// x converted to float: with weights W one multiply-add for each of a pair's numbers, second first.
template <typename W>
struct AsFloats {
    using X = float;
    using Weight = W;

    template <int half, int R, int B>
    static void half_step(F32 (&total)[R][B], const float* x, const W* weight, int64_t stride,
                          int64_t k) {
        F32 w[B];
#pragma GCC unroll 4
        for (int b = 0; b < B; ++b) w[b] = columns<half>(weight + b * stride, k);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const F32 v = F32::all(x[2 * r + half]);
#pragma GCC unroll 4
            for (int b = 0; b < B; ++b) total[r][b] = fma(v, w[b], total[r][b]);
        }
    }
    template <int R, int B>
    static void step(F32 (&total)[R][B], const float* x, const W* weight, int64_t stride,
                     int64_t k) {
        half_step<1>(total, x, weight, stride, k);
        half_step<0>(total, x, weight, stride, k);
    }
};

#ifdef QUIRE_BF16_DOTS
// x rounded to bfloat16, and dot products of pairs.
struct Pairs {
    using X = bf16;
    using Weight = bf16;

    template <int R, int B>
    static void step(F32 (&total)[R][B], const bf16* x, const bf16* weight, int64_t stride,
                     int64_t k) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int b = 0; b < B; ++b)
                total[r][b] = dot_pairs(total[r][b], weight + b * stride + k * 16, x + 2 * r);
    }
};
#endif

// sums [R, ld] += x · B blocks of weights, `stride` apart. x [k / 2, R, 2].
template <int R, int B, typename Dot>
inline void tile(const typename Dot::X* x, const typename Dot::Weight* weight, int64_t stride,
                 int64_t k, float* sums, int64_t ld) {
    F32 total[R][B];
    for (auto& row : total)
        for (F32& v : row) v = F32::zero();
    for (int64_t i = 0; i < k; i += 2) {
        for (int b = 0; b < B; ++b)
            __builtin_prefetch(weight + b * stride + i * 16 + weights_ahead(R));
        Dot::step(total, x + i * R, weight, stride, i);
    }
    for (int r = 0; r < R; ++r)
        for (int b = 0; b < B; ++b) {
            float* sum = sums + r * ld + b * 16;
            (F32::load(sum) + total[r][b]).store(sum);
        }
}

template <int R, int B, typename Dot>
inline void tiles(const typename Dot::X* x, const typename Dot::Weight* weight, int64_t stride,
                  int64_t k, float* sums, int64_t outputs) {
    int64_t o = 0;
    for (; o + 16 * B <= outputs; o += 16 * B)
        tile<R, B, Dot>(x, weight + o / 16 * stride, stride, k, sums + o, outputs);
    for (; B > 1 && o < outputs; o += 16)
        tile<R, 1, Dot>(x, weight + o / 16 * stride, stride, k, sums + o, outputs);
}

template <typename Dot>
struct Floats {
    using X = typename Dot::X;  // [k / 2, rows of the block, 2]
    using W = typename Dot::Weight;
    static constexpr int ROWS = TILE_ROWS;
    static constexpr bool EVEN_BLOCKS = true;
    static constexpr int64_t BEYOND = 0;
    static int64_t stretch(const LinearArgs&) { return K_STRETCH; }
    static int64_t outputs(const LinearArgs&) { return 128; }
    static int64_t row_size(const LinearArgs& a) { return a.k; }

    static void piece(const LinearArgs& a, const X* taken, int64_t row, const RowBlocks& blocks,
                      int64_t first, int64_t outputs) {
        multiply_piece<Floats>(a, taken, row, blocks, first, outputs);
    }

    static void take(const LinearArgs& a, int64_t row, int rows, X* taken) {
        a.dtype == Dtype::bf16 ? take_as<bf16>(a, row, rows, taken)
                               : take_as<float>(a, row, rows, taken);
    }

    static void multiply(const LinearArgs& a, const X* taken, int rows, int64_t first,
                         int64_t outputs, int64_t k, int64_t count, float* sums) {
        const W* weight = static_cast<const W*>(a.weight) + first * a.k + k * 16;
        by_rows[rows - 1](taken + k * rows, weight, a.k * 16, count, sums, outputs);
    }

   private:
    using Tiles = void (*)(const X*, const W*, int64_t, int64_t, float*, int64_t);

    template <int... R>
    static constexpr std::array<Tiles, ROWS> table(std::integer_sequence<int, R...>) {
        return {tiles<R + 1, blocks_beside(R + 1), Dot>...};
    }
    static constexpr std::array<Tiles, ROWS> by_rows = table(std::make_integer_sequence<int, ROWS>());

    template <typename T>
    static void take_as(const LinearArgs& a, int64_t row, int rows, X* taken) {
        const T* norm = static_cast<const T*>(a.norm_weight);
        for (int r = 0; r < rows; ++r) {
            const T* x = static_cast<const T*>(a.x) + (row + r) * a.k;
            const float factor = norm_factor(a, x);
            int64_t k = 0;
            for (; k + 16 <= a.k; k += 16) {
                alignas(64) X some[16];
                const F32 v = F32::load(x + k);
                (norm ? v * F32::all(factor) * F32::load(norm + k) : v).store(some);
                for (int i = 0; i < 16; i += 2)
                    std::memcpy(taken + (k + i) * rows + 2 * r, some + i, 2 * sizeof(X));
            }
            for (; k < a.k; ++k)
                from_float(norm ? as_float(x[k]) * factor * as_float(norm[k]) : as_float(x[k]),
                           taken + (k & ~int64_t{1}) * rows + 2 * r + (k & 1));
        }
    }
};

#ifdef QUIRE_BF16_DOTS
void linear_bf16(const LinearArgs& a) { multiply<Floats<Pairs>>(a); }
#else
void linear(const LinearArgs& a) {
    if (a.format == Format::bf16) return multiply<Floats<AsFloats<bf16>>>(a);
    multiply<Floats<AsFloats<float>>>(a);
}
#endif
