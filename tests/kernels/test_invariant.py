"""Batch-invariant kernels: right as their twins are, and the same bits alone and in any batch."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from device import DEVICE, ON_EITHER, ON_GPU
from test_triton_kernels import DTYPES, TWINS, close, close_to_exact, moved, with_dtypes
from test_triton_model import CONFIG, FAMILIES, build, logits
from torch import Tensor
from twins import CASES, attention_case, device_case, normal

from quire.config import EngineConfig
from quire.engine.startup import device_checks
from quire.engine.startup.resolved_config import resolve
from quire.errors import ConfigError
from quire.kernels import reference
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.cpu import native
from quire.kernels.dispatch import kernels_for
from quire.kernels.formats.fp4 import MXFP4
from quire.kernels.formats.fp8 import FP8
from quire.kernels.formats.int4 import INT4_GROUP_64
from quire.kernels.formats.int8 import INT8_GROUP_64
from quire.kernels.formats.nf4 import NF4
from quire.kernels.formats.weight_format import WeightFormat
from quire.kernels.operands import Fp8Weight
from quire.kernels.triton.gemm.skinny_gemm_kernel import fp8_to_float
from quire.kernels.triton.invariant import invariant_attention
from quire.kernels.triton.ops import fp8_linear
from quire.kernels.triton.step.elementwise import quantize_rows
from quire.models.config.model_config import ModelConfig
from quire.quantization.scheme import SCHEMES

pytestmark = ON_EITHER
KERNELS = kernels_for("cuda", batch_invariant=True)
# the formats to which weights are quantized while they are loaded
QUANTIZED = sorted({each for found in SCHEMES.values() for each in found["cuda"].choices}, key=str)
EVERY = (
    {"attention": 5, "linear": 1, "linear_fp8": 1}
    if ON_GPU
    else {"attention": 43, "linear": 19, "linear_fp8": 3}
)  # the interpreter is slow


@DTYPES
def test_gemms_equal_their_twin(dtype: torch.dtype) -> None:
    for case in itertools.islice(CASES["linear"](dtype), 0, None, EVERY["linear"]):
        if len(case[0]) == 0:
            assert KERNELS.linear(*map(moved, case)).shape == (0, len(case[1]))
            continue
        x, weight, bias = (None if part is None else part.double() for part in case)
        exact = F.linear(x, weight, bias).float()
        # thousands of terms in one sequence
        close_to_exact(
            KERNELS.linear(*map(moved, case)).cpu(),
            exact,
            slack=8.0 if dtype == torch.float32 else 1.0,
        )


@pytest.mark.parametrize("found", [INT4_GROUP_64, NF4, MXFP4, INT8_GROUP_64], ids=str)
def test_codes_of_a_checkpoint_are_packed_as_these_kernels_read_them(found: WeightFormat) -> None:
    rows = found.round_rows(moved(normal(48, 256, dtype=torch.float32)) / 16)
    x = moved(normal(3, 256, dtype=torch.float32, seed=1))
    expected = F.linear(x, found.dequantize(rows).float())
    out = KERNELS.linear(x, KERNELS.pack(rows), None)
    torch.testing.assert_close(out, expected, atol=2e-3, rtol=2e-3)  # scales are in float16


@pytest.mark.parametrize("name", [*SCHEMES])
def test_a_model_may_be_quantized_while_it_is_loaded(name: str, tmp_path: Path) -> None:
    """In any scheme, and gives what its twins give."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | FAMILIES[0] | sizes))
    model_config = ModelConfig.from_folder(tmp_path)
    scheme, cpu, dtype = SCHEMES[name]["cuda"], torch.device("cpu"), torch.float32
    mine = build(model_config, KERNELS, dtype, DEVICE, scheme)
    exact = logits(build(model_config, TWINS, dtype, cpu, scheme), dtype, cpu)
    torch.testing.assert_close(
        logits(mine, dtype, DEVICE), exact, atol=0.02 * exact.abs().max().item(), rtol=0
    )


