"""How one step's ragged batch lies in memory. Owns the description, not the tensors it points to.

A step is a flat list of T tokens of B requests, one after the other; nothing is padded to the
longest request. There are two kinds of layouts:

- `build` makes one from host data, for the CPU and for single steps on a device. Requests with a
  single query token (decodes) come first, and the host lists are filled.
- A device layout describes all rows of the persistent batch, in any order, by tensors alone, so
  that a graph recorded with it serves any batch. Rows that do not run have no query token, the
  tokens after the last request's are padding with slot -1, and the host lists are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """B requests, T tokens, and where their keys and values are.

    The KV cache of a layer is a pair of [num_blocks, block_size, num_kv_heads, head_dim]; slot =
    block_id * block_size + offset. Lists named `_host` repeat on the host what kernels would
    otherwise have to read back from tensors. Of a row without query tokens nothing else is read.
    """

    query_start_loc: Tensor  # int32 [B + 1], first token of each request, then T
    seq_lens: Tensor  # int32 [B], tokens in the cache after this step
    block_table: Tensor  # int32 [B, max_blocks], only the blocks in use have a meaning
    slot_mapping: Tensor  # int64 [T], where each token's key and value go; -1 for nowhere
    has_decodes: bool  # whether some request may have one query token
    has_prefills: bool  # whether some request may have more
    query_lens_host: list[int] = field(default_factory=list)  # B
    seq_lens_host: list[int] = field(default_factory=list)  # B
    # B; a request's first slot if its blocks are consecutive, else None
    first_slots_host: list[int | None] = field(default_factory=list)
    _worked_out: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, key: Hashable, work_out: Callable[[], Any]) -> Any:
        """What a kernel derives from the layout; worked out by the first layer that asks."""
        if key not in self._worked_out:
            self._worked_out[key] = work_out()
        return self._worked_out[key]

    def forget(self) -> None:
        """Drop what was worked out; at the start of each forward pass.

        The tensors may hold another batch by now, and a graph has to record the working out.
        """
        self._worked_out.clear()

    @classmethod
    def build(
        cls,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        block_table: np.ndarray,
        block_size: int,
        device: torch.device | str = "cpu",
    ) -> BatchLayout:
        """Derive everything from host data.

        query_lens: tokens each request computes now, at least 1, ones first. seq_lens: its
        tokens in the cache after the step. block_table: int32 [B, max_blocks].
        """
        queries = np.asarray(query_lens, dtype=np.int64)
        lens = np.asarray(seq_lens, dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(queries)])
        num_decodes = int((queries == 1).sum())
        assert (queries[:num_decodes] == 1).all(), "decodes come first in the batch"
        rows = np.repeat(np.arange(len(queries)), queries)
        # position of each token: its place in the batch, moved to where its request goes on
        positions = np.arange(starts[-1]) - np.repeat(starts[1:] - lens, queries)
        blocks = block_table[rows, positions // block_size].astype(np.int64)
        return cls(
            query_start_loc=torch.from_numpy(starts.astype(np.int32)).to(device),
            seq_lens=torch.from_numpy(lens.astype(np.int32)).to(device),
            block_table=torch.from_numpy(block_table).to(device),
            slot_mapping=torch.from_numpy(blocks * block_size + positions % block_size).to(device),
            has_decodes=num_decodes > 0,
            has_prefills=num_decodes < len(queries),
            query_lens_host=queries.tolist(),
            seq_lens_host=lens.tolist(),
            first_slots_host=_first_slots(lens, block_table, block_size),
        )


def _first_slots(lens: np.ndarray, block_table: np.ndarray, block_size: int) -> list[int | None]:
    """Where a request's slots start if they are one run, so that a slice can stand for a gather."""
    used = -(-lens // block_size)  # [B]
    jumps = np.diff(block_table, axis=1) != 1  # [B, max_blocks - 1]
    inner = np.arange(1, block_table.shape[1])[None, :] < used[:, None]
    scattered = (jumps & inner).any(axis=1)
    firsts = block_table[:, 0].astype(np.int64) * block_size
    return [None if s else f for s, f in zip(scattered.tolist(), firsts.tolist(), strict=True)]
