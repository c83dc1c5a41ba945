// Rotary embedding and the write of keys and values. Included inside a namespace that has the
// vector types, norm.h and paged.h.

// Puts a head of numbers into the cache, in its type.
template <typename Code>
inline void write_row(const float* x, int64_t dim, char* row) {
    Code* out = reinterpret_cast<Code*>(row);
    if constexpr (sizeof(Code) > 1)
        for (int64_t i = 0; i < dim; i += 16) F32::load(x + i).store(out + i);
    else
        for (int64_t i = 0; i < dim; ++i) from_float(x[i], out + i);
}

// Codes from -127 to 127 and their scale, by the largest of the head. What is no number, or
// infinite, makes the scale NaN, and with it all that is read from this head.
template <>
inline void write_row<int8_t>(const float* x, int64_t dim, char* row) {
    F32 largest = F32::zero(), none = F32::zero();
    for (int64_t i = 0; i < dim; i += 16) {
        const F32 v = F32::load(x + i);
        largest = max(largest, abs(v));
        none = fma(v, F32::zero(), none);
    }
    bf16 scale;
    from_float(largest.max() / 127.0f + none.sum(), &scale);
    std::memcpy(row + dim, &scale, sizeof scale);
    const float step = as_float(scale);
    const F32 inverse = F32::all(step > 0.0f ? 1.0f / step : 0.0f), limit = F32::all(-127.0f);
    for (int64_t i = 0; i < dim; i += 16)
        max(limit, F32::load(x + i) * inverse).store(reinterpret_cast<int8_t*>(row) + i);
}

template <typename T>
inline void load_head(const T* x, const T* norm, float eps, int64_t dim, float* out) {
    for (int64_t i = 0; i < dim; i += 16) F32::load(x + i).store(out + i);
    if (!norm) return;
    const F32 by = F32::all(rms_factor(out, dim, eps));
    for (int64_t i = 0; i < dim; i += 16)
        (F32::load(out + i) * by * F32::load(norm + i)).store(out + i);
}

// Rotates the pairs (i, i + dim / 2); both halves of cos and sin are given, sin's with its sign.
inline void rotate(float* x, const float* cos, const float* sin, int64_t dim) {
    const int64_t half = dim / 2;
    int64_t i = 0;
    for (; i + 16 <= half; i += 16) {
        const F32 a = F32::load(x + i), b = F32::load(x + half + i);
        fma(b, F32::load(sin + i), a * F32::load(cos + i)).store(x + i);
        fma(a, F32::load(sin + half + i), b * F32::load(cos + half + i)).store(x + half + i);
    }
    for (; i < half; ++i) {
        const float a = x[i], b = x[half + i];
        x[i] = a * cos[i] + b * sin[i];
        x[half + i] = b * cos[half + i] + a * sin[half + i];
    }
}

template <typename T, typename Code>
void rotary_token(const RotaryArgs& a, int64_t token) {
    const int64_t dim = a.head_dim, rotary_dim = a.rotary_dim, bytes = row_bytes<Code>(dim);
    const T* heads = static_cast<const T*>(a.heads) + token * a.stride;
    T* query = static_cast<T*>(a.query) + token * a.num_heads * dim;
    const int64_t slot = a.slots[token] * a.kv_heads;
    const int64_t angles = (a.positions ? a.positions[token] : token) * rotary_dim;
    float cos[MAX_DIM], sin[MAX_DIM], x[MAX_DIM];
    for (int64_t i = 0; i < rotary_dim; ++i) {
        cos[i] = as_float(static_cast<const T*>(a.cos)[angles + i]);
        sin[i] = as_float(static_cast<const T*>(a.sin)[angles + i]);
    }
    for (int64_t head = 0; head < a.num_heads; ++head) {
        load_head(heads + head * dim, static_cast<const T*>(a.query_norm), a.eps, dim, x);
        rotate(x, cos, sin, rotary_dim);
        for (int64_t i = 0; i < dim; i += 16) F32::load(x + i).store(query + head * dim + i);
    }
    if (slot < 0) return;
    heads += a.num_heads * dim;
    for (int64_t head = 0; head < a.kv_heads; ++head) {
        load_head(heads + head * dim, static_cast<const T*>(a.key_norm), a.eps, dim, x);
        rotate(x, cos, sin, rotary_dim);
        write_row<Code>(x, dim, static_cast<char*>(a.k_cache) + (slot + head) * bytes);
        load_head<T>(heads + (a.kv_heads + head) * dim, nullptr, 0.0f, dim, x);
        write_row<Code>(x, dim, static_cast<char*>(a.v_cache) + (slot + head) * bytes);
    }
}

template <typename T, typename Code>
void rotary_as(const RotaryArgs& a) {
    const int64_t numbers = (a.num_heads + 2 * a.kv_heads) * a.head_dim;  // of a token
    parallel_rows(a.tokens, numbers, a.threads, [&](int64_t t) { rotary_token<T, Code>(a, t); });
}

template <typename T>
void rotary_from(const RotaryArgs& a) {
    switch (a.cache_dtype) {
        case Dtype::f32: return rotary_as<T, float>(a);
        case Dtype::bf16: return rotary_as<T, bf16>(a);
        case Dtype::fp8: return rotary_as<T, fp8>(a);
        case Dtype::int8: return rotary_as<T, int8_t>(a);
    }
}

void rotary_write_kv(const RotaryArgs& a) {
    a.dtype == Dtype::bf16 ? rotary_from<bf16>(a) : rotary_from<float>(a);
}
