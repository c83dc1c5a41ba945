"""What operations take and give besides tensors: the residual stream, norms, weights in FP8."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Normed:
    """A residual stream and its rows behind an RMSNorm, on their way to the next product.

    RMSNorm(r) = r · weight / rms(r), and the division by a row's rms may as well follow that
    product. Where `squares` is given, `rows` are r · weight, still to be divided; else they are the
    norm's result.
    """

    residual: Tensor  # [T, H], the stream itself
    rows: Tensor  # [T, H]
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
