// Dot products of bytes, sixteen outputs at a time. Included inside a namespace, after vec512.h.
//
// Weights are the unsigned operand and activations the signed one, k in fours: lane i of a Line
// holds four codes of output i, a Four the same four activations in every lane. With VNNI one
// instruction multiplies and adds up; the plain twins get the same whole numbers.

constexpr int BLOCKS = 2;      // a tile is so many times 16 outputs
#ifdef QUIRE_PLAIN_DOT
constexpr int BYTE_ROWS = 3;
#else
constexpr int BYTE_ROWS = 12;  // by so many rows: what 32 registers hold
#endif

struct Four {
    __m512i v;
    static Four at(const void* p) {
        int32_t four;
        std::memcpy(&four, p, sizeof four);
        return {_mm512_set1_epi32(four)};
    }
};
struct Line {
    __m512i v;
    static Line load(const void* p) { return {_mm512_loadu_si512(p)}; }
    static Line zeros(const uint8_t* p) {  // 16 zero points, each a pair of 16-bit numbers
        const __m128i z = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm512_mullo_epi32(_mm512_cvtepu8_epi32(z), _mm512_set1_epi32(0x10001))};
    }
};
inline Line low_nibbles(Line a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline Line high_nibbles(Line a) { return low_nibbles({_mm512_srli_epi16(a.v, 4)}); }

inline F32 load_half(const uint8_t* p) {  // 16 x float16
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F32 load_exponents(const uint8_t* p) {  // 16 x e8m0: exponents of two, 127 added
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23))};
}

// Codes below 16 looked up as signed bytes; with VNNI 128 is added, which the start takes out.
struct Book {
    __m512i v;
    static Book at(const int8_t* numbers) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers));
#ifdef QUIRE_VNNI
        return {_mm512_broadcast_i32x4(_mm_xor_si128(bytes, _mm_set1_epi8(-128)))};
#else
        return {_mm512_broadcast_i32x4(bytes)};
#endif
    }
};
inline Line shuffled(Book book, Line codes) { return {_mm512_shuffle_epi8(book.v, codes.v)}; }
// The larger of a, not negative, and |b|. NaN counts as the largest, so that it is never lost.
inline F32 max_magnitude(F32 a, F32 b) {
    const __m512i bits = _mm512_castps_si512(abs(b).v);
    return {_mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a.v), bits))};
}
inline float magnitude(F32 a) {  // the largest lane of what `max_magnitude` gave
    return std::bit_cast<float>(_mm512_reduce_max_epu32(_mm512_castps_si512(a.v)));
}
inline __m128i bytes_of(F32 a) {  // to the nearest, ties to even
    return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v));
}

struct Sum {
    __m512i v;
    F32 total() const { return {_mm512_cvtepi32_ps(v)}; }
};

#ifdef QUIRE_VNNI
// sum + u · s in fours. As the intrinsic, but that one GCC 12 puts two moves around.
inline __m512i dot(__m512i sum, __m512i u, __m512i s) {
#ifdef QUIRE_PLAIN_DOT  // the same by other instructions, to be tested without VNNI
    const __m512i low = _mm512_set1_epi16(255);
    const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(s, 8), 8), odd = _mm512_srai_epi16(s, 8);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_and_si512(u, low), even));
    return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_srli_epi16(u, 8), odd));
#else
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(s));
    return sum;
#endif
}
struct Sum4 : Sum {  // of nibbles · bytes
    static Sum4 from(Four start) { return {{start.v}}; }
    static Sum4 from(Line zeros, Four start) { return {{_mm512_madd_epi16(zeros.v, start.v)}}; }
    void add(Line w, Four x) { v = dot(v, w.v, x.v); }
};
using SumBook = Sum4;
using Looked = Line;
inline Looked look_up(Book book, Line codes) { return shuffled(book, codes); }
using Wide = Line;
using Wide4 = Four;
using Sum8 = Sum4;  // of unsigned bytes · bytes
inline Wide to_wide(Line a) { return a; }
#else
// In 16 bits, of k's 0 and 1 of four, and of 2 and 3: 32 products of each output. On its way the
// sum may wrap around, but with its zero point taken out the end of it fits.
struct Sum4 {
    __m512i v;
    static Sum4 from(Four start) { return {start.v}; }
    static Sum4 from(Line zeros, Four start) { return {_mm512_mullo_epi16(zeros.v, start.v)}; }
    void add(Line w, Four x) { v = _mm512_add_epi16(v, _mm512_maddubs_epi16(w.v, x.v)); }
    F32 total() const { return Sum{_mm512_madd_epi16(v, _mm512_set1_epi16(1))}.total(); }
};
struct Looked {
    __m512i sizes;
    __mmask64 negative;
};
inline Looked look_up(Book book, Line codes) {
    const __m512i found = shuffled(book, codes).v;
    return {_mm512_abs_epi8(found), _mm512_movepi8_mask(found)};
}
struct SumBook : Sum {  // of signed bytes · bytes: of sizes, and of bytes with the numbers' signs
    static SumBook from(Four start) { return {{start.v}}; }
    void add(const Looked& w, Four x) {
        const __m512i signs = _mm512_mask_sub_epi8(x.v, w.negative, _mm512_setzero_si512(), x.v);
        const __m512i pairs = _mm512_maddubs_epi16(w.sizes, signs);
        v = _mm512_add_epi32(v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    }
};
struct Wide {  // in 16 bits, k's 0 and 2 of four, 1 and 3
    __m512i even, odd;
};
struct Wide4 {
    Four even, odd;
    static Wide4 at(const uint8_t* p) { return {Four::at(p), Four::at(p + 4)}; }
};
inline Wide to_wide(Line a) {
    return {_mm512_and_si512(a.v, _mm512_set1_epi16(255)), _mm512_srli_epi16(a.v, 8)};
}
struct Sum8 : Sum {
    static Sum8 from(Four start) { return {{start.v}}; }
    void add(Wide w, Wide4 x) {
        v = _mm512_add_epi32(v, _mm512_madd_epi16(w.even, x.even.v));
        v = _mm512_add_epi32(v, _mm512_madd_epi16(w.odd, x.odd.v));
    }
};
#endif
