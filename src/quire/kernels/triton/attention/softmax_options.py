"""Soft caps of attention scores, and sinks: logits that join only a softmax's denominator.

All scores here are multiplied by log2(e), and the weights of a softmax by 2^LIFT (see
`kv_codes.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire.kernels.triton.attention.kv_codes import LIFT

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def soft_capped(scores, CAP: tl.constexpr):
    """CAP · tanh(scores / CAP), for scores and CAP that are multiplied by log2(e)."""
    RATE: tl.constexpr = 2.0 * LOG2_E / CAP
    return CAP - 2.0 * CAP / (1.0 + tl.exp2(scores * RATE))


@triton.jit
def softmax_of_sinks(sink_ptrs):
    """An online softmax that has seen only sinks [ROWS]: (maximum, sum of weights), float32."""
    m = tl.load(sink_ptrs).to(tl.float32) * LOG2_E
    return m, tl.exp2(tl.full(m.shape, LIFT, tl.float32))


@triton.jit
def with_sinks(result, weight, sinks_ptr, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Merge the sinks [GROUP] of one key head's query heads into a partial softmax.

    result [ROWS, D]: weighted mean of v; weight [ROWS]: log2 of its weight; both returned.
    """
    g = tl.arange(0, ROWS)
    sink = tl.load(sinks_ptr + g, mask=g < GROUP, other=0.0).to(tl.float32) * LOG2_E + LIFT
    m = tl.maximum(weight, sink)
    share = tl.exp2(weight - m)
    total = share + tl.exp2(sink - m)
    return result * (share / total)[:, None], m + tl.log2(total)