@pytest.mark.parametrize("rows", [1, 70])
def test_a_gpu_that_does_not_know_fp8_reads_its_bytes(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of compute capability 8.0."""
    monkeypatch.setattr(fp8_linear, "multiplies_fp8", lambda _: False)
    codes = torch.arange(64 * 96).remainder(127).to(torch.uint8)  # no NaN
    codes[::2] |= 128
    scale, bias = torch.rand(64) / 500, torch.randn(64)
    weight = Fp8Weight(moved(codes.view(64, 96).view(reference.FP8)), moved(scale))
    for dtype in (torch.float16, torch.float32):
        x = moved(normal(rows, 96, dtype=dtype))
        out = KERNELS.linear(x, weight, moved(bias).to(dtype))
        expected = F.linear(x.float(), FP8.dequantize(weight), moved(bias).to(dtype).float())
        torch.testing.assert_close(out.float(), expected, atol=2e-3, rtol=2e-3)


@triton.jit
def bytes_to_floats_kernel(codes_ptr, out_ptr):
    i = tl.arange(0, 256)
    tl.store(out_ptr + i, fp8_to_float(tl.load(codes_ptr + i), tl.float32))


def test_each_byte_of_fp8_is_its_number_or_nan() -> None:
    codes = moved(torch.arange(256, dtype=torch.uint8))
    out = moved(torch.zeros(256))
    bytes_to_floats_kernel[(1,)](codes, out)
    torch.testing.assert_close(
        out * 256.0, codes.view(reference.FP8).float(), rtol=0, atol=0, equal_nan=True
    )


def test_rows_in_fp8_are_dequantized_for_a_weight_that_is_not() -> None:
    rows = quantize_rows(moved(normal(5, 64, dtype=torch.bfloat16)))
    weight = moved(normal(32, 64, dtype=torch.bfloat16))
    same(KERNELS.linear(rows, weight, None), KERNELS.linear(rows.dequantize(), weight, None))


@DTYPES
def test_fp8_gemms_equal_their_twin(dtype: torch.dtype) -> None:
    for case in itertools.islice(CASES["linear_fp8"](dtype), 0, None, EVERY["linear_fp8"]):
        x, weight, bias = case
        exact = reference.linear(x.float(), weight, bias)
        # Hopper's FP8 products are added up with fewer bits than float32 has
        close_to_exact(KERNELS.linear(*map(moved, case)).cpu(), exact, slack=2.0)


@DTYPES
def test_attention_equals_its_twin(dtype: torch.dtype) -> None:
    for case in itertools.islice(CASES["attention"](dtype), 0, None, EVERY["attention"]):
        close(KERNELS.attention(*map(moved, case)), TWINS.attention(*copy.deepcopy(case)))


@DTYPES
def test_padding_gives_zeros(dtype: torch.dtype) -> None:
    case = device_case([0, 3, 1], [5, 20, 40], (4, 2, 16), None, dtype, padding=2)
    query, *rest = map(moved, case)
    result = KERNELS.attention(query, *rest)
    assert not result[-2:].any()
    assert result[:-2].flatten(1).any(1).all()


@pytest.mark.parametrize("found", [None, *QUANTIZED], ids=str)
@DTYPES
def test_a_row_has_the_same_result_in_any_number_of_rows(
    dtype: torch.dtype, found: WeightFormat | None
) -> None:
    """Bit-equal on a GPU; the interpreter's sums are NumPy's, whose order may vary."""
    n, k = (640, 1088) if ON_GPU else (72, 192)
    x, weight, bias = (
        moved(normal(*size, dtype=dtype, seed=seed))
        for seed, size in enumerate([(300, k), (n, k), (n,)])
    )
    stored = weight if found is None else KERNELS.quantize(weight, found.spec)
    whole = KERNELS.linear(x, stored, bias)
    for rows in (slice(0, 1), slice(5, 38), slice(100, 164), slice(7, 72), slice(40, 300)):
        (same if ON_GPU else close)(KERNELS.linear(x[rows], stored, bias), whole[rows])


@pytest.mark.parametrize("shape", [(4, 2, 16), (8, 2, 64)][: 1 + ON_GPU])  # Hopper's kernel, too
@pytest.mark.parametrize(("window", "dtype"), with_dtypes([None, 20, 100]))
def test_a_token_attends_the_same_in_a_prompt_and_alone(
    window: int | None,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole, in two chunks, and each token by itself beside others' requests, or alone: then the
    pieces of its keys have programs of their own."""
    monkeypatch.setattr(invariant_attention, "SPLIT", 64)
    if not ON_GPU:  # some processors' NumPy rounds a row by where it stands in a tile
        monkeypatch.setattr(np, "matmul", matmul_by_rows)
    length = 150
    case = attention_case([length], [length], shape, window, True, dtype)
    query, k_cache, v_cache, layout, *rest = map(moved, case)
    whole = KERNELS.attention(query, k_cache, v_cache, layout, *rest)
    close(whole, reference.attention(*case))
    table = layout.block_table.cpu().numpy()

    def attend(begin: int, end: int, others: int) -> Tensor:
        """Attention of tokens begin to end, beside requests that compute their first tokens."""
        queries, lens = [1] * others + [end - begin], [1] * others + [end]
        if end - begin == 1:
            queries, lens = queries[::-1], lens[::-1]
        part = moved(BatchLayout.build(queries, lens, table.repeat(len(lens), 0), 8))
        rows = [query[:1]] * others
        rows.insert(0 if end - begin == 1 else others, query[begin:end])
        mine = KERNELS.attention(torch.cat(rows), k_cache, v_cache, part, *rest)
        return mine[: end - begin] if end - begin == 1 else mine[others:]

    chunks = [(0, 37), (37, 150), *((i, i + 1) for i in range(0, length, 13 if ON_GPU else 49))]
    for number, (begin, end) in enumerate(chunks):
        same(attend(begin, end, number % 3), whole[begin:end])


def matmul_by_rows(a: Any, b: Any, dtype: Any = None) -> Any:
    """A product of tiles in Triton's interpreter whose order of sums depends on the length only."""
    a, b = a.astype(dtype), b.astype(dtype)
    return np.ascontiguousarray(a[..., :, None, :] * b.swapaxes(-1, -2)[..., None, :, :]).sum(-1)


def same(a: Tensor, b: Tensor) -> None:
    """Bit-equal."""
    assert a.dtype == b.dtype
    assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("instructions", "options", "problem"),
    [
        ("avx2", {"quantization": "fp8"}, r"have no weights in fp8\); "),
        ("avx2", {"dtype": "float16"}, r"dtype is float16, which .*\); "),
        ("avx2", {"quantization": "int4"}, None),
        ("amx", {"quantization": "int8"}, None),
        ("amx", {"quantization": "int4"}, "weights in four bits .*; use quantization='int8'"),
        ("amx", {"quantization_overrides": "*.down_proj=nf4"}, "weights in four bits"),
        ("torch", {}, r"there are no compiled kernels for this processor\); "),
    ],
)
def test_a_cpu_needs_kernels_whose_rows_do_not_depend_on_others(
    instructions: str,
    options: dict[str, Any],
    problem: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "instruction_set", lambda: instructions)
    monkeypatch.setattr(native, "library", lambda: None if instructions == "torch" else object())
    config = EngineConfig.from_options(batch_invariant=True, device="cpu", **options)
    if problem is None:
        assert resolve(config, "cpu").config.device.batch_invariant
    else:
        with pytest.raises(
            ConfigError, match=f"^batch_invariant.*{problem}.*leave batch_invariant out$"
        ):
            resolve(config, "cpu")


def test_a_cpu_needs_kernels_of_all_features_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_checks, "COMPUTED", frozenset())
    config = EngineConfig.from_options(batch_invariant=True, device="cpu")
    with pytest.raises(ConfigError, match=r"PyTorch runs this model \(parts\); leave"):
        resolve(config, "cpu")


def test_nothing_is_looked_for_that_such_kernels_would_not_use() -> None:
    assert EngineConfig.from_options().shares_prefixes
    assert not EngineConfig.from_options(batch_invariant=True).shares_prefixes
    assert not EngineConfig.from_options(enable_prefix_caching=False).shares_prefixes
