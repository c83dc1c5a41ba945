"""Hopper's decode attention against the reference; runs on such a GPU only."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from test_hopper_prefill import NOT_PLAIN, case, rounded
from test_shared_attention import on_device, shared_case
from torch import Tensor

from quire.kernels import reference
from quire.kernels.dispatch import kernels_for
from quire.kernels.operands import AttentionParams
from quire.kernels.triton.attention.attention_plan import make_plan
from quire.kernels.triton.launch.attention_config import DecodeConfig, HopperDecodeConfig
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops import paged_attention

pytestmark = pytest.mark.gpu("Hopper")

BATCHES = [
    ([1] * 10, [1, 33, 64, 65, 127, 128, 129, 700, 1950, 3001]),
    ([1], [9000]),
    ([1, 1, 1, 2, 20, 3, 2], [33, 300, 1, 70, 1950, 701, 5]),
    ([1] * 300, [192 - i % 7 for i in range(300)]),
    ([1] * 64, [100 + 37 * i * i % 8000 for i in range(64)]),
]
CONFIGS = [HopperDecodeConfig(2, 2), HopperDecodeConfig(1, 5), HopperDecodeConfig(3, 2, tile=128)]
LIMITS = {torch.bfloat16: 6e-3, reference.FP8: 3e-3}
ROUNDED = 0.03  # where queries are rounded to FP8 keys' type: short prompts beside shared prefixes
# heads of a key head, key heads, dimensions, block size, window
SHAPES = [
    (4, 8, 128, 16, None),
    (7, 2, 64, 32, 200),
    (1, 3, 128, 8, 70),
    (8, 8, 64, 64, None),
    (16, 1, 128, 128, None),
]


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, reference.FP8], ids=["bfloat16", "fp8"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_any_lengths(
    config: HopperDecodeConfig, shape: tuple[int, int, int, int, int | None], kv_dtype: torch.dtype
) -> None:
    params, window = AttentionParams(shape[2] ** -0.5, shape[4]), shape[4] or 0
    for queries, lens in BATCHES:
        query, k_cache, v_cache, layout, _, expected = case(queries, lens, shape, kv_dtype)
        plan = make_plan(layout, window, config, 16, shape[1])
        padded = torch.cat([query, query[:1], query[:1]])
        out = torch.full_like(padded, math.nan)
        paged_attention.decode_attention(
            padded, k_cache, v_cache, layout, plan, params, out, config, pdl=True
        )
        one = torch.tensor([n == 1 for n in queries for _ in range(n)], device="cuda")
        error = (out[:-2][one] - expected[one]).norm() / expected[one].norm()
        assert error < LIMITS[kv_dtype], (queries, lens)
        assert out[:-2][~one].isnan().all()
        assert not out[-2:].any()
        assert not workspace(query.device).counters.any()


@pytest.mark.parametrize("queries", [1, 100], ids=["decode", "prefill"])
@pytest.mark.parametrize("large", [1e-30, 1.0, 1e30])
def test_queries_and_weights_of_any_range(large: float, queries: int) -> None:
    query, k_cache, v_cache, layout, *_ = case([queries] * 3, [2000] * 3, SHAPES[0], reference.FP8)
    k_cache, v_cache = (cache.float().nan_to_num(1.0) for cache in (k_cache, v_cache))
    magnitudes = torch.logspace(-4, 0, 128, device="cuda").bfloat16()
    for by in (magnitudes, 2 * torch.ones_like(magnitudes)):
        wide = query * by * large
        params = AttentionParams(0.2 / large)
        asked = wide.float() if queries == 1 else rounded(wide.float(), reference.FP8)
        expected = reference.attention(asked, k_cache, v_cache, layout, params)
        codes = k_cache.to(reference.FP8), v_cache.to(reference.FP8)
        out = paged_attention.attention(wide, *codes, layout, params)
        limit = 3e-3 if queries == 1 else 6e-3
        assert (out - expected).norm() / expected.norm() < limit


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, reference.FP8], ids=["bfloat16", "fp8"])
@pytest.mark.parametrize("heads", [(32, 8, 128), (6, 2, 64)], ids=str)
def test_prefixes_that_several_begin_with(
    heads: tuple[int, int, int], kv_dtype: torch.dtype
) -> None:
    query, k_cache, v_cache, layout, params = shared_case(heads, torch.bfloat16)
    k_cache, v_cache = k_cache.to(kv_dtype), v_cache.to(kv_dtype)
    wide = query.float(), k_cache.float(), v_cache.float()
    expected = reference.attention(*wide, layout, params)
    caches = k_cache.cuda(), v_cache.cuda()
    config = paged_attention.choose_decode_config(query.cuda(), caches[0], params)
    assert isinstance(config, HopperDecodeConfig)
    out = paged_attention.attention(query.cuda(), *caches, on_device(layout), params)
    limit = ROUNDED if kv_dtype == reference.FP8 else LIMITS[kv_dtype]
    assert (out.cpu()[:-1] - expected[:-1]).norm() / expected[:-1].norm() < limit


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, reference.FP8], ids=["bfloat16", "fp8"])
def test_the_newest_keys_are_waited_for(kv_dtype: torch.dtype) -> None:
    """Several layers in one graph, each after the kernel that writes its keys."""
    group, heads, dim = 4, 8, 128
    lens = [1 + 61 * i for i in range(64)]
    _, k_cache, v_cache, layout, *_ = case([1] * 64, lens, SHAPES[0], kv_dtype)
    caches = [(k_cache.clone(), v_cache.clone()) for _ in range(3)]
    params = AttentionParams(0.1)
    fused = torch.empty(64, (group + 2) * heads, dim, dtype=torch.bfloat16, device="cuda")
    cos, sin = torch.ones(64, dim, device="cuda"), torch.zeros(64, dim, device="cuda")
    operations = kernels_for("cuda")

    def layers() -> list[tuple[Tensor, Tensor]]:
        outs = []
        for cache in caches:
            query = operations.rope_write_kv(
                fused, None, cos, sin, *cache, layout.slot_mapping.long()
            )
            outs.append((query, operations.attention(query, *cache, layout, params)))
        return outs

    fused.normal_()
    layers()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = layers()
    for _ in range(20):
        fused.normal_()
        for cache in itertools.chain(*caches):
            hole = cache.view(torch.uint8 if kv_dtype.itemsize == 1 else torch.int16)
            hole.flatten(0, 1)[layout.slot_mapping.long()] = (
                0x7F if kv_dtype.itemsize == 1 else 0x7FFF
            )
        graph.replay()
        for (query, out), cache in zip(outs, caches, strict=True):
            wide = (each.float() for each in cache)
            expected = reference.attention(query.float(), *wide, layout, params)
            assert (out - expected).norm() / expected.norm() < LIMITS[kv_dtype]


def test_what_it_does_not_serve_is_left_to_the_other_kernel() -> None:
    query = torch.empty(5, 8, 128, dtype=torch.bfloat16, device="cuda")
    served = torch.empty(4, 16, 2, 128, device="cuda").to(reference.FP8)
    plain = AttentionParams(0.1)
    for taken in ((query, served), (query, served.bfloat16())):
        assert isinstance(paged_attention.choose_decode_config(*taken, plain), HopperDecodeConfig)
        for params in NOT_PLAIN:
            assert isinstance(paged_attention.choose_decode_config(*taken, params), DecodeConfig)
    caches = served.half(), served[:, :, :, :80], served[:, :12], served[:, :, :1]
    for left in [(query, cache) for cache in caches] + [(query.half(), served)]:
        assert isinstance(paged_attention.choose_decode_config(*left, plain), DecodeConfig)
