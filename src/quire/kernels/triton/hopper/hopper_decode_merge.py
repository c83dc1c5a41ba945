"""Hopper's decode attention: storing and merging of partial results, and zeros for padding.

Twins of `_store_part` and `_merge` in `decode_attention.py`, and of `with_shared_part` in
`shared_prefix_attention.py`, in Gluon, with the same layout in memory.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quire.kernels.triton.launch.gluon_compat import barrier


@gluon.jit
def with_shared_part(
    result, weight, shared, member, head,
    NUM_KV_HEADS: gl.constexpr, GROUP: gl.constexpr, MEMBERS: gl.constexpr,
):  # fmt: skip
    """Twin of `shared_prefix_attention.with_shared_part`."""
    _, _, sums_ptr, stats_ptr, plan_ptr = shared
    LAYOUT: gl.constexpr = result.type.layout
    HEAD_DIM: gl.constexpr = result.shape[1]
    num_tiles, num_splits = gl.load(plan_ptr), gl.load(plan_ptr + 1)
    g = gl.arange(0, result.shape[0], gl.SliceLayout(1, LAYOUT))
    d = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT))[None, :]
    there = g < GROUP
    acc, m = result, weight
    s = gl.full([result.shape[0]], 1.0, gl.float32, gl.SliceLayout(1, LAYOUT))
    for split in range(num_splits):
        part = split * num_tiles * MEMBERS + member
        slot = (part * NUM_KV_HEADS + head) * GROUP + g
        offsets = slot.to(gl.int64)[:, None] * HEAD_DIM + d
        sums = gl.load(sums_ptr + offsets, mask=there[:, None] & (d >= 0), other=0.0)
        part_m = gl.load(stats_ptr + slot * 2, mask=there, other=-1e30)
        part_s = gl.load(stats_ptr + slot * 2 + 1, mask=there, other=0.0)
        new_m = gl.maximum(m, part_m)
        shrink, share = gl.exp2(m - new_m), gl.exp2(part_m - new_m)
        acc = acc * shrink[:, None] + sums * share[:, None]
        s = s * shrink + part_s * share
        m = new_m
    return acc / s[:, None], m + gl.log2(s)


@gluon.jit
def leave_or_merge(
    out_ptr, result, weight, part_ptr, log_ptr, counter_ptr, crew, first, last,
    GROUP: gl.constexpr, NUM_KV_HEADS: gl.constexpr,
):  # fmt: skip
    """Store a result, or a partial one if several crews share the request, merging as the last.

    result [GROUPS, D] and weight [GROUPS] as `decode_attention._attend` returns them; part_ptr and
    log_ptr: memory of a key head for partial ones. first, last: crews that share the request's
    tiles.
    """
    LAYOUT: gl.constexpr = result.type.layout
    HEAD_DIM: gl.constexpr = result.shape[1]
    g = gl.arange(0, result.shape[0], gl.SliceLayout(1, LAYOUT))
    d = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT))[None, :]
    inside = (g < GROUP)[:, None] & (d >= 0)
    complete = first == last
    if first != last:
        slot = 2 * crew + (crew == first).to(gl.int32)  # as `work_partition.slot`
        row = slot * (NUM_KV_HEADS * GROUP) + g
        gl.store(part_ptr + row[:, None] * HEAD_DIM + d, result, mask=inside)
        logs = gl.convert_layout(weight, gl.SliceLayout(1, LAYOUT))
        gl.store(log_ptr + row, logs, mask=g < GROUP)
        barrier()
        ticket = gl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
        complete = ticket == last - first
        if complete:
            gl.store(counter_ptr, 0)
            result = _merged(part_ptr, log_ptr, first, last, GROUP, NUM_KV_HEADS, result)
    if complete:
        gl.store(out_ptr + g[:, None] * HEAD_DIM + d, result.to(out_ptr.dtype.element_ty), inside)


@gluon.jit
def _merged(
    part_ptr, log_ptr, first, last, GROUP: gl.constexpr, NUM_KV_HEADS: gl.constexpr, result
):
    """The weighted mean of all partial results, in order: [GROUPS, D] in the layout of `result`."""
    LAYOUT: gl.constexpr = result.type.layout
    HEAD_DIM: gl.constexpr = result.shape[1]
    AT_ONCE: gl.constexpr = 4096 // (result.shape[0] * HEAD_DIM)  # 32 numbers for each thread
    g = gl.arange(0, result.shape[0], gl.SliceLayout(1, LAYOUT))
    d = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT))[None, :]
    acc = gl.zeros(result.shape, gl.float32, LAYOUT)
    total = gl.zeros([result.shape[0]], gl.float32, gl.SliceLayout(1, LAYOUT))
    m = total - 1e30
    for start in range(first, last + 1, AT_ONCE):
        results, weights = (), ()
        new_m = m
        for i in gl.static_range(AT_ONCE):
            there = (g < GROUP) & (start + i <= last)
            slot = 2 * (start + i) + (start + i == first).to(gl.int32)
            row = slot * (NUM_KV_HEADS * GROUP) + g
            results = results + (gl.load(  # type: ignore[assignment]  # noqa: RUF005
                part_ptr + row[:, None] * HEAD_DIM + d, mask=there[:, None] & (d >= 0),
                other=0.0, cache_modifier=".cg",
            ),)  # fmt: skip
            weights = weights + (  # type: ignore[assignment]  # noqa: RUF005
                gl.load(log_ptr + row, mask=there, other=-1e30, cache_modifier=".cg"),
            )
            new_m = gl.maximum(new_m, weights[i])
        shrink = gl.exp2(m - new_m)
        acc, total, m = acc * shrink[:, None], total * shrink, new_m
        for i in gl.static_range(AT_ONCE):
            weight = gl.exp2(weights[i] - m)
            acc += weight[:, None] * results[i]
            total += weight
    return acc / total[:, None]


@gluon.jit
def clear(out_ptr, SIZE: gl.constexpr):
    """Set a padding token's row to zeros."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([8], [32], [4], [0])
    for start in range(0, SIZE, 1024):
        i = start + gl.arange(0, 1024, LAYOUT)
        gl.store(out_ptr + i, gl.zeros([1024], out_ptr.dtype.element_ty, LAYOUT), mask=i < SIZE)
