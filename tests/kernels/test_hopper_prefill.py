"""Prefill attention for Hopper against the reference; runs on such a GPU only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.operands import AttentionParams, KVScales
from quire.kernels.triton.attention.attention_plan import make_plan
from quire.kernels.triton.launch.attention_config import DecodeConfig, HopperConfig, hopper_config
from quire.kernels.triton.ops import hopper_prompts, paged_attention

pytestmark = pytest.mark.gpu("Hopper")

BATCHES = [
    ([128], [128]),
    ([1, 33, 200, 700, 2], [70, 33, 1950, 701, 300]),
    ([129] * 20, [129 + 61 * i for i in range(20)]),
    ([2] * 64, [2 + 37 * i for i in range(64)]),
    ([64, 17, 1024, 5], [4064, 17, 1024, 3005]),
]
# heads of a key head, key heads, dimensions, block size, window
SHAPES = [
    (4, 8, 128, 16, None),
    (7, 2, 64, 32, 200),
    (1, 3, 128, 8, 70),
    (8, 2, 64, 16, None),
    (16, 1, 128, 64, 300),
]


def case(
    queries: list[int],
    lens: list[int],
    shape: tuple[int, int, int, int, int | None],
    kv_dtype: torch.dtype,
    *,
    rounds: Collection[int] = (),
) -> tuple[Tensor, Tensor, Tensor, BatchLayout, KVScales | None, Tensor]:
    """(query, caches with NaN where nothing was written, layout, scales, what attention gives).

    rounds: requests whose queries are rounded as Hopper's kernel rounds them.
    """
    group, heads, dim, block_size, window = shape
    torch.manual_seed(sum(lens))
    most = max(-(-n // block_size) for n in lens)
    table = torch.randperm(most * len(lens)).view(len(lens), most)
    layout = BatchLayout.build(
        queries, lens, table.numpy().astype(np.int32), block_size, torch.device("cuda")
    )
    query = torch.randn(sum(queries), group * heads, dim, device="cuda").bfloat16()
    cache, scales = torch.randn(2, table.numel(), block_size, heads, dim, device="cuda"), None
    if kv_dtype == torch.int8:
        rows = reference.quantize_heads(cache * torch.rand(*cache.shape[:4], 1, device="cuda"))
        found = rows[..., -2:].contiguous().view(torch.bfloat16).squeeze(-1)
        scales = KVScales(found[0], found[1])
        cache = rows[..., :-2].contiguous()
    cache = cache.to(kv_dtype)
    written = torch.zeros(table.numel(), block_size, dtype=torch.bool)
    for row, length in enumerate(lens):
        positions = torch.arange(length)
        written[table[row, positions // block_size], positions % block_size] = True
    k_cache, v_cache = cache
    params = AttentionParams(dim**-0.5, window)
    pairs = (k_cache, scales and scales.keys), (v_cache, scales and scales.values)
    numbers = [reference.dequantize_kv(codes, torch.float32, own) for codes, own in pairs]
    asked = query.float()
    is_rounded = torch.tensor([r in rounds for r, n in enumerate(queries) for _ in range(n)])
    asked[is_rounded.cuda()] = rounded(asked[is_rounded.cuda()], kv_dtype)
    expected = reference.attention(asked, *numbers, layout, params)
    hole = written.logical_not().cuda()
    if scales is None:
        bits = torch.full((1,), math.nan).to(kv_dtype)
        kind = torch.uint8 if kv_dtype.itemsize == 1 else kv_dtype
        cache.view(kind)[:, hole] = bits.view(kind).cuda()
    else:
        cache[:, hole] = -128
        for own in (scales.keys, scales.values):
            own[hole] = math.nan
    return query, k_cache, v_cache, layout, scales, expected


def chunks(queries: list[int]) -> list[int]:
    """The requests with several queries."""
    return [request for request, n in enumerate(queries) if n > 1]


def rounded(query: Tensor, kv_dtype: torch.dtype) -> Tensor:
    """Queries [T, H, D] as Hopper's kernel multiplies them with keys of a type."""
    largest = query.abs().amax(-1, keepdim=True)
    if kv_dtype == torch.int8:
        return (query / largest * 127).round() * largest / 127
    if kv_dtype == reference.FP8:
        factor = torch.exp2(largest.log2().floor() - 7)
        return (query / factor).to(reference.FP8).float() * factor
    return query


DTYPES = pytest.mark.parametrize(
    "kv_dtype", [torch.bfloat16, reference.FP8, torch.int8], ids=["bfloat16", "fp8", "int8"]
)


