"""Tile sizes and pipeline depths of the attention kernels, and the rules that choose them.

The rules are those that were fastest on the whole when measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Config of the decode attention kernel of any GPU.

    tile: keys of a tile. stages: of the loop's pipeline, with stages - 1 tiles of keys and values
    in shared memory. per_sm: programs for each multiprocessor.
    """

    tile: int
    stages: int
    per_sm: int = 3
    warps: int = 4


@dataclass(frozen=True, slots=True)
class HopperDecodeConfig:
    """Config of Hopper's decode attention.

    per_sm: programs for each multiprocessor. slots: tiles of keys, and as many of values, that each
    program has in shared memory. tile: keys of a tile, 64 or 128.
    """

    per_sm: int
    slots: int
    tile: int = 64


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """Config of the prefill attention kernel of any GPU.

    rows: query tokens · query heads of a key head, in a tile. tile: keys of a tile. stages: of the
    loop's pipeline.
    """

    rows: int
    tile: int
    stages: int
    warps: int = 8

    def tokens(self, group: int) -> int:
        """Query tokens of a tile, with `group` query heads for each key head."""
        return self.rows // group


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """Config of Hopper's prefill attention: two warpgroups, each with the 64 rows of an MMA.

    tile: keys of a tile. slots: tiles of keys, and as many of values, in shared memory. split: both
    warpgroups have the same queries and every other tile of keys, so that few queries make more
    programs. Otherwise each has its own half of them, and they alternate in issuing MMAs.
    """

    tile: int
    slots: int
    split: bool

    def tokens(self, group: int) -> int:
        """Query tokens of a tile, with `group` query heads for each key head."""
        return (1 if self.split else 2) * (64 // group)


@dataclass(frozen=True, slots=True)
class DequantizationConfig:
    """Choice of prompts whose keys are dequantized before attention; see `kv_dequantization.py`.

    least_queries: of a prompt in a step. most_keys: of all prompts. tile, query_tile: keys and
    query tokens of a tile of attention.
    """

    least_queries: int
    most_keys: int
    tile: int
    query_tile: int


def decode_config(k_cache: Tensor, num_tokens: int) -> DecodeConfig:
    """The config for a cache: tiles of 16 KiB of keys and values.

    A single request of some 2,000 keys is fastest with larger tiles and one program for each
    multiprocessor, which leaves fewer partial results to merge. With 512 or 8,192 keys that costs
    10 to 19 % at most.
    """
    row_bytes = padded_head_dim(k_cache) * k_cache.dtype.itemsize
    tile = max(16, min(64, 2**13 // row_bytes))
    if num_tokens == 1:
        return DecodeConfig(tile=max(16, min(64, 2**14 // row_bytes)), stages=3, per_sm=1)
    return DecodeConfig(tile=tile, stages=3 if tile * row_bytes >= 2**13 else 4)


def hopper_decode_config(k_cache: Tensor, group: int, num_tokens: int) -> HopperDecodeConfig:
    """The config for a cache: 96 KiB of loads in flight on each multiprocessor.

    With few requests one program has all of it, in tiles of 32 KiB, so that few partial results are
    merged. One or two requests in 16 bits with 64 dimensions get smaller tiles, as each program
    would have only one otherwise. With more requests three programs, or two if the heads take more
    registers, hide each other's softmax. With many requests, which are often short, tiles have 64
    keys at most.
    """
    itemsize = k_cache.dtype.itemsize
    row_bytes = 2 * int(k_cache.shape[3]) * itemsize  # of a key and its value
    if num_tokens <= 2 and itemsize == 2 and row_bytes == 256:
        return HopperDecodeConfig(per_sm=1, slots=4, tile=64)
    few = num_tokens <= (16 if itemsize == 2 else 4)
    if few or row_bytes == 512:
        return HopperDecodeConfig(per_sm=1, slots=3, tile=min(128, 2**15 // row_bytes))
    per_sm = 3 if _takes_few_registers(k_cache, group) else 2
    if num_tokens >= 256 and row_bytes == 128:
        return HopperDecodeConfig(per_sm, slots=3, tile=64)
    return HopperDecodeConfig(per_sm, slots=2, tile=2**14 // row_bytes)


def decode_registers(
    config: HopperDecodeConfig, k_cache: Tensor, group: int, num_tokens: int
) -> int:
    """Registers of a thread of `hopper_decode_kernel`, four of whose eight warps are idle.

    With 136, two programs do not fit on a multiprocessor. Where one is meant for each, they would
    otherwise crowd on those that the previous kernel leaves first: with 38 key heads and 32
    requests that cost a third of a layer's time. With one or two requests, or in FP8, nothing was
    gained. Tiles of 128 keys in INT8 need as many.
    """
    if config.per_sm == 1 and k_cache.dtype == torch.int8:
        return 136
    if config.per_sm == 1 and k_cache.dtype.itemsize == 2 and num_tokens > 2:
        return 136
    return 80 if _takes_few_registers(k_cache, group) else 128


def _takes_few_registers(k_cache: Tensor, group: int) -> bool:
    """Whether 80 registers of a thread are enough; INT8 keys pass through registers, too."""
    return group <= (4 if k_cache.dtype == torch.int8 else 8)


def opens_early(k_cache: Tensor, num_tokens: int, most_bytes: int) -> bool:
    """Whether the kernel after attention should be launched while attention still runs.

    With few requests the linear layer after it can prefetch its weights meanwhile, if it uses a
    kernel that does, which holds if weights have as many bits as keys. A kernel that only waits
    costs 4 % of a step's time. most_bytes: as in `AttentionParams.early_launch_bytes`.
    """
    return num_tokens * k_cache.dtype.itemsize <= most_bytes


def prefill_config(k_cache: Tensor, group: int) -> PrefillConfig:
    """The config for a cache: 64 rows for four warps; all query heads of a key head must fit."""
    tile = 2**14 // (padded_head_dim(k_cache) * max(2, k_cache.dtype.itemsize))
    rows = max(64, 1 << (group - 1).bit_length())
    return PrefillConfig(rows=rows, tile=max(16, min(64, tile)), stages=2, warps=rows // 16)


def short_config(k_cache: Tensor, group: int) -> PrefillConfig:
    """The config for prompts of up to 128 keys, with less shared memory so that more programs fit.

    In FP8 no second tile is prefetched; in 16 bits tiles have half the keys.
    """
    usual = prefill_config(k_cache, group)
    if k_cache.dtype.itemsize == 1:
        return replace(usual, stages=1)
    return replace(usual, tile=min(usual.tile, 32))


def hopper_config(k_cache: Tensor, *, split: bool) -> HopperConfig:
    """The config for 64 or 128 dimensions a head, with or without a split of the keys."""
    if split:
        return HopperConfig(tile=64, slots=4, split=True)
    return HopperConfig(tile=128, slots=256 // k_cache.shape[3], split=False)


def choose_hopper_config(
    k_cache: Tensor, num_tokens: int, group: int, num_sms: int
) -> HopperConfig:
    """The config for num_tokens query tokens on a GPU of num_sms multiprocessors.

    Keys are split where half of the multiprocessors or fewer would have work otherwise: that makes
    twice as many tiles.
    """
    halves = hopper_config(k_cache, split=False)
    num_tiles = num_tokens // halves.tokens(group) * k_cache.shape[2]
    return hopper_config(k_cache, split=2 * num_tiles <= num_sms)


def least_queries(k_cache: Tensor, group: int) -> int:
    """The number of queries from which on it pays to dequantize a prompt's keys first.

    That takes 3 bytes of memory traffic for a number, as long as attention of some 55 queries with
    4 query heads for each key head. Attention to INT8 takes 1.4 times as long as to 16 bits, to FP8
    1.1 times.
    """
    return (1024 if k_cache.dtype == torch.int8 else 2048) // group


def padded_head_dim(k_cache: Tensor) -> int:
    """Head dimensions padded to a power of two and to the least that tl.dot takes.

    In FP8 even and odd dimensions are multiplied separately, so that least is twice as large.
    """
    least = 32 if k_cache.dtype.itemsize == 1 else 16
    return max(least, 1 << (int(k_cache.shape[3]) - 1).bit_length())
