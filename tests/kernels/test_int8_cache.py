"""KV cache in INT8 with scales in tensors of their own: written, and read by every kernel."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from device import ON_EITHER, ON_GPU
from ptx import bf16_pair, run_ptx
from test_shared_attention import on_device, shared_case
from test_triton_kernels import close, moved
from torch import Tensor
from twins import attention_case, normal, rotary_case

from quire.kernels import reference
from quire.kernels.dispatch import kernels_for
from quire.kernels.operands import KVScales
from quire.kvcache.kv_sizes import block_bytes
from quire.kvcache.kv_storage import allocate_kv

pytestmark = ON_EITHER
TRITON, INVARIANT = (kernels_for("cuda", batch_invariant=invariant) for invariant in (False, True))
BATCHES = [([1, 1, 1], [1, 40, 129]), ([1, 1, 5, 30], [64, 7, 90, 30])]


def in_int8(k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, Tensor, KVScales]:
    """Caches as codes and scales; heads differ in size by up to 2^20, and some are zero."""
    found = []
    for cache in (k_cache, v_cache):
        powers = torch.randint(-10, 10, cache.shape[:3], generator=torch.Generator().manual_seed(3))
        powers = powers.float().exp2() if cache is v_cache else 1.0 + powers.float() / 20.0
        rows = reference.quantize_heads(cache.float() * powers[..., None])
        rows[:, 3] = 0
        scales = rows[..., -2:].contiguous().view(torch.bfloat16).squeeze(-1)
        found.append((rows[..., :-2].contiguous(), scales))
    (keys, key_scales), (values, value_scales) = found
    return keys, values, KVScales(key_scales, value_scales)


def compare(version: Any, query: Tensor, caches: tuple[Any, ...], layout: Any, params: Any) -> None:
    keys, values, scales = caches
    numbers = [
        reference.dequantize_kv(codes, torch.float32, own)
        for codes, own in ((keys, scales.keys), (values, scales.values))
    ]
    twin = reference.attention(query.float(), *numbers, layout, params)
    by_codes = reference.attention(query, keys, values, layout, params, scales)
    close(by_codes, twin.to(query.dtype))
    ours = version.attention(
        *map(moved, (query, keys, values)), on_device(layout), moved(params), moved(scales)
    )
    rows = slice(0, sum(layout.query_lens_host) or None)
    error = (ours.cpu().float() - twin)[rows].norm() / twin[rows].norm()
    assert error < (1e-5 if query.dtype == torch.float32 else 0.01)


HEADS = [(4, 2, 16)] + [(32, 8, 128), (32, 8, 64), (7, 1, 128)] * ON_GPU
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * ON_GPU


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("batch", BATCHES, ids=["decodes", "mixed"])
@pytest.mark.parametrize(
    ("version", "window", "soft_cap"),
    [(TRITON, None, None), (TRITON, 33, 5.0), (INVARIANT, 33, None)],
    ids=["plain", "window", "invariant"],
)
def test_attention_reads_codes_and_scales(
    version: Any,
    window: int | None,
    soft_cap: float | None,
    batch: Any,
    dtype: torch.dtype,
    heads: tuple[int, int, int],
) -> None:
    query, k_cache, v_cache, layout, params = attention_case(*batch, heads, window, True, dtype)
    sinks = normal(heads[0], dtype=torch.float32) if soft_cap else None
    params = dataclasses.replace(params, soft_cap=soft_cap, sinks=sinks)
    compare(version, query, in_int8(k_cache, v_cache), layout, params)


@pytest.mark.parametrize("heads", [(4, 1, 16)] + [(32, 8, 128)] * ON_GPU, ids=str)
def test_shared_prefixes_are_read_with_their_scales(heads: tuple[int, int, int]) -> None:
    query, k_cache, v_cache, layout, params = shared_case(heads, torch.float16)
    caches = in_int8(k_cache, v_cache)
    twin = reference.attention(query, *caches[:2], layout, params, caches[2])
    ours = TRITON.attention(
        *map(moved, (query, *caches[:2])), on_device(layout), params, moved(caches[2])
    )
    close(ours[:-1], twin[:-1])


@pytest.mark.parametrize(("heads", "rotary_dim"), [((3, 1, 16), 16), ((6, 3, 20), 8)], ids=str)
@pytest.mark.parametrize("norms", [False, True])
def test_what_is_written_is_codes_and_scales(
    heads: tuple[int, int, int], rotary_dim: int, norms: bool
) -> None:
    fused, head_norms, cos, sin, *_, slots = rotary_case(6, heads, rotary_dim, norms, torch.float32)
    slots[2] = -1
    fused[1, -1] = 0.0  # a value
    fused[4, -1, 3], fused[5, -1, 2] = float("nan"), float("inf")

    def empty() -> list[Tensor]:
        keys, values = torch.zeros(2, 20, 8, heads[1], heads[2], dtype=torch.int8)
        return [keys, values, *torch.full((2, 20, 8, heads[1]), 9.0, dtype=torch.bfloat16)]

    theirs, ours = empty(), [moved(tensor) for tensor in empty()]
    expected = reference.rope_write_kv(
        fused, head_norms, cos, sin, *theirs[:2], slots, KVScales(*theirs[2:])
    )
    query = TRITON.rope_write_kv(
        *map(moved, (fused, head_norms, cos, sin)), *ours[:2], moved(slots), KVScales(*ours[2:])
    )
    close(query, expected)
    for mine, twin in zip(ours[:2], theirs[:2], strict=True):
        assert (mine.cpu().int() - twin.int()).abs().max() <= 1
        assert (mine.cpu() == twin).float().mean() > 0.99
    for mine, twin in zip(ours[2:], theirs[2:], strict=True):
        torch.testing.assert_close(mine.cpu(), twin, rtol=2**-7, atol=0.0, equal_nan=True)
    assert int(torch.stack(theirs[2:]).isnan().sum()) == 2


@pytest.mark.parametrize("head_dim", [64, 128])
def test_scales_are_counted(head_dim: int) -> None:
    """What a GPU allocates is what the memory plan counts: 1.9 times the tokens of 16 bits."""
    from quire.core.layer_spec import KVLayerSpec

    layer = KVLayerSpec(num_heads=2, key_dim=head_dim, value_dim=head_dim)
    found = allocate_kv([layer], 3, 16, torch.int8, "meta")[0]
    assert [tuple(t.shape) for t in found[2:]] == [(3, 16, 2)] * 2
    total = sum(t.nbytes for t in found)
    assert total == 3 * block_bytes([layer], 16, "int8")
    assert block_bytes([layer], 16, "bfloat16") / block_bytes([layer], 16, "int8") > 1.9


@pytest.mark.parametrize("scale", [2.0**-60, 0.0077, 0.9961, 1.0, 3.0e5, 0.0])
def test_instructions_scale_codes(scale: float) -> None:
    """What prompts on a Hopper do in registers: each code times its scale, rounded once."""
    kernel = pytest.importorskip("quire.kernels.triton.hopper.hopper_prefill_dequantize")
    found = torch.tensor([scale, scale]).bfloat16()
    own, less = (pair.view(torch.int32).item() & 0xFFFFFFFF for pair in (found, found * -128))
    less = (less + 0x43004300) & 0xFFFFFFFF  # as `scale_codes` stores it
    codes = torch.arange(-128, 128, dtype=torch.int8) if scale else torch.zeros(4, dtype=torch.int8)
    for start in range(0, len(codes), 4):
        four = codes[start : start + 4]
        word = four.view(torch.int32).item() & 0xFFFFFFFF
        registers = {"$2": word, "$3": own, "$7": less}
        after = run_ptx(kernel.SCALING.value, registers)
        numbers = torch.cat([bf16_pair(after["$0"]), bf16_pair(after["$1"])])
        expected = (four.double() * found[0].double()).bfloat16().double()
        torch.testing.assert_close(numbers, expected, rtol=0, atol=1e-30)
