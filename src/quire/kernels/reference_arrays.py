"""Plain NumPy versions of operations on rows of hidden states and logits. No torch.

cpu/row_ops.py has them in native code. bfloat16 is stored as uint16 arrays of bits.
"""

from __future__ import annotations

import numpy as np

from quire.array_types import Array, Bits, Flags, Ints, Singles
from quire.kernels import sampling_math

BLOCK = 64  # logits of a block, the unit of the sampler's search
_PIECE = 1 << 18  # logits worked on at a time: 1 MiB, which stays in a core's cache


def few_rows(count: int, size: int, most: int = _PIECE) -> list[slice]:
    """Slices of `count` rows of `size` numbers, of at most so many numbers or one row."""
    step = max(1, most // max(1, size))
    return [slice(begin, begin + step) for begin in range(0, count, step)]


def finite_rows(x: Array) -> Flags:
    """Flags [T] of the rows without NaN and infinity of x [T, H], float32, float16 or bfloat16."""
    values: Singles = to_float(x) if x.dtype == np.uint16 else x
    sound: Flags = np.isfinite(values).all(axis=1)  # type: ignore[assignment]
    return sound


def to_float(x: Bits) -> Singles:
    """bfloat16 bits [S, V] as float32 [S, V]."""
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def highest(logits: Singles) -> tuple[Ints, Singles]:
    """The best token of each row (the first of equals) and its logit: [S, V] → [S], [S].

    Where a row holds NaN, the logit is NaN and the token is undefined.
    """
    ids = logits.argmax(axis=1)
    return ids, logits[np.arange(len(ids)), ids]


def block_maxima(logits: Singles, indices: Ints) -> Singles:
    """The highest logit (or NaN) of each block of 64: logits [S, P], indices [N] → [N, P / 64].

    indices: rows of logits.
    """
    out = np.empty((len(indices), logits.shape[1] // BLOCK), np.float32)
    for part in few_rows(len(indices), logits.shape[1]):
        out[part] = _in_blocks(logits[indices[part]]).max(axis=2)
    return out


def block_masses(
    logits: Singles,
    indices: Ints,
    peaks: Singles,
    slopes: Singles,
) -> Ints:
    """The sum of the tokens' weights in each block of 64: int64 [N, P / 64], exact.

    logits [S, P]; indices [N] of its rows; peaks, slopes [N]. For weights see `sampling_math`.
    """
    out = np.empty((len(indices), logits.shape[1] // BLOCK), np.int64)
    for part in few_rows(len(indices), logits.shape[1]):
        own = peaks[part, None], slopes[part, None]
        weights = sampling_math.weights(sampling_math.halvings(logits[indices[part]], *own))
        out[part] = _in_blocks(weights).sum(axis=2, dtype=np.float64)  # below 2^53
    return out


def _in_blocks(values: Singles) -> Singles:
    """Logits [N, P] as a view [N, B, BLOCK]."""
    return values.reshape(len(values), -1, BLOCK)
