// Rounds activations to signed bytes on their way into a GEMM. Included inside a namespace.
//
// Rows are stored in blocks of as many as a tile multiplies, so that it reads memory in order:
//   int4: for each 32 k's codes [rows][32], float scale [rows], start [rows]
//   int8: float scale [rows], start [rows], then for each 32 k's codes [rows][32], extended to
//         16 bits (k's 0, 2, 1, 3 of four) where there is no VNNI
// In int8_hadamard each 64 (or 32) numbers are rotated by a Hadamard matrix before they are rounded,
// as the weight's were, and in int4_hadamard each 32. A start is the initial value of a sum of
// products, which takes the zero point of the weights out of it.

constexpr int64_t CHUNK = 32;  // k's with one scale of activations; 16 bits can sum so many
#ifdef QUIRE_VNNI
constexpr int64_t WIDTH = 1;
#else
constexpr int64_t WIDTH = 2;
#endif
constexpr int64_t CODES8 = CHUNK * WIDTH;  // bytes of a row in a block
constexpr int64_t CODES4 = CHUNK + 8;

// A row of x, normalised if there is a norm.
template <typename T>
struct NormalizedRow {
    const T *x, *norm;
    float scale;
    F32 at(int64_t i) const {
        const F32 v = F32::load(x + i);
        return norm ? v * F32::all(scale) * F32::load(norm + i) : v;
    }
};

template <typename T>
NormalizedRow<T> normalized_row(const LinearArgs& a, int64_t row) {
    const T* x = static_cast<const T*>(a.x) + row * a.k;
    return {x, static_cast<const T*>(a.norm_weight), norm_factor(a, x)};
}

inline float inverse_of(float largest) {  // in two steps, as PyTorch divides a number by a tensor
    return largest > 0.0f ? 127.0f * (1.0f / largest) : 0.0f;
}

// 32 numbers as codes, combined in registers: two half stores and one full load would be slow.
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
inline int32_t start4(__m128i pair, Format format) {
    if (format == Format::int4_zeros)
        return _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), pair));
#ifdef QUIRE_VNNI
    return (has_codebook(format) ? -128 : -8) * both(pair);
#else
    if (has_codebook(format)) return 0;  // looked up as signed bytes
    return _mm_cvtsi128_si32(_mm_mullo_epi16(pair, _mm_set1_epi16(-8)));
#endif
}

// Multiplies 32 numbers by a Hadamard matrix.
inline void hadamard32(F32& first, F32& second) {
    const F32 a = hadamard(first), b = hadamard(second);
    first = a + b, second = a - b;
}

template <typename T>
void round_row4(const LinearArgs& a, int64_t row, uint8_t* block, int64_t rows, int64_t index) {
    const NormalizedRow<T> x = normalized_row<T>(a, row);
    for (int64_t i = 0; i < a.k; i += CHUNK, block += rows * CODES4) {
        F32 first = x.at(i), second = x.at(i + 16);
        if (a.format == Format::int4_hadamard) hadamard32(first, second);
        const F32 larger = max_magnitude(max_magnitude(F32::zero(), first), second);
        const float largest = magnitude(larger), scale = largest / 127.0f;
        const F32 inverse = F32::all(inverse_of(largest));
        const __m256i codes = bytes_of(first * inverse, second * inverse);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(block + index * CHUNK), codes);
        const int32_t start = start4(pair_sums(codes), a.format);
        std::memcpy(block + rows * CHUNK + index * 4, &scale, 4);
        std::memcpy(block + rows * CHUNK + rows * 4 + index * 4, &start, 4);
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

// A row of k rotated by Hadamard matrices of `size` 64 or 32, or copied if it is 1; at(i): 16 of its
// numbers. Returns what `magnitude` takes, of all of them.
template <typename At>
inline F32 rotate_row(int64_t k, int64_t size, At at, float* out) {
    F32 larger = F32::zero();
    const auto keep = [&](F32 v) {
        v.store(out);
        larger = max_magnitude(larger, v);
        out += 16;
    };
    if (size == 1) {
        for (int64_t i = 0; i < k; i += 16) keep(at(i));
        return larger;
    }
    for (int64_t i = 0; i < k; i += size) {
        F32 a = at(i), b = at(i + 16);
        hadamard32(a, b);
        if (size == 32) {
            keep(a), keep(b);
            continue;
        }
        F32 c = at(i + 32), d = at(i + 48);
        hadamard32(c, d);
        keep(a + c), keep(b + d), keep(a - c), keep(b - d);
    }
    return larger;
}

// Size of the Hadamard matrices by which rows of k are rotated before they are rounded to bytes.
constexpr int64_t hadamard_size(Format format, int64_t k) {
    if (format == Format::int8 || format == Format::int8_a16) return 1;
    return format == Format::int8_hadamard && k % 64 == 0 ? 64 : 32;
}

// The same product with as many rows as there are planes of them.
inline LinearArgs in_planes(LinearArgs a) {
    if (a.format == Format::int8_a16) a.rows *= 2;
    return a;
}

// What a row's codes are multiplied by, and where a sum of their products begins.
struct Head {
    float scale;
    int32_t start;
};

// Of 32 numbers, by how much their codes are off, as codes in units of 1/254.
inline __m256i errors_of(__m256i codes, F32 first, F32 second) {
    alignas(32) int8_t stored[CHUNK];
    _mm256_store_si256(reinterpret_cast<__m256i*>(stored), codes);
    const F32 unit = F32::all(254.0f);
    return bytes_of((first - F32::load(stored)) * unit, (second - F32::load(stored + 16)) * unit);
}

// Rounds a row to bytes with one scale. to(i): the address for the 32 codes from the i-th on. In
// int8_a16 rows 2r and 2r + 1 are two planes of x's row r: its codes, and their errors as codes.
template <typename T, typename To>
Head round_row8(const LinearArgs& a, int64_t row, To to) {
    const bool planes = a.format == Format::int8_a16, second = planes && row % 2;
    const NormalizedRow<T> x = normalized_row<T>(a, planes ? row / 2 : row);
    thread_local Scratch scratch;
    float* const rotated = scratch.get<float>(a.k);
    const auto at = [&](int64_t i) { return x.at(i); };
    const F32 larger = rotate_row(a.k, hadamard_size(a.format, a.k), at, rotated);
    const float largest = magnitude(larger), scale = largest / 127.0f;
    const F32 inverse = F32::all(inverse_of(largest));
    __m256i sums = _mm256_setzero_si256();
    for (int64_t i = 0; i < a.k; i += CHUNK) {
        const F32 low = F32::load(rotated + i) * inverse;
        const F32 high = F32::load(rotated + i + 16) * inverse;
        __m256i codes = bytes_of(low, high);
        if (second) codes = errors_of(codes, low, high);
        sums = _mm256_add_epi32(sums, four_sums(codes));
        store_wide(codes, to(i));
    }
    return {second ? scale / 254.0f : scale, -128 * total(sums)};
}
