"""Triton's kernels against their twins on odd shapes: on a GPU if there is one, else interpreted.

The interpreter has no bfloat16 products, so there float32 and float16 stand for it.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from device import DEVICE, ON_EITHER, ON_GPU
from torch import Tensor
from twins import (
    CASES,
    WRITING,
    attention_case,
    device_case,
    error_of,
    normal,
    operation_of,
    rotary_case,
)

from quire.kernels import reference
from quire.kernels.dispatch import Kernels, kernels_for
from quire.kernels.operands import Fp8Rows, Fp8Weight, ResidualState, RopeWriteKV
from quire.kernels.triton import triton_operations
from quire.kernels.triton.attention.attention_plan import make_plan
from quire.kernels.triton.gemm.gemm_tuning import default_skinny_config
from quire.kernels.triton.launch.attention_config import DecodeConfig
from quire.kernels.triton.launch.gemm_config import SkinnyConfig
from quire.kernels.triton.launch.workspace import launches_early, workspace
from quire.kernels.triton.ops import after_linear, dense_linear, fp8_linear, paged_attention
from quire.kernels.triton.ops.paged_attention import (
    attention,
    decode_attention,
)
from quire.kernels.triton.ops.rounded_rows import multiplies_fp8
from quire.kernels.triton.ops.skinny_gemm import (
    interleave_gate_up,
    skinny_gemm,
    skinny_gemm_norm,
    skinny_gemm_silu,
)
from quire.kernels.triton.step import elementwise, rope_kernels

pytestmark = [*ON_EITHER, pytest.mark.usefixtures("one_thread")]
TOLERANCES = {torch.float32: 3e-6, torch.float16: 2e-3}  # twins round on their way, too
if ON_GPU:
    # heads with norm and RoPE are rounded many times, and both results are up to 0.7 %
    # of the largest value from the exact one
    TOLERANCES[torch.bfloat16] = 1.5e-2
# half a unit in the last place of a stored result, and what float32 sums differ by
ONE_ROUNDING = {torch.float32: 3e-6, torch.float16: 2**-11 + 1e-5, torch.bfloat16: 2**-8 + 1e-5}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def with_dtypes(*columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All combinations with a dtype on a GPU; interpreted, one dtype each, so that all pairs occur.

    For two columns, as the dtype goes by the sum of their places.
    """
    rows, dtypes = [], list(TOLERANCES)
    for cells in itertools.product(*map(enumerate, columns)):
        turn = sum(index for index, _ in cells) % len(dtypes)
        chosen = dtypes if ON_GPU else dtypes[turn : turn + 1]
        rows += [(*(value for _, value in cells), dtype) for dtype in chosen]
    return rows


TWINS = kernels_for("meta")
# the interpreter takes milliseconds for a program's step, so of these it gets every n-th case; a
# GPU every fifth of attention's 108, in which nearly all pairs of what they vary occur
EVERY = {"attention": 5} if ON_GPU else {"attention": 29, "linear": 6, "linear_fp8": 3}
MOST_TOKENS = 1000 if ON_GPU else 40


def moved(argument: Any) -> Any:
    """A copy on the device under test."""
    if isinstance(argument, Tensor):
        copied = copy.deepcopy(argument)  # with its strides
        return copied if DEVICE.type == "cpu" else copied.to(DEVICE)
    if dataclasses.is_dataclass(argument):
        fields = {f.name: moved(getattr(argument, f.name)) for f in dataclasses.fields(argument)}
        return type(argument)(**fields)
    return argument


def close(ours: Tensor, twin: Tensor) -> None:
    """Equal but for rounding, relative to the largest value; integers exactly."""
    assert (ours.dtype, ours.shape) == (twin.dtype, twin.shape)
    limit = TOLERANCES.get(twin.dtype, 0) * max([1.0, *twin.abs().flatten().tolist()])
    torch.testing.assert_close(ours.to(twin.device), twin, atol=limit, rtol=0)


def close_to_exact(ours: Tensor, exact: Tensor, slack: float = 1.0) -> None:
    """Equal to a float32 result but for one rounding to the result's type."""
    limit = slack * ONE_ROUNDING[ours.dtype] * max(1.0, exact.abs().max().item())
    torch.testing.assert_close(ours.float(), exact, atol=limit, rtol=0)


