// GEMMs by AMX tiles. Included inside a namespace, after tiles.h, quantize.h and dequantize_tiles.h.
//
// Bytes and bfloat16 are packed as for the dot instructions, whose lines are a tile's rows here. Four
// bits are converted to one of both first. A unit of work is the weights of 32 outputs over a stretch
// of k: they stay in the L1 cache while all rows are multiplied by them, and the next unit's are
// prefetched. So weights come from memory once, in a steady stream, and rows from the L2 cache. Sums
// go over k in stretches, always in the same order.

constexpr int64_t LINE = 64;
constexpr int64_t STEPS = 8;           // of a stretch, where rows are in several blocks
constexpr int64_t TILE_AHEAD = 6144;   // for one block of rows: how far before its use a line is asked for

// Number of rows from which on four-bit codes are converted for tiles.
constexpr int64_t MANY_ROWS4 = 32, MANY_HADAMARD4 = 10;

// Sources: where the weights of 32 outputs lie from a k on, as `lines` of each of two runs for a
// stretch, and as tiles. `more` is whether there are more than 16 outputs.
struct Bytes : ByBytes {  // blocks of 32 outputs, their scales before them (see linear_int.h)
    static constexpr int64_t SIZE = 1, TILE_BYTES = 0;
    static Ahead lies(const LinearArgs& a, int64_t output, int64_t k, bool) {
        const uint8_t* w = block_at(a, output) + block_header(a.format) + k * 32;
        return {w, w + LINE, 2 * LINE, 16 * STEPS};
    }
    static Side tiles(const LinearArgs& a, int64_t output, int64_t k, bool more, uint8_t*) {
        const Ahead at = lies(a, output, k, more);
        return {at.first, at.second, at.stride, 16 * at.stride};
    }
};
struct Pairs : ByPairs {  // bfloat16, in blocks of 16
    static constexpr int64_t SIZE = 2, TILE_BYTES = 0;
    static Ahead lies(const LinearArgs& a, int64_t output, int64_t k, bool more) {
        const uint8_t* w = static_cast<const uint8_t*>(a.weight) + (output * a.k + k * 16) * 2;
        return {w, more ? w + a.k * 32 : w, LINE, 16 * STEPS};
    }
    static Side tiles(const LinearArgs& a, int64_t output, int64_t k, bool more, uint8_t*) {
        const Ahead at = lies(a, output, k, more);
        return {at.first, at.second, at.stride, 16 * at.stride};
    }
};
// Four bits, in two tiles for each line of a row; `make_tiles` makes them.
template <typename As, auto make_tiles>
struct Nibbles : As {
    static constexpr int64_t SIZE = std::is_same_v<As, ByBytes> ? 1 : 2;
    static constexpr int64_t STRETCH = STEPS * LINE / SIZE, TILE_BYTES = STEPS * 32 * LINE;
    static Ahead lies(const LinearArgs& a, int64_t output, int64_t k, bool) {
        const uint8_t* w = group_at(a, output, k);
        const int64_t headers = (STRETCH + a.group - 1) / a.group * group_header(a.format);
        const int64_t lines = (STRETCH * 16 + headers) / LINE / 2 + 1;
        return {w, w + lines * LINE, LINE, lines};
    }
    static Side tiles(const LinearArgs& a, int64_t output, int64_t k, bool, uint8_t* tiles_out) {
        make_tiles(a, output, k, std::min(STRETCH, a.k - k), tiles_out);
        return {tiles_out, tiles_out + 16 * LINE, LINE, 32 * LINE};
    }
};

// A GEMM as linear.h takes it. In a block of rows, behind a line for each with the scale and start
// of bytes, a row has a line for each step; where a block has fewer rows than tiles, theirs are
// whatever follows, and so are their sums, which nobody reads.
template <typename Source>
struct Tiled {
    using X = uint8_t;
    static constexpr bool BYTES = std::is_base_of_v<ByBytes, Source>;
    static constexpr bool CONVERTED = Source::TILE_BYTES > 0;
    static constexpr int ROWS = 32;
    static constexpr bool EVEN_BLOCKS = false;
    static constexpr int64_t BEYOND = 16 * LINE;
    static int64_t outputs(const LinearArgs&) { return 256; }
    static int64_t row_size(const LinearArgs& a) { return LINE + a.k * Source::SIZE; }

    static void take(const LinearArgs& a, int64_t row, int rows, X* taken) {
        for (int r = 0; r < rows; ++r)
            a.dtype == Dtype::bf16 ? take_row<bf16>(a, row + r, taken, rows, r)
                                   : take_row<float>(a, row + r, taken, rows, r);
    }

    static void piece(const LinearArgs& a, const X* taken, int64_t row, const RowBlocks& blocks,
                      int64_t first, int64_t outputs) {
        thread_local Scratch scratch;
        const int64_t panels = (outputs + 31) / 32, size = blocks.count * ROWS * 32;
        float* const sums = scratch.get<float>(panels * size + Source::TILE_BYTES / 4);
        {
            const Tiles configured(blocks.count > 1 ? ROWS : blocks.size(0));
            multiply_units(a, taken, blocks, first, outputs, sums);
        }
        a.dtype == Dtype::bf16 ? finish_panels<bf16>(a, taken, row, blocks, first, outputs, sums)
                               : finish_panels<float>(a, taken, row, blocks, first, outputs, sums);
    }

   private:
    static int64_t stretch(const LinearArgs& a, bool few) {
        return few && !CONVERTED ? a.k : STEPS * LINE / Source::SIZE;
    }

