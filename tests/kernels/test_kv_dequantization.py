"""Keys and values in 8 bits as numbers in 16 bits before attention: which prompts', and where."""

from __future__ import annotations

import random

import pytest
import torch
from device import DEVICE, ON_EITHER, ON_GPU
from torch import Tensor

from quire.kernels import reference
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.operands import KVScales
from quire.kernels.triton.attention import kv_dequantization
from quire.kernels.triton.launch.attention_config import DequantizationConfig, hopper_config
from quire.kernels.triton.ops.hopper_prompts import choose_dequantization
from quire.kernels.triton.ops.paged_attention import scale_operands

pytestmark = ON_EITHER
NOTHING = 77.0  # where nothing is written


def random_layout(generator: random.Random, num_requests: int, block_size: int) -> BatchLayout:
    """A device layout in which some rows are idle, with lengths that mean nothing."""
    queries = [generator.choice([0, 1, 2, 9, 10, 23, 64]) for _ in range(num_requests)]
    lens = [n + generator.choice([0, 1, 31, 150]) if n else 10**6 for n in queries]
    most = -(-214 // block_size)
    table = torch.tensor(generator.sample(range(num_requests * most), num_requests * most))
    return BatchLayout(
        query_start_loc=torch.tensor([0, *queries]).cumsum(0).int().to(DEVICE),
        seq_lens=torch.tensor(lens).int().to(DEVICE),
        block_table=table.view(num_requests, most).int().to(DEVICE),
        slot_mapping=torch.empty(sum(queries) + 5, dtype=torch.int64),
        has_decodes=True,
        has_prefills=True,
    )


def random_cache(
    layout: BatchLayout, block_size: int, heads: int, dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, KVScales | None]:
    """Keys, values and scales of random codes, all of them numbers."""
    shape = (2, layout.block_table.numel(), block_size, heads, dim)
    if dtype == reference.FP8:
        cache = (torch.randn(shape) * 20).to(dtype).to(DEVICE)
        return cache[0], cache[1], None
    cache = torch.randint(-127, 128, shape, dtype=torch.int8).to(DEVICE)
    scales = (torch.rand(shape[:-1]) + 0.01).bfloat16().to(DEVICE)
    return cache[0], cache[1], KVScales(scales[0], scales[1])


def fitting(
    queries: list[int], lens: list[int], window: int, config: DequantizationConfig
) -> list[int]:
    """Requests whose keys are dequantized: long enough, and the first ones that fit."""
    found, total = list[int](), 0
    for request, (n, keys) in enumerate(zip(queries, lens, strict=True)):
        if n >= config.least_queries:
            total += keys - first_key(n, keys, window, config.tile)
            found += [request] * (total <= config.most_keys)
    return found


def first_key(queries: int, keys: int, window: int, tile: int) -> int:
    """Of the first tile that the first query sees."""
    return max(keys - queries + 1 - window, 0) // tile * tile if window else 0


CASES = [
    # heads, dimensions, block size, window, keys that fit
    (1, 16, 8, 0, 64),
    (2, 16, 16, 20, 256),
    (3, 32, 16, 0, 100_000),
    (6, 16, 8, 40, 192),
]


@pytest.mark.parametrize("dtype", [reference.FP8, torch.int8], ids=["fp8", "int8"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_batch_is_dequantized_or_left(
    case: tuple[int, int, int, int, int], dtype: torch.dtype
) -> None:
    """Each prompt is in one of both lists; dequantized keys are where its rows say, and no more."""
    heads, dim, block_size, window, most = case
    config = DequantizationConfig(least_queries=10, most_keys=most, tile=16, query_tile=4)
    generator = random.Random(most)
    torch.manual_seed(most)
    for num_requests in (1, 5, 9):
        layout = random_layout(generator, num_requests, block_size)
        queries, lens = layout.query_start_loc.diff().tolist(), layout.seq_lens.tolist()
        plan = kv_dequantization.plan_dequantization(layout, window, config)
        wide = fitting(queries, lens, window, config)
        others = [r for r, n in enumerate(queries) if n > 1 and r not in wide]
        assert listed(plan.work, plan.num_query_tiles, queries, 4) == wide
        assert listed(plan.other_work, plan.num_other_tiles, queries, 4) == others

        k_cache, v_cache, scales = random_cache(layout, block_size, heads, dim, dtype)
        rows = sum(lens[request] for request in wide) + 16
        out = torch.full((2, rows, heads, dim), NOTHING, dtype=torch.bfloat16, device=DEVICE)
        expected = out.clone()
        kv_dequantization.dequantize_kv(k_cache, v_cache, scale_operands(scales), layout, plan, out)
        for request in wide:
            first = first_key(queries[request], lens[request], window, config.tile)
            key = torch.arange(first, lens[request], device=DEVICE)
            block = layout.block_table[request].long()[key // block_size]
            own = (scales.keys, scales.values) if scales else (None, None)
            for target, cache, scale in zip(expected, (k_cache, v_cache), own, strict=True):
                numbers = reference.dequantize_kv(cache, torch.float32, scale).bfloat16()
                target[int(plan.rows[request]) + key] = numbers[block, key % block_size]
        # Triton's interpreter cuts the bits that bfloat16 lacks; a GPU rounds
        rtol = 2**-7 if dtype == torch.int8 and not ON_GPU else 0.0
        torch.testing.assert_close(out, expected, rtol=rtol, atol=0.0)


def listed(work: Tensor, count: Tensor, queries: list[int], query_tile: int) -> list[int]:
    """The requests in a list of query tiles, of which each is there once."""
    found = work[: int(count.item()), [0, 4]].tolist()
    requests = sorted({request for request, _ in found})
    assert sorted(found) == [
        [request, first] for request in requests for first in range(0, queries[request], query_tile)
    ]
    return requests


def test_dequantization_is_chosen_for_8_bits_and_many_queries() -> None:
    cache = torch.empty(4, 16, 2, 128, dtype=torch.int8, device="meta")
    config = hopper_config(cache, split=False)
    found = choose_dequantization(torch.empty(256, 8, 128, device="meta"), cache, config)
    assert found == DequantizationConfig(256, 2**19, config.tile, config.tokens(4))
    assert choose_dequantization(torch.empty(255, 8, 128, device="meta"), cache, config) is None
    many = torch.empty(9000, 8, 128, device="meta")
    assert choose_dequantization(many, cache.bfloat16(), config) is None
    fp8 = choose_dequantization(many, cache.to(reference.FP8), config)
    assert fp8 is not None
    assert fp8.least_queries == 512


def test_the_scratch_memory_holds_whole_tiles() -> None:
    assert kv_dequantization.most_keys(8, 128, 128) == 131_072
    odd = kv_dequantization.most_keys(3, 64, 64)
    assert odd % 64 == 0
    assert odd * 2 * 3 * 64 <= kv_dequantization.NUM_DEQUANTIZED