def results(kernels: Kernels, op: str, arguments: Sequence[Any]) -> list[Tensor]:
    """What an operation gives, a stream in one form, and the arguments of one that writes."""
    result = getattr(kernels, operation_of(op))(*arguments)
    if isinstance(result, ResidualState):
        result = result.residual, kernels.normalized_rows(result)
    return tensors(result) + (tensors(tuple(arguments)) if op in WRITING else [])


@DTYPES
@pytest.mark.parametrize(
    "op",
    [
        op
        for op in CASES
        if operation_of(op) in triton_operations.OPERATIONS
        and op not in ("linear_int8", "linear_int4")  # see test_int8_linear, test_int4_weight
    ],
)
def test_operations_equal_their_twins(
    op: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        dense_linear, "library_is_faster", lambda *_, **__: False
    )  # `linear` is ours, too
    monkeypatch.setattr(
        triton_operations, "_WIDE", {torch.float16, torch.bfloat16}
    )  # for small numbers
    for case in itertools.islice(CASES[op](dtype), 0, None, EVERY.get(op, 1)):
        rows = case[0].rows if isinstance(case[0], ResidualState) else case[0]
        if rows.dim() > 1 and len(rows) > MOST_TOKENS:
            continue
        mine, theirs = [moved(argument) for argument in case], copy.deepcopy(case)
        if op in ("linear_silu", "linear_gelu"):
            mine[1:] = [w if w is None else interleave_gate_up(w) for w in mine[1:]]
        result = results(kernels_for("cuda"), op, mine)
        twin = results(TWINS, op, theirs)
        for a, b in zip(result, twin, strict=True):
            close(a, b)


def tensors(value: Any) -> list[Tensor]:
    """The tensors of a result or of arguments."""
    if isinstance(value, tuple):
        return [tensor for item in value for tensor in tensors(item)]
    if isinstance(value, RopeWriteKV):
        return [value.k_cache, value.v_cache]
    return [value] if isinstance(value, Tensor) else []


CONFIGS = [
    SkinnyConfig(64, 32, 3, split=1),
    SkinnyConfig(64, 32, 2, split=3),
    SkinnyConfig(64, 32, 3, per_sm=1),
    SkinnyConfig(128, 64, 2, per_sm=2, warps=8),
]


GEMM_CASES = [(1, 64, 64), (3, 200, 96), (17, 70, 500), (2, 7, 512)]


