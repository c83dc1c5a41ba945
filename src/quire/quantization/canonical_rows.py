"""Canonical rows of several weights as one. No torch at import.

Dimension 0 of each tensor of a quantized weight is the outputs, so rows are joined without a look
at what their codes mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.kernels.operands import LoadedWeight, QuantizedWeight

if TYPE_CHECKING:
    from torch import Tensor


def stack_rows(parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """One weight of the rows of several, in order: of QKV, or of gate and up.

    Raises ValueError if they are quantized differently, or order their inputs differently.
    """
    import torch

    first = parts[0]
    if len(parts) == 1:
        return first
    if len({part.spec for part in parts}) != 1:
        raise ValueError("parts of a fused weight are quantized differently")
    orders = [part.tensors["permutation"] for part in parts if part.spec.permuted]
    if not all(torch.equal(orders[0], order) for order in orders):
        raise ValueError("parts of a fused weight order their inputs differently (desc_act)")
    tensors = [part.row_tensors for part in parts]
    stacked: dict[str, Any] = {
        name: torch.cat([own[name] for own in tensors]) for name in tensors[0]
    }
    return replace(first, **stacked)


def scale_rows(weight: LoadedWeight, factors: Tensor) -> LoadedWeight:
    """A weight [N, ...] with rows multiplied by powers of two, float32 [N] or [1] for all.

    Exact within the range of the numbers, or of the scales of codes.
    """
    import torch

    if isinstance(weight, torch.Tensor):
        wide = weight.float() if weight.dtype == torch.float16 else weight
        return wide * _beside(factors, wide)
    own: Any = weight.tensors.get("row_scale")
    if own is not None:
        return replace(weight, row_scale=own * _beside(factors, own))  # type: ignore[call-arg]
    scale: Any = weight.scale
    if scale.dtype == torch.uint8:  # exponents of two; 255 stands for NaN
        moved = (scale + _beside(factors, scale).log2()).clamp(0, 254).to(torch.uint8)
        return replace(weight, scale=torch.where(scale == 255, scale, moved))
    return replace(weight, scale=scale * _beside(factors, scale))


def _beside(factors: Tensor, tensor: Tensor) -> Tensor:
    """Factors of rows, in the type of the rows' numbers if those are not integers."""
    dtype = tensor.dtype if tensor.is_floating_point() else factors.dtype
    return factors.to(tensor.device, dtype).view(-1, *[1] * (tensor.dim() - 1))
