"""Scales moved from the inputs of a linear layer into what makes these inputs, by structure.

W x = (W · s) (x / s) for any s > 0 by input. x / s is exact where x comes from a norm, whose weight
is divided; from values, which attention only sums with weights; or from the up half of a gated MLP.
(Xiao et al., 2023, section 4; Lin et al., 2024, section 3.2)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.compress.model_parts import linears_of, weight_of
from quire.core.layer_spec import LayerSpec, LinearSpec, NormSpec
from quire.layers.norm import RMSNorm
from quire.models.families.llama import LlamaDecoderLayer


@dataclass(frozen=True, slots=True)
class Folding:
    """The source of a linear layer's input: a norm, or a part of another linear layer.

    last: the last linear layer of its block. repeats: how many times each head of that part is read
    (grouped-query attention). head: its size.
    """

    linear: LinearSpec
    last: LinearSpec
    norm: NormSpec | None = None
    source: LinearSpec | None = None
    part: str = ""
    repeats: int = 1
    head: int = 1

    def shared(self, scale: Tensor) -> Tensor:
        """A scale [K] that is the same for all inputs with one source: their geometric mean."""
        if self.repeats == 1:
            return scale
        heads = torch.unflatten(scale.log(), 0, (-1, self.repeats, self.head))
        return heads.mean(1, keepdim=True).expand_as(heads).flatten().exp()

    def apply(self, layer: LlamaDecoderLayer, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """Move a scale [K], and return the one that was moved.

        A norm's weight is rounded to the checkpoint's data type first, so that nothing is lost.
        """
        linears = linears_of(layer)
        if self.norm is not None:
            scale = _divide_norm(layer, self.norm, scale, dtype)
        else:
            assert self.source is not None
            start, end = self.source.rows_of(self.part)
            own = torch.unflatten(scale, 0, (-1, self.repeats, self.head))[:, 0].flatten()
            source = linears[self.source.module]
            weight_of(source)[start:end] /= own[:, None]
            if source.bias is not None:
                source.bias.data[start:end] /= own
        weight_of(linears[self.linear.module]).mul_(scale)
        return scale


def foldings(spec: LayerSpec, chosen: Collection[str]) -> list[Folding]:
    """The foldings of a decoder layer whose linear layer and source are both chosen modules."""
    attention, mlp = spec.attention, spec.dense_mlp
    repeats = attention.num_heads // attention.num_kv_heads
    found = (
        Folding(attention.qkv, attention.output, norm=spec.pre_attention_norm),
        Folding(
            attention.output, attention.output, source=attention.qkv, part="v", repeats=repeats,
            head=attention.value_dim,
        ),
        Folding(mlp.gate_up, mlp.down, norm=spec.pre_mlp_norm),
        Folding(mlp.down, mlp.down, source=mlp.gate_up, part="up"),
    )  # fmt: skip
    return [
        each
        for each in found
        if each.linear.module in chosen and (each.source is None or each.source.module in chosen)
    ]


def _divide_norm(
    layer: LlamaDecoderLayer, spec: NormSpec, scale: Tensor, dtype: torch.dtype
) -> Tensor:
    """Divide a norm's weight [K]; returns by how much it is less, once it is rounded."""
    norm = layer.get_submodule(spec.module)
    assert isinstance(norm, RMSNorm)
    before, added = norm.weight.detach().clone(), float(spec.adds_one)
    after = (before / scale - added).to(dtype).float() + added
    usable = (before != 0.0) & (after != 0.0) & after.isfinite()
    after = torch.where(usable, after, before)
    norm.weight.data.copy_(after)
    return torch.where(usable, before / after, 1.0)
