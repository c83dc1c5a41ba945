"""Plain PyTorch twins of what rounds weights and activations to integers and multiplies them.

As those of `reference.py` they are written to be read, not to be fast.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.operands import Int4Weight, Int8Weight

SPREAD_TOGETHER = 64  # columns of what is rounded to bytes by whole rows; fewer where they must
LEAST_SPREAD = 16  # divide a row, but no fewer than these
ROUNDED_TOGETHER = 32  # activations that share a scale in products with four-bit weights, and
# columns that are spread over each other there
WIDENED_TOGETHER = 2**22  # elements of a weight that are widened to float32 at once


def spread_together(k: int, most: int = SPREAD_TOGETHER) -> int:
    """Columns of rows of k numbers that are spread over each other; 1 for none."""
    size = math.gcd(k, most)
    return size if size >= LEAST_SPREAD else 1


def spread(x: Tensor, most: int = SPREAD_TOGETHER) -> Tensor:
    """Each 64 columns (or 32, or 16) of x float32 [.., K] times a Hadamard matrix.

    So a few large numbers, of which activations have some, do not set the scale of all others (as
    Ashkboos et al., 2024, do with whole rows). The matrix times itself is as many times one.
    """
    size = spread_together(x.shape[-1], most)
    if size == 1:
        return x
    bits = size.bit_length() - 1
    parts = torch.unflatten(x, -1, (-1, *[2] * bits))
    for dim in range(-1, -bits - 1, -1):
        first, second = parts.unbind(dim)
        parts = torch.stack([first + second, first - second], dim)
    return parts.flatten(-bits - 1)


def quantize_int8(weight: Tensor) -> Int8Weight:
    """Rows of a weight [N, K] as signed bytes, symmetric: the largest of a row becomes ±127.

    Of the weight behind `spread`, divided so that products with `spread` rows are those of x.
    """
    weight = spread(weight.float()) / float(spread_together(weight.shape[1]))
    largest = weight.abs().amax(dim=1)
    scale = torch.where(largest == 0.0, 1.0, largest / 127.0)
    return Int8Weight((weight / scale[:, None]).round().to(torch.int8), scale)


def to_int8(weight: Tensor) -> Int8Weight:
    """`quantize_int8` and then `prepare_int8`, here some rows at a time, widened to float32."""
    pieces = [quantize_int8(rows) for rows in torch.split(weight, _rows_together(weight))]
    codes, scale = (torch.cat([getattr(p, name) for p in pieces]) for name in ("codes", "scale"))
    return Int8Weight(codes, scale)


def _rows_together(weight: Tensor) -> int:
    return max(1, WIDENED_TOGETHER // weight.shape[1])


def round_int8(x: Tensor, group: int | None = None) -> tuple[Tensor, Tensor]:
    """Activations [T, K] as signed bytes [T, K], and a float32 scale for each group of a row.

    x ≈ codes · scale, scale [T, K / group]; a group is a whole row if None. The largest of a group
    becomes ±127, the others are rounded to the nearest, ties to even. What is not finite makes its
    group's scale so.
    """
    groups = torch.unflatten(x.float(), 1, (-1, group or x.shape[1]))  # [T, K / group, group]
    largest = groups.abs().amax(dim=2, keepdim=True)
    inverse = torch.where(largest == 0.0, 0.0, 127.0 / largest)
    codes = (groups * inverse).round().nan_to_num(0.0).to(torch.int8)
    return codes.flatten(1), (largest / 127.0).squeeze(2)


def prepare_int8(weight: Int8Weight) -> Int8Weight:
    """Bring a weight into the order that `linear_int8` reads; here: as it is."""
    return weight


def linear_int8(x: Tensor, weight: Int8Weight, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias, x [T, K] behind `spread` and `round_int8`, each row by itself → [T, N].

    Bytes are multiplied and summed exactly, which float32 does here for up to 1,040 columns.
    """
    codes, scale = round_int8(spread(x.float()))
    out = F.linear(codes.float(), weight.codes.float()) * scale * weight.scale
    return (out if bias is None else out + bias.float()).to(x.dtype)


