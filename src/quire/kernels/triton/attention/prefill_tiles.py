"""The list of query tiles of prefill attention in a step, those with the most keys first.

Computed once for each step on the device, so that a CUDA graph serves any batch, and read by the
attention kernels of all layers.
"""

from __future__ import annotations

import triton
import triton.language as tl

WORK_FIELDS = 8  # int32 numbers of a tile, of which five are used
SPAN = tl.constexpr(512)  # keys


@triton.jit(do_not_specialize=["num_requests"])
def prefill_work_kernel(
    query_start_ptr, seq_lens_ptr, tiles_ptr, work_ptr, num_requests,
    TOKENS: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_T: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """Fill work int32 [tiles, FIELDS] with the tiles, each of TOKENS queries of one request.

    Fields: the request, its first token, its number of queries and of keys, and the tile's first
    query. tiles int32 [B + 1]: number of tiles of all requests before each.

    Tiles that see the most keys come first, in steps of SPAN. Within a step a request's tiles stay
    together, so that its keys and values are still in the L2 cache. A tile's index is the number of
    tiles before it: of each request these are its last ones, so a division counts them.
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

    # other requests' tiles that see more than `bound` keys come before  [BLOCK_T, BLOCK_B]
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
