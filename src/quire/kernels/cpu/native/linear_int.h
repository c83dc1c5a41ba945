// GEMMs with weights of 8 and 4 bits. Included inside a namespace, after quantize.h.
//
// A weight is packed in blocks of 32 outputs, each contiguous (see pack.cpp):
//   int8: float scale [32], then for each four k's codes [32][4], 128 added
//   int4: for each group float16 scale [32], zero point [32] if there are any, then for each eight
//         k's codes [32][4], k's 0..3 in the lower bits and 4..7 in the upper ones; with int4_hadamard
//         float scale [32] first, with which AMX tiles requantize codes to bytes (dequantize_tiles.h)
//   nf4: as int4; mxfp4: likewise with uint8 scale [32], an exponent of two with 127 added (e8m0)
// Activations are rounded to bytes once. Then tiles of some rows by 32 outputs are computed over all of
// k: with few rows weights come straight from memory, with many from the cache. The rows of a tile
// share the unpacking in registers.

#include "codebook.h"

constexpr int64_t PIECE_BYTES = 1 << 18;  // of weights that stay in the L2 cache
constexpr int64_t BYTES_AHEAD = 8192;  // how far before its use a line is asked for

using Tile = void (*)(const uint8_t* w, const uint8_t* x, float* out, const LinearArgs& a);

// How codes become what is multiplied: as they are, or by a codebook.
struct AsTheyAre {
    using Sum = Sum4;
    using Operand = Line;
    Line operator()(Line codes) const { return codes; }
};
struct ByCodebook {
    using Sum = SumBook;
    using Operand = Looked;
    Book book;
    Looked operator()(Line codes) const { return look_up(book, codes); }
};
template <Format format>
inline auto reader() {
    if constexpr (has_codebook(format)) return ByCodebook{Book::at(codebook(format))};
    else return AsTheyAre{};
}

// Adds products of 32 k's to a tile of R rows and 16 · BLOCKS outputs.
template <int R, bool ZEROS, typename Read>
inline __attribute__((always_inline)) void chunk4(const Read& read, const uint8_t* w,
                                                  const uint8_t* x, const F32* scale,
                                                  const Line* zeros, float* out) {
    typename Read::Sum sums[R][BLOCKS];
    each<R>(BODY(r) {
        const Four start = Four::at(x + R * (CHUNK + 4) + r * 4);
        each<BLOCKS>(BODY(b) {
            if constexpr (ZEROS) sums[r][b] = Sum4::from(zeros[b], start);
            else sums[r][b] = Read::Sum::from(start);
        });
    });
#pragma GCC unroll 1  // what GCC moves across steps does not fit in the registers
    for (int step = 0; step < 4; ++step) {
        typename Read::Operand low[BLOCKS], high[BLOCKS];
        each<BLOCKS>(BODY(b) {
            const Line line = Line::load(w + step * 128 + b * 64);
            low[b] = read(low_nibbles(line));
            high[b] = read(high_nibbles(line));
        });
        each<R>(BODY(r) {
            const Four first = Four::at(x + r * CHUNK + step * 8);
            const Four second = Four::at(x + r * CHUNK + step * 8 + 4);
            each<BLOCKS>(BODY(b) { sums[r][b].add(low[b], first); });
            each<BLOCKS>(BODY(b) { sums[r][b].add(high[b], second); });
        });
    }
    asm volatile("" ::: "memory");  // the tile stays there: registers are for the sums
    each<R>(BODY(r) {
        float scale_x;
        std::memcpy(&scale_x, x + R * CHUNK + r * 4, 4);
        each<BLOCKS>(BODY(b) {
            float* at = out + r * WIDE + b * 16;
            fma(sums[r][b].total(), scale[b] * F32::all(scale_x), F32::load(at)).store(at);
        });
    });
}

template <int R, Format format>
void tile4(const uint8_t* w, const uint8_t* x, float* out, const LinearArgs& a) {
    constexpr bool ZEROS = format == Format::int4_zeros;
    w += block_header(format);
    const auto read = reader<format>();
    for (int i = 0; i < R * WIDE; i += 16) F32::zero().store(out + i);
    for (int64_t k = 0; k < a.k; k += a.group) {
        const F32 scale[2] = {load_scale<format>(w), load_scale<format>(w + 16 * scale_bytes(format))};
        Line zeros[2];
        if constexpr (ZEROS) zeros[0] = Line::zeros(w + 64), zeros[1] = Line::zeros(w + 80);
        w += group_header(format);
        for (int64_t i = 0; i < a.group; i += CHUNK, w += CHUNK * 16, x += R * CODES4) {
            each<9>(BODY(line) { prefetch(w + BYTES_AHEAD + line * 64); });
            each<2 / BLOCKS>(BODY(half) {
                constexpr int b = half * BLOCKS;
                chunk4<R, ZEROS>(read, w + b * 64, x, scale + b, zeros + b, out + b * 16);
            });
        }
    }
}