def quantize_int4(weight: Tensor, group: int = 32) -> Int4Weight:
    """Rows of a weight [N, K] in groups of four-bit numbers, K a multiple of the group.

    Of the weight behind `spread` with matrices of 32, divided as `quantize_int8` does.
    The largest of a group would become -8, -8.5 or -7.2, whatever its sign. Each of these scales is
    fitted to its codes by least squares, and the codes are rounded anew by the best.
    """
    together = spread_together(weight.shape[1], ROUNDED_TOGETHER)
    weight = spread(weight.float(), ROUNDED_TOGETHER) / float(together)
    groups = torch.unflatten(weight, 1, (-1, group))  # [N, K / group, group]
    largest = groups.gather(2, groups.abs().argmax(dim=2, keepdim=True))
    scale, gain = _fitted(groups, (largest / -8.0).half())
    for code in (-8.5, -7.2):
        other, more = _fitted(groups, (largest / code).half())
        scale, gain = torch.where(more > gain, other, scale), torch.maximum(more, gain)
    divisor = torch.where(scale == 0.0, 1.0, scale.float())
    codes = ((groups / divisor).round() + 8.0).clamp(0.0, 15.0).to(torch.uint8).flatten(1)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return Int4Weight(packed, scale.squeeze(2), None, group, spread=True)


def _fitted(groups: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The float16 scales by which the codes that some give come closest to their groups.

    And by how much of a group's sum of squares they do. Zero and what is not finite stay.
    """
    codes = (groups * (1.0 / scale.float())).round().clamp(-8.0, 7.0)
    product = _sum_by_halves(codes * groups)
    fitted = product / _sum_by_halves(codes * codes)
    stays = (scale == 0.0) | ~scale.isfinite()
    return torch.where(stays, scale, fitted.half()), torch.where(stays, 0.0, product * fitted)


def _sum_by_halves(groups: Tensor) -> Tensor:
    """[.., group] → [.., 1], in the order in which vectors of 16 numbers add up."""
    lanes = math.gcd(groups.shape[-1], 16)
    sums = sum(torch.unflatten(groups, -1, (-1, lanes)).unbind(-2), start=groups.new_zeros(1))
    while sums.shape[-1] > 1 and sums.shape[-1] % 2 == 0:
        first, second = sums.chunk(2, dim=-1)
        sums = first + second
    return sums.sum(dim=-1, keepdim=True)


def to_int4(weight: Tensor, group: int = 32) -> Int4Weight:
    """`quantize_int4` and then `prepare_int4`, here some rows at a time, widened to float32."""
    pieces = [quantize_int4(rows, group) for rows in torch.split(weight, _rows_together(weight))]
    codes, scale = (torch.cat([getattr(p, name) for p in pieces]) for name in ("codes", "scale"))
    return Int4Weight(codes, scale, None, group, spread=True)


def widen_int4(weight: Int4Weight) -> Tensor:
    """The numbers that a four-bit weight stands for, float32 [N, K]: spread, where it is."""
    zeros = 8 if weight.zeros is None else weight.zeros[:, :, None].int()
    numbers = (_codes_of(weight) - zeros).float()
    return (numbers * weight.scale[:, :, None].float()).flatten(1)


def _codes_of(weight: Int4Weight) -> Tensor:
    """int32 [N, K / group, group]."""
    codes = torch.stack([weight.codes & 15, weight.codes >> 4], dim=2).flatten(1)
    return torch.unflatten(codes, 1, (-1, weight.group)).int()


def int4_as_bytes(weight: Int4Weight) -> Int8Weight:
    """A `spread` four-bit weight with one scale for each output, as tiles multiply many rows by it.

    -8 in the group with the largest scale becomes ±127. Quotients of scales have 8 binary digits
    behind the point. Its rows are behind matrices of 32, not those of `linear_int8`.
    """
    largest = weight.scale.abs().amax(dim=1).float()
    scale = torch.where(largest == 0.0, 1.0, largest * 8.0 / 127.0)
    scale = torch.where(largest.isfinite(), scale, math.nan)
    quotient = (weight.scale.float() * (256.0 / scale)[:, None]).round().nan_to_num(0.0).int()
    codes = ((_codes_of(weight) - 8) * quotient[:, :, None] + 128) >> 8
    return Int8Weight(codes.flatten(1).to(torch.int8), scale)


def prepare_int4(weight: Int4Weight) -> Int4Weight:
    """Bring a weight into the order that `linear_int4` reads; here: as it is."""
    return weight


def linear_int4(x: Tensor, weight: Int4Weight, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias with x [T, K] rounded by `round_int8`, each 32 by themselves → [T, N].

    Behind `spread` with matrices of 32, if the weight is. For many rows tiles of bytes take a scale
    for each row, and `int4_as_bytes` of the weight.
    The sum of (code - zero) · byte over 32 is an exact integer wherever this is compiled; those
    sums, times both scales, are added in float32.
    """
    x32 = spread(x.float(), ROUNDED_TOGETHER) if weight.spread else x.float()
    codes, scale = round_int8(x32, ROUNDED_TOGETHER)
    groups = torch.unflatten(codes, 1, (-1, ROUNDED_TOGETHER)).float() * scale[:, :, None]
    out = F.linear(groups.flatten(1), widen_int4(weight))
    return (out if bias is None else out + bias.float()).to(x.dtype)
