"""Repetition, presence and frequency penalties on the GPU.

Floor: logits read and written, and counts read, once each; only for rows with penalties.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048  # tokens for each program
_MOST_COUNTED = tl.constexpr(0x7FFF)


def penalise(logits: Tensor, rows: Tensor, counts: Tensor, penalties: Tensor) -> None:
    """Twin of `reference_step.penalise`."""
    num_rows, vocab = logits.shape
    assert logits.stride(1) == counts.stride(1) == 1
    penalise_kernel[(num_rows, triton.cdiv(vocab, _BLOCK))](
        logits, logits.stride(0), rows, counts, counts.stride(0), penalties, vocab,
        BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def penalise_kernel(
    logits_ptr, stride, rows_ptr, counts_ptr, stride_counts, penalties_ptr, vocab,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes in the twin's order and dtypes, so that results are equal bit for bit."""
    u = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    row = tl.load(rows_ptr + u)
    held = tl.load(counts_ptr + row * stride_counts + token, mask=inside, other=0).to(tl.int32)
    x = tl.load(logits_ptr + u * stride + token, mask=inside, other=0.0)
    repetition = tl.load(penalties_ptr + 3 * u).to(tl.float32)
    presence = tl.load(penalties_ptr + 3 * u + 1)
    frequency = tl.load(penalties_ptr + 3 * u + 2)
    divided = tl.div_rn(x, tl.zeros_like(x) + repetition)
    repeated = tl.where(x > 0, divided, x * repetition)
    x = tl.where(held != 0, repeated, x)
    times = held & _MOST_COUNTED
    amount = (frequency * times.to(tl.float64) + presence).to(tl.float32)
    x = tl.where(times > 0, x - amount, x)
    tl.store(logits_ptr + u * stride + token, x, mask=inside)
