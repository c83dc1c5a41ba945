// The exponential function and what is made of it. Included inside a namespace that has the vector
// types.

// Within 2 units in the last place; about 1e-38 below -87.3, and infinity above 88.8 (in AVX2, whose
// 2^128 is infinite, above 88.4).
inline F32 exp(F32 x) {
    x = max(min(x, F32::all(88.8f)), F32::all(-87.3f));
    const F32 n = round(x * F32::all(1.44269504f));  // x = n ln 2 + rest, |rest| <= ln 2 / 2
    F32 rest = fma(n, F32::all(-0.693359375f), x);   // ln 2 in two parts: the first times n is exact
    rest = fma(n, F32::all(2.12194440e-4f), rest);
    F32 sum = F32::all(1.0f / 5040);  // Taylor's series: the next term is below 5e-9
    for (const float term : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        sum = fma(sum, rest, F32::all(term));
    return scale_by_power(sum, n);
}

inline F32 silu(F32 x) { return x / (F32::all(1.0f) + exp(F32::zero() - x)); }
