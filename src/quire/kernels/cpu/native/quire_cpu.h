// The kernels that each instruction set offers, and the types that they share with Python.
//
// Kernels are compiled once for each instruction set, in a namespace of its own (avx2.cpp,
// avx512.cpp, ...), from the same text; library.cpp chooses the best that the processor runs.
// Nothing here allocates but scratch.h, throws or keeps state: memory belongs to the caller.

#pragma once

#include <cstdint>

// Counts up with every change of what Python calls or of a structure; native.py has the same number,
// and does not call a library that was built before the change.
constexpr int32_t INTERFACE = 14;

struct bf16 {
    uint16_t bits;
};
struct fp8 {  // e4m3: one sign, four bits of exponent, three of mantissa, no infinity
    uint8_t bits;
};

// Tensors are described by address and size alone; rows are contiguous unless a stride is given.
enum class Dtype : int32_t { f32 = 0, bf16 = 1, fp8 = 2, int8 = 3 };

struct RmsNormArgs {
    const void* x;         // [rows, size]
    const void* weight;    // [size]
    void* out;             // [rows, size], may be x
    int64_t rows, size;
    float eps;
    Dtype dtype;           // of all three
    int32_t threads;
    int32_t adds;          // to what `out` holds, if not 0; then it is not x
};

struct RowsArgs {
    const void* x;         // [rows or more, size]
    const int64_t* indices; // [rows], which rows of x (block_maxima, block_masses)
    const float *peaks, *slopes;  // [rows] (block_masses)
    void* out;             // uint8 [rows], float [rows, size], [rows], float or int64 [rows, size / 64]
    int64_t* ids;          // [rows] (highest)
    int64_t rows, size;
    Dtype dtype;           // of x; float32 but for finite_rows and to_float
    int32_t threads;
};

enum class Epilogue : int32_t {
    store = 0,
    add = 1,   // to what `out` holds
    silu = 2,  // silu(gate) * up, whose rows are interleaved in blocks of 16; out is half as wide
    gelu = 3,  // the same with GELU (its approximation by tanh)
};

// How a GEMM's weight is packed: blocks of 16 outputs, inside them the steps of k that the dot
// instructions take. n is a multiple of 16 (of 32 with silu), k of the step. Python's NativeFormat
// (native_format.py) has the same names and numbers.
enum class Format : int32_t {
    f32 = 0,   // [n / 16, k, 16] float, k even
    bf16 = 1,  // [n / 16, k / 2, 16, 2] bf16
    int8 = 2,  // these as linear_int.h says; k is a multiple of 32
    int8_hadamard = 3,  // of a weight rotated by Hadamard matrices of 64 (or 32), as rows are here
    int4 = 4,
    int4_zeros = 5,  // with zero points; without them they are 8
    int4_hadamard = 6,  // without zero points, of a weight rotated by matrices of 32, as rows are here
    nf4 = 7,            // codes are looked up in a codebook
    mxfp4 = 8,
    int8_a16 = 9,  // packed as int8; rows have 16 bits, in two planes of bytes (see quantize.h)
};
constexpr bool has_codebook(Format format) {
    return format == Format::nf4 || format == Format::mxfp4;
}
constexpr bool is_int8(Format format) {
    return format == Format::int8 || format == Format::int8_hadamard || format == Format::int8_a16;
}
constexpr int64_t WIDE = 32;  // outputs of a packed block of codes
constexpr int64_t scale_bytes(Format format) { return format == Format::mxfp4 ? 1 : 2; }
// Bytes of the parts of a block, see linear_int.h. What stands before the four-bit codes of a group:
// scales, and zero points.
constexpr int64_t group_header(Format format) {
    return WIDE * (scale_bytes(format) + (format == Format::int4_zeros ? 1 : 0));
}
constexpr int64_t group_bytes(Format format, int64_t group) {
    return group_header(format) + WIDE / 2 * group;
}
// What stands before all of them, or before the codes of int8: scales of bytes.
constexpr int64_t block_header(Format format) {
    return is_int8(format) || format == Format::int4_hadamard ? WIDE * 4 : 0;
}
constexpr int64_t block_bytes(Format format, int64_t k, int64_t group) {
    const int64_t codes = is_int8(format) ? WIDE * k : k / group * group_bytes(format, group);
    return block_header(format) + codes;
}

