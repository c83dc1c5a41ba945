// Decoder layers, each as the calls that Python would make for it one by one.

#include <algorithm>
#include <chrono>
#include <cstring>

#include "pool.h"
#include "quire_cpu.h"
#include "scratch.h"

namespace {

void run_in_order(const Kernels& kernels, const LinearArgs& args) {
    switch (args.format) {
        case Format::f32: return kernels.linear(args);
        case Format::bf16: return kernels.linear_bf16(args);
        default: return kernels.linear_int(args);
    }
}

// Brings the columns of x, and the norm's weight, into the order of the weight's inputs first. The
// norm's factor does not depend on it. Some rows at a time, which stay in the cache.
template <typename T>
void run_permuted(const Kernels& kernels, LinearArgs a) {
    constexpr int64_t SOME = 512;
    thread_local Scratch scratch;
    T* const rows = scratch.get<T>((std::min(SOME, a.rows) + 1) * a.k);
    T* const norm = rows + std::min(SOME, a.rows) * a.k;
    const int32_t* const permutation = a.permutation;
    const auto gather = [&](const void* from, T* to) {
        for (int64_t i = 0; i < a.k; ++i) to[i] = static_cast<const T*>(from)[permutation[i]];
    };
    if (a.norm_weight) gather(a.norm_weight, norm), a.norm_weight = norm;
    const bool halves = a.epilogue == Epilogue::silu || a.epilogue == Epilogue::gelu;
    const int64_t width = halves ? a.n / 2 : a.n, count = a.rows;
    for (int64_t row = 0; row < count; row += SOME) {
        const T* x = static_cast<const T*>(a.x);
        LinearArgs part = a;
        part.rows = std::min(SOME, count - row);
        parallel_for(part.rows, part.rows * a.k < 1 << 16 ? 1 : a.threads,
                     [&](int64_t r) { gather(x + (row + r) * a.k, rows + r * a.k); });
        part.x = rows;
        part.out = static_cast<T*>(a.out) + row * width;
        run_in_order(kernels, part);
    }
}

}  // namespace

void run_linear(const Kernels& kernels, const LinearArgs& args) {
    if (!args.permutation) return run_in_order(kernels, args);
    args.dtype == Dtype::bf16 ? run_permuted<bf16>(kernels, args)
                              : run_permuted<float>(kernels, args);
}

void run_attention(const Kernels& kernels, const AttentionArgs& args) {
    kernels.attention(args, kernels.prompts ? kernels.prompts(args) : Prompts{});
}

namespace {

// Activations between the GEMMs of a layer.
struct Workspace {
    uint8_t *heads, *query, *attended, *inner, *out;
};

struct Layer {
    const Kernels& kernels;
    const LayersArgs& a;
    const LayerArgs& own;
    int64_t tokens;

    // Runs an operation, and adds its time where that is wanted.
    template <typename F>
    void timed(LayerOperation operation, F run) const {
        if (!a.nanoseconds) return run();
        const auto begin = std::chrono::steady_clock::now();
        run();
        const auto time = std::chrono::steady_clock::now() - begin;
        a.nanoseconds[operation] += std::chrono::nanoseconds(time).count();
    }

    void linear(LayerOperation operation, const LinearWeight& by, const void* x, int64_t k,
                const void* norm, float eps, Epilogue epilogue, void* out) const {
        const LinearArgs args{.x = x, .norm_weight = norm, .weight = by.weight, .bias = by.bias,
                              .out = out, .permutation = by.permutation, .rows = tokens,
                              .n = by.outputs, .k = k, .eps = eps, .group = by.group,
                              .dtype = a.dtype, .format = by.format, .epilogue = epilogue,
                              .threads = a.threads};
        timed(operation, [&] { run_linear(kernels, args); });
    }

    void rope(const Workspace& space) const {
        kernels.rotary_write_kv(
            {.heads = space.heads, .query_norm = own.query_norm, .key_norm = own.key_norm,
             .cos = a.cos, .sin = a.sin, .positions = a.positions, .k_cache = own.k_cache,
             .v_cache = own.v_cache, .slots = a.slots, .query = space.query, .tokens = tokens,
             .stride = own.qkv.outputs, .num_heads = a.heads, .kv_heads = a.kv_heads,
             .head_dim = a.head_dim, .rotary_dim = a.rotary_dim, .eps = own.head_eps,
             .dtype = a.dtype, .cache_dtype = a.cache_dtype, .threads = a.threads});
    }

    void attend(const Workspace& space) const {
        run_attention(kernels,
                      {.query = space.query, .k_cache = own.k_cache, .v_cache = own.v_cache,
                       .out = space.attended, .query_start = a.query_start,
                       .seq_lens = a.seq_lens, .block_table = a.block_table,
                       .prompts = a.prompts, .requests = a.requests, .table_stride = a.table_stride,
                       .query_stride = a.heads * a.head_dim, .block_size = a.block_size,
                       .heads = a.heads, .kv_heads = a.kv_heads, .head_dim = a.head_dim,
                       .window = own.window, .scale = own.scale, .soft_cap = own.soft_cap,
                       .dtype = a.dtype, .cache_dtype = a.cache_dtype, .threads = a.threads});
    }

