// Attention of one query token over a stretch of its request's keys, for all heads, so that memory
// is read once and in its order. Included inside a namespace that has paged.h and exp.h.

constexpr int64_t TOKENS = 128;  // whose scores are held at once
constexpr int64_t TOGETHER = 8;  // tokens whose values are added at once
constexpr int64_t TOKENS_AHEAD = 4;     // tokens before it is needed a row is asked for
constexpr float LEAST = -1e30f;  // below all scores

constexpr int64_t MOST_PARTS = 32;  // of a request

// What a stretch gives: values weighted by e^(score - most), their sums [heads, dim], and the
// weights' sums; most and total [width], where width is heads rounded up to vectors.
struct Part {
    float *sums, *most, *total;
};

template <int N>
struct Count {
    static constexpr int value = N;
};

// Heads that share a key, four at a time, their number known to the compiler.
template <typename F>
inline void in_fours(int64_t heads, F&& body) {
    int64_t first = 0;
    for (; first + 4 <= heads; first += 4) body(first, Count<4>{});
    if (heads - first == 3) body(first, Count<3>{});
    if (heads - first == 2) body(first, Count<2>{});
    if (heads - first == 1) body(first, Count<1>{});
}

// Scores of N heads: their products with the key. Writes four, whatever N is.
template <int N, typename Code>
inline void score(const float* query, const Code* key, int64_t dim, float* out) {
    F32 sums[4] = {F32::zero(), F32::zero(), F32::zero(), F32::zero()};
    for (int64_t d = 0; d < dim; d += 16) {
        const F32 k = F32::load(key + d);
        for (int j = 0; j < N; ++j) sums[j] = fma(F32::load(query + j * dim + d), k, sums[j]);
    }
    store_sums(sums[0], sums[1], sums[2], sums[3], out);
    if constexpr (is_scaled<Code>)
        for (int j = 0; j < N; ++j) out[j] *= scale_of(key, dim);
}

// Adds the values of some tokens to V vectors of the sums of N heads. On its own, as it needs most
// of the registers.
template <int N, int V, typename Code>
[[gnu::noinline]] void add_vectors(const char* const* rows, const float* weights, int64_t width,
                                   int64_t count, int64_t dim, int64_t d, float* sums) {
    F32 sum[N][V];
    for (int j = 0; j < N; ++j)
        for (int v = 0; v < V; ++v) sum[j][v] = F32::load(sums + j * dim + d + 16 * v);
    for (int64_t t = 0; t < count; ++t) {
        const Code* row = reinterpret_cast<const Code*>(rows[t]);
        F32 value[V];
        for (int v = 0; v < V; ++v) value[v] = F32::load(row + d + 16 * v);
        for (int j = 0; j < N; ++j) {
            const F32 weight = F32::all(weights[t * width + j] * scale_of(row, dim));
            for (int v = 0; v < V; ++v) sum[j][v] = fma(weight, value[v], sum[j][v]);
        }
    }
    for (int j = 0; j < N; ++j)
        for (int v = 0; v < V; ++v) sum[j][v].store(sums + j * dim + d + 16 * v);
}

template <int N, typename Code>
inline void add_values(const char* const* rows, const float* weights, int64_t width, int64_t count,
                       int64_t dim, float* sums) {
    int64_t d = 0;
    for (; d + 16 * SUM_VECTORS <= dim; d += 16 * SUM_VECTORS)
        add_vectors<N, SUM_VECTORS, Code>(rows, weights, width, count, dim, d, sums);
    for (; d < dim; d += 16) add_vectors<N, 1, Code>(rows, weights, width, count, dim, d, sums);
}

