"""Linear operations on the CPU by the native library, fused with norm, SiLU and residual.

Owns the packing of 32- and 16-bit weights (quantized_linear.py that of others) and which weights
`native/linear.h` serves; the rest (float16, odd sizes, FP8) goes to PyTorch's operations, see
torch_matmul.py. There is one copy of a weight, whatever the number of rows. A norm is left to the
linear operation that reads it; SiLU and the sum with the residual are made where sums are stored.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.kernels import reference
from quire.kernels.cpu import native, quantized_linear, tensor_ops, torch_matmul
from quire.kernels.cpu.native_structs import LINEAR_ARGS, Epilogue
from quire.kernels.cpu.tensor_ops import TENSOR_DTYPES
from quire.kernels.formats.native_format import BLOCK, NativeFormat, packs_floats
from quire.kernels.operands import LinearWeight, PackedWeight, QuantizedWeight, ResidualState, Rows


def pack(weight: LinearWeight) -> LinearWeight:
    """Twin of `reference.pack`: packed as quire_cpu.h describes, where sizes and type allow."""
    if isinstance(weight, QuantizedWeight):
        return quantized_linear.pack_rows(weight)
    if not isinstance(weight, Tensor):
        return weight
    n, k = quantized_linear.size_of(weight)
    if not packs_floats(n, k) or weight.dtype not in TENSOR_DTYPES:
        return quantized_linear.in_rows(weight)
    return pack_floats(weight)


def pack_floats(weight: Tensor) -> PackedWeight:
    """A weight [N, K] natively packed, or one as `order_gate_up` gives it.

    packed: [N / 16, K, 16] in float32, [N / 16, K / 2, 16, 2] in bfloat16.
    """
    n, k = quantized_linear.size_of(weight)
    source, half = quantized_linear.source_of(weight)
    wide = weight.dtype == torch.float32
    out = weight.new_empty(n // BLOCK, *((k, BLOCK) if wide else (k // 2, BLOCK, 2)))
    found = NativeFormat.FLOAT32 if wide else NativeFormat.BFLOAT16
    tensor_ops.pack_native({"codes": source}, out, n=n, k=k, half=half, layout=found)
    return PackedWeight(out, n, k, 0, found)


def embedding(input_ids: Tensor, weight: LinearWeight) -> Tensor:
    """Twin of `reference.embedding`: a token's numbers are all in one block of a packed weight."""
    if isinstance(weight, Tensor):
        return F.embedding(input_ids, weight)
    assert isinstance(weight, PackedWeight)
    packed: Tensor = weight.packed
    block, row = input_ids // BLOCK, input_ids % BLOCK
    if weight.format == NativeFormat.FLOAT32:
        return packed[block, :, row]
    pairs = packed.view(torch.int32).squeeze(-1)  # [V / 16, H / 2, 16]
    return pairs[block, :, row].view(torch.bfloat16)


