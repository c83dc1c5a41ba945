"""Attention's tiles fit into the shared memory of each GPU, and are those measured where it can."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.triton.launch.attention_config import (
    DecodeConfig,
    PrefillConfig,
    decode_config,
    prefill_config,
    short_config,
)
from quire.kernels.triton.launch.attention_memory import (
    SHARED_STAGES,
    fitting_decode,
    fitting_prefill,
    padded_group,
    shared_rows,
    shared_tile,
    tile_bytes,
)

BF16, FLOAT32, FP8, INT8 = torch.bfloat16, torch.float32, reference.FP8, torch.int8
HOPPER, SMALL = 227 * 1024, 99 * 1024  # bytes that a program may have; the second on an RTX 4090
TYPES = ((BF16, BF16), (BF16, FP8), (BF16, INT8), (FLOAT32, FLOAT32), (FLOAT32, INT8))
SHAPES = list(itertools.product(TYPES, (64, 80, 128, 256), (1, 2, 3, 4, 7, 8, 16)))


def operands(types: tuple[torch.dtype, torch.dtype], dim: int, group: int) -> tuple[Tensor, Tensor]:
    """Queries of 9 tokens, and a cache."""
    query = torch.empty(9, 2 * group, dim, dtype=types[0], device="meta")
    return query, torch.empty(1, 16, 2, dim, dtype=types[1], device="meta")


def usual(k_cache: Tensor, group: int) -> list[PrefillConfig | DecodeConfig]:
    """The configs where all fit."""
    prefills = prefill_config(k_cache, group), short_config(k_cache, group)
    return [*prefills, decode_config(k_cache, 1), decode_config(k_cache, 9)]


def fitting(query: Tensor, k_cache: Tensor, capacity: int) -> list[PrefillConfig | DecodeConfig]:
    """The same for a GPU."""
    operands = query, k_cache, query.shape[1] // k_cache.shape[2], capacity
    return [
        fitting_prefill(each, *operands)
        if isinstance(each, PrefillConfig)
        else fitting_decode(each, *operands)
        for each in usual(k_cache, operands[2])
    ]


@pytest.mark.parametrize(
    ("types", "dim", "rows", "tile", "stages", "kib"),
    [
        ((BF16, BF16), 128, 64, 64, 2, 56.0),
        ((BF16, BF16), 256, 64, 32, 2, 68.0),
        ((BF16, BF16), 256, 64, 64, 2, 104.0),
        ((BF16, BF16), 256, 128, 32, 2, 104.0),
        ((BF16, INT8), 128, 64, 64, 2, 40.2),
        ((BF16, FP8), 256, 16, 64, 3, 74.0),
        ((FLOAT32, FLOAT32), 256, 64, 16, 2, 100.2),
        ((FLOAT32, FLOAT32), 256, 16, 16, 3, 81.1),
        ((FLOAT32, INT8), 128, 64, 64, 2, 96.5),
        ((FLOAT32, INT8), 256, 64, 32, 2, 120.4),
        ((FLOAT32, INT8), 256, 16, 64, 3, 148.1),
    ],
)
def test_the_bound_is_what_the_compiler_takes_for_8_9(
    types: tuple[torch.dtype, torch.dtype], dim: int, rows: int, tile: int, stages: int, kib: float
) -> None:
    bound = tile_bytes(*operands(types, dim, 1), rows, tile, stages) / 1024
    assert kib <= bound <= kib + 1.1


@pytest.mark.parametrize(("types", "dim", "group"), SHAPES)
def test_every_launch_fits_and_is_the_usual_one_where_that_fits(
    types: tuple[torch.dtype, torch.dtype], dim: int, group: int
) -> None:
    query, k_cache = operands(types, dim, group)
    assert fitting(query, k_cache, HOPPER) == usual(k_cache, group)
    for config in fitting(query, k_cache, SMALL):
        is_prefill = isinstance(config, PrefillConfig)
        rows = config.rows if is_prefill else padded_group(group)
        assert rows >= group
        assert tile_bytes(query, k_cache, rows, config.tile, config.stages) <= SMALL


@pytest.mark.parametrize(("types", "dim", "group"), SHAPES)
def test_prefixes_are_shared_in_tiles_that_fit(
    types: tuple[torch.dtype, torch.dtype], dim: int, group: int
) -> None:
    query, k_cache = operands(types, dim, group)
    rows, tile = shared_rows(group), shared_tile(query, k_cache, SMALL)
    assert tile_bytes(query, k_cache, rows, tile, SHARED_STAGES) <= SMALL or tile == 0
    assert tile or rows * dim * query.itemsize >= 2**16  # queries alone leave nothing
    if query.itemsize == 2:
        assert shared_tile(query, k_cache, HOPPER) == (32 if rows * dim > 2**14 else 64)
