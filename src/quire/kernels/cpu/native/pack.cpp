// Packs weights into the layouts that the GEMMs read, see Format and linear_int.h; once per weight.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "pool.h"
#include "quire_cpu.h"

namespace {

// Of eight codes of four bits, the first lowest: each byte gets one of the first and last four.
uint32_t interleaved(uint32_t eight) {
    const auto deposit = [](uint32_t four) {
        const uint32_t two = (four | four << 8) & 0x00ff00ff;
        return (two | two << 4) & 0x0f0f0f0f;
    };
    return deposit(eight & 0xffff) | deposit(eight >> 16) << 4;
}

// The scale of an output whose four-bit codes are requantized to bytes: -8 times its largest scale
// becomes ±127. size: the bits of that scale as float16, without its sign.
float scale_of_bytes(uint16_t size) {
    if (size >= 0x7c00) return NAN;
    const uint32_t bits = static_cast<uint32_t>(size) << 13;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return size ? scale * 0x1p112f * 8.0f / 127.0f : 1.0f;
}

bool is_float(const PackArgs& a) { return a.format == Format::f32 || a.format == Format::bf16; }

// Words of four bytes in a row: each holds one float or two bfloat16.
int64_t words_of_row(const PackArgs& a) { return a.format == Format::f32 ? a.k : a.k / 2; }

void pack_row8(const PackArgs& a, int64_t row, uint8_t* block) {
    const uint8_t* codes = static_cast<const uint8_t*>(a.codes) + row * a.k;
    const int64_t output = row % WIDE;
    std::memcpy(block + output * 4, static_cast<const float*>(a.scale) + row, 4);
    uint8_t* out = block + block_header(a.format) + output * 4;
    for (int64_t k = 0; k < a.k; k += 4, out += WIDE * 4) {
        uint32_t four;
        std::memcpy(&four, codes + k, 4);
        four ^= 0x80808080;  // adds 128 to each
        std::memcpy(out, &four, 4);
    }
}

void pack_row4(const PackArgs& a, int64_t row, uint8_t* block) {
    const uint8_t* codes = static_cast<const uint8_t*>(a.codes) + row * a.k / 2;
    const int64_t groups = a.k / a.group, output = row % WIDE;
    const int64_t size = scale_bytes(a.format);
    const uint8_t* scales = static_cast<const uint8_t*>(a.scale) + row * groups * size;
    if (a.format == Format::int4_hadamard) {
        const uint16_t* scale = static_cast<const uint16_t*>(a.scale) + row * groups;
        uint16_t largest = 0;
        for (int64_t g = 0; g < groups; ++g) largest = std::max<uint16_t>(largest, scale[g] & 0x7fff);
        const float bytes = scale_of_bytes(largest);
        std::memcpy(block + output * 4, &bytes, 4);
    }
    block += block_header(a.format);
    for (int64_t g = 0; g < groups; ++g, block += group_bytes(a.format, a.group)) {
        std::memcpy(block + output * size, scales + g * size, static_cast<size_t>(size));
        if (a.zeros)
            block[WIDE * 2 + output] = static_cast<const uint8_t*>(a.zeros)[row * groups + g];
        uint8_t* out = block + group_header(a.format) + output * 4;
        for (int64_t k = 0; k < a.group; k += 8, codes += 4, out += WIDE * 4) {
            uint32_t eight;
            std::memcpy(&eight, codes, 4);
            eight = interleaved(eight);
            std::memcpy(out, &eight, 4);
        }
    }
}

// Packs 16 rows, some words of each at a time, so that the output stays in the L1 cache.
void pack_numbers(const PackArgs& a, int64_t first, uint8_t* block) {
    constexpr int64_t some = 128;
    const int64_t words = words_of_row(a);
    for (int64_t begin = 0; begin < words; begin += some)
        for (int64_t row = 0; row < 16; ++row) {
            const uint8_t* from = static_cast<const uint8_t*>(a.codes) +
                                  source_row(first + row, a.half) * words * 4;
            for (int64_t i = begin; i < std::min(begin + some, words); ++i)
                std::memcpy(block + (i * 16 + row) * 4, from + i * 4, 4);
        }
}

}  // namespace

void pack_weight(const PackArgs& a) {
    const int64_t bytes = is_float(a) ? WIDE * 4 * words_of_row(a)
                                      : block_bytes(a.format, a.k, a.group);
    parallel_for((a.n + WIDE - 1) / WIDE, a.threads, [&](int64_t number) {
        uint8_t* block = static_cast<uint8_t*>(a.out) + number * bytes;
        const int64_t first = number * WIDE, end = std::min(first + WIDE, a.n);
        if (is_float(a)) {
            for (int64_t row = first; row < end; row += 16, block += bytes / 2)
                pack_numbers(a, row, block);
            return;
        }
        // outputs beyond the last become zeros
        if (end < first + WIDE) std::memset(block, 0, static_cast<size_t>(bytes));
        for (int64_t row = first; row < end; ++row)
            (is_int8(a.format) ? pack_row8 : pack_row4)(a, row, block);
    });
}
