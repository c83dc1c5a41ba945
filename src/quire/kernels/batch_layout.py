"""The memory layout of one step's ragged batch, as kernels on tensors read it.

A step is a flat list of T tokens of B requests, one after the other; nothing is padded to the
longest request. There are two kinds of layouts:

- `build` makes one from host data, for the CPU and for single steps on a device. Requests with a
  single query token (decodes) come first, and the host lists are filled.
- A device layout describes all rows of the persistent batch, in any order, by tensors only, so
  that a graph recorded with it serves any batch. Rows that do not run have no query token. Tokens
  after the last request's are padding with slot -1. The host lists are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.array_types import Ints
from quire.kernels.ragged_batch import RaggedBatch

SHARED_MEMBERS = 16  # requests of a tile of `SharedPrefixes`
SHARED_TOKENS = 128  # lengths of shared prefixes are multiples of it
FEW_KEYS = 128  # up to so many keys of a prompt, other kernels may be faster


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Decoding requests whose block tables begin with the same blocks, in tiles of SHARED_MEMBERS.

    An optimisation only: it lets kernels read shared keys once. Results do not depend on it.
    """

    num_tiles: Tensor  # int32 [1], in use
    index: Tensor  # int32 [B], each request's index in `rows`; -1 if it shares nothing
    rows: Tensor  # int32 [C * SHARED_MEMBERS], requests of each tile; -1 for none
    lens: Tensor  # int32 [C], length of each tile's shared prefix in tokens


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """B requests, T query tokens, and the slot mapping: where their keys and values are.

    The KV cache of a layer is a pair of [num_blocks, block_size, num_kv_heads, head_dim]; slot =
    block_id * block_size + offset. Lists named `_host` are host copies of tensors. Of a row
    without query tokens nothing else is read.
    """

    query_start_loc: Tensor  # int32 [B + 1], first token of each request, then T
    seq_lens: Tensor  # int32 [B], tokens in the cache after this step
    block_table: Tensor  # int32 [B, max_blocks], only the blocks in use have a meaning
    slot_mapping: Tensor  # int64 [T], where each token's key and value go; -1 for nowhere
    has_decodes: bool  # whether some request may have one query token
    has_prefills: bool  # whether some request may have more
    has_few_keys: bool = False  # whether those that have more have FEW_KEYS at most
    shared: SharedPrefixes | None = None  # None where it would not pay
    query_lens_host: list[int] = field(default_factory=list)  # B
    seq_lens_host: list[int] = field(default_factory=list)  # B
    _derived: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """A value that kernels derive from the layout, computed for the first layer that asks."""
        if key not in self._derived:
            self._derived[key] = compute()
        return self._derived[key]

    def knows(self, key: Hashable) -> bool:
        """Whether `once` has already computed the value of this key."""
        return key in self._derived

    def forget(self) -> None:
        """Drop derived values. Called at the start of each forward pass.

        The tensors may hold another batch by now, and a CUDA graph has to record the derivation.
        """
        self._derived.clear()

    @classmethod
    def build(
        cls,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        block_table: np.ndarray,
        block_size: int,
        device: torch.device | str = "cpu",
    ) -> BatchLayout:
        """Make a layout from arrays on the host.

        query_lens: tokens that each request computes now, at least 1, decodes first. seq_lens:
        its tokens in the cache after the step. block_table: int32 [B, max_blocks].
        """
        queries = np.asarray(query_lens, dtype=np.int64)
        lens = np.asarray(seq_lens, dtype=np.int64)
        return cls.of(RaggedBatch.of(queries, lens, block_table, block_size), device)

    @classmethod
    def of(cls, ragged: RaggedBatch, device: torch.device | str) -> BatchLayout:
        """Make a layout from a batch on the host."""
        arrays = (
            ragged.flat.query_start.astype(np.int32), ragged.seq_lens.astype(np.int32),
            ragged.block_table, ragged.slots,
        )  # fmt: skip
        start, lens, table, mapping = (torch.from_numpy(array).to(device) for array in arrays)
        is_decode = ragged.query_lens == 1
        return cls(
            query_start_loc=start,
            seq_lens=lens,
            block_table=table,
            slot_mapping=mapping,
            has_decodes=bool(is_decode.any()),
            has_prefills=not is_decode.all(),
            has_few_keys=have_few_keys(ragged.query_lens, ragged.seq_lens),
            query_lens_host=ragged.query_lens.tolist(),
            seq_lens_host=ragged.seq_lens.tolist(),
        )


def have_few_keys(query_lens: Ints, seq_lens: Ints) -> bool:
    """Whether all prompts, cached prefixes included, have FEW_KEYS tokens at most."""
    return bool((seq_lens[query_lens > 1] <= FEW_KEYS).all())
