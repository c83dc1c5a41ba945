"""Codes in words of checkpoint files: the inverse of what `models/checkpoint_formats/` reads."""

from __future__ import annotations

import json

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.compress.quantized_rows import CodebookCodes, FloatCodes, IntegerCodes
from quire.kernels.formats.nf4 import NF4
from quire.kernels.torch_dtypes import torch_dtype
from quire.models.checkpoint_formats.awq import ORDER
from quire.models.checkpoint_formats.bitsandbytes import NESTED_BLOCK

LEAST_ZERO = 1  # of GPTQ's packing, version 1: readers add 1 to what is stored, without a carry
_WORD = 32  # bits


def words(codes: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Codes [N, K] in int32 words [N, K · bits / 32]; order: of codes in a word, lowest first."""
    shared = _WORD // bits
    parts = torch.unflatten(codes.to(torch.int32), 1, (-1, shared))
    found = torch.zeros_like(parts[..., 0])
    for slot, item in enumerate(order or range(shared)):
        found |= parts[..., item] << (slot * bits)
    return found


def awq_tensors(rows: IntegerCodes) -> dict[str, Tensor]:
    """The tensors of a weight in AWQ's GEMM packing (Lin et al., 2024; AutoAWQ's `gemm`)."""
    zero = rows.scales.zero.t()
    return {
        "qweight": words(rows.codes.t(), 4, ORDER),
        "qzeros": words(zero, 4, ORDER),
        "scales": _stored_scale(rows).t().contiguous(),
    }


def gptq_tensors(rows: IntegerCodes) -> dict[str, Tensor]:
    """The tensors of a weight in GPTQ's packing, version 1: zero points, from 1 on, less 1."""
    grid, (_, k) = rows.grid, rows.codes.shape
    zero = rows.scales.zero.t().int() - LEAST_ZERO
    in_order = torch.arange(k, dtype=torch.int32, device=zero.device) // grid.group_size(k)
    return {
        "qweight": words(rows.codes, grid.bits).t().contiguous(),
        "qzeros": words(zero, grid.bits),
        "scales": _stored_scale(rows).t().contiguous(),
        "g_idx": in_order if rows.group_of is None else rows.group_of.clone(),
    }


def packed_tensors(rows: IntegerCodes) -> dict[str, Tensor]:
    """The tensors of a weight in compressed-tensors' `pack-quantized`."""
    grid, codes = rows.grid, rows.codes
    found = {
        "weight_packed": words(codes, grid.bits),
        "weight_scale": _stored_scale(rows),
        "weight_shape": torch.tensor(codes.shape),
    }
    if not grid.symmetric:
        found["weight_zero_point"] = words(rows.scales.zero.t(), grid.bits).t().contiguous()
    return found


def int8_tensors(rows: IntegerCodes) -> dict[str, Tensor]:
    """The tensors of a weight in compressed-tensors' `int-quantized`: signed bytes."""
    codes = (rows.codes ^ rows.grid.middle).view(torch.int8)
    return {"weight": codes, "weight_scale": _stored_scale(rows)}


def fp8_tensors(rows: FloatCodes, dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors of a weight in compressed-tensors' `float-quantized`."""
    return {"weight": rows.codes, "weight_scale": rows.scale.to(dtype)}


def nf4_tensors(rows: CodebookCodes, dtype: str, *, is_nested: bool) -> dict[str, Tensor]:
    """The tensors of a weight in bitsandbytes' NF4.

    dtype: of the model. is_nested: with double quantization (Dettmers et al., 2023, section 3).
    """
    codes, scale = rows.weight.codes, rows.weight.scale
    state: dict[str, object] = {
        "quant_type": "nf4",
        "blocksize": NF4.spec.group,
        "dtype": dtype,
        "shape": [len(codes), 2 * codes.shape[1]],
    }
    absmax, nested = scale.float().flatten(), dict[str, Tensor]()
    if is_nested:
        offset = float(absmax.mean())
        absmax, nested = _nested(absmax - offset)
        state |= {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32"}
        state["nested_offset"] = offset
    return {
        "weight": (codes >> 4 | codes << 4).reshape(-1, 1),
        "weight.absmax": absmax,
        **nested,
        "weight.quant_map": torch.tensor(NF4.numbers),
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(
            list(json.dumps(state).encode()), dtype=torch.uint8
        ),
    }


def _nested(scales: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Scales [G] less their mean as codes of eight bits, and what these stand for."""
    numbers = _nested_map().to(scales.device)
    blocks = F.pad(scales, (0, -len(scales) % NESTED_BLOCK)).view(-1, NESTED_BLOCK)
    largest = blocks.abs().amax(1)
    wanted = blocks / largest.clamp_min(1e-38)[:, None]
    codes = torch.bucketize(wanted, (numbers[1:] + numbers[:-1]) / 2).to(torch.uint8)
    tensors = {"weight.nested_absmax": largest, "weight.nested_quant_map": numbers}
    return codes.flatten()[: len(scales)], tensors


def _nested_map() -> Tensor:
    """bitsandbytes' "dynamic" numbers of eight bits: 2^i of them between 10^(i - 7) and 10^(i - 6).

    And their negatives, 0 and 1. (Dettmers et al., 2022, "8-bit optimizers", section 2.1)
    """
    means = []
    for exponent in range(7):
        bounds = torch.linspace(0.1, 1, 2**exponent + 1)
        means.append(10.0 ** (exponent - 6) * (bounds[:-1] + bounds[1:]) / 2)
    positive = torch.cat(means)
    return torch.cat([-positive, torch.tensor([0.0, 1.0]), positive]).sort().values


def mxfp4_tensors(rows: CodebookCodes) -> dict[str, Tensor]:
    """The tensors of a weight in compressed-tensors' `mxfp4-pack-quantized`."""
    return {"weight_packed": rows.weight.codes, "weight_scale": rows.weight.scale}


def _stored_scale(rows: IntegerCodes) -> Tensor:
    return rows.scales.scale.to(torch_dtype(rows.grid.dtype))
