"""Records that operations take or return: residual state, RoPE, attention, quantized weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """Activations in eight bits with a scale for each row.

    They stand for bfloat16 rows on their way to a linear layer whose weight has the same codes.
    """

    codes: Tensor  # [T, K]
    scale: Tensor  # float32 [T, 1]

    def dequantize(self) -> Tensor:
        """The rows in bfloat16 [T, K]."""
        return (self.codes.float() * self.scale).bfloat16()


class Fp8Rows(RoundedRows):
    """Rows in e4m3, as `reference.quantize_rows` makes them; exact in bfloat16, too, as scales are
    powers of two."""

    __slots__ = ()


class Int8Rows(RoundedRows):
    """Rows in signed bytes, as `reference.round_int8` makes them."""

    __slots__ = ()


Rows: TypeAlias = "Tensor | RoundedRows"  # [T, K], the input of a fused linear layer


@dataclass(frozen=True, slots=True)
class ResidualState:
    """The residual stream between two linear layers, with what is known of its RMSNorm.

    RMSNorm(r) = r · weight / rms(r). The next linear layer can divide its results by rms(r) instead
    of its inputs. Where `squares` is given, `rows` are r · weight and the division is left to that
    layer. Otherwise `rows` are the norm's result, in FP8 if the next layer's weight is; or None,
    and the next layer computes the norm itself (on CPUs).
    """

    residual: Tensor  # [T, H]
    rows: Rows | None  # [T, H]
    weight: Tensor  # [H], of the norm
    eps: float
    squares: Tensor | None = None  # float32 [column tiles, T], sums of r² over each tile's columns


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Weights of the RMSNorms over each query head and each key head, before RoPE."""

    query: Tensor  # [D]
    key: Tensor  # [D]
    eps: float


@dataclass(frozen=True, slots=True)
class KVScales:
    """Scales of a layer's keys and values in int8, where these are not in the codes' rows.

    A number is its code times the scale of its token and head.
    """

    keys: Tensor  # bfloat16 [blocks, size, Hkv]
    values: Tensor


@dataclass(frozen=True, slots=True)
class RopeWriteKV:
    """Operands for a step's heads: RoPE of queries and keys, keys and values to the cache."""

    head_dim: int
    norms: HeadNorms | None  # before RoPE, in model families that have them
    cos: Tensor  # [T, R], as `reference.rotary` reads them
    sin: Tensor
    k_cache: Tensor  # [blocks, size, Hkv, D], as `write_kv` takes it
    v_cache: Tensor
    slots: Tensor  # int64 [T], of the cache; negative: not written
    scales: KVScales | None = None

    def operands(self, fused: Tensor) -> tuple[Any, ...]:
        """The arguments of `rope_write_kv`. fused: [T, (Hq + 2 Hkv) · D], all heads of a token."""
        heads = fused.view(len(fused), -1, self.head_dim)
        found = heads, self.norms, self.cos, self.sin, self.k_cache, self.v_cache, self.slots
        return found if self.scales is None else (*found, self.scales)


EARLY_LAUNCH_BYTES = 8  # of attention before weights whose format says nothing else


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """The parameters of one layer's attention, the same in all steps.

    soft_cap: scores become soft_cap · tanh(score / soft_cap), before the mask. sinks: one logit for
    each query head, which adds to the denominator of its softmax and has no value.
    early_launch_bytes: requests times bytes of a number in the cache, up to which the kernel after
    a decode's is launched while it runs, on a GPU; a `WeightFormat` says how many.
    """

    scale: float  # of query · key
    window: int | None = None  # the last tokens that a query sees, itself included; None for all
    soft_cap: float | None = None
    sinks: Tensor | None = None  # [Hq]
    early_launch_bytes: int = EARLY_LAUNCH_BYTES

    def __post_init__(self) -> None:
        assert self.window is None or self.window > 0
        assert self.soft_cap is None or self.soft_cap > 0.0

    @property
    def is_plain(self) -> bool:
        """Whether it has neither a soft cap nor sinks, which few kernels implement."""
        return self.soft_cap is None and self.sinks is None


@dataclass(frozen=True, slots=True)
class QuantSpec:
    """Quantization of a weight's rows, as metadata; kernels/formats/ has what follows.

    codes: the format's name in `FORMATS` of kernels/formats/table.py.
    """

    codes: str
    group: int = 0  # inputs that share a scale; 0: one scale for each output
    zeros: bool = False  # whether each group has a zero point
    hadamard: bool = False  # whether the weight, and inputs with it, are Hadamard-rotated
    permuted: bool = False  # whether its inputs are in an order of their own (GPTQ's act-order)


def _tensors_of(weight: Any) -> dict[str, Tensor]:
    """The tensors among a weight's fields, by name."""
    found = {field.name: getattr(weight, field.name) for field in fields(weight)}
    return {
        name: own for name, own in found.items() if not isinstance(own, bool | int | str | None)
    }