@DTYPES
@pytest.mark.parametrize("shape", GEMM_CASES)
def test_gemms_with_all_that_may_be_fused(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """On a GPU each dtype tests two of a shape's four variants, as each has to be compiled."""
    m, n, k = shape
    turn = GEMM_CASES.index(shape) + list(TOLERANCES).index(dtype)
    for config in CONFIGS[turn % 2 :: 2] if ON_GPU else CONFIGS[m % 3 :: 3]:
        _compare_gemms(m, n, k, config, dtype)


def _compare_gemms(m: int, n: int, k: int, config: SkinnyConfig, dtype: torch.dtype) -> None:
    x, bias = normal(m, k, dtype=dtype), normal(n, dtype=dtype, seed=1)
    weight = (normal(n, k, dtype=dtype, seed=2) / k**0.5).to(dtype)
    residual, norm_weight = normal(m, n, dtype=dtype, seed=3), normal(n, dtype=dtype, seed=4)
    after = (normal(66, n, dtype=dtype, seed=5) / n**0.5).to(dtype)
    given = [moved(a) for a in (x, weight, bias, residual, norm_weight, after)]
    x, weight, bias, residual, norm_weight, after = given
    x32, weight32, bias32, residual32, norm32, after32 = (a.float() for a in given)
    exact = reference.skinny_gemm(x32, weight32, bias32, residual32, None, 0.0, False)
    close_to_exact(skinny_gemm(x, weight, bias=bias, residual=residual, config=config), exact)
    normalized = skinny_gemm_norm(x, weight, residual, norm_weight, 1e-5, bias=bias, config=config)
    close_to_exact(normalized.residual, exact)
    # from here on with what was stored, so that no earlier rounding counts
    stream = normalized.residual.float()
    close_to_exact(normalized.rows, stream * norm32)
    close_to_exact(normalized.squares.sum(0) / n, stream.square().mean(-1))
    divided = normalized.rows.float() * torch.rsqrt(stream.square().mean(-1, keepdim=True) + 1e-5)
    exact = reference.skinny_gemm(divided, after32, None, None, None, 0.0, True)
    close_to_exact(skinny_gemm_silu(normalized, after, config=config), exact)
    assert not workspace(DEVICE).counters.any()


def check_fused(numbers: Tensor, words: Any, gate_up: Any, rows: int) -> None:
    """GEMMs of few rows with a packed weight, by its numbers, float64 [N, N], on a GPU.

    gate_up: the same with interleaved rows.
    """
    x, residual = (torch.randn(rows, len(numbers), device=DEVICE).bfloat16() for _ in range(2))
    norm = torch.rand(len(numbers), device=DEVICE).bfloat16()
    state = skinny_gemm_norm(x, words, residual, norm, 1e-5)
    assert error_of(state.residual, residual.double() + x.double() @ numbers.T) < 5e-3
    rms = (state.residual.double().square().mean(1, keepdim=True) + 1e-5).rsqrt()
    gate, up = (state.residual.double() * rms * norm.double() @ numbers.T).chunk(2, dim=1)
    assert error_of(skinny_gemm_silu(state, gate_up), F.silu(gate) * up) < 1e-2
    assert error_of(skinny_gemm(x, words), x.double() @ numbers.T) < 5e-3


FP8_CONFIGS = [
    SkinnyConfig(64, 32, 3, split=1),
    SkinnyConfig(64, 64, 2, split=3),
    SkinnyConfig(64, 128, 3, per_sm=1),
    SkinnyConfig(128, 64, 2, per_sm=2, warps=8),
]
FP8_PATHS = ["codes", "bytes"] if not ON_GPU or multiplies_fp8(DEVICE) else ["bytes"]


def in_fp8(x: Tensor) -> Tensor:
    """x as it is once it was rounded to FP8, which rounding it again does not change.

    Without what is too small for the type's full digits, which the interpreter cuts off.
    """
    codes, scale = reference.quantize_rows(x * (x.abs() > x.abs().amax() / 2**8))
    return (codes.float() * scale).to(x.dtype)


@pytest.mark.parametrize("dtype", [dtype for dtype in TOLERANCES if dtype != torch.float32])
@pytest.mark.parametrize("fp8_path", FP8_PATHS)
@pytest.mark.parametrize("shape", GEMM_CASES)
def test_gemms_with_weights_in_fp8(
    shape: tuple[int, int, int], fp8_path: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a shape's variants are shared out among formats and dtypes."""
    monkeypatch.setattr(fp8_linear, "multiplies_fp8", lambda _: fp8_path == "codes")
    m, n, k = shape
    turn = GEMM_CASES.index(shape) + 2 * FP8_PATHS.index(fp8_path) + (dtype == torch.bfloat16)
    for config in FP8_CONFIGS[turn % 4 :: 4] if ON_GPU else FP8_CONFIGS[m % 3 :: 3]:
        _compare_fp8_gemms(m, n, k, config, dtype)


def _compare_fp8_gemms(m: int, n: int, k: int, config: SkinnyConfig, dtype: torch.dtype) -> None:
    """Each with x in FP8 already, which the reference does not round, so that both must agree."""
    given = [
        in_fp8(normal(m, k, dtype=dtype)),
        normal(n, dtype=dtype, seed=1),
        normal(m, n, dtype=dtype, seed=3),
        normal(n, dtype=dtype, seed=4),
        *reference.quantize_fp8(normal(n, k, dtype=dtype, seed=2) / k**0.5),
    ]
    x, bias, residual, norm_weight, *quantized = map(moved, given)
    weight = Fp8Weight(*quantized)
    exact = reference.linear_fp8(x.float(), *quantized, bias) + residual.float()
    close_to_exact(skinny_gemm(x, weight, bias=bias, residual=residual, config=config), exact)
    normalized = skinny_gemm_norm(x, weight, residual, norm_weight, 1e-5, bias=bias, config=config)
    close_to_exact(normalized.residual, exact)
    stream = normalized.residual.float()
    squares = stream.square().mean(-1, keepdim=True)
    normalized = dataclasses.replace(normalized, rows=in_fp8(normalized.rows))
    after = reference.quantize_fp8(moved(normal(66, n, dtype=dtype, seed=5) / n**0.5))
    divided = normalized.rows.float() * torch.rsqrt(squares + 1e-5)
    gate, up = reference.linear_fp8(divided, *after, None).unflatten(-1, (-1, 2)).unbind(-1)
    ours = skinny_gemm_silu(normalized, Fp8Weight(*after), config=config)
    # Hopper's FP8 products are added up with fewer bits than float32 has
    close_to_exact(ours, F.silu(gate) * up, slack=2.0)
    assert not workspace(DEVICE).counters.any()


@pytest.mark.parametrize("dtype", [dtype for dtype in TOLERANCES if dtype != torch.float32])
@pytest.mark.parametrize(("tokens", "size"), [(3, 77), (2, 512), (1, 5000)])
def test_norm_and_silu_round_to_fp8_what_they_would_have_stored(
    tokens: int, size: int, dtype: torch.dtype
) -> None:
    x, residual = moved(normal(2, tokens, size, dtype=dtype))
    weight = moved(normal(size, dtype=dtype, seed=1))
    stored, stream = elementwise.rms_norm_residual(x, residual.clone(), weight, 1e-5)
    ours, its_stream = elementwise.rms_norm_residual_rounded(
        x, residual.clone(), weight, 1e-5, Fp8Rows
    )
    assert torch.equal(stream, its_stream)
    same_rounding(ours, stored)
    pairs = moved(normal(tokens, 2 * size, dtype=dtype, seed=2) * 3)
    same_rounding(
        elementwise.silu_and_mul_rounded(pairs, Fp8Rows),
        elementwise.silu_and_mul(pairs, interleaved=True),
    )


def same_rounding(ours: Fp8Rows, stored: Tensor) -> None:
    """Equal to a separate rounding kernel: scales in the interpreter, codes on a GPU."""
    alone = elementwise.quantize_rows(stored)
    assert torch.equal(ours.scale, alone.scale)
    assert torch.equal(ours.codes.view(torch.uint8), alone.codes.view(torch.uint8))
    if ON_GPU:
        codes = (stored.float() / ours.scale).to(reference.FP8)
        assert torch.equal(ours.codes.view(torch.uint8), codes.view(torch.uint8))
    else:
        assert torch.equal(ours.scale, reference.quantize_rows(stored)[1])


@pytest.mark.gpu  # the interpreter rounds to FP8 in its own way
@pytest.mark.parametrize("tokens", [1, 64, 65, 300])
def test_activations_are_rounded_as_the_twin_says(tokens: int) -> None:
    x = moved(normal(tokens, 512, dtype=torch.bfloat16) * 3)
    quantized = reference.quantize_fp8(moved(normal(256, 512, dtype=torch.bfloat16, seed=1)))
    codes, scale = reference.quantize_rows(x)
    exact = reference.linear_fp8(codes.float() * scale, *quantized, None)
    close_to_exact(triton_operations.linear(x, Fp8Weight(*quantized), None), exact)


@pytest.mark.gpu  # whose library multiplies
@pytest.mark.parametrize("tokens", [65, 300])
def test_layers_round_rows_as_before_a_linear(tokens: int) -> None:
    x, residual = moved(normal(2, tokens, 512, dtype=torch.bfloat16))
    norm = moved(normal(512, dtype=torch.bfloat16, seed=1))
    out, gate_up, down = (
        Fp8Weight(*reference.quantize_fp8(moved(normal(n, k, dtype=torch.float32, seed=n) / 20)))
        for n, k in ((512, 512), (704, 512), (512, 352))
    )
    rounded = triton_operations.linear_add_norm(x, out, None, residual.clone(), norm, 1e-5)
    hidden = triton_operations.linear_silu(rounded, gate_up, None)
    assert isinstance(rounded.rows, Fp8Rows)
    assert isinstance(hidden, Fp8Rows)
    rows, _ = elementwise.rms_norm_residual(
        triton_operations.linear(x, out, None), residual, norm, 1e-5
    )
    assert torch.equal(triton_operations.normalized_rows(rounded), rows)
    pairs = triton_operations.linear(rows, gate_up, None)
    assert torch.equal(triton_operations.rms_norm_linear(rounded, gate_up, None), pairs)
    exact = triton_operations.linear(elementwise.silu_and_mul(pairs, interleaved=True), down, None)
    assert torch.equal(triton_operations.linear(hidden, down, None), exact)


@DTYPES
def test_the_librarys_gemm_may_add_to_the_residual(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for many rows; `skinny_gemm` is for fewer rows, or a bias."""
    added = []

    def add(*args: Any) -> tuple[Tensor, Tensor]:
        added.append(args)
        return elementwise.rms_norm_residual(*args)

    monkeypatch.setattr(after_linear, "rms_norm_residual", add)
    monkeypatch.setattr(triton_operations, "_ADDED", 70)
    x, weight = normal(70, 96, dtype=dtype), normal(64, 96, dtype=dtype, seed=1) / 10
    residual, norm = normal(70, 64, dtype=dtype, seed=2), normal(64, dtype=dtype, seed=3)
    for bias in (None, norm):
        case = x, weight.to(dtype), bias, residual.clone(), norm, 1e-5
        expected = reference.linear_add_norm(*copy.deepcopy(case))
        got = triton_operations.linear_add_norm(*map(moved, case))
        assert len(added) == (bias is not None)
        close(got.residual, expected.residual)
        close(triton_operations.normalized_rows(got), expected.rows)


def test_gate_and_up_are_interleaved() -> None:
    weight = torch.arange(6)[:, None].expand(6, 2)
    assert interleave_gate_up(weight)[:, 0].tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("num_sms", [1, 6, 132])
@pytest.mark.parametrize(
    ("n", "k"), [(64, 64), (6144, 4096), (128256, 2048), (7, 100), (200, 9000)]
)
def test_the_bound_of_programs_that_share_a_tile_holds(n: int, k: int, num_sms: int) -> None:
    """What `grid` says against the runs of units written out."""
    for config in [*CONFIGS, default_skinny_config(1, n, k, 2, num_sms)]:
        programs, parts = config.grid(n, k, num_sms)
        k_tiles = -(-k // config.block_k)
        units = -(-n // config.block_n) * k_tiles
        assert 1 <= programs <= units
        begins = [program * units // programs for program in range(programs + 1)]
        num_programs = [0] * (units // k_tiles)
        for begin, end in itertools.pairwise(begins):
            for tile in range(begin // k_tiles, (end - 1) // k_tiles + 1):
                num_programs[tile] += 1
        assert max(num_programs) <= parts


@DTYPES
@pytest.mark.parametrize("heads", [(4, 2, 64), (7, 1, 80), (2, 2, 96), (2, 1, 256)])
def test_decodes_with_any_split_of_the_context(
    heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    wide = heads[2] > 128  # of which two tiles of 64 in float32 are more than shared memory holds
    configs = [
        (16, None, DecodeConfig(32, 3, 2)),
        (48, 40, DecodeConfig(16, 3, 2)),
        (16, 40, DecodeConfig(32 if wide else 64, 3 if dtype == torch.float32 else 5, 1)),
    ]
    for block_size, window, config in configs if ON_GPU else configs[heads[0] % 2 :: 2]:
        case = attention_case([1, 1, 1], [33, 1, 150], heads, window, True, dtype, block_size)
        query, k_cache, v_cache, layout, params = map(moved, case)
        plan = make_plan(layout, window or 0, config, 16, k_cache.shape[2])
        out = torch.full_like(query, float("nan"))
        decode_attention(query, k_cache, v_cache, layout, plan, params, out, config,
                         pdl=launches_early(DEVICE))  # fmt: skip
        close(out, reference.attention(*case))
    assert not workspace(DEVICE).counters.any()


MIXES = [
    ([3, 0, 1, 20, 1, 0, 2], [9, 40, 70, 20, 1, 0, 50], 5),
    ([0, 0, 1, 0], [3, 5, 130, 7], 0),
    ([0, 0, 0], [3, 5, 1], 4),
    ([2, 2, 2, 1, 2], [2, 3, 40, 5, 9], 1),
]


@pytest.mark.parametrize(("mix", "window", "dtype"), with_dtypes(MIXES, [None, 33]))
def test_rows_of_a_device_layout_come_in_any_order(
    mix: tuple[list[int], list[int], int], window: int | None, dtype: torch.dtype
) -> None:
    """With gaps between them, rows without keys, and padding after the last one."""
    queries, lens, padding = mix
    case = device_case(queries, lens, (8, 2, 16), window, dtype, padding)
    query, k_cache, v_cache, layout, *rest = map(moved, case)
    ours = attention(query, k_cache, v_cache, layout, *rest)
    close(ours, reference.attention(*case))
    assert not workspace(DEVICE).counters.any()


def test_thousands_of_requests_may_run_with_many_key_heads() -> None:
    queries, lens = [0] * 2100, [1] * 2100
    queries[7], queries[2099], lens[2099] = 1, 1, 40
    case = device_case(queries, lens, (32, 32, 16), None, torch.float32, padding=1)
    query, k_cache, v_cache, layout, *rest = map(moved, case)
    layout = dataclasses.replace(layout, has_prefills=False, _derived={})
    close(attention(query, k_cache, v_cache, layout, *rest), reference.attention(*case))


def test_parts_of_many_query_heads_stay_within_the_workspace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heads = (83, 1, 16)
    most = 2 * 83 * (16 + 2) * 2  # two parts of each of two programs
    monkeypatch.setattr(paged_attention, "NUM_PARTIALS", most)
    case = attention_case([1, 1, 1], [33, 1, 150], heads, None, True, torch.float32)
    close(attention(*map(moved, case)), reference.attention(*case))
    assert not workspace(DEVICE).counters.any()


def test_layers_may_have_different_numbers_of_heads() -> None:
    """All layers of a step have one layout."""
    first, second = (
        device_case([1, 1], [70, 300], (2 * heads, heads, 16), None, torch.float32, padding=0)
        for heads in (1, 4)
    )
    layout = moved(first[3])
    for query, k_cache, v_cache, _, params in (first, second, first):
        ours = attention(*map(moved, (query, k_cache, v_cache)), layout, params)
        close(ours, reference.attention(query, k_cache, v_cache, first[3], params))


@DTYPES
def test_heads_of_fewer_dimensions_than_a_dot_takes(dtype: torch.dtype) -> None:
    case = attention_case([1, 1, 20], [9, 70, 30], (6, 3, 8), None, True, dtype)
    close(kernels_for("cuda").attention(*map(moved, case)), reference.attention(*case))


def test_what_lies_beyond_a_request_does_not_matter() -> None:
    """The rest of the last block, and other requests' blocks, may hold anything, NaN included."""
    case = attention_case([1, 1, 20], [9, 70, 30], (4, 2, 16), None, True, torch.float16)
    query, k_cache, v_cache, layout, *rest = map(moved, case)
    used = torch.zeros(k_cache.shape[:2], dtype=torch.bool, device=DEVICE)
    for row, length in enumerate(layout.seq_lens_host):
        for p in range(length):
            used[int(layout.block_table[row, p // 8]), p % 8] = True
    k_cache[~used], v_cache[~used] = float("nan"), float("nan")
    close(
        kernels_for("cuda").attention(query, k_cache, v_cache, layout, *rest),
        reference.attention(*case),
    )


@DTYPES
def test_padding_is_not_written(dtype: torch.dtype) -> None:
    case = rotary_case(6, (5, 2, 24), 16, True, dtype)
    case[-1][[1, 5]] = -1
    mine, theirs = [moved(a) for a in case], copy.deepcopy(case)
    close(rope_kernels.rope_write_kv(*mine), reference.rope_write_kv(*theirs))
    close(mine[4], theirs[4])
    close(mine[5], theirs[5])


def test_embedding_takes_rows() -> None:
    weight, ids = normal(40, 77, dtype=torch.float16), torch.tensor([3, 39, 0, 3])
    assert torch.equal(
        elementwise.embedding(moved(ids), moved(weight)).cpu(), reference.embedding(ids, weight)
    )
