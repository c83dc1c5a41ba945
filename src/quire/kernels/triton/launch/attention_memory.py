"""Tiles of the attention kernels of all GPUs that fit into a program's shared memory.

Most configs need far less than any GPU has. Float32, and heads of 256 dimensions, need more than
the 99 KiB of GPUs with compute capability 8.6, 8.9 and 12.0.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from quire.kernels.batch_layout import SHARED_MEMBERS
from quire.kernels.triton.launch.attention_config import (
    DecodeConfig,
    PrefillConfig,
    padded_head_dim,
)

SHARED_STAGES = 2  # of shared prefix attention's loop
_LEAST_TILE = 16  # keys, the least that tl.dot takes
_OTHERS = 1024  # bytes, of scales and reductions


def tile_bytes(query: Tensor, k_cache: Tensor, rows: int, tile: int, stages: int) -> int:
    """At most so many bytes of shared memory are used by a program with `rows` rows of queries.

    It has the queries, the tiles of keys and values in flight, and a tile's softmax weights. In
    float32 keys that are converted to it are there as well.
    """
    own, stored, dim = query.itemsize, k_cache.itemsize, padded_head_dim(k_cache)
    in_flight = 2 * max(1, stages - 1) * tile * dim * stored
    converted = tile * dim * own if own == 4 and stored < own else 0
    return rows * dim * own + in_flight + converted + rows * tile * own + _OTHERS


def fitting_decode(
    config: DecodeConfig, query: Tensor, k_cache: Tensor, group: int, capacity: int
) -> DecodeConfig:
    """The config with the largest tile that fits into a capacity in bytes."""
    tile = _largest_tile(query, k_cache, padded_group(group), config.tile, config.stages, capacity)
    return replace(config, tile=tile or config.tile)


def fitting_prefill(
    config: PrefillConfig, query: Tensor, k_cache: Tensor, group: int, capacity: int
) -> PrefillConfig:
    """The config with the largest tile that fits, with fewer rows if not even the least does."""
    rows = config.rows
    while rows >= padded_group(group):
        if tile := _largest_tile(query, k_cache, rows, config.tile, config.stages, capacity):
            return replace(config, rows=rows, tile=tile)
        rows //= 2
    return config


def shared_rows(group: int) -> int:
    """Rows of queries of a tile of shared prefix attention."""
    return SHARED_MEMBERS * (1 << (group - 1).bit_length())


def shared_tile(query: Tensor, k_cache: Tensor, capacity: int) -> int:
    """Keys of a tile of shared prefix attention; 0 where none fits."""
    rows = shared_rows(query.shape[1] // k_cache.shape[2])
    most = 32 if rows * padded_head_dim(k_cache) > 2**14 else 64
    return _largest_tile(query, k_cache, rows, most, SHARED_STAGES, capacity)


def padded_group(group: int) -> int:
    """Query heads of a key head, padded to the least rows that tl.dot takes."""
    return max(16, 1 << (group - 1).bit_length())


def _largest_tile(
    query: Tensor, k_cache: Tensor, rows: int, most: int, stages: int, capacity: int
) -> int:
    """The largest tile up to `most` that fits, or 0."""
    tile = most
    while tile >= _LEAST_TILE:
        if tile_bytes(query, k_cache, rows, tile, stages) <= capacity:
            return tile
        tile //= 2
    return 0
