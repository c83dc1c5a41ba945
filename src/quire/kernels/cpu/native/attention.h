// Attention of a ragged batch over the paged cache: which pieces of work there are. Included inside
// a namespace that has decode.h and prefill.h.
//
// A decode, of one query token, is cut into stretches of its keys, prompts into tiles of queries for
// each key head. How a request is cut depends on itself alone, and its parts are put together
// in their order by whoever ends the last one, so results depend neither on the batch nor on the
// threads.

constexpr int64_t MOST_REQUESTS = 256;  // at once

struct Cut {          // of a request
    int64_t pieces;   // before this request's, in the whole batch
    int64_t parts;    // those of decodes among them
    int64_t begin;    // the oldest key that a decode sees
    int64_t stretch;  // keys of a decode's piece, or queries of a tile
    int64_t left;     // pieces that are not done
};

// Whether request `r` has one query that is not a prompt's.
inline bool is_decode(const AttentionArgs& a, int64_t r) {
    return a.query_start[r + 1] - a.query_start[r] == 1 && !(a.prompts && a.prompts[r]);
}

// The pieces of request `r`, and how it is cut.
inline int64_t cut_request(const AttentionArgs& a, const Prompts& prompts, int64_t r, Cut* cut) {
    const int64_t queries = a.query_start[r + 1] - a.query_start[r], length = a.seq_lens[r];
    if (!is_decode(a, r)) {
        cut->stretch = std::max<int64_t>(1, prompts.rows * a.kv_heads / a.heads);
        return (queries + cut->stretch - 1) / cut->stretch * a.kv_heads;
    }
    cut->begin = a.window ? std::max<int64_t>(0, length - a.window) : 0;
    const int64_t keys = length - cut->begin, unit = keys > 4 * TOKENS ? TOKENS : TOKENS / 2;
    cut->stretch = (keys + MOST_PARTS * unit - 1) / (MOST_PARTS * unit) * unit;
    return cut->left = (keys + cut->stretch - 1) / cut->stretch;
}

// At most MOST_REQUESTS of them.
template <typename Code>
void attend_requests(const AttentionArgs& a, const Prompts& prompts) {
    const int64_t width = (a.heads + 15) / 16 * 16, dim = a.head_dim;
    thread_local Scratch plan, shared;
    Cut* const cuts = plan.get<Cut>(a.requests);
    int64_t total = 0, parts = 0;
    for (int64_t r = 0; r < a.requests; ++r) {
        cuts[r].pieces = total;
        cuts[r].parts = parts;
        const int64_t own = cut_request(a, prompts, r, cuts + r);
        total += own;
        if (is_decode(a, r)) parts += own;
    }
    const int64_t part_size = a.heads * dim + 2 * width;
    float* const memory = shared.get<float>(parts * part_size);
    parallel_for(total, a.threads, [&](int64_t number) {
        const int64_t piece = total - 1 - number;  // prompts, the longer pieces, come last
        int64_t r = 0;
        for (int64_t above = a.requests; above - r > 1;) {
            const int64_t middle = (r + above) / 2;
            (cuts[middle].pieces <= piece ? r : above) = middle;
        }
        Cut& cut = cuts[r];
        const int64_t index = piece - cut.pieces, token = a.query_start[r];
        const int64_t queries = a.query_start[r + 1] - token, length = a.seq_lens[r];
        const int32_t* const table = a.block_table + r * a.table_stride;
        if (!is_decode(a, r)) {
            const int64_t first = index / a.kv_heads * cut.stretch;
            return prompts.attend(a, table, token + first, length - queries + first,
                                  std::min(cut.stretch, queries - first), index % a.kv_heads);
        }
        const auto part = [&](int64_t i) {
            float* const sums = memory + (cut.parts + i) * part_size;
            return Part{sums, sums + a.heads * dim, sums + a.heads * dim + width};
        };
        const int64_t begin = cut.begin + index * cut.stretch;
        const int64_t end = std::min(begin + cut.stretch, length);
        attend<Code>(a, blocks_of<Code>(a, table), token, begin, end, part(index));
        if (__atomic_sub_fetch(&cut.left, 1, __ATOMIC_ACQ_REL) > 0) return;
        Part all[MOST_PARTS];
        const int64_t count = (length - cut.begin + cut.stretch - 1) / cut.stretch;
        for (int64_t i = 0; i < count; ++i) all[i] = part(i);
        put_together<Code>(a, token, all, count);
    });
}

// Some requests at a time, which bounds the memory for parts of decodes.
template <typename Code>
void attention_as(const AttentionArgs& a, Prompts prompts) {
    if (!prompts.attend) prompts = {attend_rows<Code>, ROWS};
    for (int64_t first = 0; first < a.requests; first += MOST_REQUESTS) {
        AttentionArgs some = a;
        some.requests = std::min(MOST_REQUESTS, a.requests - first);
        some.query_start += first;
        some.seq_lens += first;
        some.block_table += first * a.table_stride;
        if (a.prompts) some.prompts += first;
        attend_requests<Code>(some, prompts);
    }
}

void attention(const AttentionArgs& a, Prompts prompts) {
    switch (a.cache_dtype) {
        case Dtype::f32: return attention_as<float>(a, prompts);
        case Dtype::bf16: return attention_as<bf16>(a, prompts);
        case Dtype::fp8: return attention_as<fp8>(a, prompts);
        case Dtype::int8: return attention_as<int8_t>(a, prompts);
    }
}
