// The kernels as compiled for AVX2 with FMA.

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "pool.h"
#include "scalar.h"
#include "scratch.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#include <immintrin.h>

namespace avx2 {
#include "unroll.h"
#include "vec256.h"

#include "exp.h"

#include "norm.h"

#include "rows.h"

#include "linear.h"

#include "linear_float.h"

#include "dot256.h"
#include "quantize.h"

#include "linear_int.h"

#include "quantize_weight.h"

#include "paged.h"

#include "decode.h"
#include "softmax.h"
#include "prefill.h"

#include "attention.h"
#include "rotary.h"
}  // namespace avx2

extern const Kernels kernels_avx2 = {
    "avx2", avx2::rms_norm, avx2::finite_rows, avx2::to_float, avx2::highest,
    avx2::block_maxima, avx2::block_masses, avx2::linear, avx2::linear_int, avx2::quantize,
    avx2::rotary_write_kv, avx2::attention, avx2::exp_all,
};
#endif
