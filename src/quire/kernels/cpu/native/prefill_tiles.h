// Attention of several query tokens of one request, for one key head, by tiles of bfloat16. Included
// inside a namespace that has tiles.h, paged.h and softmax.h.
//
// As in prefill.h scores stand transposed, [keys, rows]: keys are a product's rows as they lie, and
// weights become the next one's columns in pairs of keys, without a shuffle. Queries, once for all
// keys, and values, once for a step's rows, are transposed. Weights are rounded to bfloat16, sums
// are float.

constexpr int64_t ROWS = 128;  // of a piece
constexpr int64_t KEYS = 128;  // of a step
constexpr int64_t PAIR = 2;    // numbers in a lane of a tile

// 2^x for -125 <= x <= 0 within 1e-4, which is less than what the weights lose by rounding; below
// that 2^-125, which nothing is left of. NaN stays NaN.
inline F32 rough_power_of_two(F32 x) {
    const F32 whole = F32::all(12582912.0f);  // so large that its last digit is 1
    const F32 in = max(F32::all(-125.0f), x), n = in + whole, r = in - (n - whole);
    F32 p = F32::all(0.05517167f);
    for (const float term : {0.24261114f, 0.69326099f, 0.99992807f}) p = fma(p, r, F32::all(term));
    const __m512i power = _mm512_slli_epi32(_mm512_castps_si512(n.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), power))};
}

// Weights as columns of a product: a line has the pairs of two keys.
struct InPairs {
    static constexpr int AT_ONCE = 2;
    bf16* weights;
    int64_t width;
    static F32 power(F32 x) { return rough_power_of_two(x); }
    void keep(int64_t t, int64_t lane, const F32 (&two)[2]) const {
        _mm512_storeu_si512(weights + t * width + lane * PAIR, pairs_of(two[0], two[1]));
    }
};

// 16 lines of 16 numbers of 4 bytes: squares of 1, 2, 4 and 8 change places across the diagonal.
inline void transpose(__m512i (&lines)[16]) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    each<4>(BODY(stage) {
        constexpr int size = 1 << stage;
        const __m512i bit = _mm512_set1_epi32(size);
        const __mmask16 right = _mm512_test_epi32_mask(lane, bit);
        // numbers from 16 on are those of the lower line
        const __m512i upper = _mm512_mask_add_epi32(lane, right, lane, _mm512_set1_epi32(16 - size));
        const __m512i lower = _mm512_add_epi32(upper, bit);
        each<16>(BODY(i) {
            if constexpr (!(i & size)) {
                const __m512i a = lines[i], b = lines[i + size];
                lines[i] = _mm512_permutex2var_epi32(a, upper, b);
                lines[i + size] = _mm512_permutex2var_epi32(a, lower, b);
            }
        });
    });
}

// `count` rows of a head, from a position on, as [padded, dim]; behind them zeros.
template <typename Code>
void take_rows(const void* cache, const Blocks& blocks, int64_t head, int64_t position,
               int64_t count, int64_t padded, int64_t dim, bf16* out) {
    for (int64_t t = 0; t < count; ++t, out += dim) {
        const char* at = static_cast<const char*>(cache) + blocks.offset(position + t) +
                         head * row_bytes<Code>(dim);
        const Code* row = reinterpret_cast<const Code*>(at);
        for (int64_t d = 0; d < dim; d += 16) {
            if constexpr (std::is_same_v<Code, bf16>) std::memcpy(out + d, row + d, 32);
            else (F32::load(row + d) * F32::all(scale_of(row, dim))).store(out + d);
        }
    }
    std::fill_n(out, (padded - count) * dim, bf16{0});
}

// Rows [16, dim], that of lane i at rows[i], as columns of a product: pairs [dim / 2, width], from a
// lane on.
inline void take_columns(const bf16* const* rows, int64_t dim, int64_t width, bf16* out) {
    for (int64_t d = 0; d < dim; d += 32) {
        __m512i lines[16];
        each<16>(BODY(i) { lines[i] = _mm512_loadu_si512(rows[i] + d); });
        transpose(lines);
        each<16>(BODY(i) { _mm512_storeu_si512(out + (d / PAIR + i) * width * PAIR, lines[i]); });
    }
}

// Values [keys, dim] as [dim, KEYS].
inline void transpose_values(const bf16* values, int64_t keys, int64_t dim, bf16* out) {
    const auto words = [&](int64_t t, int64_t d) {
        const void* at = values + t * dim + d;
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(at)));
    };
    for (int64_t t = 0; t < keys; t += 32)
        for (int64_t d = 0; d < dim; d += 16) {
            __m512i lines[16];
            each<16>(BODY(i) {
                const __m512i second = _mm512_slli_epi32(words(t + 2 * i + 1, d), 16);
                lines[i] = _mm512_or_si512(words(t + 2 * i, d), second);
            });
            transpose(lines);
            each<16>(BODY(i) { _mm512_storeu_si512(out + (d + i) * KEYS + t, lines[i]); });
        }
}

