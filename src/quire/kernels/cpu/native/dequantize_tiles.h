// AMX tiles of four-bit weights, dequantized to bfloat16 or requantized to bytes. Included inside a
// namespace, after dot512.h; linear_int.h describes how they are packed.
//
// With many rows this costs less than integer sums for each 32 k's with scales of their own, which
// tiles cannot compute at full speed. Bytes need one scale for each output and one for each row of
// activations, which is exact enough after a Hadamard rotation only: other weights are dequantized
// to bfloat16.

#include "codebook.h"

constexpr int64_t NIBBLES_AHEAD = 1536;  // how far before its use a line is asked for

inline bool has_zeros(const LinearArgs& a) { return a.format == Format::int4_zeros; }

// The block of an output, and the group of a k in it.
inline const uint8_t* block_at(const LinearArgs& a, int64_t output) {
    return static_cast<const uint8_t*>(a.weight) +
           output / 32 * block_bytes(a.format, a.k, a.group);
}
inline const uint8_t* group_at(const LinearArgs& a, int64_t output, int64_t k) {
    return block_at(a, output) + block_header(a.format) +
           k / a.group * group_bytes(a.format, a.group);
}

// Each 32 of `count` k's: use(group, codes, i), of a group's scales, of the codes and of k's before.
template <typename Use>
inline void each_chunk(const LinearArgs& a, int64_t output, int64_t k, int64_t count, Use use) {
    const int64_t header = group_header(a.format);
    const uint8_t* group = group_at(a, output, k);
    for (int64_t i = 0, inside = k % a.group; i < count; i += 32) {
        const uint8_t* codes = group + header + inside * 16;
        for (int64_t line = 0; line < 9; ++line) prefetch(codes + NIBBLES_AHEAD + line * 64);
        use(group, codes, i);
        if ((inside += 32) == a.group) inside = 0, group += group_bytes(a.format, a.group);
    }
}

// What the 16 codes stand for, before a scale.
inline __m512 numbers_of(Format format) {
    if (!has_codebook(format))
        return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codebook(format)));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
inline F32 scales_of(Format format, const uint8_t* group, int half) {
    const uint8_t* at = group + half * 16 * scale_bytes(format);
    if (format == Format::mxfp4) return load_scale<Format::mxfp4>(at);
    return format == Format::nf4 ? load_scale<Format::nf4>(at) : load_half(at);
}

// 32 k's of 16 outputs, four lines of eight k's: a tile. What `scale` multiplies and then `offset`
// is added to are the numbers of codes.
inline void dequantize_tile(__m512 numbers, const uint8_t* codes, F32 scale, F32 offset,
                            uint8_t* out) {
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
inline void dequantize_to_pairs(const LinearArgs& a, int64_t output, int64_t k, int64_t count,
                                uint8_t* out) {
    const __m512 numbers = numbers_of(a.format);
    each_chunk(a, output, k, count, [&](const uint8_t* group, const uint8_t* codes, int64_t i) {
        for (int half = 0; half < 2; ++half) {
            const F32 scale = scales_of(a.format, group, half);
            const __m128i points = _mm_loadu_si128(
                reinterpret_cast<const __m128i*>(group + 64 + half * 16));
            const F32 point = has_zeros(a) ? F32{_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(points))}
                                           : F32::all(has_codebook(a.format) ? 0.0f : 8.0f);
            dequantize_tile(numbers, codes + half * 64, scale, F32::zero() - point * scale,
                            out + i * 64 + half * 1024);
        }
    });
}

// Eight k's of 16 outputs: two lines of four. A code times its output's `factor`, and the offset,
// is 256 times a byte: its upper half in 16 bits.
inline void requantize_line(const uint8_t* codes, __m512i factor, __m512i offset, uint8_t* out) {
    const __m512i line = _mm512_loadu_si512(codes), lowest = _mm512_set1_epi16(15);
    const auto numbers = [&](auto shift) __attribute__((always_inline)) {
        const __m512i code = _mm512_and_si512(_mm512_srli_epi16(line, shift.value), lowest);
        return _mm512_add_epi16(_mm512_mullo_epi16(code, factor), offset);
    };
    each<2>(BODY(four) {
        const __m512i even = _mm512_srli_epi16(numbers(Number<four * 4>()), 8);
        const __m512i odd = numbers(Number<four * 4 + 8>());
        _mm512_storeu_si512(out + four * 64,
                            _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, even, odd));
    });
}

// The same into tiles of bytes, 128 added, for each 64 k's. A factor is a group's scale over that of
// the output's bytes, with eight binary digits behind the point: -8 times the largest is ±127.
inline void requantize_to_bytes(const LinearArgs& a, int64_t output, int64_t k, int64_t count,
                                uint8_t* out) {
    const float* const scales = reinterpret_cast<const float*>(block_at(a, output));
    const F32 inverse[2] = {F32::all(256.0f) / F32::load(scales),
                            F32::all(256.0f) / F32::load(scales + 16)};
    each_chunk(a, output, k, count, [&](const uint8_t* group, const uint8_t* codes, int64_t i) {
        for (int half = 0; half < 2; ++half) {
            const F32 quotient = load_half(group + half * 32) * inverse[half];
            const __m512i lower = _mm512_cvtps_epi32(quotient.v);
            const __m512i factor =
                _mm512_mask_blend_epi16(0xaaaaaaaa, lower, _mm512_slli_epi32(lower, 16));
            const __m512i offset =  // of a code of 8, with what rounds to the nearest
                _mm512_sub_epi16(_mm512_set1_epi16(128 * 256 + 128), _mm512_slli_epi16(factor, 3));
            uint8_t* const tile = out + i / 64 * 2048 + i % 64 * 16 + half * 1024;
            for (int eight = 0; eight < 4; ++eight)
                requantize_line(codes + half * 64 + eight * 128, factor, offset, tile + eight * 128);
        }
    });
}
