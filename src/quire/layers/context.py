"""What a forward pass needs besides its tokens; an explicit argument, never a global."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quire.kernels.layout import BatchLayout


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """One step: how its batch lies, and the KV cache of each layer.

    kv: per layer (keys, values), each [num_blocks, block_size, num_kv_heads, head_dim].
    """

    layout: BatchLayout
    kv: list[tuple[Tensor, Tensor]]
