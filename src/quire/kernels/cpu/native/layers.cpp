// Decoder layers, each as the calls that Python would make for it one by one.

#include "quire_cpu.h"

void run_linear(const Kernels& kernels, const LinearArgs& args) {
    switch (args.format) {
        case Format::f32: return kernels.linear(args);
        case Format::bf16: return kernels.linear_bf16(args);
        default: return kernels.linear_int(args);
    }
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

    void linear(const LinearWeight& by, const void* x, int64_t k, const void* norm, float eps,
                Epilogue epilogue, void* out) const {
        run_linear(kernels, {.x = x, .norm_weight = norm, .weight = by.weight, .bias = by.bias,
                             .out = out, .rows = a.tokens, .n = by.outputs, .k = k, .eps = eps,
                             .group = by.group, .dtype = a.dtype, .format = by.format,
                             .epilogue = epilogue, .threads = a.threads});
    }

    void rope(const Workspace& space) const {
        kernels.rotary_write_kv(
            {.heads = space.heads, .query_norm = own.query_norm, .key_norm = own.key_norm,
             .cos = a.cos, .sin = a.sin, .k_cache = own.k_cache, .v_cache = own.v_cache,
             .slots = a.slots, .query = space.query, .tokens = a.tokens,
             .stride = own.qkv.outputs, .num_heads = a.heads, .kv_heads = a.kv_heads,
             .head_dim = a.head_dim, .rotary_dim = a.rotary_dim, .eps = own.head_eps,
             .dtype = a.dtype, .cache_dtype = a.cache_dtype, .threads = a.threads});
    }

    void attend(const Workspace& space) const {
        run_attention(kernels,
                      {.query = space.query, .k_cache = own.k_cache, .v_cache = own.v_cache,
                       .out = space.attended, .query_start = a.query_start,
                       .seq_lens = a.seq_lens, .block_table = a.block_table,
                       .requests = a.requests, .table_stride = a.table_stride,
                       .query_stride = a.heads * a.head_dim, .block_size = a.block_size,
                       .heads = a.heads, .kv_heads = a.kv_heads, .head_dim = a.head_dim,
                       .window = own.window, .scale = own.scale, .soft_cap = own.soft_cap,
                       .dtype = a.dtype, .cache_dtype = a.cache_dtype, .threads = a.threads});
    }

    // Adds W x to the residual, normalised first where there is a norm for it.
    void add(const LinearWeight& by, const void* x, int64_t k, const void* norm,
             uint8_t* out) const {
        if (!norm) return linear(by, x, k, nullptr, 0.0f, Epilogue::add, a.residual);
        linear(by, x, k, nullptr, 0.0f, Epilogue::store, out);
        kernels.rms_norm({.x = out, .weight = norm, .out = a.residual, .rows = a.tokens,
                          .size = a.hidden, .eps = own.eps, .dtype = a.dtype,
                          .threads = a.threads, .adds = 1});
    }

    // rows: normalised by the first norm, or null if that is still to be done
    void run(const Workspace& space, const void* rows) const {
        const int64_t width = a.heads * a.head_dim;
        linear(own.qkv, rows ? rows : a.residual, a.hidden, rows ? nullptr : own.norm, own.eps,
               Epilogue::store, space.heads);
        rope(space);
        attend(space);
        add(own.o, space.attended, width, own.post_attention_norm, space.out);
        linear(own.gate_up, a.residual, a.hidden, own.mlp_norm, own.eps, own.activation,
               space.inner);
        add(own.down, space.inner, own.gate_up.outputs / 2, own.post_mlp_norm, space.out);
    }
};

}  // namespace

void run_layers(const Kernels& kernels, const LayersArgs& a) {
    const int64_t row = a.tokens * (a.dtype == Dtype::bf16 ? 2 : 4);
    for (int64_t i = 0; i < a.count; ++i) {
        const LayerArgs& own = a.layers[i];
        const int64_t heads = row * own.qkv.outputs, width = row * a.heads * a.head_dim;
        uint8_t* const at = static_cast<uint8_t*>(a.workspace);
        const int64_t inner = row * own.gate_up.outputs / 2;
        const Workspace space{at, at + heads, at + heads + width, at + heads + 2 * width,
                              at + heads + 2 * width + inner};
        Layer{kernels, a, own}.run(space, i ? nullptr : a.rows);
    }
}