template <int R>
inline void columns8(const uint8_t* w, const uint8_t* x, const float* scale, float* out, int64_t k) {
    Sum8 sums[R][BLOCKS];
    each<R>(BODY(r) {
        each<BLOCKS>(BODY(b) { sums[r][b] = Sum8::from(Four::at(x + R * 4 + r * 4)); });
    });
    const uint8_t* codes = x + R * 8;
    for (int64_t i = 0; i < k; i += CHUNK, codes += R * CODES8) {
#pragma GCC unroll 1
        for (int64_t step = 0; step < CHUNK / 4; ++step, w += 128) {
            Wide lines[BLOCKS];
            each<BLOCKS>(BODY(b) {
                prefetch(w + BYTES_AHEAD + b * 64);
                lines[b] = to_wide(Line::load(w + b * 64));
            });
            each<R>(BODY(r) {
                const Wide4 four = Wide4::at(codes + r * CODES8 + step * 4 * WIDTH);
                each<BLOCKS>(BODY(b) { sums[r][b].add(lines[b], four); });
            });
        }
    }
    each<R>(BODY(r) {
        float scale_x;
        std::memcpy(&scale_x, x + r * 4, 4);
        each<BLOCKS>(BODY(b) {
            (sums[r][b].total() * (F32::load(scale + b * 16) * F32::all(scale_x)))
                .store(out + r * WIDE + b * 16);
        });
    });
}

template <int R>
void tile8(const uint8_t* w, const uint8_t* x, float* out, const LinearArgs& a) {
    const float* scale = reinterpret_cast<const float*>(w);
    for (int b = 0; b < 2; b += BLOCKS)
        columns8<R>(w + block_header(a.format) + b * 64, x, scale + b * 16, out + b * 16, a.k);
}

// A GEMM as linear.h takes it.
template <Format format>
struct Ints {
    using X = uint8_t;  // see quantize.h
    static constexpr int ROWS = BYTE_ROWS;
    static constexpr bool EVEN_BLOCKS = true;
    static constexpr int64_t BEYOND = 0;
    static int64_t stretch(const LinearArgs& a) { return a.k; }
    static int64_t outputs(const LinearArgs& a) {
        const int64_t bytes = block_bytes(a.format, a.k, a.group);
        return std::clamp(PIECE_BYTES / bytes, int64_t{1}, int64_t{4}) * WIDE;
    }
    static int64_t row_size(const LinearArgs& a) {
        return a.k / CHUNK * (format == Format::int8 ? CODES8 : CODES4) + (format == Format::int8 ? 8 : 0);
    }

    static void piece(const LinearArgs& a, const X* taken, int64_t row, const RowBlocks& blocks,
                      int64_t first, int64_t outputs) {
        multiply_piece<Ints>(a, taken, row, blocks, first, outputs);
    }

    static void take(const LinearArgs& a, int64_t row, int rows, uint8_t* taken) {
        a.dtype == Dtype::bf16 ? take_as<bf16>(a, row, rows, taken)
                               : take_as<float>(a, row, rows, taken);
    }

    static void multiply(const LinearArgs& a, const uint8_t* taken, int rows, int64_t first,
                         int64_t outputs, int64_t, int64_t, float* sums) {
        alignas(64) float tile[ROWS * WIDE];
        const int64_t bytes = block_bytes(a.format, a.k, a.group);
        const uint8_t* block = static_cast<const uint8_t*>(a.weight) + first / WIDE * bytes;
        for (int64_t o = 0; o < outputs; o += WIDE, block += bytes) {
            by_rows[rows - 1](block, taken, tile, a);
            for (int r = 0; r < rows; ++r)
                for (int64_t i = 0; i < std::min(WIDE, outputs - o); i += 16)
                    F32::load(tile + r * WIDE + i).store(sums + r * outputs + o + i);
        }
    }

   private:
    template <int... R>
    static constexpr std::array<Tile, ROWS> table(std::integer_sequence<int, R...>) {
        if constexpr (format == Format::int8) return {tile8<R + 1>...};
        else return {tile4<R + 1, format>...};
    }
    static constexpr std::array<Tile, ROWS> by_rows = table(std::make_integer_sequence<int, ROWS>());

    template <typename T>
    static void take_as(const LinearArgs& a, int64_t row, int rows, uint8_t* taken) {
        for (int r = 0; r < rows; ++r)
            if constexpr (format == Format::int8) take_row8<T>(a, row + r, taken, rows, r);
            else round_row4<T>(a, row + r, taken, rows, r);
    }
    template <typename T>
    static void take_row8(const LinearArgs& a, int64_t row, uint8_t* block, int64_t rows,
                          int64_t index) {
        uint8_t* const codes = block + rows * 8 + index * CODES8;
        const Head head = round_row8<T>(
            a, row, [&](int64_t i) { return codes + i / CHUNK * rows * CODES8; });
        std::memcpy(block + index * 4, &head.scale, 4);
        std::memcpy(block + rows * 4 + index * 4, &head.start, 4);
    }
};

void linear_int(const LinearArgs& a) {
    if (is_int8(a.format)) return multiply<Ints<Format::int8>>(in_planes(a));  // rotated or not
    switch (a.format) {
        case Format::int4_zeros: return multiply<Ints<Format::int4_zeros>>(a);
        case Format::int4_hadamard: return multiply<Ints<Format::int4_hadamard>>(a);
        case Format::nf4: return multiply<Ints<Format::nf4>>(a);
        case Format::mxfp4: return multiply<Ints<Format::mxfp4>>(a);
        default: return multiply<Ints<Format::int4>>(a);
    }
}
