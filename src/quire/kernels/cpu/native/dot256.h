// Dot products of bytes, sixteen outputs at a time in two registers. Included inside a namespace,
// after vec256.h; names and meaning are those of dot512.h.

constexpr int BLOCKS = 1;
#ifdef QUIRE_PLAIN_DOT
constexpr int BYTE_ROWS = 3;
#else
constexpr int BYTE_ROWS = 4;
#endif

struct Four {
    __m256i v;
    static Four at(const void* p) {
        int32_t four;
        std::memcpy(&four, p, sizeof four);
        return {_mm256_set1_epi32(four)};
    }
};
struct Line {
    __m256i lo, hi;
    static Line load(const void* p) {
        const __m256i* halves = static_cast<const __m256i*>(p);
        return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
    }
    static Line zeros(const uint8_t* p) { return {pairs(p), pairs(p + 8)}; }

   private:
    static __m256i pairs(const uint8_t* p) {
        const __m128i z = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
        return _mm256_mullo_epi32(_mm256_cvtepu8_epi32(z), _mm256_set1_epi32(0x10001));
    }
};
inline Line low_nibbles(Line a) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
inline Line high_nibbles(Line a) {
    return low_nibbles({_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)});
}

inline F32 load_half(const uint8_t* p) {
    const __m128i* halves = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline F32 load_exponents(const uint8_t* p) {  // 16 x e8m0
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i lo = _mm256_cvtepu8_epi32(bytes), hi = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 23)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 23))};
}

// Codes below 16 looked up as signed bytes; with VNNI 128 is added.
struct Book {
    __m256i v;
    static Book at(const int8_t* numbers) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers));
#ifdef QUIRE_VNNI
        return {_mm256_broadcastsi128_si256(_mm_xor_si128(bytes, _mm_set1_epi8(-128)))};
#else
        return {_mm256_broadcastsi128_si256(bytes)};
#endif
    }
};
inline Line shuffled(Book book, Line codes) {
    return {_mm256_shuffle_epi8(book.v, codes.lo), _mm256_shuffle_epi8(book.v, codes.hi)};
}
inline __m256 max_bits(__m256 a, __m256 b) {
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
inline F32 max_magnitude(F32 a, F32 b) {
    return {max_bits(a.lo, abs(b).lo), max_bits(a.hi, abs(b).hi)};
}
inline float magnitude(F32 a) {
    const __m256i eight = _mm256_castps_si256(max_bits(a.lo, a.hi));
    __m128i x = _mm256_extracti128_si256(eight, 1);
    x = _mm_max_epu32(x, _mm256_castsi256_si128(eight));
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0x4e));
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0xb1));
    return std::bit_cast<float>(_mm_cvtsi128_si32(x));
}
inline __m128i bytes_of(F32 a) {
    const __m256i lo = _mm256_cvtps_epi32(a.lo), hi = _mm256_cvtps_epi32(a.hi);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
    const __m128i upper = _mm256_extracti128_si256(words, 1);
    return _mm_packs_epi16(_mm256_castsi256_si128(words), upper);
}

struct Sum {
    __m256i lo, hi;
    F32 total() const { return {_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)}; }
};

#ifdef QUIRE_VNNI
inline __m256i dot(__m256i sum, __m256i u, __m256i s) {
#ifdef QUIRE_PLAIN_DOT
    const __m256i low = _mm256_set1_epi16(255);
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8), odd = _mm256_srai_epi16(s, 8);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_and_si256(u, low), even));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_srli_epi16(u, 8), odd));
#else
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(u), "x"(s));
    return sum;
#endif
}
struct Sum4 : Sum {
    static Sum4 from(Four start) { return {{start.v, start.v}}; }
    static Sum4 from(Line zeros, Four start) {
        return {{_mm256_madd_epi16(zeros.lo, start.v), _mm256_madd_epi16(zeros.hi, start.v)}};
    }
    void add(Line w, Four x) {
        lo = dot(lo, w.lo, x.v);
        hi = dot(hi, w.hi, x.v);
    }
};
using SumBook = Sum4;
using Looked = Line;
inline Looked look_up(Book book, Line codes) { return shuffled(book, codes); }
using Wide = Line;
using Wide4 = Four;
using Sum8 = Sum4;
inline Wide to_wide(Line a) { return a; }
#else
struct Sum4 {
    __m256i lo, hi;
    static Sum4 from(Four start) { return {start.v, start.v}; }
    static Sum4 from(Line zeros, Four start) {
        return {_mm256_mullo_epi16(zeros.lo, start.v), _mm256_mullo_epi16(zeros.hi, start.v)};
    }
    void add(Line w, Four x) {
        lo = _mm256_add_epi16(lo, _mm256_maddubs_epi16(w.lo, x.v));
        hi = _mm256_add_epi16(hi, _mm256_maddubs_epi16(w.hi, x.v));
    }
    F32 total() const {
        const __m256i ones = _mm256_set1_epi16(1);
        return Sum{_mm256_madd_epi16(lo, ones), _mm256_madd_epi16(hi, ones)}.total();
    }
};
struct Looked {
    Line sizes, numbers;
};
inline Looked look_up(Book book, Line codes) {
    const Line found = shuffled(book, codes);
    return {{_mm256_abs_epi8(found.lo), _mm256_abs_epi8(found.hi)}, found};
}
struct SumBook : Sum {  // of signed bytes · bytes: of sizes, and of bytes with the numbers' signs
    static SumBook from(Four start) { return {{start.v, start.v}}; }
    void add(const Looked& w, Four x) {
        const __m256i ones = _mm256_set1_epi16(1);
        const auto products = [&](__m256i size, __m256i number) {
            return _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(x.v, number)), ones);
        };
        lo = _mm256_add_epi32(lo, products(w.sizes.lo, w.numbers.lo));
        hi = _mm256_add_epi32(hi, products(w.sizes.hi, w.numbers.hi));
    }
};
struct Wide {
    Line even, odd;
};
struct Wide4 {
    Four even, odd;
    static Wide4 at(const uint8_t* p) { return {Four::at(p), Four::at(p + 4)}; }
};
inline Wide to_wide(Line a) {
    const __m256i mask = _mm256_set1_epi16(255);
    return {{_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)},
            {_mm256_srli_epi16(a.lo, 8), _mm256_srli_epi16(a.hi, 8)}};
}
struct Sum8 : Sum {
    static Sum8 from(Four start) { return {{start.v, start.v}}; }
    void add(const Wide& w, Wide4 x) {
        lo = _mm256_add_epi32(lo, _mm256_madd_epi16(w.even.lo, x.even.v));
        hi = _mm256_add_epi32(hi, _mm256_madd_epi16(w.even.hi, x.even.v));
        lo = _mm256_add_epi32(lo, _mm256_madd_epi16(w.odd.lo, x.odd.v));
        hi = _mm256_add_epi32(hi, _mm256_madd_epi16(w.odd.hi, x.odd.v));
    }
};
#endif
