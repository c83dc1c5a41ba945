// Single numbers, for what is left over behind the last full vector.

#pragma once

#include <cmath>
#include <cstring>

#include "quire_cpu.h"

static inline float as_float(float x) { return x; }
static inline float as_float(bf16 x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}
static inline void from_float(float x, float* out) { *out = x; }
static inline void from_float(float x, fp8* out) {  // to nearest, cut off at 448; NaN stays NaN
    uint32_t bits, sum;
    std::memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
    const uint32_t normal = (size + 0x7ffff + (size >> 20 & 1)) >> 20;  // 3 digits, bias 127
    const float moved = std::fabs(x) + 16384.0f;  // whose last digit is the smallest number
    std::memcpy(&sum, &moved, sizeof sum);
    const uint32_t small = sum - 0x46800000;
    const uint32_t code = size < 0x3c800000 ? small : size < 0x43e00000 ? normal - 960 : 0x7e;
    out->bits = static_cast<uint8_t>(sign | (x != x ? 0x7f : code));
}
static inline void from_float(float x, bf16* out) {  // to nearest, ties to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    out->bits = x != x ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
