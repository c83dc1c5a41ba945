// The exponential function and what is made of it. Included inside a namespace that has the vector
// types.

constexpr float LOG2_E = 1.44269504f;

// Within 1 unit in the last place; 0 below -87.3, infinity above 88.8 (in AVX2, whose 2^128 is
// infinite, above 88.4), and NaN stays NaN.
// e^x = 2^n · e^r, |r| <= ln(2) / 2, with (e^r - 1 - r) / r² as a polynomial that was fitted for the
// least relative error of e^r.
inline F32 exp(F32 x) {
    const F32 low = F32::all(-87.3f);
    const F32 in = min(F32::all(88.8f), max(low, x));  // in this order NaN passes
    const F32 n = round(in * F32::all(1.44269504f));
    F32 r = fma(n, F32::all(-0.693145752f), in);  // ln(2) in two parts, the first of few bits
    r = fma(n, F32::all(-1.42860677e-6f), r);
    F32 p = F32::all(0.0013814539f);
    for (const float term : {0.008368745f, 0.04166839f, 0.16666521f, 0.49999994f})
        p = fma(p, r, F32::all(term));
    const F32 power = fma(p, r * r, r) + F32::all(1.0f);
    return where_less(x, low, F32::zero(), scale_by_power(power, n));
}

// 2^x for x <= 0, within 1 unit in the last place; 0 below -126, and NaN stays NaN. As above, without
// what is needed for e and for large x.
inline F32 power_of_two(F32 x) {
    const F32 low = F32::all(-126.0f), in = max(low, x), n = round(in), r = in - n;
    F32 p = F32::all(0.0013264727f);
    for (const float term : {0.0096715130f, 0.055507336f, 0.24022242f, 0.69314700f, 1.0f})
        p = fma(p, r, F32::all(term));
    return where_less(x, low, F32::zero(), scale_by_power(p, n));
}

// Below -87 that of -87, which is as good as zero; what is infinite becomes NaN.
inline F32 silu(F32 x) {
    const F32 in = max(F32::all(-87.0f), x);
    return fma(in, inverse(F32::all(1.0f) + exp(F32::zero() - in)), x - x);
}

// 1 / (1 + e^-x), with the same bounds.
inline F32 sigmoid(F32 x) {
    return inverse(F32::all(1.0f) + exp(F32::zero() - max(F32::all(-87.0f), x)));
}

// GELU's approximation by tanh: x * (1 + tanh(y)) / 2 = x * sigmoid(2 y).
inline F32 gelu(F32 x) {
    const F32 twice = F32::all(1.59576912f) * fma(x * x * x, F32::all(0.044715f), x);
    return fma(x, sigmoid(twice), x - x);
}

// cap * tanh(x / cap) of scores x, which like the results are exponents of two.
inline void cap_scores(float* scores, int64_t count, float cap) {
    const F32 most = F32::all(cap * LOG2_E), factor = F32::all(2.0f / (cap * LOG2_E));
    for (int64_t i = 0; i < count; i += 16) {
        const F32 share = sigmoid(F32::load(scores + i) * factor);
        (most * (share + share - F32::all(1.0f))).store(scores + i);
    }
}

void exp_all(const float* x, float* out, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) exp(F32::load(x + i)).store(out + i);
}
