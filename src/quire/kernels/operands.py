"""What operations take and give besides tensors: the residual stream, norms, weights by form."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """bfloat16 activations as `reference.quantize_rows` made them, for the next product."""

    codes: Tensor  # e4m3 [T, K]
    scale: Tensor  # float32 [T, 1]

    def widened(self) -> Tensor:
        """In bfloat16, which holds them exactly: scales are powers of two."""
        return (self.codes.float() * self.scale).bfloat16()


Rows: TypeAlias = "Tensor | Fp8Rows"  # [T, K], what a fused product takes


@dataclass(frozen=True, slots=True)
class ResidualState:
    """A residual stream and its rows behind an RMSNorm, on their way to the next product.

    RMSNorm(r) = r · weight / rms(r), and the division by a row's rms may as well follow that
    product. Where `squares` is given, `rows` are r · weight, still to be divided; else they are the
    norm's result, rounded already if the next product takes it in FP8, or None: that
    product's business.
    """

    residual: Tensor  # [T, H], the stream itself
    rows: Rows | None  # [T, H]
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
class RopeWriteKV:
    """What becomes of a step's heads: queries and keys are turned, keys and values written."""

    head_dim: int
    norms: HeadNorms | None  # before they are turned, in families that have them
    cos: Tensor  # [T, R], as `reference.rotary` reads them
    sin: Tensor
    k_cache: Tensor  # [blocks, size, Hkv, D], as `write_kv` takes it
    v_cache: Tensor
    slots: Tensor  # int64 [T], negative for those not to be written

    def operands(self, fused: Tensor) -> tuple[Any, ...]:
        """What `rope_write_kv` takes, for heads that lie side by side: [T, (Hq + 2 Hkv) · D]."""
        heads = fused.view(len(fused), -1, self.head_dim)
        caches = self.k_cache, self.v_cache, self.slots
        return heads, self.norms, self.cos, self.sin, *caches


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """How one layer's attention turns scores into weights, in all steps.

    soft_cap: scores become soft_cap · tanh(score / soft_cap), before the mask. sinks: one logit for
    each query head, which adds to the denominator of its softmax and has no value.
    """

    scale: float  # of query · key
    window: int | None = None  # the last tokens that a query sees, itself included; None for all
    soft_cap: float | None = None
    sinks: Tensor | None = None  # [Hq]

    def __post_init__(self) -> None:
        assert self.window is None or self.window > 0
        assert self.soft_cap is None or self.soft_cap > 0.0

    @property
    def is_plain(self) -> bool:
        """Whether it has neither a soft cap nor sinks, which few kernels implement."""
        return self.soft_cap is None and self.sinks is None

    @property
    def kind(self) -> Hashable:
        """What decides which kernels are launched: equal for layers that launch the same ones."""
        return self.scale, self.window, self.soft_cap, self.sinks is not None


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """A weight as `reference.quantize_fp8` made it."""

    codes: Tensor  # e4m3 [N, K]
    scale: Tensor  # float32 [N]


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight as `reference_integers.quantize_int8` made it, or as `prepare_int8` laid it out."""

    codes: Tensor  # int8 [N, K]
    scale: Tensor  # float32 [N]


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A weight as `reference_integers.quantize_int4` made it, or as `prepare_int4` laid it out.

    weight[n, k] ≈ (code - zero) · scale, where `group` codes that follow one another share both.
    Where it is `spread`, that is the weight behind Hadamard matrices, and its rows have to be, too.
    """

    codes: Tensor  # uint8 [N, K / 2]: of two codes the first is in the lower four bits
    scale: Tensor  # float16 [N, K / group]
    zeros: Tensor | None  # uint8 [N, K / group], each 0..15; None where all are 8
    group: int = 32
    spread: bool = False  # then without `zeros`


QuantizedWeight = Fp8Weight | Int8Weight | Int4Weight
