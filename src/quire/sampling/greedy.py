"""Drawing without chance where the logits are. Owns nothing but the greatest of each row."""

from __future__ import annotations

from torch import Tensor

from quire.sampling.arrays import Flags, Ints
from quire.sampling.state import SamplingState


class GreedyDraw:
    """Serves rows without wishes; the host draws for all others (see device_runner.DeviceDraw)."""

    def __init__(self, state: SamplingState) -> None:
        self._state = state

    def upload(self, rows: list[int]) -> None:
        """Nothing to copy: rows without wishes are all alike."""

    def serves(self, rows: Ints) -> Flags:
        """Which rows [N] are greedy and want nothing else: [N]."""
        wishless: Flags = self._state.needs[rows] == 0
        return wishless

    def sample(self, logits: Tensor, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """logits [S, V] → int32 token ids, of equals the lowest, and failures [S]."""
        del rows, positions  # every row is drawn, asked or not
        highest, ids = logits.max(-1)
        return ids.int(), (~highest.isfinite()).int()
