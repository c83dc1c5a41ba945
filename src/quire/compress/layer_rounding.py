"""From one decoder layer in float32 to the codes of its linear layers, by a run's recipe."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from quire.compress.checkpoint_layout import CheckpointLayout
from quire.compress.integer_grid import IntegerGrid
from quire.compress.model_parts import linears_of
from quire.compress.quantized_rows import CodedRows, nearest, nearest_fp8
from quire.kernels.torch_dtypes import torch_dtype
from quire.layers.linear_layers import LinearBase
from quire.models.families.llama import LlamaDecoderLayer

Coded = dict[str, CodedRows]  # by the name of a linear layer in its decoder layer


def round_to_nearest(
    layer: LlamaDecoderLayer, layout: CheckpointLayout, chosen: Collection[str]
) -> Coded:
    """The nearest codes of the chosen linear layers, which from then on multiply by these."""
    linears = linears_of(layer)
    return {name: _rounded(linears[name], layout) for name in linears if name in chosen}


def _rounded(linear: LinearBase, layout: CheckpointLayout) -> CodedRows:
    weight = weight_of(linear)
    if layout.packing == "float-quantized":
        rows: CodedRows = nearest_fp8(weight, torch_dtype(layout.scale_dtype))
    else:
        rows = nearest(weight, grid_of(layout))
    set_weight(linear, rows.numbers())
    return rows


def grid_of(layout: CheckpointLayout) -> IntegerGrid:
    """The grid of a layout with integers."""
    return IntegerGrid(layout.bits, layout.group, layout.symmetric, layout.scale_dtype)


def weight_of(linear: LinearBase) -> Tensor:
    """The weight [N, K] that a linear layer multiplies by."""
    operand = linear.method.operand
    assert isinstance(operand, Tensor)
    return operand


def set_weight(linear: LinearBase, weight: Tensor) -> None:
    """Let a linear layer multiply by another weight [N, K]."""
    linear.method.operand = weight