@dataclass(frozen=True, slots=True)
class QuantizedWeight(ABC):
    """Canonical rows of a quantized weight [N, K]: dimension 0 is the outputs."""

    codes: Tensor  # [N, K / codes per byte]
    scale: Tensor  # [N] or [N, K / group]

    @property
    @abstractmethod
    def spec(self) -> QuantSpec:
        """The quantization of the weight's rows."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by the names under which they are stored."""
        return _tensors_of(self)

    @property
    def row_tensors(self) -> dict[str, Tensor]:
        """Its tensors whose dimension 0 is the outputs, by name."""
        return {name: own for name, own in self.tensors.items() if name != "permutation"}

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The weight with `change` of each tensor's rows: selected, or in another order."""
        changes: dict[str, Any] = {name: change(own) for name, own in self.row_tensors.items()}
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Fp8Weight(QuantizedWeight):
    """A weight in FP8, as `reference.quantize_fp8` makes it: codes · scale.

    codes: e4m3 [N, K]. scale: float32 [N]. rounds: whether inputs are rounded to FP8, too, where
    the device multiplies FP8 by FP8.
    """

    rounds: bool = True

    @property
    def spec(self) -> QuantSpec:
        """See `QuantizedWeight`."""
        return QuantSpec("fp8" if self.rounds else "fp8_a16")


@dataclass(frozen=True, slots=True)
class Int8Weight(QuantizedWeight):
    """A weight in signed bytes: codes · scale, Hadamard-rotated or not.

    Where it is rotated, inputs of the linear operation are rotated by the same matrices. codes:
    int8 [N, K]. scale: float32 [N]. rounds: whether inputs are rounded to bytes, too.
    """

    hadamard: bool = True
    rounds: bool = True

    @property
    def spec(self) -> QuantSpec:
        """See `QuantizedWeight`."""
        return QuantSpec("int8" if self.rounds else "int8_a16", hadamard=self.hadamard)


@dataclass(frozen=True, slots=True)
class Int4Weight(QuantizedWeight):
    """A weight in four bits: (code - zero) · scale, where `group` inputs in a row share both.

    Where it is Hadamard-rotated, inputs of the linear operation are rotated by the same matrices.
    codes: uint8 [N, K / 2], of two the first in the lower four bits. scale: float16 [N, K / group].
    permutation: the weight's input i is x's column permutation[i]; None where that is i.
    """

    zeros: Tensor | None  # uint8 [N, K / group], each 0..15; None where all are 8
    group: int = 32
    hadamard: bool = False  # then without `zeros`
    permutation: Tensor | None = None  # int32 [K]

    @property
    def spec(self) -> QuantSpec:
        """See `QuantizedWeight`."""
        has_zeros, permuted = self.zeros is not None, self.permutation is not None
        return QuantSpec("int4", self.group, has_zeros, self.hadamard, permuted)


@dataclass(frozen=True, slots=True)
class CodebookWeight(QuantizedWeight):
    """A weight whose four-bit codes are indices of 16 numbers: codebook[code] · scale.

    codes: uint8 [N, K / 2], of two the first in the lower four bits. scale [N, K / group]: float16
    in NF4; uint8 in MXFP4, exponents of two with 127 added (e8m0); e4m3 in NVFP4.
    """

    codebook: str  # "nf4", "mxfp4" or "nvfp4"
    group: int
    row_scale: Tensor | None = None  # float32 [N], in NVFP4: multiplies `scale`

    @property
    def spec(self) -> QuantSpec:
        """See `QuantizedWeight`."""
        return QuantSpec(self.codebook, self.group)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight of any format, packed for the native CPU library. Only its kernels can read it.

    packed is a tensor, or a NumPy array where there is no PyTorch; its layout depends on `format`.
    permutation: as in `Int4Weight`.
    """

    packed: Any
    outputs: int
    inputs: int
    group: int  # inputs that share a scale, of 4-bit formats
    format: int  # `NativeFormat` in kernels/formats/native_format.py
    permutation: Any = None  # int32 [inputs]

    @property
    def tensors(self) -> dict[str, Any]:
        """Its tensors or arrays by the names under which they are stored."""
        found = {"packed": self.packed, "permutation": self.permutation}
        return {name: own for name, own in found.items() if own is not None}


class GpuWords:
    """A weight [N, K] whose codes are in words, as kernels of a GPU read them."""

    __slots__ = ()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by the names of its fields."""
        return _tensors_of(self)


@dataclass(frozen=True, slots=True)
class Int4Words(GpuWords):
    """A four-bit weight [N, K] as kernels of a GPU read it, see kernels/triton/ops/int4_weight.py.

    K stands for the next multiple of 256: columns beyond the weight's have scales of 0.
    """

    words: Tensor  # int32 [N, K / 8]
    scale: Tensor  # [K / group, N]: float16, or bytes: in MXFP4 exponents, in NVFP4 e4m3
    zeros: Tensor | None  # uint8 [K / group, N]; None where all are 8
    row_scale: Tensor  # float32 [N], for its numbers in FP8
    group: int  # 32, 64 or 128; 16 in NVFP4
    inputs: int
    permutation: Tensor | None = None  # as in `Int4Weight`
    codebook: str | None = None  # as in `CodebookWeight`; None for integers
    by_bits: bool = False  # e2m1 whose scales allow numbers to be made of their bits
    output_scale: Tensor | None = None  # float32 [N], `CodebookWeight.row_scale`: multiplies sums


# a weight as it is loaded: rows in the model's data type, or codes made elsewhere
LoadedWeight: TypeAlias = "Tensor | QuantizedWeight"
# what `linear` takes: in the model's data type, in canonical rows, or packed for a device
LinearWeight: TypeAlias = "Tensor | QuantizedWeight | PackedWeight | GpuWords"