@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("split", [False, True], ids=["halves", "split"])
def test_any_mixture_of_chunks(
    split: bool,
    shape: tuple[int, int, int, int, int | None],
    kv_dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hopper_prompts, "choose_dequantization", lambda *_: None)
    params, window = AttentionParams(shape[2] ** -0.5, shape[4]), shape[4] or 0
    for queries, lens in BATCHES:
        found = case(queries, lens, shape, kv_dtype, rounds=chunks(queries))
        query, k_cache, v_cache, layout, scales, expected = found
        config = hopper_config(k_cache, split=split)
        plan = make_plan(layout, window, DecodeConfig(64, 3), config.tokens(shape[0]), shape[1])
        out = torch.full_like(query, math.nan)
        paged_attention.prefill_attention(
            query, k_cache, v_cache, layout, plan, params, out, config, scales
        )
        chunk = torch.tensor([n > 1 for n in queries for _ in range(n)], device="cuda")
        error = (out[chunk] - expected[chunk]).norm() / expected[chunk].norm()
        assert error < 6e-3, (queries, lens)
        assert out[~chunk].isnan().all()


@pytest.mark.parametrize("kv_dtype", [reference.FP8, torch.int8], ids=["fp8", "int8"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("most", [900, 2**20], ids=["few fit", "all fit"])
def test_keys_are_dequantized_for_chunks_that_are_long_and_fit(
    most: int,
    shape: tuple[int, int, int, int, int | None],
    kv_dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Queries over dequantized keys are not rounded, others in the same step are."""
    monkeypatch.setattr(hopper_prompts, "least_queries", lambda *_: 33)
    monkeypatch.setattr(hopper_prompts, "most_keys", lambda *_: most)
    if most < 2**20:
        shape = (*shape[:4], None)  # with a window how many fit depends on its tiles
    params = AttentionParams(shape[2] ** -0.5, shape[4])
    for queries, lens in BATCHES:
        long = [request for request, n in enumerate(queries) if n >= 33]
        totals = itertools.accumulate(lens[request] for request in long)
        wide = {request for request, total in zip(long, totals, strict=True) if total <= most}
        others = [request for request in chunks(queries) if request not in wide]
        found = case(queries, lens, shape, kv_dtype, rounds=others)
        query, k_cache, v_cache, layout, scales, expected = found
        out = paged_attention.attention(query, k_cache, v_cache, layout, params, scales)
        assert (out - expected).norm() / expected.norm() < 6e-3, (queries, lens)


NOT_PLAIN = [AttentionParams(0.1, soft_cap=5.0), AttentionParams(0.1, sinks=torch.zeros(8))]
SHORT = [([16] * 9, [16] * 9), ([1, 2, 15, 64, 100, 128], [300, 2, 15, 128, 111, 128])]


@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_of_short_prompts(
    shape: tuple[int, int, int, int, int | None],
    kv_dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hopper_prompts, "choose_dequantization", lambda *_: None)
    for (queries, lens), is_short in [(batch, batch in SHORT) for batch in [*SHORT, BATCHES[1]]]:
        found = case(queries, lens, shape, kv_dtype, rounds=() if is_short else chunks(queries))
        query, k_cache, v_cache, layout, scales, expected = found
        assert layout.has_few_keys == is_short
        params = AttentionParams(shape[2] ** -0.5, shape[4])
        out = paged_attention.attention(query, k_cache, v_cache, layout, params, scales)
        assert (out - expected).norm() / expected.norm() < 6e-3, (queries, lens)


def test_what_it_does_not_serve_is_left_to_the_other_kernel() -> None:
    query = torch.empty(500, 8, 128, dtype=torch.bfloat16, device="cuda")
    served = torch.empty(4, 16, 2, 128, dtype=torch.bfloat16, device="cuda")
    plain = AttentionParams(0.1)
    short = paged_attention.choose_prefill_config(query, served, plain, has_few_keys=True)
    assert not isinstance(short, HopperConfig)
    codes = served.to(torch.int8)
    for taken in ((query, served), (query.half(), served.half()), (query, codes)):
        assert isinstance(paged_attention.choose_prefill_config(*taken, plain), HopperConfig)
        for params in NOT_PLAIN:
            assert not isinstance(
                paged_attention.choose_prefill_config(*taken, params), HopperConfig
            )
    caches = served.float(), served[:, :, :, :80], served[:, :12], served[:, :, :1]
    refused = [(query, cache) for cache in caches] + [(query.half(), served.to(reference.FP8))]
    refused += [(query.half(), codes)]
    for left in refused:
        assert not isinstance(paged_attention.choose_prefill_config(*left, plain), HopperConfig)
