"""Plain PyTorch twins of weights of a byte each with a scale for each group of inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.byte_operands import ByteWeight
from quire.kernels.reference_fp8 import FP8, FP8_MAX


def dequantize_bytes(weight: ByteWeight) -> Tensor:
    """(codes - zeros) · scale of a weight: float32 [N, K], inputs in the weight's order."""
    groups = torch.unflatten(weight.codes.float(), 1, (weight.scale.shape[1], -1))
    if weight.zeros is not None:
        groups = groups - weight.zeros[:, :, None].float()
    return (groups * weight.scale[:, :, None].float()).flatten(1)


def linear_bytes(x: Tensor, weight: ByteWeight, bias: Tensor | None) -> Tensor:
    """x [T, K] · weightᵀ + bias → [T, N] in x's data type; x is not rounded."""
    if weight.permutation is not None:
        x = x[:, weight.permutation]
    out = F.linear(x.float(), dequantize_bytes(weight))
    return (out if bias is None else out + bias.float()).to(x.dtype)


def quantize_int8_groups(weight: Tensor, group: int, *, zeros: bool) -> tuple[Tensor, ...]:
    """A weight [N, K] as int8 codes [N, K], scales float32 and zeros int8 [N, K / group].

    Without zeros (two tensors) the largest magnitude of a group becomes 127; with them its range,
    which 0 is in, becomes -128 to 127.
    """
    groups = torch.unflatten(weight.float(), 1, (-1, group))
    if not zeros:
        scale = _divisor(groups.abs().amax(dim=2) / 127)
        return (groups / scale[:, :, None]).round_().to(torch.int8).flatten(1), scale
    low, high = groups.amin(dim=2).clamp(max=0.0), groups.amax(dim=2).clamp(min=0.0)
    scale = _divisor((high - low) / 255)
    zero = (-128 - low / scale).round_().clamp_(-128, 127)
    codes = ((groups / scale[:, :, None]).round_() + zero[:, :, None]).clamp_(-128, 127)
    return codes.to(torch.int8).flatten(1), scale, zero.to(torch.int8)


def quantize_fp8_groups(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """A weight [N, K] in FP8: e4m3 codes [N, K] and a float32 scale for each group of inputs."""
    groups = torch.unflatten(weight.float(), 1, (-1, group))
    scale = _divisor(groups.abs().amax(dim=2) / FP8_MAX)
    codes = (groups / scale[:, :, None]).clamp_(-FP8_MAX, FP8_MAX)
    return codes.to(FP8).flatten(1), scale


def _divisor(scale: Tensor) -> Tensor:
    """Scales [N, groups] with the row's largest in place of 0, or 1 in a row of zeros alone.

    Of the row's size, as a GPU stores a row's scales in float16 beside one for their largest.
    """
    largest = scale.amax(dim=1, keepdim=True)
    return torch.where(scale == 0.0, torch.where(largest == 0.0, 1.0, largest), scale)
