// Attention of several query tokens of one request, for one key head, by GEMMs of bfloat16 pairs.
// Included inside a namespace that has paged.h and softmax.h.
//
// As in prefill.h scores stand transposed, [keys, rows]: keys are the rows of one GEMM as they lie, and
// weights become the next one's columns in pairs of keys, without a shuffle. Queries, once for all
// keys, and values, once for a step's rows, are transposed. Weights are rounded to bfloat16, sums
// are float. Gemm (amx.cpp, avx512_bf16.cpp) has the GEMM: sums [rows, LANES] = (from zero, or what
// they hold) + rows · columns; rows in lines `row` numbers apart, columns in pairs [depth / 2, LANES].
// Rows and depth are multiples of 32.

constexpr int64_t ROWS = 256;  // of a piece
constexpr int64_t KEYS = 128;  // of a step
constexpr int64_t LANES = 32;  // rows that are worked on at once, so that their scores stay in the cache
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
    static F32 power(F32 x) { return rough_power_of_two(x); }
    void keep(int64_t t, int64_t lane, const F32 (&two)[2]) const {
        _mm512_storeu_si512(weights + t * LANES + lane * PAIR, pairs_of(two[0], two[1]));
    }
};

// 16 lines of 16 numbers of 4 bytes: squares of 1, 2, 4 and 8 swap across the diagonal.
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

