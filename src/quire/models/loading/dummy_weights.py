"""Random weights in real shapes, for speed measurements without a checkpoint."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor, nn

from quire.layers.norm import RMSNorm
from quire.layers.parameter import Weight
from quire.models.loading.parameter_filling import Filling

_SCALE = 0.02  # standard deviation; what models are initialised with, so activations stay finite
# Normals are drawn for one block, which is then repeated: drawing 1.2 billion of them would take
# 10 seconds on two cores. The length is a prime, so that no two rows of a weight are equal.
_BLOCK = 4_194_301


def fill_with_dummies(model: nn.Module, seed: int) -> None:
    """Set norms to 1 and all else to 0.02 · N(0, 1), and convert to the run-time formats.

    The same seed gives the same weights.
    """
    normals = np.random.default_rng(seed % 2**64).standard_normal(_BLOCK, dtype=np.float32)
    block = torch.from_numpy(normals).mul_(_SCALE)
    converted: dict[torch.dtype, Tensor] = {}
    offset = 0
    norms = {id(m.weight) for m in model.modules() if isinstance(m, RMSNorm)}
    params = deque(param for param in model.parameters() if isinstance(param, Weight))
    filling = Filling(model, params)
    while params:
        param = params.popleft()
        param.allocate()
        if id(param) in norms:
            param.fill_(1.0)
        else:
            if param.dtype not in converted:
                converted[param.dtype] = block.to(param.device, param.dtype)
            offset = _tile(param.view(-1), converted[param.dtype], offset)
        filling.filled(param)
    filling.end()


def _tile(flat: Tensor, block: Tensor, offset: int) -> int:
    """Fill flat from the block, which repeats, from offset on; returns where it stopped."""
    done = 0
    while done < len(flat):
        count = min(len(block) - offset, len(flat) - done)
        flat[done : done + count].copy_(block[offset : offset + count])
        done += count
        offset = (offset + count) % len(block)
    return offset
