"""Groups of requests that begin with the same blocks, against what can be seen by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import NewRequest, ScheduledRequest, SchedulerOutput
from quire.engine.core.input_batch import InputBatch
from quire.engine.core.shared_prefixes import (
    LEAST_SAVED,
    LEAST_TOKENS,
    Group,
    SharedTiles,
    _largest_rectangle,
    find_groups,
)
from quire.engine.core.step_sizes import LEAST_MEMBERS
from quire.engine.gpu.device_batch import DeviceBatch
from quire.kernels.batch_layout import SHARED_TOKENS
from quire.kernels.dispatch import kernels_for

CPU = torch.device("cpu")
WIDTH = 12
BLOCK = SHARED_TOKENS  # tokens of a block: lengths in blocks are lengths in units of sharing


def tables_of(prefixes: list[tuple[int, int]]) -> np.ndarray:
    """A table for each (prefix, its length in blocks); the rest is a request's own."""
    fresh = itertools.count(10_000)
    rows = []
    for name, length in prefixes:
        rows.append([name * 100 + i for i in range(length)])
        rows[-1] += [next(fresh) for _ in range(WIDTH - length)]
    return np.array(rows, np.int32)


def groups_of(tables: np.ndarray, num_full: int = WIDTH - 1) -> list[tuple[list[int], int]]:
    found = find_groups(tables, np.full(len(tables), num_full), BLOCK)
    return [(sorted(group.members.tolist()), group.num_tokens // BLOCK) for group in found]


def test_each_prefix_is_a_group_the_one_that_saves_most_first() -> None:
    prefixes = [(1, 5), (2, 9), (1, 5), (2, 9), (3, 9), (1, 5), (2, 9), (1, 5), (2, 9), (2, 9)]
    assert groups_of(tables_of(prefixes)) == [([1, 3, 6, 8, 9], 9), ([0, 2, 5, 7], 5)]


def test_few_members_and_short_prefixes_are_left_alone() -> None:
    short = LEAST_TOKENS // BLOCK - 1
    assert groups_of(tables_of([(1, 9)] * (LEAST_MEMBERS - 1))) == []
    assert groups_of(tables_of([(1, short)] * 40)) == []
    assert groups_of(tables_of([(1, short + 1)] * 4)) == [([0, 1, 2, 3], short + 1)]
    assert groups_of(tables_of([])[:0].reshape(0, WIDTH)) == []


def test_blocks_that_may_still_change_are_not_shared() -> None:
    assert groups_of(tables_of([(1, 9)] * 4), num_full=6) == [([0, 1, 2, 3], 6)]
    assert groups_of(tables_of([(1, 9)] * 4), num_full=2) == []


def test_lengths_are_multiples_of_shared_tokens() -> None:
    tables = tables_of([(1, 11)] * 5)
    (group,) = find_groups(tables, np.full(5, 11), SHARED_TOKENS // 2)
    assert group.num_tokens == 5 * SHARED_TOKENS  # of five and a half


def test_tiles_are_rounded_up() -> None:
    assert [Group(np.arange(n), 128).num_tiles for n in (4, 16, 17)] == [1, 1, 2]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, WIDTH - 1)), max_size=30))
def test_members_begin_alike_and_are_in_one_group_each(prefixes: list[tuple[int, int]]) -> None:
    tables = tables_of(prefixes).reshape(-1, WIDTH)
    found = groups_of(tables)
    everyone = [member for members, _ in found for member in members]
    assert len(everyone) == len(set(everyone))
    for members, length in found:
        assert len(members) >= LEAST_MEMBERS
        assert length * BLOCK >= LEAST_TOKENS
        assert (tables[members, :length] == tables[members[0], :length]).all()
    savings = [(len(members) - 1) * length for members, length in found]
    assert savings == sorted(savings, reverse=True)


def test_a_pair_with_more_in_common_does_not_hide_the_others() -> None:
    assert groups_of(tables_of([(1, 5), (1, 5), (1, 5), (1, 5)])) == [([0, 1, 2, 3], 5)]
    tables = tables_of([(1, 5)] * 5)
    tables[3] = tables[4]  # alike to the end
    assert groups_of(tables) == [([0, 1, 2, 3, 4], 5)]


@given(st.lists(st.integers(0, 6), max_size=12), st.integers(1, 3))
def test_the_largest_rectangle_is_the_largest(heights: list[int], least_width: int) -> None:
    height, left, right = _largest_rectangle(heights, least_width)
    assert height == min(heights[left:right], default=0)
    columns = range(len(heights) + 1)
    spans = [(a, b) for a in columns for b in columns if b - a >= least_width]
    areas = [min(heights[a:b]) * (b - a) for a, b in spans]
    assert height * (right - left) == max(areas, default=0)


@pytest.fixture
def any_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.engine.core.shared_prefixes.LEAST_SAVED", 1)


