"""How prefill attention shares out its work: the tiles of queries of a step, the longest first."""

from __future__ import annotations

import random

import pytest
import torch

from quire.kernels.batch_layout import BatchLayout
from quire.kernels.triton.attention.attention_plan import _most_query_tiles, make_plan
from quire.kernels.triton.launch.attention_config import DecodeConfig

ON_GPU = torch.cuda.is_available()
pytestmark = [pytest.mark.gpu] if ON_GPU else []
DEVICE = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")


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
