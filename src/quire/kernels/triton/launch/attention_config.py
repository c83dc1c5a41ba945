"""How attention cuts its work: by rules, the best on the whole when measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How decode attention is cut. tile: keys at a time; min_units: tiles worth a program.

    stages: of the loop's pipeline, with stages - 1 tiles of keys and values in shared memory.
    """

    tile: int
    stages: int
    per_sm: int = 3
    warps: int = 4
    min_units: int = 1


@dataclass(frozen=True, slots=True)
class HopperDecodeConfig:
    """How Hopper's decode attention is cut. slots: tiles of keys in shared memory, and of
    their values, for each of per_sm programs of a multiprocessor. tile: 64 or 128 keys."""

    per_sm: int
    slots: int
    tile: int = 64
    min_units: int = 1


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """How prefill attention is cut. rows: queries times heads of a group; tile: keys at a time."""

    rows: int
    tile: int
    stages: int
    warps: int = 8

    def tokens(self, group: int) -> int:
        """Queries of a tile, of `group` heads each."""
        return self.rows // group


@dataclass(frozen=True, slots=True)
class HopperConfig:
    """How prefill attention is cut on Hopper: for two warpgroups, each with a product's 64 rows.

    tile: keys at a time; slots: tiles of keys in shared memory, and of their values. split: both
    have the same queries, and every other tile of keys, so that few queries make more programs.
    ping_pong: else they alternate in issuing products.
    """

    tile: int
    slots: int
    split: bool
    ping_pong: bool = True

    def tokens(self, group: int) -> int:
        """Queries of a tile, of `group` heads each."""
        return (1 if self.split else 2) * (64 // group)


def decode_config(k_cache: Tensor, num_tokens: int) -> DecodeConfig:
    """By rule: tiles of 16 KiB of keys and values; the best on the whole when measured.

    One request of some 2,000 keys is quickest with larger ones and one program a multiprocessor,
    which leave fewer parts to merge; of 512 or 8,192 keys that costs 10 to 19 % at most.
    """
    row_bytes = padded_head_dim(k_cache) * k_cache.dtype.itemsize
    tile = max(16, min(64, 2**13 // row_bytes))
    if num_tokens == 1:
        return DecodeConfig(tile=max(16, min(64, 2**14 // row_bytes)), stages=3, per_sm=1)
    return DecodeConfig(tile=tile, stages=3 if tile * row_bytes >= 2**13 else 4)


def hopper_decode_config(k_cache: Tensor, group: int, num_tokens: int) -> HopperDecodeConfig:
    """By rule, the best on the whole when measured: 96 KiB on their way to a multiprocessor.

    With few requests one program there has all of it, in tiles of 32 KiB, so that few parts are to
    be merged; of one or two in 16 bits with 64 dimensions smaller ones, as each program else has a
    single one. Three programs, or two if heads take more registers, hide each other's softmax. With
    many requests, which are often short, no tile has more than 64 keys.
    """
    itemsize = k_cache.dtype.itemsize
    row_bytes = 2 * int(k_cache.shape[3]) * itemsize  # of a key and its value
    if num_tokens <= 2 and itemsize == 2 and row_bytes == 256:
        return HopperDecodeConfig(per_sm=1, slots=4, tile=64)
    few = num_tokens <= (16 if itemsize == 2 else 4)
    if few or row_bytes == 512:
        return HopperDecodeConfig(per_sm=1, slots=3, tile=min(128, 2**15 // row_bytes))
    per_sm = 3 if group <= 8 else 2
    if num_tokens >= 256 and row_bytes == 128:
        return HopperDecodeConfig(per_sm, slots=3, tile=64)
    return HopperDecodeConfig(per_sm, slots=2, tile=2**14 // row_bytes)


def decode_registers(
    config: HopperDecodeConfig, k_cache: Tensor, group: int, num_tokens: int
) -> int:
    """Of a thread of `hopper_decode.py`, four of whose eight warps are idle.

    By 136 no two programs find room on a multiprocessor. Where one is meant for each, they crowd
    else on those that the product in front leaves first: with 38 key heads and 32 requests that
    cost a third of a layer. With one or two requests, or in FP8, nothing was gained.
    """
    if config.per_sm == 1 and k_cache.dtype.itemsize == 2 and num_tokens > 2:
        return 136
    return 80 if group <= 8 else 128


def opens_early(k_cache: Tensor, num_tokens: int) -> bool:
    """Whether the kernel behind attention should be there while that runs.

    With few requests the product behind it can fill its ring meanwhile, and has one if weights have
    as many bits as keys. One that only waits costs 4 % of a step's time.
    """
    return num_tokens * k_cache.dtype.itemsize <= 8


def prefill_config(k_cache: Tensor, group: int) -> PrefillConfig:
    """By rule: 64 rows for four warps, the best on the whole; a query's heads must fit."""
    tile = 2**14 // (padded_head_dim(k_cache) * max(2, k_cache.dtype.itemsize))
    rows = max(64, 1 << (group - 1).bit_length())
    return PrefillConfig(rows=rows, tile=max(16, min(64, tile)), stages=2, warps=rows // 16)


def short_config(k_cache: Tensor, group: int) -> PrefillConfig:
    """By rule, for prompts of up to 128 keys, such that more programs have room: in FP8 no second
    tile on its way, else tiles of half the keys."""
    usual = prefill_config(k_cache, group)
    if k_cache.dtype.itemsize == 1:
        return replace(usual, stages=1)
    return replace(usual, tile=min(usual.tile, 32))


def hopper_config(k_cache: Tensor, *, split: bool) -> HopperConfig:
    """By rule, for 64 or 128 dimensions."""
    if split:
        return HopperConfig(tile=64, slots=4, split=True)
    return HopperConfig(tile=128, slots=256 // k_cache.shape[3], split=False)


def choose_hopper_config(
    k_cache: Tensor, num_tokens: int, group: int, num_sms: int
) -> HopperConfig:
    """Of queries of so many tokens: the keys are shared out where half of the multiprocessors or
    fewer would have work else, since that makes twice as many pieces."""
    halves = hopper_config(k_cache, split=False)
    pieces = num_tokens // halves.tokens(group) * k_cache.shape[2]
    return hopper_config(k_cache, split=2 * pieces <= num_sms)


def padded_head_dim(k_cache: Tensor) -> int:
    """The dimensions that attention computes with: a power of two, the least that tl.dot takes.

    Those of FP8 are multiplied by halves.
    """
    least = 32 if k_cache.dtype.itemsize == 1 else 16
    return max(least, 1 << (int(k_cache.shape[3]) - 1).bit_length())