struct LinearArgs {
    const void* x;            // [rows, k]
    const void* norm_weight;  // [k], for RMSNorm of x's rows on the way in, or null
    const void* weight;       // packed as `format` says
    const void* bias;         // [n] or null, in the order of the weight's rows
    void* out;                // [rows, n], with silu [rows, n / 2]; not x
    const int32_t* permutation;  // [k], x's column for each input of the weight; null: as they are
    int64_t rows, n, k;
    float eps;                // of the norm
    int32_t group;            // steps of k that share a scale
    Dtype dtype;              // of x, norm_weight, bias and out; sums are float
    Format format;
    Epilogue epilogue;
    int32_t threads;
};

// The source of a packed weight's row: interleaved halves give 16 rows each in turn.
inline int64_t source_row(int64_t row, int64_t half) {
    return half ? row / 32 * 16 + row / 16 % 2 * half + row % 16 : row;
}

struct QuantizeArgs {
    const void* weight;    // [n, k], k a multiple of 32
    void* out;             // what pack_weight makes of the codes and scales
    int64_t n, k, half;    // half: of the rows if halves are interleaved (see source_row), else 0
    int32_t group;         // of four-bit weights: a multiple of 32
    Dtype dtype;           // of weight
    Format format;         // one of int8 and int4, without zeros
    int32_t threads;
};

struct PackArgs {
    const void* codes;                  // or numbers of 4 or 2 bytes [n, k], in whose formats
    const void *scale, *zeros;          // as kernels/operands.py says; zeros may be null
    void* out;
    int64_t n, k, half;                 // half: of numbers, as above
    int32_t group;                      // as above
    Format format;
    int32_t threads;
};
void pack_weight(const PackArgs& args);

// Caches are [blocks, block_size, kv_heads, row], where a row has head_dim numbers (see paged.h).
struct RotaryArgs {
    const void* heads;     // [tokens, num_heads + 2 kv_heads, head_dim]
    const void *query_norm, *key_norm;  // [head_dim], or null
    const void *cos, *sin; // [positions, rotary_dim]
    const int64_t* positions;  // [tokens], rows of cos and sin; null: a row for each token
    void *k_cache, *v_cache;
    const int64_t* slots;  // [tokens], negative for nowhere
    void* query;           // [tokens, num_heads, head_dim], out
    int64_t tokens, stride;  // of the rows of `heads`, in numbers
    int32_t num_heads, kv_heads, head_dim, rotary_dim;
    float eps;
    Dtype dtype, cache_dtype;  // of all but the caches, of the caches
    int32_t threads;
};

struct AttentionArgs {
    const void* query;     // [tokens, heads, head_dim], rows query_stride numbers apart
    const void *k_cache, *v_cache;
    void* out;             // [tokens, heads, head_dim]
    const int32_t *query_start, *seq_lens, *block_table;  // of a BatchLayout; decodes come first
    const uint8_t* prompts;  // [requests], whether its only query is a prompt's, or null: none is
    int64_t requests, table_stride, query_stride;
    int32_t block_size, heads, kv_heads, head_dim;        // block_size: a power of two
    int32_t window;        // keys that a query sees, 0 for all
    float scale, soft_cap; // scores become soft_cap * tanh(score / soft_cap), unless it is 0
    Dtype dtype, cache_dtype;  // of query and out, of the caches
    int32_t threads;
};

