"""Batch-invariant attention for Hopper: storing and merging of splits.

Twins of `_add_split` and `_merge` in `invariant_attention.py`, in Gluon, with the same layout of
partial results in memory.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def add_split(total, total_m, total_s, acc, m, s):
    """Twin of `invariant_attention._add_split`."""
    new_m = gl.maximum(total_m, m)
    shrink, share = gl.exp2(total_m - new_m), gl.exp2(m - new_m)
    layout: gl.constexpr = acc.type.layout
    rows: gl.constexpr = gl.SliceLayout(1, layout)
    by = gl.zeros([acc.shape[0], acc.shape[1]], gl.float32, layout)
    by += gl.convert_layout(share, rows)[:, None]
    total = gl.fma(acc, by, total * gl.convert_layout(shrink, rows)[:, None])
    return total, new_m, gl.fma(s, share, total_s * shrink)


@gluon.jit
def store_split(parts, acc, m, s, GROUP: gl.constexpr):
    """Store a split's sums, maxima and totals of one query's heads."""
    HEAD_DIM: gl.constexpr = acc.shape[1]
    layout: gl.constexpr = acc.type.layout
    row = gl.arange(0, acc.shape[0], gl.SliceLayout(1, layout))[:, None]
    d = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, layout))[None, :]
    gl.store(parts + row * HEAD_DIM + d, acc, mask=(row < GROUP) & (d >= 0))
    row = gl.arange(0, acc.shape[0], m.type.layout)
    gl.store(parts + GROUP * HEAD_DIM + row, m, mask=row < GROUP)
    gl.store(parts + GROUP * (HEAD_DIM + 1) + row, s, mask=row < GROUP)


@gluon.jit
def merge(out_ptr, parts, stride, num_splits, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Merge all splits of one query's heads, in order, and store the result."""
    AT_ONCE: gl.constexpr = 4  # splits loaded together, without waiting for each other
    GROUPS: gl.constexpr = 4 if GROUP <= 4 else (8 if GROUP <= 8 else (16 if GROUP <= 16 else 64))
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    g = gl.arange(0, GROUPS, gl.SliceLayout(1, layout))
    d = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, layout))[None, :]
    total = gl.zeros([GROUPS, HEAD_DIM], gl.float32, layout)
    total_m = gl.full([GROUPS], -1e30, gl.float32, gl.SliceLayout(1, layout))
    total_s = gl.zeros([GROUPS], gl.float32, gl.SliceLayout(1, layout))
    for first in range(0, num_splits, AT_ONCE):
        sums, maxima, weights = (), (), ()
        for i in gl.static_range(AT_ONCE):
            each = parts + (first + i) * stride
            there = (g < GROUP) & (first + i < num_splits)
            inside = there[:, None] & (d >= 0)
            sums = sums + (  # type: ignore[assignment]  # noqa: RUF005
                gl.load(each + g[:, None] * HEAD_DIM + d, inside, 0.0, cache_modifier=".cg"),
            )
            each += GROUP * HEAD_DIM
            maxima = maxima + (  # type: ignore[assignment]  # noqa: RUF005
                gl.load(each + g, there, -1e30, cache_modifier=".cg"),
            )
            weights = weights + (  # type: ignore[assignment]  # noqa: RUF005
                gl.load(each + GROUP + g, there, 0.0, cache_modifier=".cg"),
            )
        for i in gl.static_range(AT_ONCE):
            total, total_m, total_s = add_split(
                total, total_m, total_s, sums[i], maxima[i], weights[i]
            )
    out = (total / gl.maximum(total_s, 1e-30)[:, None]).to(out_ptr.dtype.element_ty)
    inside = (g < GROUP)[:, None] & (d >= 0)
    gl.store(out_ptr + g[:, None] * HEAD_DIM + d, out, mask=inside)
