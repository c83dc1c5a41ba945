"""Products on the CPU, and what stands around them, natively.

Owns the packed form of 32- and 16-bit weights (quantized_linear.py that of others) and which
products `native/linear.h` serves; what it does not (float16, odd sizes) goes to PyTorch's
operations, see torch_matmul.py. There is one copy of a weight, whatever the number of rows. A norm
is left to the product that reads it, an activation and the residual stream's sum are made where a
product's sums are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels.cpu import cpu_elementwise, native, quantized_linear, tensor_ops, torch_matmul
from quire.kernels.cpu.native_structs import INT8, LINEAR_ARGS, Epilogue
from quire.kernels.cpu.quantized_linear import BLOCK
from quire.kernels.cpu.tensor_ops import DTYPES
from quire.kernels.operands import (
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    QuantizedWeight,
    ResidualState,
    Rows,
)

Weight = Tensor | QuantizedWeight


class Packed(NamedTuple):
    """A natively packed weight: its outputs, inputs that share a scale, `Format` in quire_cpu.h."""

    weight: Tensor
    outputs: int
    group: int
    form: int


def prepare_linear(weight: Tensor) -> Tensor:
    """Twin of `reference.prepare_linear`: packed as quire_cpu.h tells, or for oneDNN.

    A natively packed weight is known by its dimensions: [N / 16, K, 16] in float32,
    [N / 16, K / 2, 16, 2] in bfloat16.
    """
    n, k = quantized_linear.size_of(weight)
    if n % BLOCK or k % 2 or weight.dtype not in DTYPES:
        return torch_matmul.prepare_linear(quantized_linear.in_rows(weight))
    return pack(weight)


def pack(weight: Tensor) -> Tensor:
    """A weight [N, K] natively packed, or one as `order_gate_up` gives it."""
    n, k = quantized_linear.size_of(weight)
    source, half = quantized_linear.source_of(weight)
    wide = weight.dtype == torch.float32
    out = weight.new_empty(n // BLOCK, *((k, BLOCK) if wide else (k // 2, BLOCK, 2)))
    tensor_ops.pack(source, None, None, out, (n, k, half, 0, DTYPES[weight.dtype]))
    return out


def embedding(input_ids: Tensor, weight: Tensor) -> Tensor:
    """Twin of `reference.embedding`: a token's numbers are all in one block of the weight."""
    if weight.dim() == 2:
        return F.embedding(input_ids, weight)
    block, place = input_ids // BLOCK, input_ids % BLOCK
    if weight.dtype == torch.float32:
        return weight[block, :, place]
    pairs = weight.view(torch.int32).squeeze(-1)  # [V / 16, H / 2, 16]
    return pairs[block, :, place].view(torch.bfloat16)


def order_gate_up(weight: Tensor) -> Tensor:
    """Twin of `reference.order_gate_up`: by turns 16 rows of each, where sizes allow.

    A weight is a view [I / 16, 2, 16, K] then, a bias [2I].
    """
    if not goes_by_turns(weight.dtype, len(weight)):
        return weight
    if weight.dim() == 2 and weight.is_contiguous():
        return quantized_linear.by_turns(
            weight
        )  # the next who makes another form of it reads it so
    return quantized_linear.by_turns(weight[:, None]).flatten()


def pad_rows(weight: Tensor) -> Tensor:
    """Twin of `reference.pad_rows`: to whole blocks, of types that are packed."""
    missing = -len(weight) % BLOCK
    return F.pad(weight, (0, 0, 0, missing)) if missing and weight.dtype in DTYPES else weight