// Turns scores [count, width] into weights against the highest score so far; a head is a lane.
// factor [width]: what the sums so far have to be multiplied by.
inline void weigh(float* scores, int64_t count, int64_t width, Part& part, float* factor) {
    for (int64_t h = 0; h < width; h += 16) {
        const F32 before = F32::load(part.most + h);
        F32 most = before;
        for (int64_t t = 0; t < count; ++t) most = max(most, F32::load(scores + t * width + h));
        const F32 by = exp(before - most);
        F32 total = F32::load(part.total + h) * by;
        for (int64_t t = 0; t < count; ++t) {
            const F32 weight = exp(F32::load(scores + t * width + h) - most);
            weight.store(scores + t * width + h);
            total = total + weight;
        }
        most.store(part.most + h);
        total.store(part.total + h);
        by.store(factor + h);
    }
}

inline void ask_for(const char* row, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i);
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
    float* query = own.room<float>(heads * dim + (TOKENS + 2) * width);
    float *scores = query + heads * dim, *factor = scores + (TOKENS + 1) * width;
    int64_t offsets[TOKENS];
    for (int64_t i = 0; i < heads * dim; i += 16)
        (load_as(a.dtype, a.query, token * a.query_stride + i) * F32::all(a.scale)).store(query + i);
    for (int64_t i = 0; i < heads * dim; i += 16) F32::zero().store(part.sums + i);
    for (int64_t h = 0; h < width; h += 16) {
        F32::all(LEAST).store(part.most + h);
        F32::zero().store(part.total + h);
    }
    for (; begin < end; begin += TOKENS) {
        const int64_t count = std::min(TOKENS, end - begin);
        for (int64_t t = 0; t < count; ++t) offsets[t] = blocks.offset(begin + t);
        for (int64_t t = 0; t < count; ++t) {
            if (t + TOKENS_AHEAD < count) ask_for(keys + offsets[t + TOKENS_AHEAD], blocks.token_bytes);
            for (int64_t head = 0; head < a.kv_heads; ++head)
                in_fours(group, [&](int64_t first, auto n) {
                    const char* key = keys + offsets[t] + head * row;
                    const int64_t at = head * group + first;
                    score<n.value>(query + at * dim, reinterpret_cast<const Code*>(key), dim,
                                   scores + t * width + at);
                });
        }
        weigh(scores, count, width, part, factor);
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t d = h * dim; d < (h + 1) * dim; d += 16)
                (F32::load(part.sums + d) * F32::all(factor[h])).store(part.sums + d);
        for (int64_t t = 0; t < count; t += TOGETHER) {
            const int64_t some = std::min(TOGETHER, count - t);
            for (int64_t i = t + TOGETHER; i < std::min(t + 2 * TOGETHER, count); ++i)
                ask_for(values + offsets[i], blocks.token_bytes);
            for (int64_t head = 0; head < a.kv_heads; ++head) {
                const char* rows[TOGETHER];
                for (int64_t i = 0; i < some; ++i) rows[i] = values + offsets[t + i] + head * row;
                in_fours(group, [&](int64_t first, auto n) {
                    const int64_t at = head * group + first;
                    add_values<n.value, Code>(rows, scores + t * width + at, width, some, dim,
                                              part.sums + at * dim);
                });
            }
        }
    }
}

// Puts the parts of one token together, in their order.
inline void put_together(const AttentionArgs& a, int64_t token, const Part* parts, int64_t count) {
    const int64_t dim = a.head_dim;
    for (int64_t h = 0; h < a.heads; ++h) {
        float most = parts[0].most[h];
        for (int64_t i = 1; i < count; ++i) most = std::max(most, parts[i].most[h]);
        float total = 0.0f, by[MOST_PARTS];
        for (int64_t i = 0; i < count; ++i) {
            by[i] = count == 1 ? 1.0f : std::exp(parts[i].most[h] - most);
            total += parts[i].total[h] * by[i];
        }
        for (int64_t d = h * dim; d < (h + 1) * dim; d += 16) {
            F32 sum = F32::zero();
            for (int64_t i = 0; i < count; ++i)
                sum = fma(F32::load(parts[i].sums + d), F32::all(by[i]), sum);
            store_as(a.dtype, sum / F32::all(total), a.out, token * a.heads * dim + d);
        }
    }
}
