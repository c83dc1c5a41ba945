"""For each operation, inputs of odd shapes to compare its versions with the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.kernels import reference, reference_quantized
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.cpu import native
from quire.kernels.operands import (
    AttentionParams,
    Fp8Weight,
    HeadNorms,
    QuantSpec,
    ResidualState,
    RopeWriteKV,
)
from quire.kernels.reference_step import MOST_COUNTED
from quire.kernels.step_buffer import StepSections

_TOKENS = (1, 6, 123)


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random numbers, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def _norm(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for tokens in _TOKENS:
        yield normal(tokens, 509, dtype=dtype), normal(509, dtype=dtype, seed=1), 1e-5
    # heads as query and key norms see them: a slice of the fused projection
    heads = normal(5, 9, 24, dtype=dtype)
    yield heads[:, :6], normal(24, dtype=dtype, seed=1), 1e-6


def _norm_residual(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for tokens in _TOKENS:
        x, residual = normal(2, tokens, 96, dtype=dtype)
        yield x, residual, normal(96, dtype=dtype, seed=1), 1e-5


def _embedding(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for vocab_size, size in ((80, 18), (77, 5)):
        for tokens in (0, *_TOKENS):
            yield torch.arange(tokens) * 31 % vocab_size, normal(vocab_size, size, dtype=dtype)


def _silu(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for tokens in _TOKENS:
        yield (normal(tokens, 2 * 77, dtype=dtype),)


def _rotary_angles(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for tokens in _TOKENS:
        positions = torch.arange(tokens) * 37
        yield positions, normal(20, dtype=torch.float32).abs(), 1.3, dtype
        yield positions, normal(tokens, 3, dtype=torch.float32), 1.0, dtype


def rotary_case(
    tokens: int, heads: tuple[int, int, int], rotary_dim: int, norms: bool, dtype: torch.dtype
) -> tuple[Any, ...]:
    """Arguments of RoPE and the KV write. heads: (Hq, Hkv, D)."""
    num_heads, num_kv_heads, head_dim = heads
    fused = normal(tokens, num_heads + 2 * num_kv_heads + 1, head_dim, dtype=dtype)[:, :-1]
    cos, sin = normal(2, tokens, rotary_dim, dtype=dtype, seed=1)
    k_cache, v_cache = normal(2, 20, 8, num_kv_heads, head_dim, dtype=dtype, seed=2)
    slots = torch.randperm(160, generator=torch.Generator().manual_seed(2))[:tokens]
    weights = normal(2, head_dim, dtype=dtype, seed=3)
    return fused, HeadNorms(*weights, 1e-5) if norms else None, cos, sin, k_cache, v_cache, slots


def rope_case(
    tokens: int, heads: tuple[int, int, int], rotary_dim: int, norms: bool, dtype: torch.dtype
) -> RopeWriteKV:
    """What of them does not come from a product; every third token is padding."""
    _, head_norms, cos, sin, *caches, slots = rotary_case(tokens, heads, rotary_dim, norms, dtype)
    slots[2::3] = -1
    return RopeWriteKV(heads[2], head_norms, cos, sin, *caches, slots)


def _rotary_write_kv(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for heads, rotary_dim in (((3, 1, 80), 80), ((4, 2, 96), 72), ((6, 3, 20), 2)):
        for tokens in _TOKENS:
            yield rotary_case(tokens, heads, rotary_dim, tokens % 2 == 0, dtype)


def attention_case(
    queries: list[int],
    lens: list[int],
    heads: tuple[int, int, int],
    window: int | None,
    scattered: bool,
    dtype: torch.dtype,
    block_size: int = 8,
) -> tuple[Any, ...]:
    """Arguments of the attention operation. heads: (Hq, Hkv, D)."""
    num_heads, num_kv_heads, head_dim = heads
    most = max(-(-n // block_size) for n in lens)
    blocks = np.arange(len(lens) * most, dtype=np.int32)
    if scattered:
        np.random.default_rng(0).shuffle(blocks)
    layout = BatchLayout.build(queries, lens, blocks.reshape(len(lens), most), block_size)
    shape = (len(blocks), block_size, num_kv_heads, head_dim)
    k_cache, v_cache = normal(2, *shape, dtype=dtype, seed=1)
    query = normal(sum(queries), num_heads + 2, head_dim, dtype=dtype)[:, :num_heads]
    return query, k_cache, v_cache, layout, AttentionParams(head_dim**-0.5, window)


def device_case(
    queries: list[int],
    lens: list[int],
    heads: tuple[int, int, int],
    window: int | None,
    dtype: torch.dtype,
    padding: int,
    block_size: int = 8,
) -> tuple[Any, ...]:
    """`attention_case` with a device layout: rows in the order given, some without queries."""
    num_heads, _, head_dim = heads
    most = max(-(-n // block_size) for n in lens) + 1
    table = np.random.default_rng(1).permutation(len(lens) * most).reshape(len(lens), most)
    slots = [
        table[row, position // block_size] * block_size + position % block_size
        for row, (n, length) in enumerate(zip(queries, lens, strict=True))
        for position in range(length - n, length)
    ] + [-1] * padding
    layout = BatchLayout(
        query_start_loc=torch.tensor([0, *np.cumsum(queries)], dtype=torch.int32),
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        block_table=torch.from_numpy(table.astype(np.int32)),
        slot_mapping=torch.tensor(slots),
        has_decodes=True,
        has_prefills=True,
    )
    k_cache, v_cache = normal(2, table.size, block_size, *heads[1:], dtype=dtype, seed=1)
    query = normal(len(slots), num_heads + 2, head_dim, dtype=dtype)[:, :num_heads]
    return query, k_cache, v_cache, layout, AttentionParams(head_dim**-0.5, window)


def _attention(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    batches = [
        ([1], [1]),
        ([1, 1, 1], [1, 40, 129]),
        ([37], [37]),
        ([1, 1, 5, 30, 2], [64, 7, 90, 30, 2]),
        ([1, 1, 1, 1, 1, 9, 2], [30, 33, 64, 7, 50, 90, 9]),
        ([1, 1], [1030, 1100]),
    ]
    for queries, lens in batches:
        for heads in ((6, 3, 16), (4, 1, 80), (3, 3, 96)):
            for window in (None, 1, 33):
                for scattered in (False, True):
                    yield attention_case(queries, lens, heads, window, scattered, dtype)


def _linear(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for tokens in (0, 1, 2, 7, 64, 123):
        for rows, columns in ((509, 96), (7, 8192), (4100, 1030)):  # the last in two tiles
            weight = normal(rows, columns, dtype=dtype) / columns**0.5
            for bias in (None, normal(rows, dtype=dtype, seed=1)):
                yield normal(tokens, columns, dtype=dtype, seed=2), weight, bias


def _quantize_fp8(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    weight = normal(7, 96, dtype=dtype)
    weight[3] = 0.0
    weight[4] *= 1000.0
    yield weight, QuantSpec("fp8")


def _linear_fp8(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    """Products of activations that are FP8 already, which rounding them again does not change."""
    for tokens, rows, columns in ((1, 509, 96), (7, 7, 1030), (64, 200, 96), (70, 80, 96)):
        stored = reference.quantize_fp8(normal(rows, columns, dtype=dtype) / columns**0.5)
        x = normal(tokens, columns, dtype=dtype, seed=2)
        codes, scale = reference.quantize_rows(x * x.abs().gt(0.02))
        for bias in (None, normal(rows, dtype=dtype, seed=1)):
            yield (codes.float() * scale).to(dtype), Fp8Weight(*stored), bias


def _int_linear_cases(
    dtype: torch.dtype, quantize: Callable[[Tensor], Any]
) -> Iterator[tuple[Any, ...]]:
    for tokens, rows, columns in ((0, 64, 64), (1, 509, 96), (7, 48, 1024), (40, 208, 96)):
        weight = quantize(normal(rows, columns, dtype=dtype) / columns**0.5)
        for bias in (None, normal(rows, dtype=dtype, seed=1)):
            yield normal(tokens, columns, dtype=dtype, seed=2), weight, bias


def _linear_int8(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    """Hadamard-rotated, and not."""
    for x, weight, bias in _int_linear_cases(dtype, reference_quantized.quantize_int8):
        yield x, weight, bias
        yield x, replace(weight, hadamard=False), bias


def _linear_int4(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    """Hadamard-rotated, and not, with zero points."""
    for x, weight, bias in _int_linear_cases(dtype, reference_quantized.quantize_int4):
        yield x, weight, bias
        zeros = torch.arange(weight.scale.numel()).view_as(weight.scale) % 16
        yield x, replace(weight, zeros=zeros.to(torch.uint8), hadamard=False), bias


def packed_step(seed: int, num_tokens: int = 40, num_rows: int = 9) -> tuple[Any, ...]:
    """Arguments of `build_inputs`: some rows run, one token or several; blocks of 4."""
    rng = np.random.default_rng(seed)
    sections = StepSections(num_tokens, num_rows)
    packed = np.zeros(sections.size + 2 * 60, np.int32)
    step = sections.cut(packed)
    counts = rng.choice([0, 1, 1, 6], num_rows)
    step.query_start_loc[1:] = np.cumsum(counts)
    step.seq_lens[:] = np.where(counts, counts + rng.integers(0, 30, num_rows), 0)
    total = counts.sum()
    step.token_rows[:] = -1
    step.token_rows[:total] = np.repeat(np.arange(num_rows), counts)
    step.token_ids[:total] = rng.integers(-1, 500, total).clip(-1)
    step.header[0] = rng.integers(0, 60)
    step.block_changes[:, 0] = rng.permutation(num_rows * (600 // num_rows))[:60]
    step.block_changes[:, 1] = rng.integers(0, 1000, 60)
    last_tokens = torch.from_numpy(rng.integers(500, 600, num_rows).astype(np.int32))
    block_table = torch.from_numpy(
        rng.integers(0, 1000, (num_rows, 600 // num_rows)).astype(np.int32)
    )
    inputs = torch.full((3, num_tokens), 7)
    return torch.from_numpy(packed), sections, last_tokens, block_table, inputs, 4


def _build_inputs(_: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for seed in range(4):
        yield packed_step(seed)
    yield packed_step(4, num_tokens=200, num_rows=3)


def _finish_step(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for tokens, there, samples in ((1, 1, 1), (37, 30, 5), (5, 0, 8), (9, 9, 0), (1200, 1100, 2)):
        hidden = normal(tokens, 77, dtype=dtype)
        drawn = torch.arange(samples, dtype=torch.int32) + 100
        rows = (torch.randperm(samples + 2) - 1)[:samples].int()
        last_tokens = torch.zeros(samples + 2, dtype=torch.int32)
        yield hidden, torch.tensor([there]).int(), drawn, drawn % 2, rows, last_tokens


def _move(_: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for count in (1, 512, 1300):
        yield torch.zeros(1400, dtype=torch.int32), torch.arange(1, count + 1, dtype=torch.int32)


def _penalise(_: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for num_rows, vocab in ((1, 7), (3, 2049)):
        counts = torch.randint(0, 4, (num_rows + 3, vocab), dtype=torch.int16)
        counts[torch.rand(counts.shape) < 0.3] |= -0x8000
        counts[torch.rand(counts.shape) < 0.1] |= MOST_COUNTED
        rows = torch.randperm(num_rows + 3)[:num_rows]
        penalties = torch.rand(num_rows, 3, dtype=torch.float64) + 0.5
        penalties[:, 1:] -= 1.0
        yield normal(num_rows, vocab, dtype=torch.float32).mul_(9), rows, counts, penalties


def _linear_cases(dtype: torch.dtype) -> Iterator[tuple[ResidualState, Tensor, Tensor | None]]:
    """Streams before and behind their division, weights, with a bias or none."""
    for tokens in (1, 6, 123):
        residual, norm = normal(tokens, 96, dtype=dtype), normal(96, dtype=dtype, seed=1)
        normalized = ResidualState(residual, reference.rms_norm(residual, norm, 1e-5), norm, 1e-5)
        squares = residual.float().square().view(tokens, 2, 48).sum(-1).T.contiguous()
        deferred = ResidualState(residual, residual * norm, norm, 1e-5, squares)
        weight = (normal(78, 96, dtype=dtype, seed=2) / 10).to(dtype)
        for bias in (None, normal(78, dtype=dtype, seed=3)):
            for stream in (normalized, deferred) if tokens <= 64 else (normalized,):
                yield stream, weight, bias


ROPE_HEADS = [  # (Hq, Hkv, D), rotary dimensions, whether there are norms
    ((4, 2, 32), 32, True),
    ((3, 1, 64), 64, False),
    ((2, 1, 32), 24, True),
    ((6, 3, 20), 20, False),
]


def _linear_rope(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for heads, rotary_dim, norms in ROPE_HEADS:
        num_rows = (heads[0] + 2 * heads[1]) * heads[2]
        for stream, _, bias in _linear_cases(dtype):
            tokens = len(stream.residual)
            rope = rope_case(tokens, heads, rotary_dim, norms, dtype)
            weight = normal(num_rows, 96, dtype=dtype, seed=6) / 10
            if bias is not None:
                bias = normal(num_rows, dtype=dtype, seed=7)
            yield stream, weight, bias, rope


def _normalized_rows(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for stream, _, bias in _linear_cases(dtype):
        if bias is None:
            yield (stream,)


def _linear_add_norm(dtype: torch.dtype) -> Iterator[tuple[Any, ...]]:
    for stream, weight, bias in _linear_cases(dtype):
        if stream.squares is None:
            residual = normal(len(stream.rows), 78, dtype=dtype, seed=4)
            yield stream.rows, weight, bias, residual, normal(78, dtype=dtype, seed=5), 1e-5


# operation → dtype → argument lists
CASES: dict[str, Callable[[torch.dtype], Iterator[tuple[Any, ...]]]] = {
    "rms_norm": _norm,
    "rms_norm_residual": _norm_residual,
    "embedding": _embedding,
    "silu_and_mul": _silu,
    "gelu_and_mul": _silu,
    "rope_angles": _rotary_angles,
    "rope_write_kv": _rotary_write_kv,
    "attention": _attention,
    "linear": _linear,
    "normalized_rows": _normalized_rows,
    "rms_norm_linear": _linear_cases,
    "qkv_rope_write_kv": _linear_rope,
    "linear_silu": _linear_cases,
    "linear_gelu": _linear_cases,
    "linear_add_norm": _linear_add_norm,
    "quantize": _quantize_fp8,
    "linear_fp8": _linear_fp8,
    "linear_int8": _linear_int8,
    "linear_int4": _linear_int4,
    "build_inputs": _build_inputs,
    "finish_step": _finish_step,
    "move": _move,
    "penalise": _penalise,
}
# cases of `linear` by weight format; other cases are called as their operation
FORMATS = ("linear_fp8", "linear_int8", "linear_int4")


def operation_of(case: str) -> str:
    """The operation that a case of `CASES` calls."""
    return "linear" if case in FORMATS else case


# operations that also write into their arguments
WRITING = {"rope_write_kv", "qkv_rope_write_kv", "build_inputs", "finish_step", "move", "penalise"}
# operations that give another form of their input: compared through the one that reads it
THROUGH = {
    "pack": "linear",
    "order_gate_up": "linear_silu",
    "pad_rows": "linear",
}
# largest difference relative to the largest value of the twin's result
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


def error_of(out: Tensor, expected: Tensor) -> float:
    """The error of a result relative to the norm of what it should be."""
    return float((out.double() - expected).norm() / expected.norm())


def chosen_set(name: str) -> Iterator[None]:
    """For a fixture: compiled kernels are those of an instruction set; skips where none runs it."""
    lib = native.library()
    assert lib is not None
    if lib.quire_cpu_choose(name.encode()) is None:
        pytest.skip(f"this processor does not run {name}")
    yield
    lib.quire_cpu_choose(None)