@pytest.mark.usefixtures("any_saving")
def test_a_step_groups_decoding_rows_with_an_equal_prefix() -> None:
    tables = np.zeros((40, WIDTH), np.int32)
    members = np.array([3, 5, 6, *range(10, 30)])
    tables[members] = tables_of([(1, 6)] * len(members))
    tables[[0, 2]] = tables_of([(2, 7), (2, 7)])
    rows = np.sort(np.concatenate([[0, 2], members]))
    starts = np.full(len(rows), WIDTH * BLOCK - 5)
    shared = SharedTiles(num_rows=40, num_tiles=4, block_size=BLOCK)
    shared.update(rows, rows, starts, tables)
    assert shared.num_tiles == 2
    assert shared.lens.tolist() == [6 * BLOCK, 6 * BLOCK, 0, 0]
    standing = shared.rows.reshape(-1)
    assert sorted(standing[standing >= 0].tolist()) == sorted(members.tolist())
    for row in range(40):
        index = shared.index[row]
        assert (index >= 0) == (row in members)
        assert index < 0 or standing[index] == row
    shared.update(members[:3], members[:3], starts[:3], tables)  # too few
    assert shared.num_tiles == 0
    assert (shared.index == -1).all()


@pytest.mark.usefixtures("any_saving")
def test_the_same_rows_are_looked_at_once_and_a_row_given_to_another_again() -> None:
    tables = tables_of([(1, 6)] * 5)
    rows, starts = np.arange(5), np.full(5, 7 * BLOCK)
    shared = SharedTiles(num_rows=5, num_tiles=2, block_size=BLOCK)
    shared.update(rows, np.ones(5, int), starts, tables)
    tables[4] += 1
    shared.update(rows, np.ones(5, int), starts + 1, tables)
    assert shared.index[4] >= 0
    shared.update(rows, np.array([1, 1, 1, 1, 2]), starts, tables)
    assert shared.index.tolist()[4] == -1
    assert (shared.index[:4] >= 0).all()


def test_what_saves_too_little_is_left_alone() -> None:
    enough = LEAST_SAVED // 3 // BLOCK + 1  # blocks, for three requests to be spared them
    tables = np.arange(4 * (enough + 1), dtype=np.int32).reshape(4, -1)
    for num_shared, num_tiles in ((enough - 1, 0), (enough, 1)):
        tables[:, :num_shared] = np.arange(num_shared)
        shared = SharedTiles(num_rows=4, num_tiles=2, block_size=BLOCK)
        rows, starts = np.arange(4), np.full(4, tables.shape[1] * BLOCK)
        shared.update(rows, rows, starts, tables)
        assert shared.num_tiles == num_tiles


@pytest.mark.usefixtures("any_saving")
def test_groups_that_do_not_fit_are_left_out() -> None:
    prefixes = [(name, 6) for name in (1, 2, 3) for _ in range(4 + name)]
    tables = tables_of(prefixes)
    rows = np.arange(len(tables))
    shared = SharedTiles(num_rows=len(rows), num_tiles=2, block_size=BLOCK)
    shared.update(rows, rows, np.full(len(rows), 8 * BLOCK), tables)
    assert shared.num_tiles == 2
    assert (shared.index >= 0).sum() == 7 + 6  # the largest two


@pytest.mark.usefixtures("any_saving")
def test_what_a_row_held_before_is_not_taken_for_its_new_requests_prefix() -> None:
    """A prompt that is cached but for its last token brings its blocks with its first decode."""
    block_size, num_blocks = 16, LEAST_TOKENS // 16
    shared, other = list(range(num_blocks)), list(range(100, 100 + num_blocks))
    batch = InputBatch(max_num_seqs=6, max_model_len=2048, block_size=block_size)
    device_batch = DeviceBatch(batch, 64, kernels_for("meta"), CPU, shares_prefixes=True)

    def step(names: list[str], blocks: dict[str, list[int]]) -> bool:
        for name in blocks:
            sampling = SamplingParams()
            batch.add(
                NewRequest(
                    request_id=name, token_ids=[1] * (LEAST_TOKENS + 1), sampling=sampling,
                    num_prompt_tokens=LEAST_TOKENS + 1, bad_words_ids=[], eos_token_ids=[],
                )
            )  # fmt: skip
        scheduled = [
            ScheduledRequest(
                request_id=name, start=LEAST_TOKENS, num_tokens=1, samples=True,
                new_block_ids=blocks.get(name, []),
            )
            for name in names
        ]  # fmt: skip
        plan = SchedulerOutput(step_id=0, removed_ids=[], new_requests=[], scheduled=scheduled)
        return device_batch.take(device_batch.order(plan))

    names = ["a", "b", "c", "d"]
    own = {name: [*shared, 200 + i] for i, name in enumerate(names)}
    assert step(names, own)
    assert (device_batch._shared.index >= 0).sum() == 4
    batch.remove("d")
    assert not step(["a", "b", "c", "e"], {"e": [*other, 300]})
    assert (device_batch._shared.index == -1).all()
    batch.remove("e")
    assert step(["a", "b", "c", "f"], {"f": [*shared, 301]})
