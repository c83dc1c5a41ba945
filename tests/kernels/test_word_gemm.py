"""Few rows times weights in four bits by the plain Triton kernel, against the codes' numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from device import DEVICE, ON_EITHER, ON_GPU
from torch import Tensor
from twins import error_of

from quire.kernels import reference
from quire.kernels.formats.fp4 import MXFP4, NVFP4
from quire.kernels.formats.nf4 import NF4
from quire.kernels.operands import Int4Words, ResidualState, RopeWriteKV
from quire.kernels.reference_quantized import quantize_int4
from quire.kernels.triton.ops import int4_linear
from quire.kernels.triton.ops.int4_linear import INT4, plain_config
from quire.kernels.triton.ops.int4_weight import dequantize_int4
from quire.kernels.triton.ops.linear_table import pack
from quire.kernels.triton.ops.skinny_gemm import (
    choose_rope_gemm_config,
    interleave_gate_up,
    skinny_gemm,
    skinny_gemm_norm,
    skinny_gemm_rope,
    skinny_gemm_silu,
)

pytestmark = [*ON_EITHER, pytest.mark.usefixtures("one_thread")]
DTYPES = [torch.float16, *[torch.bfloat16] * ON_GPU]  # the interpreter has no bfloat16 products
LIMITS = {torch.float16: 1e-3, torch.bfloat16: 6e-3}
FORMATS = [
    ("int4", 128), ("int4 with zeros", 64), ("int4", 32), ("nf4", 64), ("mxfp4", 32), ("nvfp4", 16)
]  # fmt: skip
WEIGHTS = pytest.mark.parametrize(("codes", "group"), FORMATS)


def words_of(codes: str, group: int, n: int, k: int) -> Int4Words:
    """A random weight as words."""
    plain = torch.randn(n, k) * torch.logspace(-2, 0, n)[:, None]
    if codes.startswith("int4"):
        rows: Any = quantize_int4(plain, group, hadamard=False)
        if codes != "int4":
            rows = replace(rows, zeros=torch.randint(0, 16, rows.scale.shape, dtype=torch.uint8))
    else:
        rows = {"nf4": NF4, "mxfp4": MXFP4, "nvfp4": NVFP4}[codes].round_rows(plain)
    words = pack(replace(rows, **{name: own.to(DEVICE) for name, own in rows.tensors.items()}))
    assert isinstance(words, Int4Words)
    return words


def numbers_of(words: Int4Words) -> Tensor:
    """The numbers that the codes stand for, float64 [N, K]."""
    out = torch.empty(len(words.words), words.inputs, device=DEVICE)
    return dequantize_int4(words, out).double()


def random_rows(m: int, k: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(m, k, device=DEVICE).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 9, 33, 64])
@WEIGHTS
def test_results_are_those_of_the_numbers(
    codes: str, group: int, rows: int, dtype: torch.dtype
) -> None:
    """Of sizes that neither tiles nor steps divide."""
    words = words_of(codes, group, 200, 640)
    x, residual = random_rows(rows, 640, dtype), random_rows(rows, 200, dtype)
    bias = torch.randn(200, device=DEVICE).to(dtype)
    expected = x.double() @ numbers_of(words).T + bias.double() + residual.double()
    for _ in range(2):  # counters of partial results are left at zero
        found = skinny_gemm(x, words, bias=bias, residual=residual, config=plain_config(rows))
        assert error_of(found, expected) < LIMITS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 16])
def test_a_mean_of_x_takes_no_digits(rows: int, dtype: torch.dtype) -> None:
    """What is added to codes is taken off again with the sum of x, which is large here."""
    words = words_of("int4", 128, 64, 512)
    x = random_rows(rows, 512, dtype) + 30
    found = skinny_gemm(x, words, config=plain_config(rows))
    assert error_of(found, x.double() @ numbers_of(words).T) < LIMITS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5])
@WEIGHTS
def test_norm_and_silu_are_fused(codes: str, group: int, rows: int, dtype: torch.dtype) -> None:
    first, gates = words_of(codes, group, 256, 384), words_of(codes, group, 320, 256)
    config, limit = plain_config(rows), 2 * LIMITS[dtype]
    x, residual = random_rows(rows, 384, dtype), random_rows(rows, 256, dtype)
    norm = torch.rand(256, device=DEVICE).to(dtype)
    state = skinny_gemm_norm(x, first, residual, norm, 1e-5, config=config)
    plain = residual.double() + x.double() @ numbers_of(first).T
    assert error_of(state.residual, plain) < limit
    rms = (state.residual.double().square().mean(1, keepdim=True) + 1e-5).rsqrt()
    gate, up = (state.residual.double() * rms * norm.double() @ numbers_of(gates).T).chunk(2, dim=1)
    pairs = replace(
        gates,
        words=interleave_gate_up(gates.words),
        scale=interleave_gate_up(gates.scale.T).T.contiguous(),
        zeros=None if gates.zeros is None else interleave_gate_up(gates.zeros.T).T.contiguous(),
        output_scale=None if (own := gates.output_scale) is None else interleave_gate_up(own),
    )
    found = skinny_gemm_silu(state, pairs, config=config)
    assert error_of(found, F.silu(gate) * up) < 2 * limit


@pytest.mark.parametrize("head_dim", [64, 128])
def test_rope_is_fused_where_tiles_hold_whole_heads(head_dim: int) -> None:
    heads, kv_heads, rows, dtype = 4, 2, 3, DTYPES[0]
    words = words_of("int4", 64, (heads + 2 * kv_heads) * head_dim, 256)
    x, norm = random_rows(rows, 256, dtype), torch.ones(256, device=DEVICE, dtype=dtype)
    state = ResidualState(x, x, norm, 1e-5, x.float().square().sum(1)[None])
    cos, sin = torch.rand(2, rows, head_dim, device=DEVICE).to(dtype)
    caches = torch.zeros(2, 2, 16, kv_heads, head_dim, device=DEVICE, dtype=dtype)
    slots = torch.arange(rows, device=DEVICE)
    rope = RopeWriteKV(head_dim, None, cos, sin, *caches, slots)
    config = choose_rope_gemm_config(state, words, rope)
    assert (config is None) == (head_dim > 64)
    if config is None:
        return
    found = skinny_gemm_rope(state, words, rope, config)
    normalized = x.double() * (x.double().square().mean(1, keepdim=True) + 1e-5).rsqrt()
    fused = (normalized @ numbers_of(words).T).view(rows, -1, head_dim)
    both = [reference.rotary(fused[:, :-kv_heads].float(), cos.float(), sin.float())]
    expected = both[0].double()
    assert error_of(found, expected[:, :heads]) < 5e-3
    assert error_of(caches[0, 0, :rows], expected[:, heads:]) < 5e-3
    assert error_of(caches[1, 0, :rows], fused[:, -kv_heads:]) < 5e-3


@WEIGHTS
def test_more_rows_of_nf4_in_float16_are_for_the_library_on_a_hopper(
    codes: str, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gpu_weights_plain.json has their times."""
    monkeypatch.setattr(int4_linear, "has_hopper_gpu", lambda _: True)
    words, x = words_of(codes, group, 64, 256), random_rows(64, 256, torch.float16)
    served = [rows for rows in (1, 2, 64) if INT4.reads_plainly(x[:rows], words)]
    assert served == ([1] if codes == "nf4" else [1, 2, 64])


def test_who_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """16-bit rows that lie in pairs, up to 64; Hopper has a kernel of its own for bfloat16."""
    words = words_of("int4", 64, 64, 256)
    x = torch.randn(65, 256, device=DEVICE).half()
    assert INT4.reads_plainly(x[:64], words)
    assert INT4.reads_plainly(x[:64].bfloat16(), words) == (not ON_GPU)
    assert not INT4.reads_plainly(x, words)
    assert not INT4.reads_plainly(x.float()[:1], words)
    shifted = torch.randn(3 * 256 + 1, device=DEVICE).half()[1:].view(3, 256)
    assert not INT4.reads_plainly(shifted, words)
    launched = []
    monkeypatch.setattr(int4_linear, "unpacked", lambda x, *_: launched.append(len(x)))
    for rows in (x[:64], x, shifted):
        INT4.linear(rows, words, None)
    assert launched == [65, 3]
