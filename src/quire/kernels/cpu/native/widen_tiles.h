// Weights of four bits on their way into tiles of bfloat16. Included inside a namespace, behind
// dot512.h; linear_int.h tells how they are packed.
//
// Where a product's rows are many, this costs less than its sums in whole numbers, one for each
// 32 k's and their scales, which tiles cannot make at their speed. It also rounds less: weights and
// activations to 8 binary digits each, not activations to 127 steps.

constexpr int64_t NIBBLES_AHEAD = 1536;  // how far before its use a line is asked for

inline bool has_zeros(const LinearArgs& a) { return a.format == Format::int4_zeros; }

// `count` k's of 32 outputs, and where they begin.
inline int64_t bytes_of_nibbles(const LinearArgs& a, int64_t count) {
    return count * 16 + (count + a.group - 1) / a.group * (has_zeros(a) ? 96 : 64);
}
inline const uint8_t* nibbles_at(const LinearArgs& a, int64_t output, int64_t k) {
    return static_cast<const uint8_t*>(a.weight) +
           output / 32 * bytes_of_nibbles(a, a.k) + k / a.group * bytes_of_nibbles(a, a.group);
}

// 32 k's of 16 outputs, four lines of eight k's: a tile. What `scale` multiplies and then `offset`
// is added to are codes.
inline void widen_tile(const uint8_t* codes, F32 scale, F32 offset, uint8_t* out) {
    const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int eight = 0; eight < 4; ++eight, codes += 128) {
        const __m512i line = _mm512_loadu_si512(codes);
        // looks up the four lowest bits of lanes, whatever stands above them
        const auto code = [&](auto shift) __attribute__((always_inline)) {
            const F32 number{_mm512_permutexvar_ps(_mm512_srli_epi32(line, shift.value), numbers)};
            return fma(number, scale, offset);
        };
        each<4>(BODY(pair) {
            constexpr int shift = pair % 2 * 16 + pair / 2 * 4;
            const __m512i both = pairs_of(code(Number<shift>()), code(Number<shift + 8>()));
            _mm512_storeu_si512(out + pair * 64, both);
        });
        out += 256;
    }
}

// `count` k's of 32 outputs into tiles for each 32 k's: of the first 16 outputs, of the others.
inline void widen_nibbles(const LinearArgs& a, int64_t output, int64_t k, int64_t count,
                          uint8_t* out) {
    const int64_t group_bytes = bytes_of_nibbles(a, a.group), header = group_bytes - a.group * 16;
    const uint8_t* group = nibbles_at(a, output, k);
    for (int64_t inside = k % a.group; count > 0; count -= 32) {
        const uint8_t* codes = group + header + inside * 16;
        for (int64_t line = 0; line < 9; ++line) prefetch(codes + NIBBLES_AHEAD + line * 64);
        for (int half = 0; half < 2; ++half, out += 1024) {
            const F32 scale = load_half(group + half * 32);
            const __m128i points = _mm_loadu_si128(
                reinterpret_cast<const __m128i*>(group + 64 + half * 16));
            const F32 point = has_zeros(a) ? F32{_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(points))}
                                           : F32::all(8.0f);
            widen_tile(codes + half * 64, scale, F32::zero() - point * scale, out);
        }
        if ((inside += 32) == a.group) inside = 0, group += group_bytes;
    }
}
