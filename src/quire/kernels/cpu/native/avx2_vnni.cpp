// Products of bytes as compiled for AVX2 with FMA and AVX-VNNI.

#include "common.h"

#if defined(__x86_64__)
#pragma GCC target("avxvnni,avx2,fma,f16c")
#include <immintrin.h>

#define QUIRE_VNNI

namespace avx2_vnni {
#include "unroll.h"
#include "vec256.h"

#include "exp.h"

#include "norm.h"

#include "linear.h"

#include "dot256.h"
#include "quantize.h"

#include "linear_int.h"
}  // namespace avx2_vnni

void linear_int_avx2_vnni(const LinearArgs& args) { avx2_vnni::linear_int(args); }
#endif
