"""Softmax of Hopper's prefill attention: a tile's weights, as tensor cores take them.

Owns the order of its instructions as far as ptxas has to be led.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quire.kernels.triton.attention.kv_codes import LIFT


@gluon.jit
def softmax(
    scores, m, total, position, tile, scale, dtype: gl.constexpr,
    TILE: gl.constexpr, WINDOW: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """A tile's weights, the new maximum and total, and the factor for the sums so far."""
    LIFTED: gl.constexpr = LIFT if dtype == gl.float16 else 0.0
    if MASKED:
        key = tile * TILE + gl.arange(0, TILE, gl.SliceLayout(0, scores.type.layout))
        seen = key[None, :] <= position[:, None]
        if WINDOW > 0:
            seen = seen & (key[None, :] > position[:, None] - WINDOW)
        scores = gl.where(seen, scores, -1e38)
    new_m = gl.maximum(m, gl.max(scores, 1) * scale)
    w = exp2(scores * scale[:, None] - (new_m - LIFTED)[:, None])
    shrink = exp2(m - new_m)
    return w, new_m, total * shrink + gl.sum(w, 1), shrink


@gluon.jit
def packed(w, dtype: gl.constexpr):
    """Weights [R, K] in 16 bits, pairs in words: int32 [R, K / 2].

    Words stay as they are from one iteration to the next. ptxas swaps pairs of 16-bit numbers twice
    in each, an eighth of the loop's instructions.
    """
    even, odd = w.reshape([w.shape[0], w.shape[1] // 2, 2]).split()
    CONVERT: gl.constexpr = (
        "cvt.rn.f16x2.f32 $0, $2, $1;" if dtype == gl.float16 else "cvt.rn.bf16x2.f32 $0, $2, $1;"
    )
    return gl.inline_asm_elementwise(
        CONVERT, "=r,f,f", [even, odd], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def operand(words, dtype: gl.constexpr, SUMS: gl.constexpr):
    """Words of `packed` as the first operand [R, K] of an MMA."""
    even, odd = gl.inline_asm_elementwise(
        "mov.b32 {$0, $1}, $2;", "=h,=h,r", [words], dtype=(gl.int16, gl.int16), is_pure=True,
        pack=1,
    )  # fmt: skip
    pairs = gl.join(even.to(dtype, bitcast=True), odd.to(dtype, bitcast=True))
    w = pairs.reshape([words.shape[0], 2 * words.shape[1]])
    return gl.convert_layout(w, gl.DotOperandLayout(0, SUMS, 2))


@gluon.jit
def exp2(x):
    """2^x, flushing results below 2^-126 to zero."""
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def done(total):
    """Return total (>= 0); it has to be computed before any wait for an MMA that follows.

    ptxas moves arithmetic across such waits, but not across a barrier, even one never reached.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.lt.f32 p, $1, 0f00000000; @p bar.warp.sync -1; mov.b32 $0, $1; }",
        "=f,f", [total], dtype=gl.float32, is_pure=False, pack=1,
    )  # fmt: skip