def linear(x: Rows, weight: Weight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear`, and of those for quantized weights."""
    assert isinstance(x, Tensor)  # GPUs alone make others
    packed = packed_form(weight)
    if packed is None:
        return _elsewhere(x, weight, bias)
    if x.dtype not in DTYPES:  # float16, which bytes may be made of as well
        return linear(x.float(), weight, None if bias is None else bias.float()).to(x.dtype)
    out = x.new_empty(len(x), packed.outputs)
    _multiply(x, packed, bias, out, Epilogue.STORE)
    return out


def normalized_rows(x: ResidualState) -> Tensor:
    """Twin of `reference.normalized_rows`."""
    if x.squares is None and isinstance(x.rows, Tensor):
        return x.rows
    return tensor_ops.rms_norm(x.residual, x.weight, x.eps)


def rms_norm_linear(x: ResidualState, weight: Weight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.rms_norm_linear`."""
    packed = packed_form(weight)
    if packed is None or x.residual.dtype not in DTYPES:
        return linear(normalized_rows(x), weight, bias)
    out = x.residual.new_empty(len(x.residual), packed.outputs)
    _multiply(x, packed, bias, out, Epilogue.STORE)
    return out


def linear_silu(x: ResidualState, weight: Weight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear_silu`."""
    packed = packed_form(weight)
    if packed is not None and goes_by_turns(x.residual.dtype, packed.outputs):
        out = x.residual.new_empty(len(x.residual), packed.outputs // 2)
        _multiply(x, packed, bias, out, Epilogue.SILU)
        return out
    return _silu(rms_norm_linear(x, weight, bias))


def linear_add_norm(
    x: Rows,
    weight: Weight,
    bias: Tensor | None,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
) -> ResidualState:
    """Twin of `reference.linear_add_norm`; adds to the residual in place, and leaves the norm."""
    packed = packed_form(weight)
    if packed is not None and isinstance(x, Tensor) and x.dtype in DTYPES:
        residual = residual.contiguous()
        _multiply(x, packed, bias, residual, Epilogue.ADD)
    else:
        residual = residual.add_(linear(x, weight, bias))
    return ResidualState(residual, None, norm_weight, eps)


def _multiply(
    x: Tensor | ResidualState, weight: Packed, bias: Tensor | None, out: Tensor, epilogue: Epilogue
) -> None:
    norm_weight, eps = 0, 0.0
    if isinstance(x, Tensor):
        rows = x
    elif x.squares is None and isinstance(x.rows, Tensor):
        rows = x.rows
    else:
        rows, norm_weight, eps = x.residual, x.weight.data_ptr(), x.eps
    rows = rows.contiguous()
    native.compiled().quire_cpu_linear(
        LINEAR_ARGS.pack(
            rows.data_ptr(), norm_weight, weight.weight.data_ptr(),
            0 if bias is None else bias.data_ptr(), out.data_ptr(),
            len(rows), weight.outputs, rows.shape[1], eps,
            weight.group, DTYPES[rows.dtype], weight.form, epilogue,
            native.num_threads(),
        )
    )  # fmt: skip


def packed_form(weight: Weight) -> Packed | None:
    """What the compiled products read; None for a weight that others have to."""
    if isinstance(weight, Tensor):
        if weight.dim() == 2:
            return None
        return Packed(weight, len(weight) * BLOCK, 0, DTYPES[weight.dtype])
    if isinstance(weight, Fp8Weight) or not quantized_linear.is_packed(weight):
        return None
    outputs = len(weight.scale)
    if isinstance(weight, Int8Weight):
        return Packed(weight.codes, outputs, 0, INT8)
    return Packed(weight.codes, outputs, weight.group, quantized_linear.format_of(weight))


def _elsewhere(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """The product by PyTorch's operations."""
    if isinstance(weight, Fp8Weight):
        return torch_matmul.linear_fp8(x, weight.codes, weight.scale, bias)
    if isinstance(weight, Int8Weight):
        return torch_matmul.linear_int8(x, weight, bias)
    if isinstance(weight, Int4Weight):
        return torch_matmul.linear_int4(x, weight, bias)
    return torch_matmul.linear(x, weight, bias)


def goes_by_turns(dtype: torch.dtype, rows: int) -> bool:
    """Whether `order_gate_up` gives another order for such rows."""
    return dtype in DTYPES and rows % (2 * BLOCK) == 0


def _silu(out: Tensor) -> Tensor:
    """silu(gate) · up of a product [T, 2I] in the order of `order_gate_up`: [T, I]."""
    if not goes_by_turns(out.dtype, out.shape[1]):
        return cpu_elementwise.silu_and_mul(out)
    gate, up = out.view(len(out), out.shape[1] // (2 * BLOCK), 2, BLOCK).unbind(2)
    return F.silu(gate).mul_(up).flatten(1)