// Rows [16, dim], that of lane i at rows[i], as columns of a product: pairs [dim / 2, LANES], from
// a lane on.
inline void take_columns(const bf16* const* rows, int64_t dim, bf16* out) {
    for (int64_t d = 0; d < dim; d += 32) {
        __m512i lines[16];
        each<16>(BODY(i) { lines[i] = _mm512_loadu_si512(rows[i] + d); });
        transpose(lines);
        each<16>(BODY(i) { _mm512_storeu_si512(out + (d / PAIR + i) * LANES * PAIR, lines[i]); });
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

// Sums [dim, LANES] times `by` [LANES], where that is not 1 for all.
inline void rescale(const float* by, int64_t dim, float* sums) {
    for (int64_t lane = 0; lane < LANES; lane += 16) {
        const F32 factor = F32::load(by + lane);
        if (!_mm512_cmp_ps_mask(factor.v, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ)) continue;
        for (int64_t d = 0; d < dim; ++d) {
            float* const at = sums + d * LANES + lane;
            (F32::load(at) * factor).store(at);
        }
    }
}

// The queries of a piece. A row is one of them and a head that shares the key head; behind the last
// one it is repeated.
struct Queries {
    const AttentionArgs& a;
    int64_t token, position, count, head;
    int64_t group = a.heads / a.kv_heads, groups = (count * group + LANES - 1) / LANES;

    int64_t query(int64_t row) const { return std::min(row / group, count - 1); }
    int64_t offset(int64_t row, int64_t stride) const {  // in numbers
        return (token + query(row)) * stride + (head * group + row % group) * a.head_dim;
    }
};

// State of LANES rows from step to step.
struct Lanes {
    float *sums, *positions, *most, *total;  // [dim, LANES], [LANES]
    bf16* query;                             // pairs [dim / 2, LANES]

    void begin(const Queries& queries, int64_t row) const {
        for (int64_t lane = 0; lane < LANES; lane += 16) {
            const bf16* rows[16];
            for (int64_t i = 0; i < 16; ++i) {
                const int64_t r = row + lane + i;
                rows[i] = static_cast<const bf16*>(queries.a.query) +
                          queries.offset(r, queries.a.query_stride);
                positions[lane + i] = static_cast<float>(queries.position + queries.query(r));
            }
            take_columns(rows, queries.a.head_dim, query + lane * PAIR);
            F32::all(LEAST).store(most + lane);
            F32::zero().store(total + lane);
        }
    }

    void end(const Queries& queries, int64_t row) const {
        const int64_t dim = queries.a.head_dim, rows = queries.count * queries.group - row;
        for (int64_t lane = 0; lane < std::min(LANES, rows); lane += 16) {
            const F32 inverse = F32::all(1.0f) / F32::load(total + lane);
            for (int64_t d = 0; d < dim; d += 16) {
                __m512i lines[16];
                each<16>(BODY(i) {
                    const F32 sum = F32::load(sums + (d + i) * LANES + lane);
                    lines[i] = _mm512_castps_si512((sum * inverse).v);
                });
                transpose(lines);
                for (int64_t i = 0; i < std::min<int64_t>(16, rows - lane); ++i)
                    F32{_mm512_castsi512_ps(lines[i])}.store(
                        static_cast<bf16*>(queries.a.out) +
                        queries.offset(row + lane + i, queries.a.heads * dim) + d);
            }
        }
    }
};

// An `AttendRows`, see quire_cpu.h.
template <typename Gemm, typename Code>
void attend_rows(const AttentionArgs& a, const int32_t* table, int64_t token, int64_t position,
                 int64_t count, int64_t head) {
    const Blocks blocks = blocks_of<Code>(a, table);
    const Queries queries{a, token, position, count, head};
    const int64_t dim = a.head_dim, groups = queries.groups, floats = (dim + 3) * LANES;
    thread_local Scratch own, other;
    float* const scores = own.get<float>((KEYS + 1) * LANES + groups * floats);
    float* const by = scores + KEYS * LANES;
    bf16* const weights = other.get<bf16>(KEYS * LANES + 3 * KEYS * dim + groups * dim * LANES);
    bf16 *keys = weights + KEYS * LANES, *values = keys + KEYS * dim, *transposed = values + KEYS * dim;
    const auto lanes = [&](int64_t g) {
        float *const sums = by + LANES + g * floats, *const positions = sums + dim * LANES;
        bf16* const query = transposed + KEYS * dim + g * dim * LANES;
        return Lanes{sums, positions, positions + LANES, positions + 2 * LANES, query};
    };
    for (int64_t g = 0; g < groups; ++g) lanes(g).begin(queries, g * LANES);
    const Gemm gemm;
    const int64_t window = a.window ? a.window : position + count, end = position + count;
    const int64_t begin = std::max<int64_t>(0, position + 1 - window) / KEYS * KEYS;
    for (int64_t first = begin; first < end; first += KEYS) {
        const int64_t some = std::min(KEYS, end - first), padded = (some + 31) / 32 * 32;
        dequantize_rows<Code>(a.k_cache, blocks, head, first, some, dim, keys);
        dequantize_rows<Code>(a.v_cache, blocks, head, first, some, dim, values);
        for (bf16* rows : {keys, values})
            std::fill_n(rows + some * dim, (padded - some) * dim, bf16{0});
        transpose_values(values, padded, dim, transposed);
        for (int64_t g = 0; g < groups; ++g) {
            const Lanes at = lanes(g);
            const int64_t oldest = position + queries.query(g * LANES);
            const int64_t newest = position + queries.query(g * LANES + LANES - 1);
            if (first > newest) continue;
            gemm.template add<true>(keys, padded, dim, at.query, dim, scores);
            const bool masked = first + padded > oldest + 1 || first <= newest - window;
            weigh_rows(scores, padded, LANES, first, masked, at.positions, static_cast<float>(window),
                       a.scale * LOG2_E, at.most, at.total, by, InPairs{weights});
            if (first == begin) {
                gemm.template add<true>(transposed, dim, KEYS, weights, padded, at.sums);
            } else {
                rescale(by, dim, at.sums);
                gemm.template add<false>(transposed, dim, KEYS, weights, padded, at.sums);
            }
        }
    }
    for (int64_t g = 0; g < groups; ++g) lanes(g).end(queries, g * LANES);
}

// Serves queries in bfloat16 by heads of whole rows of 32 numbers; no attend for others.
template <typename Gemm>
Prompts prompts_by(const AttentionArgs& a) {
    if (a.dtype != Dtype::bf16 || a.head_dim % 32 || a.soft_cap) return {};
    switch (a.cache_dtype) {
        case Dtype::f32: return {};
        case Dtype::bf16: return {attend_rows<Gemm, bf16>, ROWS};
        case Dtype::fp8: return {attend_rows<Gemm, fp8>, ROWS};
        case Dtype::int8: return {attend_rows<Gemm, int8_t>, ROWS};
    }
    return {};
}
