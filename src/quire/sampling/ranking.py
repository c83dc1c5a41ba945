"""The most probable tokens of each row, exactly: highest logit first, ties to the lowest id.

Owns the search for them (argmax, top of k, rank); does not own what a filter keeps of them. A
vocabulary is looked at in blocks of 64 tokens: one fast pass finds each block's maximum, and only
the blocks that can matter are opened. Everything works row by row, so that a row's result never
depends on its neighbours.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64  # tokens; rows are padded to a multiple of it
_LOW_BITS = 0xFFFFFFFF


def padded(logits: Tensor) -> Tensor:
    """[S, V] as contiguous [S, P], P the next multiple of BLOCK; pads can never be drawn."""
    missing = -logits.shape[1] % BLOCK
    return F.pad(logits, (0, missing), value=-torch.inf) if missing else logits.contiguous()


def in_blocks(logits: Tensor) -> Tensor:
    """A view of padded [S, P] as [S, P / BLOCK, BLOCK]."""
    return logits.view(logits.shape[0], -1, BLOCK)


def block_maxima(logits: Tensor) -> Tensor:
    """The highest logit of each block: [S, P / BLOCK]. NaN where a block holds NaN."""
    return in_blocks(logits).amax(-1)


def highest(logits: Tensor, maxima: Tensor) -> Tensor:
    """The most probable token of each row [S, P], given its block maxima: int64 [S]."""
    block = maxima.argmax(-1)  # the first of equals, as argmax documents
    rows = torch.arange(len(block), device=logits.device)
    return block * BLOCK + in_blocks(logits)[rows, block].argmax(-1)


def ranked(logits: Tensor, width: int) -> Tensor:
    """The `width` most probable tokens of each padded row [S, P], in order: int64 [S, width].

    If `width` blocks are chosen by the same order as tokens are (maximum, then index), any token
    outside of them has `width` better ones inside: it is enough to sort the chosen blocks.
    """
    count, size = logits.shape
    ids = torch.arange(size, device=logits.device).expand(count, -1)
    if width * BLOCK * 4 <= size:
        blocks = ranked(padded(block_maxima(logits)), width)
        ids = (blocks.unsqueeze(-1) * BLOCK + ids[0, :BLOCK]).flatten(1)
        logits = logits.gather(1, ids)
    return ~_largest(_sort_keys(logits, ids), width) & _LOW_BITS


def ranks(logits: Tensor, token_ids: Tensor) -> Tensor:
    """1 + the number of tokens with a strictly greater logit: [S, V], [S, 1] → [S]."""
    above = logits > logits.gather(1, token_ids)
    # float32 counts exactly up to 2^24, and is summed far faster than bool
    return above.to(torch.float32).sum(-1).long() + 1


def _sort_keys(logits: Tensor, ids: Tensor) -> Tensor:
    """int64 keys, all different: a greater logit, or the same with a lower id, is greater."""
    bits = (logits + 0.0).view(torch.int32)  # + 0.0: minus zero equals zero
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # float order as integer order
    return (ordered.long() << 32) | (~ids & _LOW_BITS)


def _largest(keys: Tensor, width: int) -> Tensor:
    """The `width` largest of each row, in descending order."""
    if keys.device.type != "cpu" or width <= BLOCK:
        return keys.topk(width, dim=-1).values
    # numpy selects and sorts integers with SIMD, many times faster than torch does
    host = keys.numpy()
    if width < host.shape[1]:
        host = np.partition(host, host.shape[1] - width, axis=1)[:, -width:]
    return torch.from_numpy(np.sort(host, axis=1)[:, ::-1].copy())
