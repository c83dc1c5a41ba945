// Activations as signed bytes, on their way into a product. Included inside a namespace.
//
// Rows are kept in blocks of those that a tile multiplies, so that all it reads lies in a row:
//   int4: for each 32 k's codes [rows][32], float scale [rows], start [rows]
//   int8: float scale [rows], start [rows], then for each 32 k's codes [rows][32], widened to
//         16 bits (k's 0, 2, 1, 3 of four) where there is no VNNI
// In int8 each 64 or 32 numbers were spread by a Hadamard matrix before they were rounded, as the
// weight's were, and in int4_spread each 32. A start is where a sum of products begins, which takes the zero point of the weights out of it.

constexpr int64_t CHUNK = 32;  // k's with one scale of activations; 16 bits can sum so many
#ifdef QUIRE_VNNI
constexpr int64_t WIDTH = 1;
#else
constexpr int64_t WIDTH = 2;
#endif
constexpr int64_t CODES8 = CHUNK * WIDTH;  // bytes of a row in a block
constexpr int64_t CODES4 = CHUNK + 8;

// A row of x, behind its norm if it has one.
template <typename T>
struct Stream {
    const T *x, *norm;
    float scale;
    F32 at(int64_t i) const {
        const F32 v = F32::load(x + i);
        return norm ? v * F32::all(scale) * F32::load(norm + i) : v;
    }
};

template <typename T>
Stream<T> stream(const LinearArgs& a, int64_t row) {
    const T* x = static_cast<const T*>(a.x) + row * a.k;
    return {x, static_cast<const T*>(a.norm_weight), norm_factor(a, x)};
}

inline float inverse_of(float largest) {  // in two steps, as PyTorch divides a number by a tensor
    return largest > 0.0f ? 127.0f * (1.0f / largest) : 0.0f;
}

// 32 numbers as codes, in registers: what was stored in halves is slow to read back as a whole.
inline __m256i bytes_of(F32 first, F32 second) {
    return _mm256_set_m128i(bytes_of(second), bytes_of(first));
}
// Sums over 32 codes: of each two that lie side by side in 16 bits; of each four.
inline __m256i two_sums(__m256i codes) {
    return _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
}
inline __m256i four_sums(__m256i codes) {
    return _mm256_madd_epi16(two_sums(codes), _mm256_set1_epi16(1));
}
inline int32_t total(__m256i sums) {
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
    int32_t sum = 0;
    for (const int32_t lane : lanes) sum += lane;
    return sum;
}
// Of k's 0 and 1 of each four, and of k's 2 and 3, in 16 bits each.
inline __m128i pair_sums(__m256i codes) {
    const __m256i pairs = two_sums(codes);
    __m128i x = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    x = _mm_add_epi16(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_add_epi16(x, _mm_shuffle_epi32(x, 0xb1));
}
inline int32_t both(__m128i pair) {
    return _mm_cvtsi128_si32(_mm_madd_epi16(pair, _mm_set1_epi16(1)));
}
inline int32_t start4(__m128i pair, bool zeros) {
    if (zeros) return _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), pair));
#ifdef QUIRE_VNNI
    return -8 * both(pair);
#else
    return _mm_cvtsi128_si32(_mm_mullo_epi16(pair, _mm_set1_epi16(-8)));
#endif
}

// 32 numbers times a Hadamard matrix.
inline void spread(F32& first, F32& second) {
    const F32 a = hadamard(first), b = hadamard(second);
    first = a + b, second = a - b;
}

template <typename T>
void round_row4(const LinearArgs& a, int64_t row, uint8_t* block, int64_t rows, int64_t place) {
    const Stream<T> x = stream<T>(a, row);
    for (int64_t i = 0; i < a.k; i += CHUNK, block += rows * CODES4) {
        F32 first = x.at(i), second = x.at(i + 16);
        if (a.format == Format::int4_spread) spread(first, second);
        const F32 larger = max_magnitude(max_magnitude(F32::zero(), first), second);
        const float largest = magnitude(larger), scale = largest / 127.0f;
        const F32 inverse = F32::all(inverse_of(largest));
        const __m256i codes = bytes_of(first * inverse, second * inverse);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(block + place * CHUNK), codes);
        const int32_t start = start4(pair_sums(codes), a.format == Format::int4_zeros);
        std::memcpy(block + rows * CHUNK + place * 4, &scale, 4);
        std::memcpy(block + rows * CHUNK + rows * 4 + place * 4, &start, 4);
    }
}

inline void store_wide(__m256i bytes, uint8_t* out) {
    __m256i* to = reinterpret_cast<__m256i*>(out);
#ifdef QUIRE_VNNI
    _mm256_storeu_si256(to, bytes);
#else
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
    const __m256i odd = _mm256_srai_epi16(bytes, 8);
    const __m256i low = _mm256_unpacklo_epi32(even, odd), high = _mm256_unpackhi_epi32(even, odd);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(low, high, 0x31));
#endif
}

// A row of k behind Hadamard matrices of 64 or 32; `at` gives 16 numbers of it. Returns what `magnitude` takes of all of them.
template <typename At>
inline F32 spread_row(int64_t k, int64_t together, At at, float* out) {
    F32 larger = F32::zero();
    const auto keep = [&](F32 v) {
        v.store(out);
        larger = max_magnitude(larger, v);
        out += 16;
    };
    for (int64_t i = 0; i < k; i += together) {
        F32 a = at(i), b = at(i + 16);
        spread(a, b);
        if (together == 32) {
            keep(a), keep(b);
            continue;
        }
        F32 c = at(i + 32), d = at(i + 48);
        spread(c, d);
        keep(a + c), keep(b + d), keep(a - c), keep(b - d);
    }
    return larger;
}

// Numbers of a row of k that are spread over each other, as its weight's are.
constexpr int64_t spread_together(Format format, int64_t k) {
    return format == Format::int8 && k % 64 == 0 ? 64 : 32;
}

// What a row's codes are multiplied by, and where a sum of their products begins.
struct Head {
    float scale;
    int32_t start;
};

// to(i): where the 32 codes from the i-th on belong.
template <typename T, typename To>
Head round_row8(const LinearArgs& a, int64_t row, To to) {
    const Stream<T> x = stream<T>(a, row);
    thread_local Scratch scratch;
    float* const row_spread = scratch.room<float>(a.k);
    const auto at = [&](int64_t i) { return x.at(i); };
    const F32 larger = spread_row(a.k, spread_together(a.format, a.k), at, row_spread);
    const float largest = magnitude(larger), scale = largest / 127.0f;
    const F32 inverse = F32::all(inverse_of(largest));
    __m256i sums = _mm256_setzero_si256();
    for (int64_t i = 0; i < a.k; i += CHUNK) {
        const __m256i codes =
            bytes_of(F32::load(row_spread + i) * inverse, F32::load(row_spread + i + 16) * inverse);
        sums = _mm256_add_epi32(sums, four_sums(codes));
        store_wide(codes, to(i));
    }
    return {scale, -128 * total(sums)};
}
