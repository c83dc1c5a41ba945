// Linear layers and attention of prompts as compiled for tiles (AMX).

#include "common.h"

#if defined(__x86_64__)
#define QUIRE_VNNI
#ifdef QUIRE_PLAIN_TILES  // for tests on processors without them
#define QUIRE_PLAIN_DOT
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#else
#pragma GCC target("avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#include <immintrin.h>

namespace amx {
#include "unroll.h"
#include "vec512.h"

#include "exp.h"

#include "norm.h"

#include "linear.h"

#include "dot512.h"
#include "quantize.h"

#include "tiles.h"

#include "dequantize_tiles.h"

#include "linear_tiles.h"

#include "paged.h"

#include "softmax.h"

#include "prefill_pairs.h"

// GEMMs of attention by tiles, which a thread has as long as one of these.
struct TileGemm {
    const Tiles configured{32};

    template <bool from_zero>
    void add(const bf16* rows, int64_t count, int64_t row, const bf16* columns, int64_t depth,
             float* sums) const {
        const auto side = [](const bf16* first, int64_t second, int64_t stride, int64_t step) {
            const uint8_t* at = reinterpret_cast<const uint8_t*>(first);
            return Side{at, at + 2 * second, 2 * stride, 2 * step};
        };
        const Side across = side(columns, 16 * PAIR, LANES * PAIR, 16 * LANES * PAIR);
        for (int64_t r = 0; r < count; r += 32)
            add_block<ByPairs, from_zero, true, true>(side(rows + r * row, 16 * row, row, 32), across,
                                                      depth / 32, sums + r * LANES, LANES, {});
    }
};
}  // namespace amx

// A tile's row has 64 k's in bytes, 32 in bfloat16; sizes that end within one are left to others, and
// so are few rows by four bits, which cost less than converting them.
void linear_int_amx(const LinearArgs& a) {
    const bool whole = a.k % 64 == 0;
    switch (a.format) {
        case Format::int8:
        case Format::int8_hadamard:
        case Format::int8_a16:
            if (whole) return amx::linear_bytes(a);
            break;
        case Format::int4_hadamard:
            if (whole && a.rows >= amx::MANY_HADAMARD4) return amx::linear_hadamard_nibbles(a);
            break;
        default:
            if (a.rows >= amx::MANY_ROWS4) return amx::linear_nibbles(a);
    }
    linear_int_avx512_vnni(a);
}
void linear_bf16_amx(const LinearArgs& a) {
    a.k % 32 ? linear_avx512_bf16(a) : amx::linear_bf16(a);
}
Prompts prompts_amx(const AttentionArgs& a) { return amx::prompts_by<amx::TileGemm>(a); }
#endif
