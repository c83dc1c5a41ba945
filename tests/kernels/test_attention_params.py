"""Soft caps and sinks: the twin against formulas, every version of attention against the twin."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from device import DEVICE, ON_EITHER
from test_shared_attention import on_device, shared_case
from test_triton_kernels import DTYPES, close, moved, with_dtypes
from torch import Tensor
from twins import attention_case, device_case, normal

from quire.kernels import reference
from quire.kernels.cpu import native, native_attention
from quire.kernels.dispatch import kernels_for
from quire.kernels.operands import AttentionParams
from quire.kernels.triton.attention.attention_plan import make_plan
from quire.kernels.triton.launch.attention_config import DecodeConfig, HopperDecodeConfig
from quire.kernels.triton.launch.workspace import workspace
from quire.kernels.triton.ops.paged_attention import decode_attention

pytestmark = ON_EITHER
VERSIONS = {
    "cpu": kernels_for("cpu"),
    "triton": kernels_for("cuda"),
    "invariant": kernels_for("cuda", batch_invariant=True),
}
OPTIONS = ["soft_cap", "sinks", "both"]
HEADS = (6, 2, 24)


def with_options(params: AttentionParams, options: str, num_heads: int) -> AttentionParams:
    """The params with a soft cap that matters, and with sinks above or below all scores."""
    sinks = normal(num_heads, dtype=torch.float32, seed=7) * 3.0
    if options == "soft_cap":
        return dataclasses.replace(params, soft_cap=0.7)
    return dataclasses.replace(params, sinks=sinks, soft_cap=0.7 if options == "both" else None)


def optional(case: tuple[Any, ...], options: str) -> tuple[Any, ...]:
    """The case with these params."""
    *operands, params = case
    return *operands, with_options(params, options, operands[0].shape[1])


@pytest.mark.parametrize("options", OPTIONS)
def test_the_twin_equals_attention_written_out(options: str) -> None:
    case = attention_case([1, 4], [12, 10], (4, 2, 8), 6, True, torch.float32)
    query, k_cache, v_cache, layout, params = optional(case, options)
    out, token = reference.attention(query, k_cache, v_cache, layout, params), 0
    for row, (num_queries, length) in enumerate(((1, 12), (4, 10))):
        for position in range(length - num_queries, length):
            seen = range(max(0, position - 5), position + 1)
            slots = [(int(layout.block_table[row, p // 8]), p % 8) for p in seen]
            for head in range(4):
                logits = [
                    float(query[token, head] @ k_cache[block, offset, head // 2]) * params.scale
                    for block, offset in slots
                ]
                if params.soft_cap is not None:
                    logits = [params.soft_cap * math.tanh(x / params.soft_cap) for x in logits]
                weights = [math.exp(logit) for logit in logits]
                sink = 0.0 if params.sinks is None else math.exp(float(params.sinks[head]))
                values = [v_cache[block, offset, head // 2] for block, offset in slots]
                pairs = zip(weights, values, strict=True)
                total = sum((w * v for w, v in pairs), torch.zeros(8))
                torch.testing.assert_close(out[token, head], total / (sum(weights) + sink))
            token += 1


BATCHES = [([1, 1, 1], [1, 40, 129]), ([1, 1, 5, 30, 2], [64, 7, 90, 30, 2])]
ROWS = with_dtypes(BATCHES, OPTIONS)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("batch", "options", "dtype"), ROWS)
@pytest.mark.parametrize("window", [None, 33])
def test_versions_equal_the_twin(
    version: str,
    batch: tuple[list[int], list[int]],
    options: str,
    dtype: torch.dtype,
    window: int | None,
) -> None:
    case = optional(attention_case(*batch, HEADS, window, True, dtype), options)
    close(attend(version, case), reference.attention(*case))


def attend(version: str, case: tuple[Any, ...]) -> Tensor:
    """What a version gives, where it runs."""
    arguments = case if version == "cpu" else tuple(map(moved, case))
    result: Tensor = VERSIONS[version].attention(*arguments)
    return result


@pytest.mark.skipif(native.library() is None, reason="the kernels were not built")
@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("options", OPTIONS)
def test_compiled_attention_has_soft_caps_and_leaves_sinks_to_pytorch(
    options: str, window: int | None
) -> None:
    """For shapes that it serves; and a prompt without cached tokens, which PyTorch masks itself."""
    case = attention_case([1, 1, 40], [1100, 9, 40], (4, 2, 32), window, True, torch.float32)
    assert native_attention.serves(case[0], 32, case[1])
    case = optional(case, options)
    close(native_attention.attention(*case), reference.attention(*case))


@pytest.mark.parametrize("version", ["triton", "invariant"])
@pytest.mark.parametrize("options", OPTIONS)
def test_rows_of_a_device_layout(version: str, options: str) -> None:
    mix = [3, 0, 1, 20, 1, 0, 2], [9, 40, 70, 20, 1, 0, 50]
    case = optional(device_case(*mix, HEADS, None, torch.float32, padding=5), options)
    close(attend(version, case), reference.attention(*case))
    assert not workspace(DEVICE).counters.any()


@DTYPES
@pytest.mark.parametrize("options", OPTIONS)
def test_a_request_whose_keys_several_programs_share(options: str, dtype: torch.dtype) -> None:
    """The sink must count once."""
    case = optional(attention_case([1, 1], [150, 33], (7, 1, 40), None, True, dtype), options)
    query, k_cache, v_cache, layout, params = map(moved, case)
    config = DecodeConfig(16, 3, per_sm=5)
    plan = make_plan(layout, 0, config, 16, 1)
    out = torch.full_like(query, float("nan"))
    decode_attention(query, k_cache, v_cache, layout, plan, params, out, config)
    close(out, reference.attention(*case))


@pytest.mark.parametrize("options", OPTIONS)
def test_prefixes_that_several_begin_with(options: str) -> None:
    *operands, layout, params = optional(shared_case((4, 1, 16), torch.float32), options)
    mine = kernels_for("cuda").attention(*map(moved, operands), on_device(layout), moved(params))
    close(mine[:-1], reference.attention(*operands, layout, params)[:-1])


@pytest.mark.parametrize("options", OPTIONS)
def test_a_kernel_without_them_refuses_them(options: str) -> None:
    case = optional(attention_case([1], [9], (4, 2, 64), None, True, torch.float16), options)
    query, k_cache, v_cache, layout, params = map(moved, case)
    plan = make_plan(layout, 0, DecodeConfig(64, 3), 16, 2)
    config = HopperDecodeConfig(1, 3)
    with pytest.raises(AssertionError):
        decode_attention(query, k_cache, v_cache, layout, plan, params, query, config)


@pytest.mark.parametrize("options", [{"window": 0}, {"soft_cap": 0.0}, {"soft_cap": -1.0}])
def test_values_without_a_meaning_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        AttentionParams(0.1, **options)
