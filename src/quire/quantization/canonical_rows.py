"""Canonical rows of several weights as one, and rows in another order. No torch at import.

Dimension 0 of each tensor of a quantized weight is the outputs, so rows move without a look at what
their codes mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.kernels.operands import Int4Weight, QuantizedWeight

if TYPE_CHECKING:
    from torch import Tensor

_BY_OUTPUT = ("codes", "scale", "zeros")


def map_rows(weight: QuantizedWeight, change: Callable[[Tensor], Tensor]) -> QuantizedWeight:
    """A weight whose tensors are those that `change` makes, which keeps dimensions beyond 0."""
    return _with(weight, {name: change(own) for name, own in _row_tensors(weight).items()})


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
    orders = [part.permutation for part in parts if isinstance(part, Int4Weight)]
    known = [order for order in orders if order is not None]
    if not all(torch.equal(known[0], order) for order in known):
        raise ValueError("parts of a fused weight order their inputs differently (desc_act)")
    tensors = [_row_tensors(part) for part in parts]
    stacked = {name: torch.cat([own[name] for own in tensors]) for name in tensors[0]}
    return _with(first, stacked)


def _with(weight: QuantizedWeight, tensors: dict[str, Tensor]) -> QuantizedWeight:
    changes: dict[str, Any] = dict(tensors)
    return replace(weight, **changes)


def _row_tensors(weight: QuantizedWeight) -> dict[str, Tensor]:
    found = {name: getattr(weight, name, None) for name in _BY_OUTPUT}
    return {name: tensor for name, tensor in found.items() if tensor is not None}
