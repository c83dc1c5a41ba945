"""The int32 buffer by which a step's inputs are copied to the device, in one transfer.

Owns the order and sizes of the buffer's sections; `BatchLayout` says what they mean for a model. A
row is one of R rows of the persistent batch. All R are listed, with no token where a row does not
run, so a CUDA graph of T tokens can be replayed for any mix of requests. The sections about
sampling come before those whose sizes depend on T, so the sampling graph serves all T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from quire.array_types import Int32s
from quire.kernels.batch_layout import SHARED_MEMBERS

Buffer = TypeVar("Buffer", Tensor, Int32s)

_MORE_GROUPS = 16  # of requests with a shared prefix, in a step
_ALIGNMENT = 4  # in int32 numbers: kernels load 16 bytes at a time from the start of a section


@dataclass(frozen=True, slots=True)
class Step(Generic[Buffer]):
    """The sections of one step, views of its buffer; all int32."""

    header: Buffer  # [4], the numbers of block changes and of tiles of shared prefixes
    query_start_loc: Buffer  # [R + 1], first token of each row, then their number
    seq_lens: Buffer  # [R], tokens in the cache after the step; 0 for a row that does not run
    sample_tokens: Buffer  # [R], index of the token (of T) after which one is sampled
    sample_rows: Buffer  # [R], row of that token; -1 where none is sampled on the device
    sample_positions: Buffer  # [R], position of the sampled token in its row
    shared_index: Buffer  # [R], `SharedPrefixes.index`; C is the number of tiles
    shared_rows: Buffer  # [C * SHARED_MEMBERS]
    shared_lens: Buffer  # [C]
    token_ids: Buffer  # [T], -1: the token sampled last for this row
    token_rows: Buffer  # [T], -1 beyond the last token
    block_changes: Buffer  # [..., 2], an index into the flattened block table, and the block id


@dataclass(frozen=True, slots=True)
class StepSections:
    """The sections for T tokens of R rows, each of which samples one token at most."""

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
        """Tiles enough for all rows in one group, or in several that each leave a tile unfilled."""
        return -(-self.num_rows // SHARED_MEMBERS) + _MORE_GROUPS

    @property
    def size(self) -> int:
        """Length of the buffer: the index after the last section."""
        return sum(-(-length // _ALIGNMENT) * _ALIGNMENT for length in self.lengths)

    def cut(self, packed: Buffer) -> Step[Buffer]:
        """Views of the sections of a step's buffer."""
        parts, begin = [], 0
        for length in self.lengths:
            parts.append(packed[begin : begin + length])
            begin += -(-length // _ALIGNMENT) * _ALIGNMENT
        rest = packed[begin : begin + (len(packed) - begin) // 2 * 2]
        parts.append(rest.reshape(-1, 2))
        return Step(*parts)
