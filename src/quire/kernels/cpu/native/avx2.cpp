// The kernels as compiled for AVX2 with FMA.

#include "common.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#include <immintrin.h>

namespace avx2 {
#include "unroll.h"
#include "vec256.h"

#include "dot256.h"

#include "kernels.h"
}  // namespace avx2

extern const Kernels kernels_avx2 = avx2::all_kernels;
#endif
