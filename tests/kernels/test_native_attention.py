"""Compiled attention, and the write of keys and values, beside their twins."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from twins import attention_case, normal, rotary_case

from quire.kernels import reference
from quire.kernels.cpu import native, torch_attention
from quire.kernels.cpu import native_attention as ours
from quire.kernels.cpu.native import num_threads, set_num_threads

pytestmark = [
    pytest.mark.skipif(native.library() is None, reason="the kernels were not built"),
    pytest.mark.usefixtures("instruction_set"),
]

BATCHES = [
    ([1, 1, 1, 1], [1, 129, 700, 16]),
    ([37], [37]),
    ([1, 1, 5, 70, 2], [64, 7, 90, 300, 2]),  # prompts behind a cached prefix, too
]
HEADS = [(6, 3, 16), (4, 1, 80), (3, 3, 96), (7, 1, 256), (32, 4, 64), (5, 1, 48)]
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 4e-3}


@pytest.fixture(autouse=True)
def only_compiled(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Make PyTorch's versions fail, so that only compiled ones are tested."""
    if "falls_back" not in request.node.name:
        monkeypatch.setattr(torch_attention, "attention", None)
        monkeypatch.setattr(ours, "reference", None)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """PyTorch's threads wait for each other, which takes long where others want the cores."""
    threads = num_threads()
    set_num_threads(1)
    yield
    set_num_threads(threads)


def close(found: Tensor, expected: Tensor) -> None:
    limit = ROUNDING[found.dtype] * expected.abs().max()
    assert found.shape == expected.shape
    assert (found.float() - expected).abs().max() <= limit


def as_float(case: tuple[Any, ...]) -> list[Any]:
    return [a.float() if isinstance(a, Tensor) and a.is_floating_point() else a for a in case]


