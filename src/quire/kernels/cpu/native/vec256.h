// Sixteen lanes in two AVX2 registers. Included inside a namespace; see avx2.cpp.
//
// Names and meaning are those of vec512.h: kernels are written once, against both.

// A product's sums: so many vectors stay in registers, and so many rows beside 1 block of outputs.
constexpr int SUMS = 6, TILE_ROWS = 6;

struct F32 {  // 16 x float
    __m256 lo, hi;
    static F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static F32 all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
    static F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    static F32 load(const bf16* p) { return {to_floats(p), to_floats(p + 8)}; }
    // of 16 pairs, the first or the second of each
    static F32 firsts(const bf16* p) { return {first(p), first(p + 16)}; }
    static F32 seconds(const bf16* p) { return {second(p), second(p + 16)}; }
    static F32 load(const int8_t* p) { return {to_floats(p), to_floats(p + 8)}; }
    static F32 load(const fp8* p) {  // as half precision, which has one bit of exponent more
        const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
        const __m256i half = _mm256_and_si256(moved, _mm256_set1_epi16(int16_t(0xbf80)));
        const __m256i digits = _mm256_and_si256(half, _mm256_set1_epi16(0x3f80));
        const __m256i nan = _mm256_cmpeq_epi16(digits, _mm256_set1_epi16(0x3f80));
        const __m256i kept = _mm256_or_si256(half, nan);
        const __m256 back = _mm256_set1_ps(256.0f);
        return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(kept)), back),
                _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(kept, 1)), back)};
    }
    void store(float* p) const {
        _mm256_storeu_ps(p, lo);
        _mm256_storeu_ps(p + 8, hi);
    }
    void store(bf16* p) const {  // to nearest, ties to even; NaN stays NaN
        const __m256i packed = _mm256_packus_epi32(to_bf16(lo), to_bf16(hi));
        const __m256i ordered = _mm256_permute4x64_epi64(packed, 0xd8);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), ordered);
    }
    void store(int8_t* p) const {  // to nearest, cut off at -128 and 127
        const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(lo), _mm256_cvtps_epi32(hi));
        const __m256i bytes = _mm256_packs_epi16(words, words);
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
        const __m256i codes = _mm256_permutevar8x32_epi32(bytes, order);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(codes));
    }
    float sum() const {
        const __m256 eight = _mm256_add_ps(lo, hi);
        __m128 x = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
    }
    float max() const {
        const __m256 eight = _mm256_max_ps(lo, hi);
        __m128 x = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
    }

   private:
    static __m256 to_floats(const bf16* p) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
    static __m256 first(const bf16* p) {
        const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    }
    static __m256 second(const bf16* p) {
        const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000));
        return _mm256_castsi256_ps(_mm256_and_si256(pairs, mask));
    }
    static __m256 to_floats(const int8_t* p) {
        const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    }
    static __m256i to_bf16(__m256 v) {
        const __m256i bits = _mm256_castps_si256(v);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
        const __m256i sum = _mm256_srli_epi32(_mm256_add_epi32(bits, up), 16);
        return _mm256_blendv_epi8(sum, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(nan));
    }
};
inline F32 operator+(F32 a, F32 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline F32 operator-(F32 a, F32 b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline F32 operator*(F32 a, F32 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline F32 operator/(F32 a, F32 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline F32 fma(F32 a, F32 b, F32 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline F32 inverse(F32 a) { return F32::all(1.0f) / a; }
inline F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F32 abs(F32 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
inline F32 trunc(F32 a) {
    constexpr int to_zero = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, to_zero), _mm256_round_ps(a.hi, to_zero)};
}
inline F32 round(F32 a) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, nearest), _mm256_round_ps(a.hi, nearest)};
}
inline __m256 times_power(__m256 a, __m256 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
// a · 2^n for whole n, -126 <= n <= 128, where 2^128 is infinite
inline F32 scale_by_power(F32 a, F32 n) {
    return {times_power(a.lo, n.lo), times_power(a.hi, n.hi)};
}
inline bool any_nan(F32 a, F32 b) {
    const __m256 lo = _mm256_cmp_ps(a.lo, b.lo, _CMP_UNORD_Q);
    return _mm256_movemask_ps(_mm256_or_ps(lo, _mm256_cmp_ps(a.hi, b.hi, _CMP_UNORD_Q))) != 0;
}
// The sum of whole numbers below 2^46, exactly.
inline int64_t exact_sum(F32 a, F32 b, F32 c, F32 d) {
    __m256d sum = _mm256_setzero_pd();
    for (const __m256 x : {a.lo, a.hi, b.lo, b.hi, c.lo, c.hi, d.lo, d.hi}) {
        sum = _mm256_add_pd(sum, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
        sum = _mm256_add_pd(sum, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
    }
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(sum), _mm256_extractf128_pd(sum, 1));
    return static_cast<int64_t>(_mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two))));
}
// Sums of two lanes in the first of both, differences in the second.
template <int SECONDS>
inline __m256 sum_difference(__m256 a, __m256 b) {
    return _mm256_blend_ps(_mm256_add_ps(a, b), _mm256_sub_ps(b, a), SECONDS);
}
inline __m256 hadamard(__m256 v) {
    v = sum_difference<0xaa>(v, _mm256_permute_ps(v, 0xb1));
    v = sum_difference<0xcc>(v, _mm256_permute_ps(v, 0x4e));
    return sum_difference<0xf0>(v, _mm256_permute2f128_ps(v, v, 1));
}
// The lanes times a Hadamard matrix.
inline F32 hadamard(F32 a) {
    const F32 halves = {hadamard(a.lo), hadamard(a.hi)};
    return {_mm256_add_ps(halves.lo, halves.hi), _mm256_sub_ps(halves.lo, halves.hi)};
}
inline __m256 where_less(__m256 a, __m256 b, __m256 yes, __m256 no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
inline F32 where_less(F32 a, F32 b, F32 yes, F32 no) {
    return {where_less(a.lo, b.lo, yes.lo, no.lo), where_less(a.hi, b.hi, yes.hi, no.hi)};
}
// The sums of four, next to each other.
inline void store_sums(F32 a, F32 b, F32 c, F32 d, float* p) {
    const __m256 ab = _mm256_hadd_ps(_mm256_add_ps(a.lo, a.hi), _mm256_add_ps(b.lo, b.hi));
    const __m256 cd = _mm256_hadd_ps(_mm256_add_ps(c.lo, c.hi), _mm256_add_ps(d.lo, d.hi));
    const __m256 sums = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
}

// Registers of a tile of sums in attention: of prompts rows, and vectors of columns; of a decode's
// scores tokens beside four heads, of its values heads, and vectors of numbers.
constexpr int SCORE_ROWS = 4, SCORE_VECTORS = 1, SCORE_TOKENS = 1;
constexpr int SUM_HEADS = 2, SUM_VECTORS = 2;
