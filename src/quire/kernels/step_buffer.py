"""How a step travels to the device: all it needs in one buffer of int32, one copy.

Owns the order and sizes of the buffer's sections; what they mean for a model is told by
`BatchLayout`. A row is a place in the persistent batch, and the device's layout lists all R of
them, with no token where a row does not run: so it fits any mix of requests, and a CUDA graph of
T tokens can be replayed for all of them. Where samples are told does not depend on T, so that what
draws may serve steps of any number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from quire.array_types import Int32s
from quire.kernels.batch_layout import SHARED_MEMBERS

Buffer = TypeVar("Buffer", Tensor, Int32s)

_MORE_GROUPS = 16  # of requests with a shared prefix, in a step
_ALIGNMENT = 4  # numbers of int32: kernels load 16 bytes at a time from where a section begins


@dataclass(frozen=True, slots=True)
class Step(Generic[Buffer]):
    """The sections of one step, views of its buffer; all int32."""

    header: Buffer  # [4], the numbers of block changes and of tiles of shared prefixes
    query_start_loc: Buffer  # [R + 1], first token of each row, then their number
    seq_lens: Buffer  # [R], tokens in the cache after the step; 0 for a row that does not run
    sample_tokens: Buffer  # [R], after which of the T tokens one is drawn
    sample_rows: Buffer  # [R], whose it is; -1 where none is drawn on the device
    sample_positions: Buffer  # [R], where the drawn token will stand in its row
    shared_index: Buffer  # [R], see `SharedPrefixes`, whose tiles are C
    shared_rows: Buffer  # [C * SHARED_MEMBERS]
    shared_lens: Buffer  # [C]
    token_ids: Buffer  # [T], -1: the token drawn last for this row
    token_rows: Buffer  # [T], -1 beyond the last token
    block_changes: Buffer  # [..., 2], a place in the flattened block table and the block's id


@dataclass(frozen=True, slots=True)
class StepSections:
    """The sections for T tokens of R rows, each of which draws one token at most."""

    num_tokens: int
    num_rows: int

    @property
    def lengths(self) -> list[int]:
        """Numbers in each section but the last, which takes the rest of the buffer."""
        rows, tokens, tiles = self.num_rows, self.num_tokens, self.num_shared_tiles
        shared = [rows, tiles * SHARED_MEMBERS, tiles]
        return [4, rows + 1, rows, rows, rows, rows, *shared, tokens, tokens]

    @property
    def num_shared_tiles(self) -> int:
        """Room for all rows in one group, or in some that each leave a tile unfilled."""
        return -(-self.num_rows // SHARED_MEMBERS) + _MORE_GROUPS

    @property
    def size(self) -> int:
        """Where the last section begins."""
        return sum(-(-length // _ALIGNMENT) * _ALIGNMENT for length in self.lengths)

    def cut(self, packed: Buffer) -> Step[Buffer]:
        """Views of a buffer's sections."""
        parts, begin = [], 0
        for length in self.lengths:
            parts.append(packed[begin : begin + length])
            begin += -(-length // _ALIGNMENT) * _ALIGNMENT
        rest = packed[begin : begin + (len(packed) - begin) // 2 * 2]
        parts.append(rest.reshape(-1, 2))
        return Step(*parts)