// Decoder layers one after the other, without a return to Python between any two GEMMs.
struct LinearWeight {
    const void *weight, *bias;
    const int32_t* permutation;  // as in LinearArgs
    int64_t outputs;
    int32_t group;
    Format format;
};
struct LayerArgs {
    const void *norm, *mlp_norm;        // [hidden]
    const void *query_norm, *key_norm;  // [head_dim], or null
    const void *post_attention_norm, *post_mlp_norm;  // [hidden], of what is added, or null
    void *k_cache, *v_cache;
    LinearWeight qkv, o, gate_up, down; // gate_up interleaved, as its epilogue takes it
    float eps, head_eps, scale;         // of the norms; of heads'; of scores
    float soft_cap;                     // as in AttentionArgs
    int32_t window;
    Epilogue activation;                // silu or gelu
};
enum LayerOperation { QKV, ROPE, ATTENTION, OUTPUT, GATE_UP, DOWN, NORM, LAYER_OPERATIONS };
struct LayersArgs {
    void* residual;        // [tokens, hidden], in and out
    void* workspace;       // for each token the outputs of qkv, twice those of heads, half of gate_up's,
                           // and hidden
    const LayerArgs* layers;  // [count]
    int64_t* nanoseconds;  // [LAYER_OPERATIONS], which each operation adds its time to, or null
    const void *cos, *sin; // the rest as in RotaryArgs and AttentionArgs
    const int64_t *positions, *slots;
    const int32_t *query_start, *seq_lens, *block_table;
    const uint8_t* prompts;
    const int64_t* needed; // [num_needed], ascending: the tokens whose states are wanted; null: all
    const void* final_norm;  // [hidden], of the model; null: these are not its last layers
    void* states;          // [num_needed or tokens, hidden], out: the residual after the final norm
    uint8_t* finite;       // [tokens], out: whether these are, or, where only some are needed, what
                           // the last layer's attention found
    int64_t count, tokens, hidden, requests, table_stride, num_needed;
    int32_t block_size, heads, kv_heads, head_dim, rotary_dim;
    int32_t is_start;      // whether these are the model's first layers
    Dtype dtype, cache_dtype;
    int32_t threads;
};

// Attention of `count` queries of a request, from a token of the batch on, over the keys of a head;
// table: the request's blocks, position: the first query's.
using AttendRows = void (*)(const AttentionArgs& a, const int32_t* table, int64_t token,
                            int64_t position, int64_t count, int64_t head);
struct Prompts {
    AttendRows attend;
    int64_t rows;  // queries times heads that share a key head, at most, but for more heads
};

struct Kernels {
    void (*rms_norm)(const RmsNormArgs&);
    void (*finite_rows)(const RowsArgs&);
    void (*to_float)(const RowsArgs&);
    void (*highest)(const RowsArgs&);
    void (*block_maxima)(const RowsArgs&);
    void (*block_masses)(const RowsArgs&);
    void (*linear)(const LinearArgs&);      // with weights in float or bf16
    void (*linear_int)(const LinearArgs&);  // with others
    void (*quantize)(const QuantizeArgs&);
    void (*rotary_write_kv)(const RotaryArgs&);
    void (*attention)(const AttentionArgs&, Prompts);  // null for their own prefill kernel
    void (*exp)(const float*, float*, int64_t);
    const char* name = nullptr;  // this and what follows are library.cpp's choice
    void (*linear_bf16)(const LinearArgs&) = nullptr;
    Prompts (*prompts)(const AttentionArgs&) = nullptr;
};

extern const Kernels kernels_avx2, kernels_avx512;

// Run by the kernels of the chosen instruction set, which depend on a weight's format and the batch.
void run_layers(const Kernels& kernels, const LayersArgs& args);
void run_linear(const Kernels& kernels, const LinearArgs& args);
void run_attention(const Kernels& kernels, const AttentionArgs& args);

// With VNNI the GEMMs with bytes differ, and the rest is the same.
void linear_int_avx2_vnni(const LinearArgs& args);
void linear_int_avx512_vnni(const LinearArgs& args);
// With AVX-512 BF16, those with bfloat16 weights, too, and attention of prompts: null for what it does
// not serve.
void linear_avx512_bf16(const LinearArgs& args);
Prompts prompts_avx512_bf16(const AttentionArgs& args);
// Both by AMX tiles, where sizes allow.
void linear_int_amx(const LinearArgs& args);
void linear_bf16_amx(const LinearArgs& args);
// Attention of prompts by AMX tiles, as above.
Prompts prompts_amx(const AttentionArgs& args);