    // Adds W x to the residual, normalised first where there is a norm for it.
    void add(LayerOperation operation, const LinearWeight& by, const void* x, int64_t k,
             const void* norm, uint8_t* out) const {
        if (!norm) return linear(operation, by, x, k, nullptr, 0.0f, Epilogue::add, a.residual);
        linear(operation, by, x, k, nullptr, 0.0f, Epilogue::store, out);
        rms_norm(out, norm, a.residual, 1);
    }

    void rms_norm(const void* x, const void* weight, void* out, int32_t adds) const {
        const RmsNormArgs args{.x = x, .weight = weight, .out = out, .rows = tokens,
                               .size = a.hidden, .eps = own.eps, .dtype = a.dtype,
                               .threads = a.threads, .adds = adds};
        timed(NORM, [&] { kernels.rms_norm(args); });
    }

    void find_finite(const void* x, int64_t size) const {
        kernels.finite_rows({.x = x, .out = a.finite, .rows = tokens, .size = size,
                             .dtype = a.dtype, .threads = a.threads});
    }

    // The model's first norm rounds its rows, as it does in modules; the others are part of a GEMM.
    void attend_all(const Workspace& space, bool is_first) const {
        if (is_first) rms_norm(a.residual, own.norm, space.out, 0);
        linear(QKV, own.qkv, is_first ? space.out : a.residual, a.hidden,
               is_first ? nullptr : own.norm, own.eps, Epilogue::store, space.heads);
        timed(ROPE, [&] { rope(space); });
        timed(ATTENTION, [&] { attend(space); });
    }

    // No token depends on another here. attended: a row for each
    void finish(const Workspace& space, const void* attended) const {
        const int64_t width = a.heads * a.head_dim;
        add(OUTPUT, own.o, attended, width, own.post_attention_norm, space.out);
        linear(GATE_UP, own.gate_up, a.residual, a.hidden, own.mlp_norm, own.eps, own.activation,
               space.inner);
        add(DOWN, own.down, space.inner, own.gate_up.outputs / 2, own.post_mlp_norm, space.out);
    }
};

// Moves the needed rows to the first ones of `to`, which may be the same memory.
void gather(const LayersArgs& a, const void* from, void* to, int64_t row_bytes) {
    for (int64_t i = 0; i < a.num_needed; ++i)
        std::memmove(static_cast<uint8_t*>(to) + i * row_bytes,
                     static_cast<const uint8_t*>(from) + a.needed[i] * row_bytes, row_bytes);
}

// The model's last layer and its states, for the needed tokens alone.
void finish_needed(const Layer& layer, const Workspace& space, int64_t itemsize) {
    const LayersArgs& a = layer.a;
    const int64_t width = a.heads * a.head_dim;
    layer.find_finite(space.attended, width);
    if (!a.num_needed) return;
    gather(a, a.residual, a.residual, a.hidden * itemsize);
    gather(a, space.attended, space.heads, width * itemsize);  // the heads were read
    const Layer needed{layer.kernels, a, layer.own, a.num_needed};
    needed.finish(space, space.heads);
    needed.rms_norm(a.residual, a.final_norm, a.states, 0);
}

// The same for all tokens.
void finish_all(const Layer& layer, const Workspace& space) {
    const LayersArgs& a = layer.a;
    layer.finish(space, space.attended);
    layer.rms_norm(a.residual, a.final_norm, a.states, 0);
    layer.find_finite(a.states, a.hidden);
}

}  // namespace

void run_layers(const Kernels& kernels, const LayersArgs& a) {
    const int64_t itemsize = a.dtype == Dtype::bf16 ? 2 : 4, row = a.tokens * itemsize;
    for (int64_t i = 0; i < a.count; ++i) {
        const LayerArgs& own = a.layers[i];
        const int64_t heads = row * own.qkv.outputs, width = row * a.heads * a.head_dim;
        uint8_t* const at = static_cast<uint8_t*>(a.workspace);
        const int64_t inner = row * own.gate_up.outputs / 2;
        const Workspace space{at, at + heads, at + heads + width, at + heads + 2 * width,
                              at + heads + 2 * width + inner};
        const Layer layer{kernels, a, own, a.tokens};
        layer.attend_all(space, a.is_start && i == 0);
        const bool is_last = a.final_norm && i + 1 == a.count;
        if (!is_last) layer.finish(space, space.attended);
        else if (a.needed) finish_needed(layer, space, itemsize);
        else finish_all(layer, space);
    }
}
