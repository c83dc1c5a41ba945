// Products and the attention of prompts as compiled for tiles (AMX).

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "pool.h"
#include "scalar.h"
#include "scratch.h"

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

#include "prefill_tiles.h"
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
// Queries in bfloat16, by heads that fill tiles.
Prompts prompts_amx(const AttentionArgs& a) {
    if (a.dtype != Dtype::bf16 || a.head_dim % 32 || a.soft_cap) return {};
    switch (a.cache_dtype) {
        case Dtype::f32: return {};
        case Dtype::bf16: return {amx::attend_rows<bf16>, amx::ROWS};
        case Dtype::fp8: return {amx::attend_rows<fp8>, amx::ROWS};
        case Dtype::int8: return {amx::attend_rows<int8_t>, amx::ROWS};
    }
    return {};
}
#endif
