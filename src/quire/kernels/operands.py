"""What operations take and give besides tensors: the residual stream, norms, operands in FP8."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """bfloat16 activations as `reference.quantize_rows` made them, for the next product."""

    codes: Tensor  # e4m3 [T, K]
    scale: Tensor  # float32 [T, 1]

    def widened(self) -> Tensor:
        """In bfloat16, which holds them exactly: scales are powers of two."""
        return (self.codes.float() * self.scale).to(torch.bfloat16)


Rows = Tensor | Fp8Rows  # [T, K], what a fused product takes


@dataclass(frozen=True, slots=True)
class Normed:
    """A residual stream and its rows behind an RMSNorm, on their way to the next product.

    RMSNorm(r) = r · weight / rms(r), and the division by a row's rms may as well follow that
    product. Where `squares` is given, `rows` are r · weight, still to be divided; else they are the
    norm's result, rounded already if the next product takes it in FP8.
    """

    residual: Tensor  # [T, H], the stream itself
    rows: Rows  # [T, H]
    weight: Tensor  # [H], the norm's
    eps: float
    squares: Tensor | None = None  # float32 [stretches, T], sums of r's squares over the columns


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMSNorms of each head of the query and of the key, before they are turned."""

    query: Tensor  # [D]
    key: Tensor  # [D]
    eps: float


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """A weight as `reference.quantize_fp8` made it."""

    codes: Tensor  # e4m3 [N, K]
    scale: Tensor  # float32 [N]
