"""Which tiles of queries prefill attention has in a step, those with the most keys first.

Worked out once a step on the device, so that a graph serves any batch, and read by the programs of
all layers.
"""

from __future__ import annotations

import triton
import triton.language as tl

WORK_FIELDS = 8  # of a tile, of which five are used
SPAN = tl.constexpr(512)  # keys


@triton.jit(do_not_specialize=["num_requests"])
def prefill_work_kernel(
    query_start_ptr, seq_lens_ptr, tiles_ptr, work_ptr, num_requests,
    TOKENS: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_T: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """tiles [B + 1]: tiles of TOKENS queries of all requests before each → work [tiles, FIELDS]:
    a tile's request, the request's first token, its number of queries and of keys, and the tile's
    first query.

    First come those that see the most keys, in steps of SPAN; of as many, a request's tiles stay
    together, so that its keys and values are still in the cache. A tile's place is the number of
    those before it: of each request these are its last ones, so they are counted by a division.
    """
    tile = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    each = tl.arange(0, BLOCK_B)
    there = each < num_requests
    start = tl.load(query_start_ptr + each, mask=there, other=0)
    queries = tl.load(query_start_ptr + each + 1, mask=there, other=0) - start
    keys = tl.load(seq_lens_ptr + each, mask=there, other=0)
    begin = tl.load(tiles_ptr + each, mask=there, other=0)
    end = tl.load(tiles_ptr + each + 1, mask=there, other=2**30)

    exists = tile < tl.load(tiles_ptr + num_requests)
    request = tl.sum((end[None, :] <= tile[:, None]).to(tl.int32), axis=1)
    request = tl.where(exists, request, 0)
    first_token = tl.load(query_start_ptr + request)
    num_queries = tl.load(query_start_ptr + request + 1) - first_token
    seq_len = tl.load(seq_lens_ptr + request)
    first_query = (tile - tl.load(tiles_ptr + request)) * TOKENS
    seen = tl.minimum(seq_len - num_queries + first_query + TOKENS, seq_len)

    # of other requests' tiles those are before that see more than `bound`  [BLOCK_T, BLOCK_B]
    step = (seen // SPAN * SPAN)[:, None] - 1
    bound = tl.where(each[None, :] < request[:, None], step, step + SPAN)
    bound = tl.where(each[None, :] == request[:, None], seen[:, None], bound)
    others = tl.maximum((bound - (keys - queries)[None, :]) // TOKENS, 0)  # that see no more
    before = tl.where(there & (keys > bound), tl.maximum((end - begin)[None, :] - others, 0), 0)
    record = work_ptr + tl.sum(before, axis=1) * FIELDS
    tl.store(record, request, mask=exists)
    tl.store(record + 1, first_token, mask=exists)
    tl.store(record + 2, num_queries, mask=exists)
    tl.store(record + 3, seq_len, mask=exists)
    tl.store(record + 4, first_query, mask=exists)
