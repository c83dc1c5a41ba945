"""Plain PyTorch twins of FP8: how weights and activations are rounded and multiplied.

`reference` has these functions under the same names, as twins of a device's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FP8 = torch.float8_e4m3fn  # 1 sign, 4 exponent and 3 mantissa bits; no infinity
FP8_MAX = 448.0  # the largest number of it


def quantize_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight [N, K] in FP8: codes [N, K], and a float32 scale for each row [N].

    weight ≈ codes · scale; the largest of a row becomes the largest number of the type, the others
    are rounded to the nearest. (Micikevicius et al., 2022)
    """
    weight = weight.float()
    largest = weight.abs().amax(dim=1)
    scale = torch.where(largest == 0.0, 1.0, largest / FP8_MAX)
    codes = (weight / scale[:, None]).clamp_(-FP8_MAX, FP8_MAX)  # dividing may round upwards
    return codes.to(FP8), scale


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Activations [T, K] in FP8: codes [T, K], and a float32 scale for each row [T, 1].

    Scales are powers of two, the least that bring a row into the type's range. As they only move
    exponents, a value's rounding does not depend on how much of its row shares its scale (but for
    values that are 2^-15 of the largest or less, which lose digits), nor does a second rounding.
    """
    x = x.float()
    wanted = (x.abs().amax(dim=1, keepdim=True) / FP8_MAX).clamp_min(2.0**-100)
    scale = ((wanted.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)
    return (x / scale).to(FP8), scale


def linear_fp8(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """x · (codes · scale)ᵀ + bias: x [T, K], codes and scale as `quantize_fp8` left them → [T, N].

    x is taken as it is; where a device multiplies FP8 by FP8, `quantize_rows` rounds it first.
    """
    out = F.linear(x.float(), codes.float()) * scale
    return (out if bias is None else out + bias.float()).to(x.dtype)
