// Products with weights in bytes and in bfloat16 as compiled for tiles (AMX).

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

#include "linear_tiles.h"
}  // namespace amx

// A tile's row has 64 k's in bytes, 32 in bfloat16; sizes that end within one are left to others.
void linear_int_amx(const LinearArgs& a) {
    a.format != Format::int8 || a.k % 64 ? linear_int_avx512_vnni(a) : amx::linear_bytes(a);
}
void linear_bf16_amx(const LinearArgs& a) {
    a.k % 32 ? linear_avx512_bf16(a) : amx::linear_bf16(a);
}
#endif
