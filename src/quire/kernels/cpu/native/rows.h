// Checks and reductions of whole rows. Included inside a namespace that has the vector types.

constexpr int64_t BLOCK = 64;  // logits that the sampler looks at together

// The highest of up to 64 numbers; NaN if one of them is.
inline float block_max(const float* x, int64_t count) {
    if (count == BLOCK) {
        const F32 a = F32::load(x), b = F32::load(x + 16);
        const F32 c = F32::load(x + 32), d = F32::load(x + 48);
        if (any_nan(a, b) || any_nan(c, d)) return NAN;
        return max(max(a, b), max(c, d)).max();
    }
    float best = x[0];
    for (int64_t i = 1; i < count; ++i)
        if (best == best && !(x[i] <= best)) best = x[i];
    return best;
}

// The weights of 16 logits as quire.kernels.sampling_math makes them: no fma, every rounding counts.
inline F32 weights(F32 logits, F32 peak, F32 slope) {
    constexpr float ONE = 0x1p40f;
    F32 rest = min((peak - logits) * slope, F32::all(64.0f));
    const F32 whole = trunc(rest + F32::all(0.5f));
    rest = rest - whole;
    F32 value = rest * F32::all(ONE * -0.0013390866806730628f);
    value = (value + F32::all(ONE * 0.009666373953223228f)) * rest;
    value = (value + F32::all(ONE * -0.055503569543361664f)) * rest;
    value = (value + F32::all(ONE * 0.2402234822511673f)) * rest;
    value = (value + F32::all(ONE * -0.6931471824645996f)) * rest;
    return trunc(scale_by_power(value + F32::all(ONE), F32::zero() - whole));
}

template <typename T>
bool is_finite(const T* x, int64_t size) {
    F32 none = F32::zero();  // becomes NaN by infinity · 0
    int64_t i = 0;
    for (; i + 16 <= size; i += 16) none = fma(F32::load(x + i), F32::zero(), none);
    float rest = none.sum();
    for (; i < size; ++i) rest += as_float(x[i]) * 0.0f;
    return rest == 0.0f;
}

void finite_rows(const RowsArgs& a) {
    auto* out = static_cast<uint8_t*>(a.out);
    parallel_rows(a.rows, a.size, a.threads, [&](int64_t row) {
        out[row] = a.dtype == Dtype::bf16
                       ? is_finite(static_cast<const bf16*>(a.x) + row * a.size, a.size)
                       : is_finite(static_cast<const float*>(a.x) + row * a.size, a.size);
    });
}

// bf16 as float.
void to_float(const RowsArgs& a) {
    const int64_t count = a.rows * a.size;
    parallel_for((count + PIECE - 1) / PIECE, a.threads, [&](int64_t piece) {
        const bf16* x = static_cast<const bf16*>(a.x);
        float* out = static_cast<float*>(a.out);
        const int64_t end = std::min(count, (piece + 1) * PIECE);
        int64_t i = piece * PIECE;
        for (; i + 16 <= end; i += 16) F32::load(x + i).store(out + i);
        for (; i < end; ++i) out[i] = as_float(x[i]);
    });
}

void highest(const RowsArgs& a) {
    auto* peaks = static_cast<float*>(a.out);
    parallel_for(a.rows, a.threads, [&](int64_t row) {
        const float* x = static_cast<const float*>(a.x) + row * a.size;
        float best = -INFINITY;
        int64_t from = 0;
        for (int64_t i = 0; i < a.size && best == best; i += BLOCK) {
            const float peak = block_max(x + i, std::min(BLOCK, a.size - i));
            if (!(peak <= best)) best = peak, from = i;
        }
        while (best == best && x[from] != best) ++from;
        peaks[row] = best, a.ids[row] = from;
    });
}

// Calls body(row, first block, last block + 1) for pieces of all blocks of the rows.
template <typename F>
void over_blocks(const RowsArgs& a, F&& body) {
    const int64_t blocks = a.size / BLOCK, some = std::min(blocks, PIECE / BLOCK);
    const int64_t each = (blocks + some - 1) / some;
    parallel_for(a.rows * each, a.threads, [&](int64_t piece) {
        const int64_t begin = piece % each * some;
        body(piece / each, begin, std::min(blocks, begin + some));
    });
}

void block_maxima(const RowsArgs& a) {
    over_blocks(a, [&](int64_t row, int64_t begin, int64_t end) {
        const float* x = static_cast<const float*>(a.x) + a.indices[row] * a.size;
        float* out = static_cast<float*>(a.out) + row * (a.size / BLOCK);
        for (int64_t b = begin; b < end; ++b) out[b] = block_max(x + b * BLOCK, BLOCK);
    });
}

void block_masses(const RowsArgs& a) {
    over_blocks(a, [&](int64_t row, int64_t begin, int64_t end) {
        const float* x = static_cast<const float*>(a.x) + a.indices[row] * a.size;
        auto* out = static_cast<int64_t*>(a.out) + row * (a.size / BLOCK);
        const F32 peak = F32::all(a.peaks[row]), slope = F32::all(a.slopes[row]);
        for (int64_t b = begin; b < end; ++b) {
            F32 w[4];
            for (int i = 0; i < 4; ++i)
                w[i] = weights(F32::load(x + b * BLOCK + 16 * i), peak, slope);
            out[b] = exact_sum(w[0], w[1], w[2], w[3]);
        }
    });
}
