"""RoPE's cos and sin for all positions up to a limit, on the host. No torch."""

from __future__ import annotations

import numpy as np

from quire.array_types import Array, Singles
from quire.kernels.cpu.array_ops import to_bfloat16

Table = tuple[Array, Array]  # cos and sin, each [P, R], as `reference.rotary` reads them


def table_size(end: int) -> int:
    """Positions to keep angles for, so that there are rarely too few: a power of two."""
    return max(1024, 1 << (end - 1).bit_length())


class RopeTable:
    """cos and sin · scale at positions 0 to P - 1; P grows on demand.

    inv_freq: float32 [R / 2], radians per position of each pair of dimensions. in_bfloat16: the
    table holds bfloat16 as uint16 bits, else float32.
    """

    def __init__(self, inv_freq: Singles, scale: float, *, in_bfloat16: bool) -> None:
        self._inv_freq, self._scale, self._in_bfloat16 = inv_freq, np.float32(scale), in_bfloat16
        self._cos: Array = np.empty((0, 2 * len(inv_freq)), np.float32)
        self._sin = self._cos

    def up_to(self, end: int) -> Table:
        """cos and sin tables of positions 0 to at least end - 1."""
        if end > len(self._cos):
            angles = np.arange(table_size(end), dtype=np.float32)[:, None] * self._inv_freq
            cos, sin = np.cos(angles) * self._scale, np.sin(angles) * self._scale
            pair = np.concatenate([cos, cos], axis=1), np.concatenate([-sin, sin], axis=1)
            self._cos, self._sin = map(to_bfloat16, pair) if self._in_bfloat16 else pair
        return self._cos, self._sin
