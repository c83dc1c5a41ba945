"""Plain PyTorch twins of INT8 and INT4: how weights and activations are rounded and multiplied.

Owns what these formats mean, the Hadamard rotation included; FP8 is in `reference_fp8.py`, NF4 and
MXFP4 are in `reference_codebook.py`. They are written to be read, not to be fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.operands import Int4Weight, Int8Weight
from quire.kernels.reference_arrays import few_rows

HADAMARD_SIZE = 64  # of the matrices for INT8; smaller where it does not divide a row,
LEAST_HADAMARD = 16  # but no smaller than this
ACTIVATION_GROUP = 32  # activations that share a scale in linear operations with INT4 weights, and
# the size of the Hadamard matrices there
PIECE_ELEMENTS = 2**22  # elements of a weight that are converted to float32 at once


def hadamard_size(k: int, most: int = HADAMARD_SIZE) -> int:
    """Size of the Hadamard matrices by which rows of k numbers are rotated; 1 for no rotation."""
    size = math.gcd(k, most)
    return size if size >= LEAST_HADAMARD else 1


def hadamard_rotate(x: Tensor, most: int = HADAMARD_SIZE) -> Tensor:
    """x float32 [.., K] with each 64 columns (or 32, or 16) multiplied by a Hadamard matrix.

    So a few large numbers, of which activations have some, do not set the scale of all others (as
    Ashkboos et al., 2024, do with whole rows). The matrix is not normalised: applied twice, it
    multiplies by its size.
    """
    size = hadamard_size(x.shape[-1], most)
    if size == 1:
        return x
    bits = size.bit_length() - 1
    parts = torch.unflatten(x, -1, (-1, *[2] * bits))
    for dim in range(-1, -bits - 1, -1):
        first, second = parts.unbind(dim)
        parts = torch.stack([first + second, first - second], dim)
    return parts.flatten(-bits - 1)


def _rotated_weight(weight: Tensor, most: int) -> Tensor:
    """weight [N, K] so rotated that linear operations with rotated rows give the same results."""
    return hadamard_rotate(weight, most) / float(hadamard_size(weight.shape[1], most))


def by_pieces(
    weight: Tensor, round_rows: Callable[[Tensor], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """round_rows(weight [N, K]), applied to some rows at a time, so that float32 copies stay small.

    Each result has N as its first dimension.
    """
    n, k = weight.shape
    whole: tuple[Tensor, ...] = ()
    for rows in few_rows(n, k, PIECE_ELEMENTS):
        piece = round_rows(weight[rows])
        whole = whole or tuple(part.new_empty(n, *part.shape[1:]) for part in piece)
        for out, part in zip(whole, piece, strict=True):
            out[rows] = part
    return whole


def quantize_int8(weight: Tensor, *, hadamard: bool = True) -> Int8Weight:
    """Rows of a weight [N, K] as signed bytes, symmetric: the largest of a row becomes ±127.

    hadamard: the weight is rotated first, and inputs of `linear_int8` are, too.
    """
    weight = weight.float()
    if hadamard:
        weight = _rotated_weight(weight, HADAMARD_SIZE)
    largest = weight.abs().amax(dim=1)
    scale = torch.where(largest == 0.0, 1.0, largest / 127.0)
    return Int8Weight((weight / scale[:, None]).round().to(torch.int8), scale, hadamard)


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


def linear_int8(x: Tensor, weight: Int8Weight, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias: x [T, K] is Hadamard-rotated where the weight is, then rounded to bytes.

    Returns [T, N] in x's data type. Each row of x has one scale. Products of bytes are summed
    exactly, which float32 does here for up to 1,040 columns. Where the weight does not round its
    inputs, x stays as it is: a native kernel has 16 bits of it.
    """
    if not weight.rounds:
        exact = F.linear(x.float(), weight.codes.float()) * weight.scale
        return (exact if bias is None else exact + bias.float()).to(x.dtype)
    x32 = hadamard_rotate(x.float()) if weight.hadamard else x.float()
    codes, scale = round_int8(x32)
    out = F.linear(codes.float(), weight.codes.float()) * scale * weight.scale
    return (out if bias is None else out + bias.float()).to(x.dtype)


