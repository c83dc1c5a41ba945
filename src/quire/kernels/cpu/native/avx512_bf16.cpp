// Linear layers with bfloat16 weights, and attention of prompts, as compiled for AVX-512 with its dot
// products of pairs.

#include "common.h"

#if defined(__x86_64__)
#ifdef QUIRE_PLAIN_DOTS  // for tests on processors without them
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#else
#pragma GCC target("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#include <immintrin.h>

namespace avx512_bf16 {
#include "unroll.h"
#include "vec512.h"

// sums + the products of 16 pairs with one, each multiply-add rounded, second numbers first
inline F32 dot_pairs(F32 sums, const bf16* weight, const bf16* x) {
    int32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    const __m512i v = _mm512_set1_epi32(pair);
#ifdef QUIRE_PLAIN_DOTS
    const F32 first = {_mm512_castsi512_ps(_mm512_slli_epi32(v, 16))};
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    const F32 second = {_mm512_castsi512_ps(_mm512_and_si512(v, mask))};
    return fma(F32::firsts(weight), first, fma(F32::seconds(weight), second, sums));
#else
    const __m512i w = _mm512_loadu_si512(weight);
    return {_mm512_dpbf16_ps(sums.v, (__m512bh)w, (__m512bh)v)};
#endif
}
#define QUIRE_BF16_DOTS

#include "exp.h"

#include "norm.h"

#include "linear.h"

#include "linear_float.h"

#include "paged.h"

#include "softmax.h"

#include "prefill_pairs.h"

// GEMMs of attention by dot products of pairs, SCORE_ROWS rows by LANES columns at a time.
struct DotGemm {
    template <bool from_zero>
    static void add(const bf16* rows, int64_t count, int64_t row, const bf16* columns, int64_t depth,
                    float* sums) {
        constexpr int R = SCORE_ROWS, V = LANES / 16;
        for (int64_t r = 0; r < count; r += R, rows += R * row, sums += R * LANES) {
            F32 total[R][V];
            each<R * V>(BODY(i) {
                total[i / V][i % V] = from_zero ? F32::zero() : F32::load(sums + 16 * i);
            });
            for (int64_t d = 0; d < depth; d += PAIR)
                each<R * V>(BODY(i) {
                    const bf16* pairs = columns + d * LANES + i % V * 16 * PAIR;
                    total[i / V][i % V] = dot_pairs(total[i / V][i % V], pairs, rows + i / V * row + d);
                });
            each<R * V>(BODY(i) { total[i / V][i % V].store(sums + 16 * i); });
        }
    }
};
}  // namespace avx512_bf16

void linear_avx512_bf16(const LinearArgs& args) { avx512_bf16::linear_bf16(args); }
Prompts prompts_avx512_bf16(const AttentionArgs& args) {
    return avx512_bf16::prompts_by<avx512_bf16::DotGemm>(args);
}
#endif
