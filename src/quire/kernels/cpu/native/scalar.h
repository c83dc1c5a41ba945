// Single numbers, for what is left over behind the last full vector.

#pragma once

#include <cmath>
#include <cstring>

#include "quire_cpu.h"

static inline float widen(float x) { return x; }
static inline float widen(bf16 x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}
static inline void narrow(float x, float* out) { *out = x; }
static inline void narrow(float x, bf16* out) {  // to nearest, ties to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    out->bits = x != x ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
