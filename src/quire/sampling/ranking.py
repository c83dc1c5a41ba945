"""The most probable tokens of each row, exactly: highest logit first, ties by the lowest id.

Owns argmax and top-k search.
"""

from __future__ import annotations

import numpy as np

from quire.array_types import Ints, Logits
from quire.kernels.reference_arrays import BLOCK, few_rows
from quire.sampling.logit_blocks import Rows

_SMALL = 1 << 14  # tokens; below this, many rows are sorted at once


def highest(rows: Rows) -> Ints:
    """The most probable token of each row: [N]."""
    block = rows.maxima.argmax(axis=1)  # the first of equals
    best: Ints = block * BLOCK + rows.open(block[:, None]).argmax(axis=1)
    return best


def ranked(rows: Rows, width: int) -> tuple[Ints, Logits]:
    """The `width` most probable tokens of each row: ids and logits, [N, width].

    If as many blocks are chosen in the same order as tokens are (maximum, then index), any token
    outside of them has `width` better ones inside, so only the chosen blocks are searched.
    """
    if 2 * width > rows.maxima.shape[1]:
        pieces = few_rows(len(rows), rows.logits.shape[1])  # whose copies stay in a core's cache
        found = [_search(rows.logits[rows.samples[piece]], width) for piece in pieces]
        return np.concatenate([ids for ids, _ in found]), np.concatenate([x for _, x in found])
    blocks = np.sort(_order(rows.maxima, width), axis=1)  # [N, width], in order of token ids
    values = rows.open(blocks)
    indices = _order(values, width)
    ids = np.take_along_axis(blocks, indices // BLOCK, axis=1) * BLOCK + indices % BLOCK
    return ids, np.take_along_axis(values, indices, axis=1)


def _search(values: Logits, width: int) -> tuple[Ints, Logits]:
    """`ranked` over all logits [N, P], for many tokens or a small vocabulary."""
    size = values.shape[1]
    if size <= _SMALL or 4 * width > size:
        ids = _order(values, width)
    else:  # one selection, row by row, leaves little to sort
        bounds = np.partition(values, size - width, axis=1)[:, size - width]
        few = [np.flatnonzero(row >= bound) for row, bound in zip(values, bounds, strict=True)]
        pairs = zip(values, few, strict=True)
        ids = np.stack([indices[_order(row[None, indices], width)[0]] for row, indices in pairs])
    return ids, np.take_along_axis(values, ids, axis=1)


def _order(values: Logits, width: int) -> Ints:
    """Indices of the `width` greatest values of each row [N, M], descending, ties by index."""
    bits = (values + np.float32(0.0)).view(np.int32)  # a copy in which minus zero equals zero
    bits ^= (bits >> 31) & 0x7FFFFFFF  # the order of floats as that of integers
    keys = bits.astype(np.int64)
    keys <<= 32
    keys -= np.arange(keys.shape[1])  # now all are different
    if width < keys.shape[1]:
        keys = np.partition(keys, keys.shape[1] - width, axis=1)[:, -width:]
    keys.sort(axis=1)
    indices: Ints = -keys[:, ::-1] & 0xFFFFFFFF
    return indices
