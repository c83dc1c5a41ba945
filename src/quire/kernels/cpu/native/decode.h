// Attention of one query token over a stretch of its request's keys, for all heads, so that memory
// is read once and in its order. Included inside a namespace that has unroll.h, exp.h and paged.h.

constexpr int64_t TOKENS = 128;     // whose scores are held at once
constexpr int64_t TOGETHER = 16;    // of which a head's rows are worked on at once
constexpr int64_t MOST_PARTS = 32;  // of a request

// Result of a stretch of keys: values weighted by 2^(score - most), their sums [heads, dim], and the
// weights' sums; most and total [width], where width is heads rounded up to vectors.
struct Part {
    float *sums, *most, *total;
};

template <int N>
using Count = std::integral_constant<int, N>;

// Heads that share a key, four, two or one at a time, a number that the compiler knows.
template <typename F>
inline void in_fours(int64_t heads, F&& body) {
    int64_t first = 0;
    for (; first + 4 <= heads; first += 4) body(first, Count<4>{});
    if (heads - first >= 2) {
        body(first, Count<2>{});
        first += 2;
    }
    if (heads - first == 1) body(first, Count<1>{});
}

// A head's part of some tokens' rows: `at` bytes behind where each begins. Of the `next` tokens behind
// them it is asked for.
struct Few {
    const char* const* rows;
    int64_t at, count, next;

    template <typename Code>
    const Code* row(int64_t t) const { return reinterpret_cast<const Code*>(rows[t] + at); }
    void ask(int64_t bytes) const {
        for (int64_t t = count; t < count + next; ++t)
            for (int64_t i = 0; i < bytes; i += 64) prefetch_second(rows[t] + at + i);
    }
};

// Scores of N heads with T tokens' keys: their products, a token's at `out`[t · width ..].
template <int N, int T, typename Code>
inline void score(const float* query, const Few& few, int64_t first, int64_t dim, float* out,
                  int64_t width) {
    F32 sums[T][4];
    each<T>(BODY(t) { each<4>(BODY(j) { sums[t][j] = F32::zero(); }); });
    const auto add = [&](int64_t d, auto vectors) __attribute__((always_inline)) {
        constexpr int V = vectors.value;
        F32 q[N][V];
        each<N>(BODY(j) { each<V>(BODY(v) { q[j][v] = F32::load(query + j * dim + d + 16 * v); }); });
        each<T>(BODY(t) {
            F32 k[V];
            load_vectors(few.row<Code>(first + t) + d, k);
            each<N>(BODY(j) {
                each<V>(BODY(v) { sums[t][j] = fma(q[j][v], k[v], sums[t][j]); });
            });
        });
    };
    int64_t d = 0;
    for (; d + 32 <= dim; d += 32) add(d, Count<2>{});
    if (d < dim) add(d, Count<1>{});
    each<T>(BODY(t) {
        float four[4];
        store_sums(sums[t][0], sums[t][1], sums[t][2], sums[t][3], four);
        const float scale = scale_of(few.row<Code>(first + t), dim);
        each<N>(BODY(j) { out[(first + t) * width + j] = four[j] * scale; });
    });
}

template <int N, typename Code>
[[gnu::noinline]] void scores_of(const Few& few, const float* query, int64_t dim, float* out,
                                 int64_t width) {
    few.ask(row_bytes<Code>(dim));
    int64_t t = 0;
    for (; t + SCORE_TOKENS <= few.count; t += SCORE_TOKENS)
        score<N, SCORE_TOKENS, Code>(query, few, t, dim, out, width);
    for (; t < few.count; ++t) score<N, 1, Code>(query, few, t, dim, out, width);
}

// Adds the tokens' values, from number d of a row on, to V vectors of the sums of N heads.
template <int N, int V, typename Code>
inline void add_vectors(const Few& few, const float* weights, int64_t width, int64_t dim, int64_t d,
                        float* sums) {
    F32 sum[N][V];
    each<N>(BODY(j) { each<V>(BODY(v) { sum[j][v] = F32::load(sums + j * dim + d + 16 * v); }); });
    for (int64_t t = 0; t < few.count; ++t) {
        const Code* row = few.row<Code>(t);
        F32 value[V];
        load_vectors(row + d, value);
        if constexpr (is_scaled<Code>)
            each<V>(BODY(v) { value[v] = value[v] * F32::all(scale_of(row, dim)); });
        each<N>(BODY(j) {
            const F32 weight = F32::all(weights[t * width + j]);
            each<V>(BODY(v) { sum[j][v] = fma(weight, value[v], sum[j][v]); });
        });
    }
    each<N>(BODY(j) { each<V>(BODY(v) { sum[j][v].store(sums + j * dim + d + 16 * v); }); });
}

template <int N, typename Code>
[[gnu::noinline]] void add_values(const Few& few, const float* weights, int64_t width, int64_t dim,
                                  float* sums) {
    few.ask(row_bytes<Code>(dim));
    constexpr int some = std::min(N, SUM_HEADS);
    for (int j = 0; j < N; j += some, weights += some, sums += some * dim) {
        int64_t d = 0;
        for (; d + 16 * SUM_VECTORS <= dim; d += 16 * SUM_VECTORS)
            add_vectors<some, SUM_VECTORS, Code>(few, weights, width, dim, d, sums);
        if (SUM_VECTORS > 2 && d + 32 <= dim) {
            add_vectors<some, 2, Code>(few, weights, width, dim, d, sums);
            d += 32;
        }
        if (d < dim) add_vectors<some, 1, Code>(few, weights, width, dim, d, sums);
    }
}

