"""Products whose results are heads, against the product and the kernel that turns and writes."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from device import DEVICE, DTYPE, ON_EITHER, ON_GPU
from torch import Tensor
from twins import normal, rope_case

from quire.kernels import reference
from quire.kernels.operands import Fp8Weight, HeadNorms, KVScales, ResidualState, RopeWriteKV
from quire.kernels.reference_quantized import quantize_int4
from quire.kernels.triton.gemm import gemm_tuning
from quire.kernels.triton.gemm.gemm_tuning import rope_gemm_config, skinny_gemm_config
from quire.kernels.triton.gemm.int4_config import half_heads_config
from quire.kernels.triton.launch.gemm_config import RingConfig, SkinnyConfig
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.linear_table import pack
from quire.kernels.triton.ops.paged_attention import has_hopper_gpu
from quire.kernels.triton.ops.rounded_rows import multiplies_fp8
from quire.kernels.triton.ops.skinny_gemm import skinny_gemm, skinny_gemm_rope
from quire.kernels.triton.step.rope_kernels import rope_write_kv

pytestmark = ON_EITHER
SKINNY = [
    SkinnyConfig(64, 64, 2, split=2),
    SkinnyConfig(128, 32, 3, per_sm=1),
]
RINGS = [RingConfig(128, 3, split=2), RingConfig(64, 2, tiles=2), RingConfig(128, 4, warps=8)]
# rows, (Hq, Hkv, D), norms, bytes of an element of W and of the caches
CASES = [
    (1, (4, 2, 64), False, 2),
    (3, (6, 4, 32), True, 2),
    (6, (2, 2, 64), True, 1),
    (17, (3, 1, 128), False, 1),
    (1, (4, 2, 128), True, 1),
    (40, (6, 4, 64), True, 2),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_heads_are_those_of_two_kernels(
    case: tuple[int, tuple[int, int, int], bool, int],
) -> None:
    m, heads, norms, itemsize = case
    if itemsize == 1 and ON_GPU and not multiplies_fp8(DEVICE):
        pytest.skip("no products in FP8")
    n, k = (heads[0] + 2 * heads[1]) * heads[2], 192
    stream = a_stream(m, k)
    weight: Any = (normal(n, k, dtype=DTYPE, seed=3) / k**0.5).to(DEVICE)
    if itemsize == 1:
        weight = Fp8Weight(*reference.quantize_fp8(weight))
    bias = normal(n, dtype=DTYPE, seed=4).to(DEVICE)
    rope = on_device(rope_case(m, heads, heads[2], norms, DTYPE), itemsize)
    configs = [config for config in SKINNY if whole(config, heads)]
    if ON_GPU and has_hopper_gpu(DEVICE) and heads[2] >= 64:
        configs += [config for config in RINGS if whole(config, heads)]
    assert configs
    for config in configs:
        mine, theirs = copy.deepcopy(rope), copy.deepcopy(rope)
        query = skinny_gemm_rope(stream, weight, mine, bias=bias, config=config)
        fused = skinny_gemm(stream, weight, bias=bias, config=config)
        expected = rope_write_kv(*theirs.operands(fused))
        same(query, expected)
        same(mine.k_cache, theirs.k_cache)
        assert torch.equal(mine.v_cache.float(), theirs.v_cache.float())
    assert not workspace(DEVICE).counters.any()


@pytest.mark.gpu("Hopper")
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("heads", [(6, 2, 128), (8, 4, 64)], ids=str)
@pytest.mark.parametrize(("group", "zeros"), [(64, False), (32, True)])
def test_tiles_with_parts_of_both_halves_of_a_head(
    rows: int, heads: tuple[int, int, int], group: int, *, zeros: bool
) -> None:
    """Of four-bit weights, with parts of k and without."""
    n, k = (heads[0] + 2 * heads[1]) * heads[2], 2304
    numbers = normal(n, k, dtype=torch.float32, seed=3).to(DEVICE)
    weight = quantize_int4(numbers, group, hadamard=False)
    if zeros:
        points = torch.randint(0, 16, weight.scale.shape, dtype=torch.uint8, device=DEVICE)
        weight = replace(weight, zeros=points)
    words: Any = pack(weight)
    stream = a_stream(rows, k)
    bias = normal(n, dtype=DTYPE, seed=4).to(DEVICE)
    plain = on_device(rope_case(rows, heads, heads[2], False, DTYPE), 1)
    expected = rope_write_kv(*(theirs := copy.deepcopy(plain)).operands(
        skinny_gemm(stream, words, bias=bias)
    ))  # fmt: skip
    found = {half_heads_config(rows, n, k, group, sms, heads[2], zeros=zeros) for sms in (30, 99)}
    assert (None in found) == (rows > 1 and heads[2] == 64)
    for config in filter(None, found):
        for _ in range(2):
            mine = copy.deepcopy(plain)
            assert close(skinny_gemm_rope(stream, words, mine, config, bias=bias), expected)
            assert close(mine.k_cache, theirs.k_cache)
            assert close(mine.v_cache, theirs.v_cache)
    assert not workspace(DEVICE).counters.any()


def close(ours: Tensor, theirs: Tensor) -> bool:
    """Equal but for sums in another order, rounded to the type of theirs."""
    difference = ours.double() - theirs.double()
    return bool(difference.norm() < 1e-2 * theirs.double().norm())


@pytest.mark.parametrize("case", [(3, (4, 2, 64), True), (17, (6, 2, 32), False)], ids=str)
def test_heads_in_int8_are_those_of_two_kernels(
    case: tuple[int, tuple[int, int, int], bool],
) -> None:
    """Codes and scales; one head has a NaN, one only zeros."""
    m, heads, norms = case
    n, k = (heads[0] + 2 * heads[1]) * heads[2], 192
    stream, weight = a_stream(m, k), (normal(n, k, dtype=DTYPE, seed=3) / k**0.5).to(DEVICE)
    bias = normal(n, dtype=DTYPE, seed=4).to(DEVICE)
    bias[-heads[2]], weight[-2 * heads[2] : -heads[2]] = float("nan"), 0.0
    bias[-2 * heads[2] : -heads[2]] = 0.0
    plain = on_device(rope_case(m, heads, heads[2], norms, DTYPE), 2)
    configs = [config for config in SKINNY if whole(config, heads)]
    if ON_GPU and has_hopper_gpu(DEVICE) and heads[2] >= 64:
        configs += [config for config in RINGS if whole(config, heads)]
    assert configs
    for config in configs:
        mine, theirs = in_int8(plain), in_int8(plain)
        query = skinny_gemm_rope(stream, weight, mine, bias=bias, config=config)
        fused = skinny_gemm(stream, weight, bias=bias, config=config)
        same(query, rope_write_kv(*theirs.operands(fused)))
        assert mine.scales is not None
        assert theirs.scales is not None
        for ours, twin in ((mine.k_cache, theirs.k_cache), (mine.v_cache, theirs.v_cache)):
            assert (ours.int() - twin.int()).abs().max() <= 1
            assert (ours != twin).float().mean() < 0.02
        same(mine.scales.keys, theirs.scales.keys)
        assert torch.equal(mine.scales.values.isnan(), theirs.scales.values.isnan())
        same(mine.scales.values.nan_to_num(1.0), theirs.scales.values.nan_to_num(1.0))
        assert mine.scales.values.isnan().any()
        assert (mine.scales.values == 0.0).any()


def in_int8(rope: RopeWriteKV) -> RopeWriteKV:
    """The operands with empty caches in INT8."""
    caches = [torch.zeros_like(c, dtype=torch.int8) for c in (rope.k_cache, rope.v_cache)]
    shape = rope.k_cache.shape[:3]
    scales = [torch.ones(shape, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)]
    return replace(rope, k_cache=caches[0], v_cache=caches[1], scales=KVScales(*scales))


def a_stream(m: int, k: int) -> ResidualState:
    """Rows before their RMSNorm division."""
    rows, norm = normal(m, k, dtype=DTYPE).to(DEVICE), normal(k, dtype=DTYPE, seed=1).to(DEVICE)
    squares = normal(5, m, dtype=torch.float32, seed=2).abs().to(DEVICE) * k / 5
    return ResidualState(rows, rows, norm, 1e-5, squares)


def on_device(rope: RopeWriteKV, itemsize: int) -> RopeWriteKV:
    """The RoPE operands with caches of this item size."""
    norms = rope.norms
    if norms is not None:
        norms = HeadNorms(norms.query.to(DEVICE), norms.key.to(DEVICE), norms.eps)
    kv_dtype = reference.FP8 if itemsize == 1 else DTYPE
    caches = rope.k_cache.to(DEVICE, kv_dtype), rope.v_cache.to(DEVICE, kv_dtype)
    rest = rope.cos.to(DEVICE), rope.sin.to(DEVICE), rope.slots.to(DEVICE)
    return RopeWriteKV(rope.head_dim, norms, *rest[:2], *caches, rest[2])


def whole(config: SkinnyConfig | RingConfig, heads: tuple[int, int, int]) -> bool:
    """Whether a tile holds whole heads of one kind."""
    sizes = heads[0] * heads[2], heads[1] * heads[2]
    return config.block_n % heads[2] == 0 and all(size % config.block_n == 0 for size in sizes)


def same(ours: Tensor, theirs: Tensor) -> None:
    """Equal but for the last digit, where a sum of two products is rounded after one of them."""
    wide = theirs.float()
    step = {torch.bfloat16: 2**-7, torch.float16: 2**-10}.get(theirs.dtype, 2**-3)
    near = (ours.float() - wide).abs() <= step * wide.abs() + 1e-3
    assert near.all()
    assert (ours.float() != wide).float().mean() < 0.02


@pytest.mark.parametrize(
    ("shape", "itemsize", "num_tiles"),
    [
        ((6144, 4096, 8, 128), 1, [1, 4, 16]),  # 8B
        ((6144, 4096, 8, 128), 2, [1, 4]),
        ((3072, 2048, 8, 64), 1, [1, 4, 16, 17, 64]),  # 1B
        ((3072, 2048, 8, 64), 2, [1, 4, 16, 17, 64]),
    ],
)
def test_steps_whose_gemm_applies_rope(
    shape: tuple[int, int, int, int], itemsize: int, num_tiles: list[int]
) -> None:
    n, k, kv_heads, head_dim = shape
    found = [
        m
        for m in (1, 4, 16, 17, 64)
        if rope_gemm_config(m, n, k, itemsize, 132, kv_heads, head_dim, hopper=True) is not None
    ]
    assert found == num_tiles


@pytest.mark.parametrize("itemsize", [1, 2])
@pytest.mark.parametrize("m", [1, 16, 17, 64])
@pytest.mark.parametrize(
    ("n", "k", "kv_heads", "head_dim"),
    [(6144, 4096, 8, 128), (3072, 2048, 8, 64), (4608, 3584, 4, 128), (9216, 3072, 32, 96),
     (1152, 896, 2, 64), (192, 96, 1, 64), (256, 96, 2, 20)],
)  # fmt: skip
def test_tiles_hold_whole_heads(
    n: int, k: int, kv_heads: int, head_dim: int, m: int, itemsize: int
) -> None:
    """A chosen config has whole heads in a tile, or there is none."""
    config = rope_gemm_config(m, n, k, itemsize, 132, kv_heads, head_dim, hopper=True)
    usual = skinny_gemm_config(m, n, k, itemsize, 132, hopper=True)
    heads = (n // head_dim - 2 * kv_heads, kv_heads, head_dim)
    assert config is None or whole(config, heads)
    if whole(usual, heads) and head_dim not in (20, 96):
        assert config == usual
    if m == 1 and head_dim in (64, 128):
        assert config is not None or usual.block_n > kv_heads * head_dim


def test_tiles_that_cut_heads_are_replaced_where_that_costs_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape, heads = (8, 5120, 3072, 1, 132), (8, 128)
    choose = gemm_tuning.rope_gemm_config.__wrapped__
    usual = skinny_gemm_config(*shape, hopper=True)
    assert usual.block_n == 64  # half a head
    assert choose(*shape, *heads, hopper=True).block_n == 128
    assert choose(*shape, 8, 64, hopper=True) == usual
    tuned = gemm_tuning.table().shapes[1, False][5120, 3072]
    monkeypatch.setitem(tuned, 8, gemm_tuning.TunedGemm(usual))
    assert choose(*shape, *heads, hopper=True) is None
    assert choose(16, 6144, 4096, 2, 132, *heads, hopper=True) is None