// sums [rows, width] = (from zero, or what they hold) + rows · columns; rows in lines `row` numbers
// apart, columns in pairs [depth / 2, width].
template <bool from_zero>
inline void add_product(const bf16* rows, int64_t count, int64_t row, const bf16* columns,
                        int64_t width, int64_t depth, float* sums) {
    const auto side = [](const bf16* first, int64_t second, int64_t stride, int64_t step) {
        const uint8_t* at = reinterpret_cast<const uint8_t*>(first);
        return Side{at, at + 2 * second, 2 * stride, 2 * step};
    };
    for (int64_t r = 0; r < count; r += 32)
        for (int64_t lane = 0; lane < width; lane += 32)
            add_block<ByPairs, from_zero, true, true>(
                side(rows + r * row, 16 * row, row, 32),
                side(columns + lane * PAIR, 16 * PAIR, width * PAIR, 16 * width * PAIR), depth / 32,
                sums + r * width + lane, width, {});
}

// Sums [dim, width] times `by` [width], where that is not 1 for all lanes.
inline void rescale(const float* by, int64_t dim, int64_t width, float* sums) {
    for (int64_t lane = 0; lane < width; lane += 16) {
        const F32 factor = F32::load(by + lane);
        if (!_mm512_cmp_ps_mask(factor.v, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ)) continue;
        for (int64_t d = 0; d < dim; ++d) {
            float* const at = sums + d * width + lane;
            (F32::load(at) * factor).store(at);
        }
    }
}

// Sums [dim, width] over `total` [width], from a lane on, into 16 rows or fewer.
inline void put_rows(const float* sums, const float* total, int64_t dim, int64_t width,
                     bf16* const* rows, int64_t count) {
    const F32 inverse = F32::all(1.0f) / F32::load(total);
    for (int64_t d = 0; d < dim; d += 16) {
        __m512i lines[16];
        each<16>(BODY(i) {
            lines[i] = _mm512_castps_si512((F32::load(sums + (d + i) * width) * inverse).v);
        });
        transpose(lines);
        for (int64_t i = 0; i < count; ++i) F32{_mm512_castsi512_ps(lines[i])}.store(rows[i] + d);
    }
}

// As `AttendRows` tells.
template <typename Code>
void attend_rows(const AttentionArgs& a, const int32_t* table, int64_t token, int64_t position,
                 int64_t count, int64_t head) {
    const Blocks blocks = blocks_of<Code>(a, table);
    const int64_t dim = a.head_dim, group = a.heads / a.kv_heads;
    const int64_t width = (count * group + 31) / 32 * 32;
    thread_local Scratch own, other;
    float* const sums = own.room<float>((dim + KEYS + 4) * width);
    float *scores = sums + dim * width, *positions = scores + KEYS * width;
    float *most = positions + width, *total = most + width, *by = total + width;
    bf16* const query = other.room<bf16>((dim + KEYS) * width + 3 * KEYS * dim);
    bf16 *weights = query + dim * width, *keys = weights + KEYS * width;
    bf16 *values = keys + KEYS * dim, *turned = values + KEYS * dim;
    const auto place = [&](int64_t r, int64_t stride) {  // of a lane's row, in numbers
        const int64_t q = std::min(r / group, count - 1);
        return (token + q) * stride + (head * group + r % group) * dim;
    };
    for (int64_t lane = 0; lane < width; lane += 16) {
        const bf16* rows[16];
        for (int64_t i = 0; i < 16; ++i) {
            rows[i] = static_cast<const bf16*>(a.query) + place(lane + i, a.query_stride);
            positions[lane + i] = static_cast<float>(position + std::min((lane + i) / group, count - 1));
        }
        take_columns(rows, dim, width, query + lane * PAIR);
        F32::all(LEAST).store(most + lane);
        F32::zero().store(total + lane);
    }
    const Tiles configured(32);
    const int64_t window = a.window ? a.window : position + count, end = position + count;
    const int64_t begin = std::max<int64_t>(0, position + 1 - window) / KEYS * KEYS;
    for (int64_t first = begin; first < end; first += KEYS) {
        const int64_t some = std::min(KEYS, end - first), padded = (some + 31) / 32 * 32;
        take_rows<Code>(a.k_cache, blocks, head, first, some, padded, dim, keys);
        take_rows<Code>(a.v_cache, blocks, head, first, some, padded, dim, values);
        transpose_values(values, padded, dim, turned);
        add_product<true>(keys, padded, dim, query, width, dim, scores);
        const bool masked = first + padded > position + 1 || first <= end - 1 - window;
        weigh_rows(scores, padded, width, first, masked, positions, static_cast<float>(window),
                   a.scale * LOG2_E, most, total, by, InPairs{weights, width});
        if (first == begin) {
            add_product<true>(turned, dim, KEYS, weights, width, padded, sums);
        } else {
            rescale(by, dim, width, sums);
            add_product<false>(turned, dim, KEYS, weights, width, padded, sums);
        }
    }
    for (int64_t lane = 0; lane < width; lane += 16) {
        bf16* rows[16];
        const int64_t some = std::clamp<int64_t>(count * group - lane, 0, 16);
        for (int64_t i = 0; i < some; ++i)
            rows[i] = static_cast<bf16*>(a.out) + place(lane + i, a.heads * dim);
        put_rows(sums + lane, total + lane, dim, width, rows, some);
    }
}
