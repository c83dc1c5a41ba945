"""The plain NumPy twins of what a CPU does with rows of hidden states and logits. No torch.

Owns what these operations mean; cpu/rows.py has them in compiled code, where it was built.
bfloat16 is an array of its bits, uint16.
"""

from __future__ import annotations

import numpy as np

from quire.array_types import Array, Bits, Flags, Ints, Singles
from quire.kernels import sampling_math

BLOCK = 64  # logits that the sampler looks at together
_PIECE = 1 << 18  # logits worked on at a time: 1 MiB, which stays in a core's cache


def few_rows(count: int, size: int) -> list[slice]:
    """Rows of `size` logits, so few at a time that a copy of them stays in a core's cache."""
    step = max(1, _PIECE // size)
    return [slice(begin, begin + step) for begin in range(0, count, step)]


def finite_rows(x: Array) -> Flags:
    """Whether all numbers of a row are finite: [T, H], float32 or bfloat16 → [T]."""
    values: Singles = to_float(x) if x.dtype == np.uint16 else x
    sound: Flags = np.isfinite(values).all(axis=1)  # type: ignore[assignment]
    return sound


def to_float(x: Bits) -> Singles:
    """Logits [S, V] in bfloat16 as float32, in which tokens are drawn."""
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def highest(logits: Singles) -> tuple[Ints, Singles]:
    """The best token of each row, of equals the first, and its logit: [S, V] → [S], [S].

    Where a row holds NaN, that is its logit, and the token means nothing.
    """
    ids = logits.argmax(axis=1)
    return ids, logits[np.arange(len(ids)), ids]


def block_maxima(logits: Singles, indices: Ints) -> Singles:
    """The highest logit, or NaN, of each block of rows: [S, P], indices [N] → [N, P / 64]."""
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
    """The sum of the tokens' weights in each block of rows: [N, P / 64].

    logits [S, P]; indices [N]: which rows; peaks, slopes [N]. The weights are those of
    `quire.kernels.sampling_math`, and the sums exact.
    """
    out = np.empty((len(indices), logits.shape[1] // BLOCK), np.int64)
    for part in few_rows(len(indices), logits.shape[1]):
        own = peaks[part, None], slopes[part, None]
        weights = sampling_math.weights(sampling_math.halvings(logits[indices[part]], *own))
        out[part] = _in_blocks(weights).sum(axis=2, dtype=np.float64)  # below 2^53
    return out


def _in_blocks(values: Singles) -> Singles:
    """A view of [N, P] as [N, B, BLOCK]."""
    return values.reshape(len(values), -1, BLOCK)
