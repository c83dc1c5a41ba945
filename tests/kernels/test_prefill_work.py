"""How attention shares out its work: runs of keys, and tiles of queries, the longest first."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from device import DEVICE, ON_EITHER

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.triton.attention import attention_plan
from quire.kernels.triton.attention.attention_plan import Plan, _most_query_tiles, make_plan
from quire.kernels.triton.launch.attention_config import DecodeConfig, HopperDecodeConfig
from quire.kernels.triton.launch.workspace import workspace

pytestmark = ON_EITHER
DECODES = HopperDecodeConfig(per_sm=1, slots=2, tile=64)


@pytest.mark.parametrize("query_tile", [1, 2, 3, 16])
def test_the_bound_of_query_tiles_holds(query_tile: int) -> None:
    """Any lengths of two or more, in rows of which some are idle."""
    generator = random.Random(query_tile)
    for _ in range(300):
        num_tokens, num_requests = generator.randint(1, 200), generator.randint(1, 40)
        left, tiles = num_tokens, 0
        for _ in range(num_requests):
            queries = min(generator.randint(2, generator.choice([2, 3, 60])), left)
            tiles += -(-queries // query_tile) if queries > 1 else 0
            left -= queries
        assert tiles <= _most_query_tiles(num_tokens, num_requests, query_tile)


def layout_of(queries: list[int], lens: list[int], padding: int = 0) -> BatchLayout:
    """The fields of a layout that the plan reads."""
    start = torch.tensor([0, *queries]).cumsum(0).int()
    return BatchLayout(
        query_start_loc=start.to(DEVICE),
        seq_lens=torch.tensor(lens, dtype=torch.int32, device=DEVICE),
        block_table=torch.empty(0),
        slot_mapping=torch.empty(sum(queries) + padding, dtype=torch.int64),
        has_decodes=True,
        has_prefills=True,
    )


def expected_work(queries: list[int], lens: list[int], tokens: int, least: int) -> list[list[int]]:
    """For each tile, in order: request, its first token, queries, keys, the tile's first query."""
    tiles = []
    for request, (n, keys) in enumerate(zip(queries, lens, strict=True)):
        for first in range(0, n if n >= least else 0, tokens):
            seen = min(keys - n + first + tokens, keys)
            tiles.append(
                (-(seen // 512), request, -seen, [request, sum(queries[:request]), n, keys, first])
            )
    return [fields for *_, fields in sorted(tiles)]


def test_tiles_of_queries_come_by_the_keys_that_they_see() -> None:
    """Some rows are idle, with meaningless lengths; None: decodes are planned as well."""
    generator = random.Random(5)
    chunks = DecodeConfig(16, 1)
    for num_requests, tokens, decode in [(3, 2, None), (7, 5, chunks), (70, 64, chunks)]:
        queries = [generator.choice([0, 1, 2, 20, 157]) for _ in range(num_requests)]
        queries[0] = 40
        lens = [n + generator.choice([0, 500, 600, 1000]) if n else 99 for n in queries]
        plan = make_plan(layout_of(queries, lens, padding=3), 0, decode, tokens, 2)
        work = expected_work(queries, lens, tokens, least=1 if decode is None else 2)
        assert plan.num_query_tiles.item() == len(work)
        assert plan.work[: len(work), :5].tolist() == work


def test_a_step_without_chunks_has_no_tile() -> None:
    plan = make_plan(layout_of([1, 0, 1], [5, 9, 70]), 0, DecodeConfig(16, 1), 16, 2)
    assert plan.num_query_tiles.item() == 0


def runs_of(plan: Plan) -> list[list[int]]:
    """Runs that are not empty, each with its number."""
    runs = [[i, *run] for i, run in enumerate(plan.decode_runs.tolist())]
    return [run for run in runs if run[1] < run[2]]


@pytest.mark.parametrize(("num_requests", "stay"), [(1, True), (2, True), (3, True), (5, False)])
def test_runs_of_decodes_stay_within_a_request_where_none_is_longer(
    num_requests: int, stay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven crews. Beside decodes of three tiles or more: one of an idle row, and a prompt."""
    few = replace(workspace(DEVICE), num_sms=14)
    monkeypatch.setattr(attention_plan, "workspace", lambda _: few)
    lens = [0, *(190 + 60 * (i % 2) for i in range(num_requests)), 700]
    plan = make_plan(layout_of([0] + [1] * num_requests + [9], lens), 0, DECODES, 16, 2)
    tiles = [-(-n // 64) for n in lens[:-1]]
    starts = [sum(tiles[:i]) for i in range(len(tiles) + 1)]
    assert plan.decode_tiles.tolist() == [*starts, starts[-1]]
    runs = runs_of(plan)
    covered: list[int] = []
    for _, begin, end, request, _, first_tile, count, token, length, *_ in runs:
        covered += range(begin, end)
        assert (first_tile, count, token) == (starts[request], tiles[request], request - 1)
        assert length == lens[request]
        assert begin < starts[request + 1]
    assert covered == list(range(starts[-1]))
    assert max(end - begin for _, begin, end, *_ in runs) == -(-starts[-1] // 7)
    assert all(end <= starts[request + 1] for _, _, end, request, *_ in runs) == stay
    for _, begin, _, request, *_, first, last in runs:
        own = [i for i, b, e, *_ in runs if b < starts[request + 1] and e > starts[request]]
        assert begin < starts[-1]
        assert (first, last) == (own[0], own[-1])
