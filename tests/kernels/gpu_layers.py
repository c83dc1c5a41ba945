"""Two layers of an 8B shape with random weights, run by a GPU's operations as a model's are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.kernels import reference
from quire.kernels.batch_layout import BatchLayout
from quire.kernels.dispatch import kernels_for
from quire.kernels.operands import (
    AttentionParams,
    Fp8Rows,
    Fp8Weight,
    ResidualState,
    RopeWriteKV,
    Rows,
)

HIDDEN, INNER, HEADS, KV_HEADS, DIM, BLOCK = 4096, 14336, 32, 8, 128, 16
DEVICE = torch.device("cuda", 0)


@dataclass(frozen=True)
class Layer:
    """Weights as the operations take them, and the caches."""

    heads: Any
    out: Any
    gate_up: Any
    down: Any
    k_cache: Tensor
    v_cache: Tensor


class GpuLayers:
    """One step of some requests, which may be made again and again with the same results.

    queries, lens: as for `BatchLayout.build`. bits: of weights, keys and values, 8 or 16.
    """

    def __init__(self, queries: Sequence[int], lens: Sequence[int], bits: int) -> None:
        torch.manual_seed(sum(lens))
        most = -(-max(lens) // BLOCK)
        table = np.random.default_rng(0).permutation(most * len(lens)).astype(np.int32)
        self.layout = BatchLayout.build(
            queries, lens, table.reshape(len(lens), most), BLOCK, DEVICE
        )
        kv_dtype = reference.FP8 if bits == 8 else torch.bfloat16
        caches = torch.randn(2, 2, len(table), BLOCK, KV_HEADS, DIM, device=DEVICE).to(kv_dtype)
        self.layers = [
            Layer(
                _weight((HEADS + 2 * KV_HEADS) * DIM, HIDDEN, bits),
                _weight(HIDDEN, HEADS * DIM, bits),
                _weight(2 * INNER, HIDDEN, bits),
                _weight(HIDDEN, INNER, bits),
                *pair,
            )
            for pair in caches
        ]
        self.norm = torch.rand(HIDDEN, device=DEVICE).bfloat16()
        self.hidden = torch.randn(sum(queries), HIDDEN, device=DEVICE).bfloat16()
        self.angles = torch.randn(2, sum(queries), DIM, device=DEVICE).bfloat16()

    def step(self) -> dict[str, Tensor]:
        """What each operation gives."""
        self.layout.forget()
        kernels, norm = kernels_for("cuda"), (self.norm, 1e-5)
        residual = self.hidden.clone()
        stream = ResidualState(residual, kernels.rms_norm(residual, *norm), *norm)
        results: dict[str, Tensor] = {}
        for number, layer in enumerate(self.layers):
            caches = layer.k_cache, layer.v_cache
            rope = RopeWriteKV(DIM, None, *self.angles, *caches, self.layout.slot_mapping)
            query = kernels.qkv_rope_write_kv(stream, layer.heads, None, rope)
            params = AttentionParams(DIM**-0.5)
            seen = kernels.attention(query, *caches, self.layout, params).flatten(1)
            between = kernels.linear_add_norm(seen, layer.out, None, stream.residual, *norm)
            inner = kernels.linear_silu(between, layer.gate_up, None, True)
            stream = kernels.linear_add_norm(inner, layer.down, None, between.residual, *norm)
            made = {"query": query, "attention": seen, "out": between.rows, "inner": inner}
            for name, rows in (made | {"down": stream.rows}).items():
                assert rows is not None
                results |= {f"{name} {number}{part}": t for part, t in _tensors(rows)}
        return results


def _weight(rows: int, columns: int, bits: int) -> Tensor | Fp8Weight:
    plain = torch.randn(rows, columns, device=DEVICE).mul_(columns**-0.5).bfloat16()
    return plain if bits == 16 else Fp8Weight(*reference.quantize_fp8(plain))


def _tensors(rows: Rows) -> list[tuple[str, Tensor]]:
    """The tensors of rows in any format."""
    if isinstance(rows, Fp8Rows):
        return [(" codes", rows.codes), (" scale", rows.scale)]
    return [("", rows)]


def bits_of(tensor: Tensor) -> Tensor:
    """A tensor's bytes, which unlike numbers are equal to themselves."""
    return tensor.view(torch.uint8)