def test_exp() -> None:
    """Within one unit in the last place; underflow gives 0, and NaN stays NaN."""
    x = torch.linspace(-88, 88.3, 16 * 20_000)
    x[:3] = torch.tensor([-1e30, -float("inf"), float("nan")])
    out = torch.empty_like(x)
    lib = native.library()
    assert lib is not None
    lib.quire_cpu_exp(
        ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr()), ctypes.c_int64(len(x))
    )
    assert out[0] == out[1] == 0
    assert out[2].isnan()
    normal_range = x > -87.3
    exact = x[normal_range].double().exp()
    unit = torch.exp2(exact.log2().floor() - 23)
    assert ((out[normal_range].double() - exact).abs() / unit).max() <= 1.0
    assert (out[x < -87.4] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("window", [None, 1, 150])
def test_attention(
    dtype: torch.dtype, batch: tuple[list[int], list[int]], window: int | None
) -> None:
    for number, heads in enumerate(HEADS):
        case = attention_case(*batch, heads, window, True, dtype, (1, 8, 32)[number % 3])
        close(ours.attention(*case), reference.attention(*as_float(case)))


def test_layers_of_one_step_may_have_other_key_heads() -> None:
    query, k_cache, v_cache, layout, params = attention_case(
        [1, 5], [30, 9], (4, 4, 16), None, True, torch.float32
    )
    for heads in (4, 2, 1):
        caches = [cache[:, :, :heads].contiguous() for cache in (k_cache, v_cache)]
        expected = reference.attention(query, *caches, layout, params)
        close(ours.attention(query, *caches, layout, params), expected)


def test_attention_over_fp8_reads_every_code() -> None:
    """The values contain all numbers of the type; all keys have the same weight."""
    query, k_cache, v_cache, *rest = attention_case(
        [1, 3], [40, 40], (2, 1, 16), None, False, torch.float32
    )
    codes = torch.arange(256, dtype=torch.uint8)
    codes[[0x7F, 0xFF]] = 0
    v_cache = codes.repeat(v_cache.numel() // 256 + 1)[: v_cache.numel()].view(v_cache.shape)
    v_cache = v_cache.view(reference.FP8)
    k_cache = k_cache.to(reference.FP8)
    expected = reference.attention(query, k_cache, v_cache, *rest)
    close(ours.attention(query, k_cache, v_cache, *rest), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_request_has_the_same_bits_in_any_batch_on_any_threads(dtype: torch.dtype) -> None:
    queries, lens, heads = [1, 1, 1, 50, 9], [700, 30, 129, 300, 9], (6, 3, 32)
    query, k_cache, v_cache, layout, *rest = attention_case(queries, lens, heads, None, True, dtype)
    whole = ours.attention(query, k_cache, v_cache, layout, *rest)
    start = 0
    set_num_threads(3)
    for row, (count, length) in enumerate(zip(queries, lens, strict=True)):
        alone = type(layout).build(
            [count], [length], layout.block_table[row : row + 1].numpy(), k_cache.shape[1]
        )
        part = slice(start, start + count)
        found = ours.attention(query[part], k_cache, v_cache, alone, *rest)
        assert torch.equal(found, whole[part])
        start += count


@pytest.mark.parametrize("queries", [[1, 1, 1], [5, 40, 9]])
def test_nan_stays_with_its_request(queries: list[int]) -> None:
    """Stale data of other requests in a block's unused slots is not read."""
    lens = [300, 203, 41]
    query, k_cache, v_cache, layout, *rest = attention_case(
        queries, lens, (4, 2, 32), None, True, torch.float32
    )
    clean = ours.attention(query, k_cache, v_cache, layout, *rest)
    table = layout.block_table
    for cache in (k_cache, v_cache):
        cache[table[1]] = float("nan")  # of one request
        for row in (0, 2):  # behind the last token of the others
            block, used = divmod(lens[row], cache.shape[1])
            cache[table[row, block], used:] = float("nan")
            cache[table[row, block + 1 :]] = float("nan")
    found = ours.attention(query, k_cache, v_cache, layout, *rest)
    start, end = queries[0], queries[0] + queries[1]
    assert found[start:end].isnan().all()
    assert torch.equal(found[:start], clean[:start])
    assert torch.equal(found[end:], clean[end:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "rotary_dim"), [((3, 1, 80), 80), ((4, 2, 96), 72), ((32, 4, 64), 64)]
)
@pytest.mark.parametrize("norms", [False, True])
def test_rotary_write_kv(
    dtype: torch.dtype, heads: tuple[int, int, int], rotary_dim: int, norms: bool
) -> None:
    for tokens in (1, 123):
        case = rotary_case(tokens, heads, rotary_dim, norms, dtype)
        exact = rotary_case(tokens, heads, rotary_dim, norms, dtype)
        exact = tuple(as_float(exact))
        if exact[1] is not None:
            weights = exact[1].query.float(), exact[1].key.float()
            exact = (exact[0], type(exact[1])(*weights, 1e-5), *exact[2:])
        close(ours.rope_write_kv(*case), reference.rope_write_kv(*exact))
        close(case[4], exact[4])
        close(case[5], exact[5])


def test_a_negative_slot_keeps_its_token_out() -> None:
    case = rotary_case(6, (3, 1, 32), 32, False, torch.float32)
    case[-1][2] = -1
    before = case[4].clone()
    ours.rope_write_kv(*case)
    assert int((case[4] != before).any(-1).sum()) == 5


def test_fp8_is_written_as_its_twin_writes_it() -> None:
    heads = normal(40, 6, 32, dtype=torch.float32) * torch.logspace(-6, 4, 40)[:, None, None]
    heads[7, 4, 3] = float("nan")
    cos, sin = torch.ones(40, 32), torch.zeros(40, 32)
    found, expected = (torch.zeros(2, 5, 8, 2, 32).to(reference.FP8) for _ in range(2))
    slots = torch.arange(40)
    ours.rope_write_kv(heads, None, cos, sin, *found, slots)
    reference.rope_write_kv(heads, None, cos, sin, *expected, slots)
    same = found.view(torch.uint8) & 0x7F, expected.view(torch.uint8) & 0x7F  # -0 is 0
    assert torch.equal(*same)
    assert torch.equal(found.float().sign().nan_to_num(0), expected.float().sign().nan_to_num(0))


@pytest.mark.parametrize("window", [None, 33])
def test_attention_over_int8(window: int | None) -> None:
    for batch in BATCHES:
        query, k_cache, v_cache, *rest = attention_case(
            *batch, (6, 2, 48), window, True, torch.float32
        )
        caches = [reference.quantize_heads(cache) for cache in (k_cache, v_cache)]
        expected = reference.attention(query, *caches, *rest)
        close(ours.attention(query, *caches, *rest), expected)


def test_int8_is_written_as_its_twin_writes_it() -> None:
    """Codes may differ by one where a quotient lies between two; scales are equal."""
    heads = normal(40, 6, 32, dtype=torch.float32) * torch.logspace(-9, 9, 40)[:, None, None]
    heads[5, 4] = 0.0
    heads[7, 4, 3] = float("nan")
    heads[8, 2, 1] = float("inf")
    cos, sin = torch.ones(40, 32), torch.zeros(40, 32)
    found, expected = (torch.zeros(2, 5, 8, 2, 34, dtype=torch.int8) for _ in range(2))
    slots = torch.arange(40)
    ours.rope_write_kv(heads, None, cos, sin, *found, slots)
    reference.rope_write_kv(heads, None, cos, sin, *expected, slots)
    none = reference.dequantize_kv(expected, torch.float32).isnan()
    assert none.sum() == 2 * 32
    assert torch.equal(reference.dequantize_kv(found, torch.float32).isnan(), none)
    stored = ~none.any(-1)
    assert torch.equal(found[stored][:, 32:], expected[stored][:, 32:])
    assert (found[stored].int() - expected[stored].int()).abs().max() <= 1
    rotated = torch.stack([heads[:, 2:4], heads[:, 4:]]).view((*stored.shape, 32))
    step = reference.dequantize_kv(found, torch.float32)[stored] - rotated[stored]
    assert (step.abs() <= rotated[stored].abs().amax(-1, keepdim=True) / 127 * 0.51).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_was_not_compiled_falls_back(dtype: torch.dtype) -> None:
    dim = 32 if dtype == torch.float16 else 20
    case = attention_case([1, 5], [30, 9], (4, 2, dim), None, True, dtype)
    expected = reference.attention(*case).float()
    assert (ours.attention(*case).float() - expected).abs().max() <= 1e-2 * expected.abs().max()
    rotated = rotary_case(6, (4, 2, dim), dim, False, dtype)
    assert ours.rope_write_kv(*rotated).shape == (6, 4, dim)
