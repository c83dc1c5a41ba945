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

// What lies between a layer's products.
struct Rooms {
    uint8_t *heads, *query, *attended, *inner;
};

struct Layer {
    const Kernels& kernels;
    const LayersArgs& a;
    const LayerArgs& own;

    void multiply(const Product& by, const void* x, int64_t k, const void* norm, float eps,
                  Epilogue epilogue, void* out) const {
        run_linear(kernels, {.x = x, .norm_weight = norm, .weight = by.weight, .bias = by.bias,
                             .out = out, .rows = a.tokens, .n = by.outputs, .k = k, .eps = eps,
                             .group = by.group, .dtype = a.dtype, .format = by.format,
                             .epilogue = epilogue, .threads = a.threads});
    }

    void turn(const Rooms& rooms) const {
        kernels.rotary_write_kv(
            {.heads = rooms.heads, .query_norm = own.query_norm, .key_norm = own.key_norm,
             .cos = a.cos, .sin = a.sin, .k_cache = own.k_cache, .v_cache = own.v_cache,
             .slots = a.slots, .query = rooms.query, .tokens = a.tokens,
             .stride = own.qkv.outputs, .num_heads = a.heads, .kv_heads = a.kv_heads,
             .head_dim = a.head_dim, .rotary_dim = a.rotary_dim, .eps = own.head_eps,
             .dtype = a.dtype, .kept = a.kept, .threads = a.threads});
    }

    void attend(const Rooms& rooms) const {
        run_attention(kernels,
                      {.query = rooms.query, .k_cache = own.k_cache, .v_cache = own.v_cache,
                       .out = rooms.attended, .query_start = a.query_start,
                       .seq_lens = a.seq_lens, .block_table = a.block_table,
                       .requests = a.requests, .table_stride = a.table_stride,
                       .query_stride = a.heads * a.head_dim, .block_size = a.block_size,
                       .heads = a.heads, .kv_heads = a.kv_heads, .head_dim = a.head_dim,
                       .window = own.window, .scale = own.scale, .dtype = a.dtype,
                       .kept = a.kept, .threads = a.threads});
    }

    // rows: behind the first norm, if they are there already
    void run(const Rooms& rooms, const void* rows) const {
        const int64_t width = a.heads * a.head_dim;
        multiply(own.qkv, rows ? rows : a.residual, a.hidden, rows ? nullptr : own.norm, own.eps,
                 Epilogue::store, rooms.heads);
        turn(rooms);
        attend(rooms);
        multiply(own.o, rooms.attended, width, nullptr, 0.0f, Epilogue::add, a.residual);
        multiply(own.gate_up, a.residual, a.hidden, own.mlp_norm, own.eps, Epilogue::silu,
                 rooms.inner);
        multiply(own.down, rooms.inner, own.gate_up.outputs / 2, nullptr, 0.0f, Epilogue::add,
                 a.residual);
    }
};

}  // namespace

void run_layers(const Kernels& kernels, const LayersArgs& a) {
    const int64_t row = a.tokens * (a.dtype == Dtype::bf16 ? 2 : 4);
    for (int64_t i = 0; i < a.count; ++i) {
        const LayerArgs& own = a.layers[i];
        const int64_t heads = row * own.qkv.outputs, width = row * a.heads * a.head_dim;
        uint8_t* const at = static_cast<uint8_t*>(a.room);
        const Rooms rooms{at, at + heads, at + heads + width, at + heads + 2 * width};
        Layer{kernels, a, own}.run(rooms, i ? nullptr : a.rows);
    }
}
