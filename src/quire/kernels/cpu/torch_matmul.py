"""Matrix products on the CPU by PyTorch's operations. Owns the weight's form and reading.

A weight is packed by oneDNN into the blocks that its kernels read, except where plain ones were
measured to be as fast (bfloat16 with AMX) or cannot be packed (float16). Products that a processor
has to emulate are done in float32 instead once there are enough rows to pay for widening the
weight. Measured on 8192 x 2048 with two threads, in ms at 1 / 16 / 512 rows of x:

    bfloat16, AVX-512 BF16      packed 1.7 / 4.2 / 100      plain 2.3 / 5.2 / 101
    bfloat16, AMX               packed 2.3 / 3.2 / 22       plain 2.4 / 2.6 / 25
    bfloat16, emulated          packed 2.2 / 17 / 367       plain 3.3 / 21 / 373    (widened: 148)
    float32, AVX-512            packed 3.7 / 4.9 / 79       plain 3.3 / 12.7 / 74
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.operands import Fp8Weight, Int4Weight, Int8Weight, LinearWeight
from quire.kernels.reference_quantized import ACTIVATION_GROUP, hadamard_rotate, round_int8

_TILE = 2**22  # elements of a weight widened at once: 16 MiB of float32, which the cache keeps
_INT4_TILE = 2**20  # elements of a four-bit weight that are widened at once
_BYTE_STEP = 16  # inputs; of other numbers PyTorch's product reads beyond a row's end
_MANY_BYTE_ROWS = 16  # from here on widening bytes costs less than reading them for each row
_MANY_ROWS = 64  # from here on unpacking and widening costs less than emulated products


def pack(weight: LinearWeight) -> LinearWeight:
    """Twin of `reference.pack`: packed by oneDNN where that is faster.

    The packed tensor is opaque: only `linear` can read it.
    """
    if not isinstance(weight, Tensor):
        return weight
    if weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and not has_amx()):
        return _packed(weight)
    return weight


def linear(x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear`."""
    if isinstance(weight, Fp8Weight):
        return linear_fp8(x, weight.codes, weight.scale, bias)
    if isinstance(weight, Int8Weight):
        return linear_int8(x, weight, bias)
    if isinstance(weight, Int4Weight):
        return linear_int4(x, weight, bias)
    assert isinstance(weight, Tensor)
    if is_emulated(weight.dtype) and len(x) >= _MANY_ROWS:
        return _widened(x, weight.to_dense() if weight.is_mkldnn else weight, bias)
    if not weight.is_mkldnn:
        return F.linear(x, weight, bias)
    if is_emulated(weight.dtype) and len(x) == 2:  # twice one row takes 2/3 of the time
        return torch.cat([linear(row, weight, bias) for row in x.split(1)])  # type: ignore[no-untyped-call]
    return _packed_linear(x, weight, bias)


def linear_fp8(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear_fp8`; no processor multiplies FP8, so the codes are widened."""
    out = x.new_empty(len(x), len(codes))
    for rows in _tiles(codes):
        out[:, rows] = F.linear(x.float(), codes[rows].float()).mul_(scale[rows])
    return out if bias is None else out.add_(bias)


def linear_int8(x: Tensor, weight: Int8Weight, bias: Tensor | None) -> Tensor:
    """Few rows read the bytes; for many, tiles are widened.

    oneDNN's products of bytes would be faster, but saturate on processors without VNNI.
    """
    codes, scale = round_int8(hadamard_rotate(x.float()) if weight.hadamard else x)
    few = x.dtype == torch.bfloat16 and len(x) < _MANY_BYTE_ROWS
    if few and x.shape[1] % _BYTE_STEP == 0:
        ones = torch.ones(len(weight.codes), dtype=x.dtype)
        out: Tensor = torch._weight_int8pack_mm(codes.to(x.dtype), weight.codes, ones).float()
    else:
        out = _widened(codes.float(), weight.codes, None)
    out = out.mul_(scale).mul_(weight.scale)
    return (out if bias is None else out.add_(bias)).to(x.dtype)


def linear_int4(x: Tensor, weight: Int4Weight, bias: Tensor | None) -> Tensor:
    """Tiles are widened, all first codes of bytes before others.

    So nothing is interleaved; instead the columns of x are brought into the same order.
    """
    x32 = hadamard_rotate(x.float(), ACTIVATION_GROUP) if weight.hadamard else x
    codes, x_scale = round_int8(x32, ACTIVATION_GROUP)
    x32 = torch.unflatten(codes, 1, (-1, ACTIVATION_GROUP)) * x_scale[:, :, None]
    x32 = torch.cat([x32[:, :, 0::2].flatten(1), x32[:, :, 1::2].flatten(1)], dim=1)
    out = torch.empty(len(x), len(weight.scale))
    wide = torch.empty(_INT4_TILE // x.shape[1] + 1, 2, *weight.scale.shape[1:], weight.group // 2)
    for start in range(0, len(weight.scale), len(wide)):
        rows = slice(start, start + len(wide))
        pairs = torch.unflatten(weight.codes[rows], 1, (-1, weight.group // 2))
        tile = wide[: len(pairs)]
        tile[:, 0].copy_(pairs & 15)
        tile[:, 1].copy_(pairs >> 4)
        tile -= 8.0 if weight.zeros is None else weight.zeros[rows, None, :, None]
        tile *= weight.scale[rows, None, :, None]
        torch.mm(x32, tile.flatten(1).T, out=out[:, rows])
    return (out if bias is None else out.add_(bias)).to(x.dtype)


def _packed(weight: Tensor) -> Tensor:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def _packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    num_rows, padded_rows = len(x), padded(len(x))
    if padded_rows > num_rows:
        x = F.pad(x, (0, 0, 0, padded_rows - num_rows))
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out[:num_rows]


def padded(num_rows: int) -> int:
    """The number of rows that a product is made with: at most an eighth more.

    oneDNN compiles a kernel for each number of rows and keeps it; steps have any number, and after
    some hundred of them that was a gigabyte.
    """
    step = 1 << max(0, num_rows.bit_length() - 4)
    return -(-num_rows // step) * step


def _widened(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product in float32, with the weight [N, K] widened tile by tile: x [T, K] → [T, N]."""
    x32, out = x.float(), x.new_empty(len(x), len(weight))
    for rows in _tiles(weight):
        out[:, rows] = F.linear(x32, weight[rows].float())
    return out if bias is None else out.add_(bias)


def _tiles(weight: Tensor) -> list[slice]:
    """Cut rows into tiles of at most _TILE elements."""
    rows = max(1, _TILE // weight.shape[1])
    return [slice(start, start + rows) for start in range(0, len(weight), rows)]


@functools.cache
def is_emulated(dtype: torch.dtype) -> bool:
    """Whether the processor lacks products of this data type."""
    if dtype == torch.bfloat16:
        return not (has_amx() or torch.cpu._is_avx512_bf16_supported())
    return dtype != torch.float32


@functools.cache
def has_amx() -> bool:
    """Whether the processor multiplies tiles of bfloat16."""
    return bool(torch.cpu._is_amx_tile_supported())