// Turns scores [count, width], exponents of two, into weights against the highest so far; a head is
// a lane.
// factor [width]: what the sums so far have to be multiplied by.
inline void weigh(float* scores, int64_t count, int64_t width, Part& part, float* factor) {
    for (int64_t h = 0; h < width; h += 16) {
        const F32 before = F32::load(part.most + h);
        F32 most = before;
        for (int64_t t = 0; t < count; ++t) most = max(most, F32::load(scores + t * width + h));
        const F32 by = power_of_two(before - most);
        F32 total = F32::load(part.total + h) * by;
        for (int64_t t = 0; t < count; ++t) {
            const F32 weight = power_of_two(F32::load(scores + t * width + h) - most);
            weight.store(scores + t * width + h);
            total = total + weight;
        }
        most.store(part.most + h);
        total.store(part.total + h);
        by.store(factor + h);
    }
}

// The query times what makes its scores exponents of two, in the order of load_vectors.
template <typename Code>
inline void take_query(const AttentionArgs& a, int64_t token, float* out) {
    const int64_t dim = a.head_dim;
    const F32 scale = F32::all(a.scale * LOG2_E);
    float row[MAX_DIM];
    for (int64_t h = 0; h < a.heads; ++h) {
        const int64_t at = token * a.query_stride + h * dim;
        for (int64_t d = 0; d < dim; d += 16)
            (load_as(a.dtype, a.query, at + d) * scale).store(row + d);
        reorder<Code>(row, dim, false, out + h * dim);
    }
}

// One request's query token over its keys from `begin` to `end`.
template <typename Code>
void attend(const AttentionArgs& a, const Blocks& blocks, int64_t token, int64_t begin, int64_t end,
            Part part) {
    const int64_t dim = a.head_dim, heads = a.heads, group = heads / a.kv_heads;
    const int64_t width = (heads + 15) / 16 * 16, row = row_bytes<Code>(dim);
    const char *keys = static_cast<const char*>(a.k_cache);
    const char *values = static_cast<const char*>(a.v_cache);
    thread_local Scratch own;
    float* query = own.get<float>(heads * dim + (TOKENS + 1) * width);
    float *scores = query + heads * dim, *factor = scores + TOKENS * width;
    const char *key_rows[TOKENS], *value_rows[TOKENS];
    take_query<Code>(a, token, query);
    for (int64_t i = 0; i < heads * dim; i += 16) F32::zero().store(part.sums + i);
    for (int64_t h = 0; h < width; h += 16) {
        F32::all(LEAST).store(part.most + h);
        F32::zero().store(part.total + h);
    }
    for (; begin < end; begin += TOKENS) {
        const int64_t count = std::min(TOKENS, end - begin);
        for (int64_t t = 0; t < count; ++t) {
            const int64_t offset = blocks.offset(begin + t);
            key_rows[t] = keys + offset;
            value_rows[t] = values + offset;
        }
        // body(number of heads, rows of a few tokens, the first head's place, its scores), in the
        // order of memory
        const auto by_rows = [&](const char* const* rows, auto&& body) {
            for (int64_t t = 0; t < count; t += TOGETHER)
                for (int64_t head = 0; head < a.kv_heads; ++head)
                    in_fours(group, [&](int64_t first, auto n) {
                        const int64_t some = std::min(TOGETHER, count - t), rest = count - t - some;
                        const Few few{rows + t, head * row, some, first ? 0 : std::min(TOGETHER, rest)};
                        const int64_t h = head * group + first;
                        body(n, few, h * dim, scores + t * width + h);
                    });
        };
        by_rows(key_rows, [&](auto n, const Few& few, int64_t at, float* out) {
            scores_of<n.value, Code>(few, query + at, dim, out, width);
        });
        Few{value_rows, 0, 0, std::min(TOGETHER, count)}.ask(blocks.token_bytes);
        if (a.soft_cap) cap_scores(scores, count * width, a.soft_cap);
        weigh(scores, count, width, part, factor);
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t d = h * dim; d < (h + 1) * dim; d += 16)
                (F32::load(part.sums + d) * F32::all(factor[h])).store(part.sums + d);
        by_rows(value_rows, [&](auto n, const Few& few, int64_t at, const float* weights) {
            add_values<n.value, Code>(few, weights, width, dim, part.sums + at);
        });
    }
}

// Puts the parts of one token together, in their order.
template <typename Code>
inline void put_together(const AttentionArgs& a, int64_t token, const Part* parts, int64_t count) {
    const int64_t dim = a.head_dim;
    float by[MOST_PARTS][16], row[MAX_DIM];
    for (int64_t h = 0; h < a.heads; ++h) {
        if (h % 16 == 0) {  // a head is a lane
            F32 most = F32::load(parts[0].most + h), total = F32::zero();
            for (int64_t i = 1; i < count; ++i) most = max(most, F32::load(parts[i].most + h));
            for (int64_t i = 0; i < count; ++i) {
                const F32 weight = power_of_two(F32::load(parts[i].most + h) - most);
                total = fma(F32::load(parts[i].total + h), weight, total);
                weight.store(by[i]);
            }
            for (int64_t i = 0; i < count; ++i) (F32::load(by[i]) / total).store(by[i]);
        }
        for (int64_t d = 0; d < dim; d += 16) {
            F32 sum = F32::zero();
            for (int64_t i = 0; i < count; ++i)
                sum = fma(F32::load(parts[i].sums + h * dim + d), F32::all(by[i][h % 16]), sum);
            sum.store(row + d);
        }
        float out[MAX_DIM];
        reorder<Code>(row, dim, true, out);
        for (int64_t d = 0; d < dim; d += 16)
            store_as(a.dtype, F32::load(out + d), a.out, (token * a.heads + h) * dim + d);
    }
}
