// Attention of several query tokens of one request, for one key head. Included inside a namespace
// that has paged.h and softmax.h.
//
// A lane is a row: a query token and one of the heads that share the key head. Scores stand
// transposed, [keys, rows], so that keys and values are read as they lie, number by number, the
// softmax goes down the lanes, and only queries and the result are transposed, once for all keys.

constexpr int64_t ROWS = 64;  // of a piece
constexpr int64_t KEYS = 64;  // of a step

// A tile of sums: c [R, 16·V] = c · by + a · b; a is read at a[i · row + k · step], b at
// b[k · width ..], `by` [16·V] is null where c is to start at zero.
template <int R, int V>
inline void multiply(const float* a, int64_t row, int64_t step, const float* b, int64_t width,
                     int64_t depth, const float* by, float* c) {
    F32 sum[R][V];
    for (int i = 0; i < R; ++i)
        for (int v = 0; v < V; ++v)
            sum[i][v] = by ? F32::load(c + i * width + 16 * v) * F32::load(by + 16 * v) : F32::zero();
    for (int64_t k = 0; k < depth; ++k) {
        F32 column[V];
        for (int v = 0; v < V; ++v) column[v] = F32::load(b + k * width + 16 * v);
        for (int i = 0; i < R; ++i) {
            const F32 x = F32::all(a[i * row + k * step]);
            for (int v = 0; v < V; ++v) sum[i][v] = fma(x, column[v], sum[i][v]);
        }
    }
    for (int i = 0; i < R; ++i)
        for (int v = 0; v < V; ++v) sum[i][v].store(c + i * width + 16 * v);
}

// An `AttendRows`, see quire_cpu.h.
template <typename Code>
void attend_rows(const AttentionArgs& a, const int32_t* table, int64_t token, int64_t position,
                 int64_t count, int64_t head) {
    const Blocks blocks = blocks_of<Code>(a, table);
    constexpr int64_t lanes = 16 * SCORE_VECTORS;
    const int64_t dim = a.head_dim, group = a.heads / a.kv_heads;
    const int64_t width = (count * group + lanes - 1) / lanes * lanes;
    thread_local Scratch own;
    float* query = own.get<float>((2 * dim + KEYS + 4) * width + 2 * KEYS * dim);  // [dim, width]
    float *sums = query + dim * width, *scores = sums + dim * width;
    float *positions = scores + KEYS * width, *most = positions + width;
    float *total = most + width, *by = total + width;
    float *keys = by + width, *values = keys + KEYS * dim;
    float row[MAX_DIM];
    for (int64_t r = 0; r < width; ++r) {
        const int64_t q = std::min(r / group, count - 1), h = head * group + r % group;
        for (int64_t d = 0; d < dim; d += 16) {
            const F32 x = load_as(a.dtype, a.query, (token + q) * a.query_stride + h * dim + d);
            (x * F32::all(a.scale * LOG2_E)).store(row + d);
        }
        for (int64_t d = 0; d < dim; ++d) query[d * width + r] = row[d];
        positions[r] = static_cast<float>(position + q);
        most[r] = LEAST;
        total[r] = 0.0f;
    }
    for (int64_t i = 0; i < dim * width; i += 16) F32::zero().store(sums + i);
    const int64_t window = a.window ? a.window : position + count, end = position + count;
    int64_t first = std::max<int64_t>(0, position + 1 - window) / KEYS * KEYS;
    for (; first < end; first += KEYS) {
        const int64_t some = std::min(KEYS, end - first);
        dequantize_rows<Code>(a.k_cache, blocks, head, first, some, dim, keys);
        dequantize_rows<Code>(a.v_cache, blocks, head, first, some, dim, values);
        for (int64_t t = some; t % SCORE_ROWS; ++t)
            for (int64_t d = 0; d < dim; d += 16) F32::zero().store(keys + t * dim + d);
        for (int64_t lane = 0; lane < width; lane += lanes)
            for (int64_t t = 0; t < some; t += SCORE_ROWS)
                multiply<SCORE_ROWS, SCORE_VECTORS>(keys + t * dim, dim, 1, query + lane, width, dim,
                                                  nullptr, scores + t * width + lane);
        if (a.soft_cap) cap_scores(scores, some * width, a.soft_cap);
        const bool masked = first + some > position + 1 || first <= end - 1 - window;
        weigh_rows(scores, some, width, first, masked, positions, static_cast<float>(window), 1.0f,
                   most, total, by, InPlace{scores, width});
        for (int64_t lane = 0; lane < width; lane += lanes)
            for (int64_t d = 0; d < dim; d += SCORE_ROWS)
                multiply<SCORE_ROWS, SCORE_VECTORS>(values + d, 1, dim, scores + lane, width, some,
                                                  by + lane, sums + d * width + lane);
    }
    for (int64_t r = 0; r < count * group; ++r) {
        const int64_t h = head * group + r % group;
        const float inverse = 1.0f / total[r];
        for (int64_t d = 0; d < dim; ++d) row[d] = sums[d * width + r] * inverse;
        for (int64_t d = 0; d < dim; d += 16)
            store_as(a.dtype, F32::load(row + d), a.out,
                     ((token + r / group) * a.heads + h) * dim + d);
    }
}
