// The kernels as compiled for AVX-512 (F, BW, DQ, VL).

#include "common.h"

#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#include <immintrin.h>

namespace avx512 {
#include "unroll.h"
#include "vec512.h"

#include "dot512.h"

#include "kernels.h"
}  // namespace avx512

extern const Kernels kernels_avx512 = avx512::all_kernels;
#endif