def order_gate_up(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Twin of `reference.order_gate_up`: 16 rows of each interleaved, where sizes allow.

    A weight becomes a view [I / 16, 2, 16, K], which `pack` and `quantize` read without a copy; a
    bias stays [2I].
    """
    if not is_interleaved(dtype, len(weight)):
        return weight
    if weight.dim() == 2 and weight.is_contiguous():
        return quantized_linear.interleaved(weight)
    return quantized_linear.interleaved(weight[:, None]).flatten()


def pad_rows(weight: Tensor) -> Tensor:
    """Twin of `reference.pad_rows`: to whole blocks, of types that are packed."""
    missing = -len(weight) % BLOCK
    return (
        F.pad(weight, (0, 0, 0, missing)) if missing and weight.dtype in TENSOR_DTYPES else weight
    )


def linear(x: Rows, weight: LinearWeight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear`."""
    assert isinstance(x, Tensor)  # GPUs alone make others
    if not isinstance(weight, PackedWeight):
        return torch_matmul.linear(x, weight, bias)
    if x.dtype not in TENSOR_DTYPES:  # float16, which bytes may be made of as well
        return linear(x.float(), weight, None if bias is None else bias.float()).to(x.dtype)
    out = x.new_empty(len(x), weight.outputs)
    _linear(x, weight, bias, out, Epilogue.STORE)
    return out


def normalized_rows(x: ResidualState) -> Tensor:
    """Twin of `reference.normalized_rows`."""
    if x.squares is None and isinstance(x.rows, Tensor):
        return x.rows
    return tensor_ops.rms_norm(x.residual, x.weight, x.eps)


def rms_norm_linear(x: ResidualState, weight: LinearWeight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.rms_norm_linear`."""
    if not isinstance(weight, PackedWeight) or x.residual.dtype not in TENSOR_DTYPES:
        return linear(normalized_rows(x), weight, bias)
    out = x.residual.new_empty(len(x.residual), weight.outputs)
    _linear(x, weight, bias, out, Epilogue.STORE)
    return out


def linear_silu(
    x: ResidualState,
    weight: LinearWeight,
    bias: Tensor | None,
    rounds: bool = True,  # noqa: ARG001
) -> Tensor:
    """Twin of `reference.linear_silu`."""
    return _linear_act(x, weight, bias, Epilogue.SILU)


def linear_gelu(x: ResidualState, weight: LinearWeight, bias: Tensor | None) -> Tensor:
    """Twin of `reference.linear_gelu`."""
    return _linear_act(x, weight, bias, Epilogue.GELU)


def _linear_act(
    x: ResidualState, weight: LinearWeight, bias: Tensor | None, epilogue: Epilogue
) -> Tensor:
    """act(gate) · up of the normalised residual, in one call where the weight is packed."""
    if isinstance(weight, PackedWeight) and is_interleaved(x.residual.dtype, weight.outputs):
        out = x.residual.new_empty(len(x.residual), weight.outputs // 2)
        _linear(x, weight, bias, out, epilogue)
        return out
    act = reference.silu_and_mul if epilogue == Epilogue.SILU else reference.gelu_and_mul
    return act(_in_halves(rms_norm_linear(x, weight, bias)))


def linear_add_norm(
    x: Rows,
    weight: LinearWeight,
    bias: Tensor | None,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
) -> ResidualState:
    """Twin of `reference.linear_add_norm`; adds to the residual in place.

    The norm is left to the next linear operation.
    """
    if isinstance(weight, PackedWeight) and isinstance(x, Tensor) and x.dtype in TENSOR_DTYPES:
        residual = residual.contiguous()
        _linear(x, weight, bias, residual, Epilogue.ADD)
    else:
        residual = residual.add_(linear(x, weight, bias))
    return ResidualState(residual, None, norm_weight, eps)


def _linear(
    x: Tensor | ResidualState,
    weight: PackedWeight,
    bias: Tensor | None,
    out: Tensor,
    epilogue: Epilogue,
) -> None:
    """Call the library: x [T, K], normalised on the way in if it is a residual's state."""
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
            rows.data_ptr(), norm_weight, weight.packed.data_ptr(),
            *(0 if t is None else t.data_ptr() for t in (bias, out, weight.permutation)),
            len(rows), weight.outputs, rows.shape[1], eps,
            weight.group, TENSOR_DTYPES[rows.dtype], weight.format, epilogue,
            native.num_threads(),
        )
    )  # fmt: skip


def is_interleaved(dtype: torch.dtype, rows: int) -> bool:
    """Whether `order_gate_up` interleaves a weight with this many rows."""
    return dtype in TENSOR_DTYPES and rows % (2 * BLOCK) == 0


def _in_halves(out: Tensor) -> Tensor:
    """All gates, then all ups, of columns [T, 2I] in the order of `order_gate_up`."""
    if not is_interleaved(out.dtype, out.shape[1]):
        return out
    return torch.unflatten(out, 1, (-1, 2, BLOCK)).transpose(1, 2).flatten(1)
