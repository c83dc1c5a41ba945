"""Plain PyTorch twins of NF4, MXFP4 and NVFP4: how weights are rounded, and codes multiplied.

Owns the arithmetic of codebooks of 16 numbers; which numbers is in `formats/nf4.py` and
`formats/fp4.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.reference_quantized import ACTIVATION_GROUP, round_int8

_LARGEST_EXPONENT = 2  # of e2m1: 6 is 1.5 · 2^2
_BIAS = 127  # of e8m0
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def look_up(codes: Tensor, scale: Tensor, numbers: Sequence[float]) -> Tensor:
    """numbers[code] · scale: codes uint8 [N, K / 2], scale float32 [N, groups] → float32 [N, K]."""
    table = torch.tensor(numbers, dtype=torch.float32, device=codes.device)
    indices = torch.stack([codes & 15, codes >> 4], dim=2).flatten(1)
    groups = torch.unflatten(table[indices.int()], 1, (scale.shape[1], -1))
    return (groups * scale[:, :, None]).flatten(1)


def linear_bytes(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias with each 32 numbers of a row of x rounded to bytes: [T, K] → [T, N].

    weight: float32 [N, K]. The result has x's data type.
    """
    codes, scale = round_int8(x, ACTIVATION_GROUP)
    groups = torch.unflatten(codes, 1, (-1, ACTIVATION_GROUP)).float() * scale[:, :, None]
    out = F.linear(groups.flatten(1), weight)
    return (out if bias is None else out + bias.float()).to(x.dtype)


def quantize_by_largest(
    weight: Tensor, group: int, numbers: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """A weight [N, K] as codes uint8 [N, K / 2] of ascending numbers, and scales [N, K / group].

    A scale is the largest magnitude of its group, rounded to float16. Codes are those of the
    nearest number, of two as near the lower.
    """
    groups = torch.unflatten(weight.float(), 1, (-1, group))
    scale = groups.abs().amax(dim=2).half()
    divisor = torch.where(scale == 0.0, 1.0, scale.float())[:, :, None]
    table = torch.tensor(numbers, dtype=torch.float32, device=weight.device)
    borders = (table[1:] + table[:-1]) / 2.0
    codes = torch.bucketize((groups / divisor).contiguous(), borders)
    return _pairs(codes), scale


def quantize_mxfp4(weight: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """A weight [N, K] in e2m1, codes uint8 [N, K / 2], and exponents uint8 [N, K / group].

    The exponent is that of the group's largest magnitude, less 2. Codes are rounded to the nearest,
    of two as near to that with an even mantissa; beyond 6 they become 6.
    """
    groups = torch.unflatten(weight.float(), 1, (-1, group))
    largest = groups.abs().amax(dim=2)
    exponent = torch.frexp(largest).exponent - 1 - _LARGEST_EXPONENT + _BIAS
    exponent = torch.where(largest == 0.0, _BIAS, exponent).clamp(0, 254)
    scale = torch.where(largest.isfinite(), exponent, 255).to(torch.uint8)
    return _pairs(_nearest_e2m1(groups / powers_of_two(scale)[:, :, None])), scale


def quantize_nvfp4(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """A weight [N, K] in e2m1, codes uint8 [N, K / 2], with scales e4m3 [N, K / group] and of rows.

    Those of rows, float32 [N], make the largest scale of a row 448. Codes are rounded as MXFP4's.
    """
    groups = torch.unflatten(weight.float(), 1, (-1, group))
    largest = groups.abs().amax(dim=2) / _E2M1[-1]
    row_scale = largest.amax(dim=1) / torch.finfo(torch.float8_e4m3fn).max
    divisor = torch.where(row_scale == 0.0, 1.0, row_scale)[:, None]
    scale = (largest / divisor).to(torch.float8_e4m3fn)
    wide = scale.float() * divisor
    numbers = torch.where(wide == 0.0, 0.0, groups.movedim(2, 0) / wide).movedim(0, 2)
    return _pairs(_nearest_e2m1(numbers)), scale, row_scale


def _nearest_e2m1(numbers: Tensor) -> Tensor:
    """Codes of the nearest numbers in e2m1, of two as near of that with an even mantissa."""
    table = torch.tensor(_E2M1, device=numbers.device)
    borders, sizes = (table[1:] + table[:-1]) / 2.0, numbers.abs()
    below, above = torch.bucketize(sizes, borders), torch.bucketize(sizes, borders, right=True)
    index = torch.where(below % 2 == 0, below, above)  # they differ at a border alone
    return index + 8 * (numbers < 0.0)


def powers_of_two(exponents: Tensor) -> Tensor:
    """The numbers that exponents in e8m0 stand for, float32: 2^(e - 127), and NaN for 255."""
    bits = exponents.int() << 23
    bits = torch.where(exponents == 0, 1 << 22, bits)  # 2^-127 is subnormal
    wide = bits.view(torch.float32)
    return torch.where(exponents == 255, torch.nan, wide)


def _pairs(codes: Tensor) -> Tensor:
    """Codes [N, groups, group] below 16, two in a byte: uint8 [N, K / 2]."""
    flat = codes.flatten(1).to(torch.uint8)
    return flat[:, 0::2] | flat[:, 1::2] << 4
