// The kernels as compiled for AVX-512 (F, BW, DQ, VL).

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "pool.h"
#include "scalar.h"
#include "scratch.h"

#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#include <immintrin.h>

namespace avx512 {
#include "unroll.h"
#include "vec512.h"

#include "exp.h"

#include "norm.h"

#include "rows.h"

#include "linear.h"

#include "linear_float.h"

#include "dot512.h"
#include "quantize.h"

#include "linear_int.h"

#include "quantize_weight.h"

#include "paged.h"

#include "decode.h"
#include "softmax.h"
#include "prefill.h"

#include "attention.h"
#include "rotary.h"
}  // namespace avx512

extern const Kernels kernels_avx512 = {
    "avx512", avx512::rms_norm, avx512::finite_rows, avx512::to_float, avx512::highest,
    avx512::block_maxima, avx512::block_masses, avx512::linear, avx512::linear_int, avx512::quantize,
    avx512::rotary_write_kv, avx512::attention, avx512::exp_all,
};
#endif
