"""Programs that share a tile's sums wait for each other: not for ever."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from quire.kernels.triton.gemm.split_k_config import shares_of


def all_end(m_tiles: int, n_tiles: int, split: int, num_programs: int) -> bool:
    """Whether programs that are there at once do all work items, in their order.

    As `hopper_int4_items` has them: at an item a program waits for all others of its tile.
    """
    items, arrived = m_tiles * n_tiles * split, Counter[tuple[int, int]]()
    at, new = list(range(num_programs)), [True] * num_programs
    is_moving = True
    while is_moving:
        is_moving = False
        for program, item in enumerate(at):
            tile = item // m_tiles // split, item % m_tiles
            if item < items and new[program]:
                arrived[tile] += 1
                new[program], is_moving = False, True
            if item < items and arrived[tile] == split:
                at[program] += num_programs
                new[program] = is_moving = True
    return all(item >= items for item in at)


def all_run(m_tiles: int, n_tiles: int, split: int, num_sms: int) -> bool:
    """Whether a program for each work item ends, on multiprocessors that get free, in order."""
    arrived, free = Counter[tuple[int, int]](), num_sms
    for item in range(m_tiles * n_tiles * split):
        if not free:  # as no tile here is complete
            return False
        free -= 1
        tile = item // m_tiles // split, item % m_tiles
        arrived[tile] += 1
        free += split if arrived[tile] == split else 0
    return free == num_sms


@pytest.mark.parametrize("num_sms", [6, 78, 132])
def test_programs_that_share_sums_do_not_wait_for_ever(num_sms: int) -> None:
    shared = left = 0
    for split, m_tiles, n_tiles in itertools.product((2, 4, 8), range(1, 40), (1, 3, 20)):
        programs = min(num_sms, split * m_tiles * n_tiles)
        ends = all_end(m_tiles, n_tiles, split, programs)
        is_shared = shares_of(split, 256, m_tiles, num_sms) > 1
        ends &= all_run(m_tiles, n_tiles, split, num_sms)
        assert ends or not is_shared
        shared, left = shared + is_shared, left + (not ends)
    assert shared > 0
    assert left > 0
