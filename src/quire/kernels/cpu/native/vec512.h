// Sixteen lanes in one AVX-512 register. Included inside a namespace; see avx512.cpp.
//
// Names and meaning are those of vec256.h: kernels are written once, against both.

// A product's sums: so many vectors stay in registers, and so many rows beside 2 blocks of outputs.
constexpr int SUMS = 28, TILE_ROWS = 14;

struct F32 {  // 16 x float
    __m512 v;
    static F32 zero() { return {_mm512_setzero_ps()}; }
    static F32 all(float x) { return {_mm512_set1_ps(x)}; }
    static F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static F32 load(const bf16* p) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
    }
    // of 16 pairs, the first or the second of each
    static F32 firsts(const bf16* p) {
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
    }
    static F32 seconds(const bf16* p) {
        const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000));
        return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), mask))};
    }
    static F32 load(const int8_t* p) {
        const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))};
    }
    static F32 load(const fp8* p) {  // as half precision, which has one bit of exponent more
        const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
        const __m256i half = _mm256_and_si256(moved, _mm256_set1_epi16(int16_t(0xbf80)));
        const __m256i digits = _mm256_and_si256(half, _mm256_set1_epi16(0x3f80));
        const __m256i nan = _mm256_cmpeq_epi16(digits, _mm256_set1_epi16(0x3f80));
        const __m512 wide = _mm512_cvtph_ps(_mm256_or_si256(half, nan));
        return {_mm512_mul_ps(wide, _mm512_set1_ps(256.0f))};
    }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
    void store(bf16* p) const {  // to nearest, ties to even; NaN stays NaN
        const __m512i bits = _mm512_castps_si512(v);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        __m512i sum = _mm512_srli_epi32(_mm512_add_epi32(bits, up), 16);
        sum = _mm512_mask_mov_epi32(sum, nan, _mm512_set1_epi32(0x7fc0));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(sum));
    }
    void store(int8_t* p) const {  // to nearest, cut off at -128 and 127
        const __m128i codes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), codes);
    }
    float sum() const { return _mm512_reduce_add_ps(v); }
    float max() const { return _mm512_reduce_max_ps(v); }
};
inline F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// 1 / a for normal numbers whose inverse is one, within 2 units in the last place
inline F32 inverse(F32 a) {
    const __m512 near = _mm512_rcp14_ps(a.v);
    return {_mm512_mul_ps(near, _mm512_fnmadd_ps(a.v, near, _mm512_set1_ps(2.0f)))};
}
inline F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32 abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
inline F32 trunc(F32 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_ZERO)}; }
inline F32 round(F32 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)}; }
// a · 2^n for whole n
inline F32 scale_by_power(F32 a, F32 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
inline bool any_nan(F32 a, F32 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q) != 0; }
// The sum of whole numbers below 2^46, exactly.
inline int64_t exact_sum(F32 a, F32 b, F32 c, F32 d) {
    __m512d sum = _mm512_setzero_pd();
    for (const F32 x : {a, b, c, d}) {
        sum = _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_castps512_ps256(x.v)));
        sum = _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1)));
    }
    return static_cast<int64_t>(_mm512_reduce_add_pd(sum));
}
// Sums of two lanes in the first of both, differences in the second, each in one instruction.
inline __m512 sum_difference(__m512 a, __m512 b, __mmask16 seconds) {
    const __m512 one = _mm512_set1_ps(1.0f), minus = _mm512_set1_ps(-1.0f);
    return _mm512_fmadd_ps(a, _mm512_mask_blend_ps(seconds, one, minus), b);
}
// The lanes times a Hadamard matrix.
inline F32 hadamard(F32 a) {
    __m512 v = sum_difference(a.v, _mm512_permute_ps(a.v, 0xb1), 0xaaaa);
    v = sum_difference(v, _mm512_permute_ps(v, 0x4e), 0xcccc);
    v = sum_difference(v, _mm512_shuffle_f32x4(v, v, 0xb1), 0xf0f0);
    return {sum_difference(v, _mm512_shuffle_f32x4(v, v, 0x4e), 0xff00)};
}
inline F32 where_less(F32 a, F32 b, F32 yes, F32 no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
// Two vectors as pairs of bfloat16, to the nearest, ties away from zero; `first` in the lower halves.
inline __m512i pairs_of(F32 first, F32 second) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i low = _mm512_add_epi32(_mm512_castps_si512(first.v), half);
    const __m512i high = _mm512_add_epi32(_mm512_castps_si512(second.v), half);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(low, 16), high);
}
// The sums of four, next to each other.
inline void store_sums(F32 a, F32 b, F32 c, F32 d, float* p) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a.v, b.v), _mm512_unpackhi_ps(a.v, b.v));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c.v, d.v), _mm512_unpackhi_ps(c.v, d.v));
    const __m512 sums = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

// Registers of a tile of sums in attention: of prompts rows, and vectors of columns; of a decode's
// scores tokens beside four heads, of its values heads, and vectors of numbers.
constexpr int SCORE_ROWS = 8, SCORE_VECTORS = 2, SCORE_TOKENS = 4;
constexpr int SUM_HEADS = 4, SUM_VECTORS = 4;