def quantize_int4(weight: Tensor, group: int = 32, *, hadamard: bool = True) -> Int4Weight:
    """Rows of a weight [N, K] in groups of four-bit numbers, K a multiple of the group.

    hadamard: the weight is rotated by matrices of 32 first, and inputs of `linear_int4` are, too.
    The largest of a group would become -8, -8.5 or -7.2, whatever its sign. Each of these scales is
    fitted to its codes by least squares, and the codes are rounded anew by the best.
    """
    weight = weight.float()
    if hadamard:
        weight = _rotated_weight(weight, ACTIVATION_GROUP)
    groups = torch.unflatten(weight, 1, (-1, group))  # [N, K / group, group]
    largest = groups.gather(2, groups.abs().argmax(dim=2, keepdim=True))
    scale, gain = _fitted(groups, (largest / -8.0).half())
    for code in (-8.5, -7.2):
        other, more = _fitted(groups, (largest / code).half())
        scale, gain = torch.where(more > gain, other, scale), torch.maximum(more, gain)
    divisor = torch.where(scale == 0.0, 1.0, scale.float())
    codes = ((groups / divisor).round() + 8.0).clamp(0.0, 15.0).to(torch.uint8).flatten(1)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return Int4Weight(packed, scale.squeeze(2), None, group, hadamard)


def _fitted(groups: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The float16 scales by which the codes that some give come closest to their groups.

    And by how much of a group's sum of squares they do. Zero and what is not finite stay.
    """
    codes = (groups * (1.0 / scale.float())).round().clamp(-8.0, 7.0)
    dot = _sum_by_halves(codes * groups)
    fitted = dot / _sum_by_halves(codes * codes)
    stays = (scale == 0.0) | ~scale.isfinite()
    return torch.where(stays, scale, fitted.half()), torch.where(stays, 0.0, dot * fitted)


def _sum_by_halves(groups: Tensor) -> Tensor:
    """[.., group] → [.., 1], in the order in which vectors of 16 numbers add up."""
    lanes = math.gcd(groups.shape[-1], 16)
    sums = sum(torch.unflatten(groups, -1, (-1, lanes)).unbind(-2), start=groups.new_zeros(1))
    while sums.shape[-1] > 1 and sums.shape[-1] % 2 == 0:
        first, second = sums.chunk(2, dim=-1)
        sums = first + second
    return sums.sum(dim=-1, keepdim=True)


def dequantize_int4(weight: Int4Weight) -> Tensor:
    """The numbers that a four-bit weight stands for, float32 [N, K]; rotated, where it is."""
    zeros = 8 if weight.zeros is None else weight.zeros[:, :, None].int()
    numbers = (_codes_of(weight) - zeros).float()
    return (numbers * weight.scale[:, :, None].float()).flatten(1)


def _codes_of(weight: Int4Weight) -> Tensor:
    """The weight's unpacked codes, int32 [N, K / group, group]."""
    codes = torch.stack([weight.codes & 15, weight.codes >> 4], dim=2).flatten(1)
    return torch.unflatten(codes, 1, (-1, weight.group)).int()


def int4_as_bytes(weight: Int4Weight) -> Int8Weight:
    """A rotated four-bit weight with one scale for each output, as AMX tiles take it for many rows.

    -8 in the group with the largest scale becomes ±127. Quotients of scales have 8 binary digits
    behind the point. It is rotated by matrices of 32, not those of `linear_int8`.
    """
    largest = weight.scale.abs().amax(dim=1).float()
    scale = torch.where(largest == 0.0, 1.0, largest * 8.0 / 127.0)
    scale = torch.where(largest.isfinite(), scale, math.nan)
    quotient = (weight.scale.float() * (256.0 / scale)[:, None]).round().nan_to_num(0.0).int()
    codes = ((_codes_of(weight) - 8) * quotient[:, :, None] + 128) >> 8
    return Int8Weight(codes.flatten(1).to(torch.int8), scale)


def linear_int4(x: Tensor, weight: Int4Weight, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias: x [T, K] is Hadamard-rotated where the weight is, then rounded to bytes.

    Returns [T, N] in x's data type. Each 32 columns of a row of x have a scale. For many rows AMX
    tiles take one scale for each row, and `int4_as_bytes` of the weight; of a weight that is not
    rotated they take bfloat16. The sum of (code - zero) · byte over 32 is an exact integer wherever
    this is compiled; those sums, times both scales, are added in float32.
    """
    x = x if weight.permutation is None else x[:, weight.permutation]
    x32 = hadamard_rotate(x.float(), ACTIVATION_GROUP) if weight.hadamard else x.float()
    codes, scale = round_int8(x32, ACTIVATION_GROUP)
    groups = torch.unflatten(codes, 1, (-1, ACTIVATION_GROUP)).float() * scale[:, :, None]
    out = F.linear(groups.flatten(1), dequantize_int4(weight))
    return (out if bias is None else out + bias.float()).to(x.dtype)
