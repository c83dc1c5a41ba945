// How keys and values lie in the cache [blocks, size, heads, row]. Included inside a namespace that
// has the vector types.

constexpr int64_t MAX_DIM = 256;  // of a head; a multiple of 16
constexpr float LEAST = -1e30f;   // below all scores

// Rows of bytes with a sign end with a scale in bfloat16, by which all their numbers are multiplied.
template <typename Code>
constexpr bool is_scaled = false;
template <>
constexpr bool is_scaled<int8_t> = true;

template <typename Code>
constexpr int64_t row_bytes(int64_t dim) {
    return dim * static_cast<int64_t>(sizeof(Code)) + (is_scaled<Code> ? sizeof(bf16) : 0);
}

template <typename Code>
inline float scale_of(const Code* row, int64_t dim) {
    bf16 scale{0x3f80};  // 1
    if constexpr (is_scaled<Code>) std::memcpy(&scale, row + dim, sizeof scale);
    return as_float(scale);
}

// A request's blocks, of 2^shift tokens each.
struct Blocks {
    const int32_t* table;
    int64_t token_bytes;
    int shift;

    int64_t offset(int64_t position) const {  // in bytes, of a token's row in both caches
        const int64_t inside = position & ((int64_t{1} << shift) - 1);
        return ((int64_t{table[position >> shift]} << shift) + inside) * token_bytes;
    }
};

template <typename Code>
inline Blocks blocks_of(const AttentionArgs& a, const int32_t* table) {
    return {table, a.kv_heads * row_bytes<Code>(a.head_dim), __builtin_ctz(a.block_size)};
}

// `count` rows of a head, from a position on, as numbers [count, dim].
template <typename Code, typename T>
void dequantize_rows(const void* cache, const Blocks& blocks, int64_t head, int64_t position,
                     int64_t count, int64_t dim, T* out) {
    for (int64_t t = 0; t < count; ++t, out += dim) {
        const char* at = static_cast<const char*>(cache) + blocks.offset(position + t) +
                         head * row_bytes<Code>(dim);
        const Code* row = reinterpret_cast<const Code*>(at);
        const F32 scale = F32::all(scale_of(row, dim));
        for (int64_t d = 0; d < dim; d += 16) {
            if constexpr (std::is_same_v<T, bf16> && std::is_same_v<Code, bf16>)
                std::memcpy(out + d, row + d, 16 * sizeof(T));
            else (is_scaled<Code> ? F32::load(row + d) * scale : F32::load(row + d)).store(out + d);
        }
    }
}

// V vectors of a row. Two of bfloat16 hold every second number each, which spares the shuffle that
// conversion takes: what they are multiplied with, and their sums, are in that order, too.
template <typename Code>
constexpr bool in_pairs = std::is_same_v<Code, bf16>;

template <int V, typename Code>
inline void load_vectors(const Code* p, F32 (&out)[V]) {
    if constexpr (V > 1 && in_pairs<Code>) {
#pragma GCC unroll 4
        for (int v = 0; v < V; v += 2) {
            out[v] = F32::firsts(p + 16 * v);
            out[v + 1] = F32::seconds(p + 16 * v);
        }
    } else {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) out[v] = F32::load(p + 16 * v);
    }
}

// Numbers [dim] into that order; from it with `back`. Not in place.
template <typename Code>
inline void reorder(const float* in, int64_t dim, bool back, float* out) {
    const int64_t paired = in_pairs<Code> ? dim / 32 * 32 : 0;
    for (int64_t d = 0; d < paired; d += 32)
        for (int64_t i = 0; i < 16; ++i)
            for (int64_t half = 0; half < 2; ++half) {
                const int64_t there = d + 16 * half + i, here = d + 2 * i + half;
                out[back ? here : there] = in[back ? there : here];
            }
    for (int64_t d = paired; d < dim; d += 16) F32::load(in + d).store(out + d);
}

inline F32 load_as(Dtype dtype, const void* p, int64_t i) {
    return dtype == Dtype::bf16 ? F32::load(static_cast<const bf16*>(p) + i)
                                : F32::load(static_cast<const float*>(p) + i);
}
inline void store_as(Dtype dtype, F32 x, void* p, int64_t i) {
    dtype == Dtype::bf16 ? x.store(static_cast<bf16*>(p) + i)
                         : x.store(static_cast<float*>(p) + i);
}