    template <typename T>
    static void take_row(const LinearArgs& a, int64_t row, X* taken, int64_t rows, int64_t index) {
        X* const out = taken + rows * LINE + index * LINE;
        if constexpr (BYTES) {
            const Head head = round_row8<T>(
                a, row, [&](int64_t i) { return out + i / LINE * LINE * rows + i % LINE; });
            std::memcpy(taken + index * LINE, &head, sizeof head);
        } else {
            const NormalizedRow<T> x = normalized_row<T>(a, row);
            for (int64_t k = 0; k < a.k; k += 16)
                x.at(k).store(reinterpret_cast<bf16*>(out + k / 32 * rows * LINE) + k % 32);
        }
    }

    // Panels' sums [rows, 32] one after the other. A single block of rows goes through the panels one by
    // one; several go through a stretch of all panels, so that rows stay in the cache.
    static void multiply_units(const LinearArgs& a, const X* taken, const RowBlocks& blocks,
                               int64_t first, int64_t outputs, float* sums) {
        const bool few = blocks.count == 1;
        const int64_t most = stretch(a, few), panels = (outputs + 31) / 32;
        const int64_t stretches = (a.k + most - 1) / most;
        X* const tiles_out = reinterpret_cast<X*>(sums + panels * blocks.count * ROWS * 32);
        const auto weights = [&](int64_t unit) {
            const int64_t panel = few ? unit / stretches : unit % panels;
            const int64_t k = (few ? unit % stretches : unit / panels) * most;
            return Unit{panel, k, first + 32 * panel, outputs - 32 * panel > 16};
        };
        for (int64_t i = 0; i < panels * stretches; ++i) {
            const Unit unit = weights(i), next = weights(std::min(i + 1, panels * stretches - 1));
            const Side w = Source::tiles(a, unit.output, unit.k, unit.more, tiles_out);
            const Ahead soon = few ? Source::lies(a, unit.output, unit.k, unit.more)
                                   : Source::lies(a, next.output, next.k, next.more);
            const int64_t steps = std::min(most, a.k - unit.k) * Source::SIZE / LINE;
            for (int64_t b = 0; b < blocks.count; ++b) {
                const int64_t rows = blocks.size(b), step = rows * LINE;
                const X* x = taken + blocks.start(b) * row_size(a) + step + unit.k * Source::SIZE * rows;
                const int kind = (unit.k > 0 ? 0 : 4) + (rows > 16 ? 2 : 0) + (unit.more ? 1 : 0);
                make[kind]({x, x + 16 * LINE, LINE, step}, w, steps,
                           sums + (unit.panel * blocks.count + b) * ROWS * 32, 32,
                           few ? ahead(soon) : share(soon, b, blocks.count));
            }
        }
    }

    struct Unit {
        int64_t panel, k, output;
        bool more;
    };

    // Prefetches at a step while the only block of rows is multiplied: lines that are read soon.
    // Converted weights were prefetched when they were converted.
    static Ahead ahead(const Ahead& unit) {
        const int64_t lines = CONVERTED ? 0 : unit.lines / STEPS;
        return {unit.first + TILE_AHEAD, unit.second + TILE_AHEAD, unit.stride, lines};
    }
    // Prefetches while one of several blocks is multiplied: its share of the next unit.
    static Ahead share(const Ahead& next, int64_t block, int64_t blocks) {
        const int64_t lines = (next.lines + STEPS * blocks - 1) / (STEPS * blocks);
        const int64_t skipped = block * STEPS * lines * next.stride;
        return {next.first + skipped, next.second + skipped, next.stride, lines};
    }

    using Make = void (*)(const Side&, const Side&, int64_t, float*, int64_t, const Ahead&);
    static constexpr Make make[8] = {
        add_block<Source, false, false, false>, add_block<Source, false, false, true>,
        add_block<Source, false, true, false>,  add_block<Source, false, true, true>,
        add_block<Source, true, false, false>,  add_block<Source, true, false, true>,
        add_block<Source, true, true, false>,   add_block<Source, true, true, true>,
    };

    // Integer sums, stored where float sums would be, are multiplied by their scales.
    template <typename T>
    static void finish_panels(const LinearArgs& a, const X* taken, int64_t row,
                              const RowBlocks& blocks, int64_t first, int64_t outputs,
                              const float* sums) {
        const int64_t size = blocks.count * ROWS * 32;
        const int64_t block = BYTES ? block_bytes(a.format, a.k, a.group) : 0;  // begins with scales
        const X* const scales = BYTES ? block_at(a, first) : nullptr;
        finish<T>(a, row, blocks.rows, first, outputs, [&](int64_t r) {
            const int64_t start = blocks.start(r / ROWS);
            Head head{};
            if constexpr (BYTES)
                std::memcpy(&head, taken + start * row_size(a) + (r - start) * LINE, sizeof head);
            return [=, sums = sums + r * 32](int64_t i) {
                const float* const at = sums + (i >> 5) * size + (i & 31);
                if constexpr (!BYTES) return F32::load(at);
                const X* const scale = scales + (i >> 5) * block + (i & 31) * 4;
                const __m512i whole = _mm512_loadu_si512(at), from = _mm512_set1_epi32(head.start);
                return Sum{_mm512_add_epi32(whole, from)}.total() *
                       (F32::load(reinterpret_cast<const float*>(scale)) * F32::all(head.scale));
            };
        });
    }
};

void linear_bytes(const LinearArgs& a) { multiply<Tiled<Bytes>>(in_planes(a)); }
void linear_bf16(const LinearArgs& a) { multiply<Tiled<Pairs>>(a); }
void linear_nibbles(const LinearArgs& a) {
    multiply<Tiled<Nibbles<ByPairs, dequantize_to_pairs>>>(a);
}
void linear_hadamard_nibbles(const LinearArgs& a) {
    multiply<Tiled<Nibbles<ByBytes, requantize_to_bytes>>>(a);
}
