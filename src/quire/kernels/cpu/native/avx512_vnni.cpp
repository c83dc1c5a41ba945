// Products of bytes as compiled for AVX-512 (F, BW, DQ, VL) with VNNI.

#include "common.h"

#if defined(__x86_64__)
#pragma GCC target("avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#include <immintrin.h>

#define QUIRE_VNNI

namespace avx512_vnni {
#include "unroll.h"
#include "vec512.h"

#include "exp.h"

#include "norm.h"

#include "linear.h"

#include "dot512.h"
#include "quantize.h"

#include "linear_int.h"
}  // namespace avx512_vnni

void linear_int_avx512_vnni(const LinearArgs& args) { avx512_vnni::linear_int(args); }
#endif
