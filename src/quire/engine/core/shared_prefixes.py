"""Search for running requests that begin with the same KV blocks, which attention reads once.

Owns the search in the block tables; the KV cache decides what is shared, and knows nothing of this.
Requests are sorted by their block tables, which puts equal prefixes next to each other. Of the
common prefix lengths of adjacent requests, the largest rectangle is what reading a prefix once
saves: (requests - 1) · tokens. It becomes a group, and the search goes on to its left and right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.array_types import Array, Int32s, Ints
from quire.engine.core.step_sizes import LEAST_MEMBERS
from quire.kernels.batch_layout import SHARED_MEMBERS, SHARED_TOKENS

LEAST_TOKENS = 4 * SHARED_TOKENS  # that are worth a group
# Tokens that a step must save: reading prefixes separately takes two more kernels a layer, and
# requests with the same keys find most of them in the GPU's cache (docs/decisions/kv-cache.md).
LEAST_SAVED = 32_768


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that begin alike. members: indices of the tables that were given."""

    members: Ints
    num_tokens: int  # a multiple of SHARED_TOKENS

    @property
    def num_saved(self) -> int:
        """Tokens that need not be read once more."""
        return (len(self.members) - 1) * self.num_tokens

    @property
    def num_tiles(self) -> int:
        """Tiles of `SharedPrefixes` that it takes."""
        return -(-len(self.members) // SHARED_MEMBERS)


class SharedTiles:
    """The groups of a batch of R rows, as a step passes them to the device.

    Worked out anew only for another set of rows, as what a group shares stays as it is.
    """

    def __init__(self, num_rows: int, num_tiles: int, block_size: int) -> None:
        self._block_size = block_size
        self._known = b""
        self.num_tiles = 0
        self.index = np.full(num_rows, -1, np.int32)
        self.rows = np.full((num_tiles, SHARED_MEMBERS), -1, np.int32)
        self.lens = np.zeros(num_tiles, np.int32)

    def update(self, rows: Ints, tenancies: Ints, starts: Ints, tables: Int32s) -> None:
        """Find the groups of a step.

        rows [N]: those that decode. tenancies [N]: identify the requests in them. starts [N]: their
        numbers of computed tokens. tables [R, W]: block tables of all rows.
        """
        known = rows.tobytes() + tenancies.tobytes()
        if known == self._known:
            return
        self._known = b""
        self.index[:], self.rows[:], self.lens[:], self.num_tiles = -1, -1, 0, 0
        groups = self._find(rows, starts, tables)
        if sum(group.num_saved for group in groups) < LEAST_SAVED:
            groups = []
        for group in groups:
            if self.num_tiles + group.num_tiles <= len(self.lens):
                self._add(rows[group.members], group.num_tokens)
        self._known = known

    def _find(self, rows: Ints, starts: Ints, tables: Int32s) -> list[Group]:
        if len(rows) < LEAST_MEMBERS:
            return []
        # no group is longer than the shortest of its members, of which there are so many
        longest = int(np.partition(starts, -LEAST_MEMBERS)[-LEAST_MEMBERS]) // self._block_size
        num_full = np.minimum(starts // self._block_size, longest)
        return find_groups(tables[rows, :longest], num_full, self._block_size)

    def _add(self, rows: Ints, num_tokens: int) -> None:
        first = self.num_tiles * SHARED_MEMBERS
        self.index[rows] = first + np.arange(len(rows))
        self.rows.reshape(-1)[first : first + len(rows)] = rows
        end = self.num_tiles - (-len(rows) // SHARED_MEMBERS)
        self.lens[self.num_tiles : end] = num_tokens
        self.num_tiles = end


def find_groups(tables: Int32s, num_full: Ints, block_size: int) -> list[Group]:
    """Groups of requests [N], no request in two of them; those that save the most come first.

    tables: [N, W] block ids. num_full: [N] leading blocks that are full and will not change.
    """
    if len(tables) < LEAST_MEMBERS or tables.shape[1] * block_size < LEAST_TOKENS:
        return []
    order = np.argsort(_as_keys(tables), kind="stable")
    common = _common_blocks(tables[order], num_full[order]) * block_size
    common -= common % SHARED_TOKENS
    common[common < LEAST_TOKENS] = 0
    found, open_ = [], [(0, len(common))]
    while open_:
        begin, end = open_.pop()
        height, left, right = _largest_rectangle(common[begin:end].tolist(), LEAST_MEMBERS - 1)
        if height:
            found.append(Group(order[begin + left : begin + right + 1], height))
            open_ += [(begin, max(begin, begin + left - 1)), (begin + right + 1, end)]
    return sorted(found, key=lambda group: -group.num_saved)


def _as_keys(tables: Int32s) -> Array:
    """Each row as one value whose order is that of the row's numbers."""
    big_endian = np.ascontiguousarray(tables.astype(">i4"))
    return big_endian.view(np.dtype((np.void, 4 * tables.shape[1])))[:, 0]


def _common_blocks(tables: Int32s, num_full: Ints) -> Ints:
    """The number of leading blocks that each row has in common with the next one: [N - 1]."""
    differs = tables[1:] != tables[:-1]
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), tables.shape[1])
    common: Ints = np.minimum(first, np.minimum(num_full[1:], num_full[:-1]))
    return common


def _largest_rectangle(heights: list[int], least_width: int) -> tuple[int, int, int]:
    """(height, first column, one beyond the last) of the largest one under a histogram.

    All zeros if none of that width has a height.
    """
    best, rising = (0, 0, 0), list[tuple[int, int]]()  # (where it began, height), growing
    for column, height in enumerate([*heights, 0]):
        begin = column
        while rising and rising[-1][1] >= height:
            begin, tall = rising.pop()
            width = column - begin
            if width >= least_width and tall * width > best[0] * (best[2] - best[1]):
                best = tall, begin, column
        rising.append((begin, height))
    return best
