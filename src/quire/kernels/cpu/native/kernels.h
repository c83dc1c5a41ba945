// All kernels of an instruction set, each after what it needs. Included inside a namespace, after
// vec512.h and dot512.h or vec256.h and dot256.h.

#include "exp.h"

#include "norm.h"

#include "rows.h"

#include "linear.h"

#include "linear_float.h"

#include "quantize.h"

#include "linear_int.h"

#include "quantize_weight.h"

#include "paged.h"

#include "decode.h"
#include "softmax.h"
#include "prefill.h"

#include "attention.h"
#include "rotary.h"

constexpr Kernels all_kernels = {rms_norm,     finite_rows,  to_float, highest,  block_maxima,
                                 block_masses, linear,       linear_int, quantize, rotary_write_kv,
                                 attention,    exp_all};
