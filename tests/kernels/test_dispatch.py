"""The table of operations, and each of its functions against the reference twin."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor
from twins import CASES, FORMATS, THROUGH, TOLERANCES, WRITING, operation_of

from quire.kernels import reference
from quire.kernels.cpu import native, torch_matmul
from quire.kernels.dispatch import Kernels, describe, kernels_for, operations_for
from quire.kernels.operands import Fp8Weight, ResidualState, RopeWriteKV

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = {field.name for field in fields(Kernels)}
PACKED = ("linear", *FORMATS, "rms_norm_linear", "linear_silu", "linear_gelu", "linear_add_norm")


def test_every_operation_is_compared() -> None:
    assert {operation_of(case) for case in CASES} | THROUGH.keys() == NAMES


def tensors(value: Any) -> list[Tensor]:
    """The tensors of a result or of arguments."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Fp8Weight):
        return [value.codes, value.scale]
    if isinstance(value, RopeWriteKV):
        return [value.k_cache, value.v_cache]
    return [t for item in value for t in tensors(item)] if isinstance(value, tuple) else []


def run(kernels: Kernels, op: str, arguments: tuple[Any, ...]) -> list[Tensor]:
    """The results of an operation, and the arguments of one that writes into them."""
    arguments = copy.deepcopy(arguments)
    if op in PACKED:
        x, weight, bias, *more = arguments
        if op in ("linear_silu", "linear_gelu"):
            weight, bias = (
                w if w is None else kernels.order_gate_up(w, w.dtype) for w in (weight, bias)
            )
        arguments = (x, kernels.pack(weight), bias, *more)
    result = getattr(kernels, operation_of(op))(*arguments)
    if isinstance(result, ResidualState):
        result = (result.residual, kernels.normalized_rows(result))
    return tensors(result) + (tensors(arguments) if op in WRITING else [])


def largest(twin: Tensor) -> float:
    """The largest finite magnitude."""
    numbers = twin.float().abs().nan_to_num(0.0, 0.0)
    return numbers.max().item() if len(numbers) else 0.0


def tolerance(op: str, dtype: torch.dtype) -> float:
    """Tiles take bfloat16 instead of bytes for 4-bit weights; test_cpu_tiles.py bounds that."""
    has_tiles = op == "linear_int4" and native.instruction_set() == "amx"
    return max(TOLERANCES[dtype], TOLERANCES[torch.bfloat16] if has_tiles else 0.0)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("op", CASES)
def test_cpu_version_equals_its_twin(op: str, dtype: torch.dtype) -> None:
    twins = kernels_for("meta")
    for arguments in CASES[op](dtype):
        for ours, twin in zip(
            run(kernels_for("cpu"), op, arguments), run(twins, op, arguments), strict=True
        ):
            assert (ours.dtype, ours.shape) == (twin.dtype, twin.shape)
            limit = tolerance(op, dtype) * max(1.0, largest(twin))
            torch.testing.assert_close(ours.float(), twin.float(), atol=limit, rtol=0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nothing_is_served_that_has_no_twin(device: str) -> None:
    assert operations_for(device).keys() <= NAMES


def test_other_devices_run_the_twins() -> None:
    assert kernels_for("meta").attention is reference.attention
    assert kernels_for("cpu").attention is not reference.attention


def test_cuda_runs_triton_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "quire.kernels.triton.ops.paged_attention.attention" in describe("cuda")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert operations_for("cuda") == {}


def test_describe_names_each_choice() -> None:
    lines = describe("cpu").splitlines()
    assert {line.split()[0] for line in lines} == NAMES
    assert any("attention.attention" in line for line in lines)


def test_a_gpu_has_a_kernel_for_each_operation() -> None:
    """Else the plain twin serves without a word. No GPU kernel needs rows of padding."""
    pytest.importorskip("triton")
    assert NAMES - operations_for("cuda").keys() == {"pad_rows"}


@pytest.mark.parametrize("emulated", [True, False])
def test_linears_by_either_kernel_equal_the_twin(
    monkeypatch: pytest.MonkeyPatch, emulated: bool
) -> None:
    """What processors with and without bfloat16 products do, on whichever this one is."""
    monkeypatch.setattr(torch_matmul, "is_emulated", lambda _: emulated)
    test_cpu_version_equals_its_twin("linear", torch.bfloat16)
