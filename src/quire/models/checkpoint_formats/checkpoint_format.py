"""Storage of quantized weights in a checkpoint, as objects that its config file is read into.

No torch at import. A `CheckpointFormat` says how each module's weight is stored; a `StoredLinear`
which tensors that takes, and what they are: canonical rows, or numbers where no run-time format
holds them. Names of modules are those of the checkpoint, before any are fused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

from quire.kernels.operands import QuantSpec

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.operands import QuantizedWeight

SCALE_DTYPES = ("F16", "BF16", "F32")
_BIAS = 127  # of e8m0
ROW_BITS = (4, 8)
LARGEST_EXPONENT = 60  # of a scale, as a power of two: squares of larger numbers overflow float32


def row_bits(bits: int) -> int:
    """The bits of an integer code in rows, of `ROW_BITS`, where the checkpoint has `bits`."""
    return 4 if bits <= 4 else 8


def scale_shapes(n: int, per: str) -> tuple[tuple[int, ...], ...]:
    """Shapes that the scales of n outputs have. per: "tensor", "channel", or "" for either."""
    found = {"tensor": ((), (1,), (1, 1)), "channel": ((n,), (n, 1))}
    return found[per] if per else found["tensor"] + found["channel"]


def in_float16(scale: Tensor) -> Tensor:
    """Scales in float16. Raises ValueError for those that it cannot hold."""
    found = scale.half()
    if not bool(found.isfinite().all()):
        raise ValueError(
            "a scale is not a number, or beyond those of float16; use quantization='dequantized'"
        )
    return found


def check_exponents(scale: Tensor) -> None:
    """Raise ValueError for exponents of two in bytes (e8m0) that are out of range."""
    if bool((scale > _BIAS + LARGEST_EXPONENT).any()):  # 255: not a number
        raise ValueError("a scale is too large, or not a number; download the file again")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Required types and shape of a quantized weight's tensor. dtypes: safetensors' names.

    shapes: any of these; empty for any at all. needed: whether it has to be there. are_codes:
    whether it is codes, whatever its data type says.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    needed: bool = True
    are_codes: bool = False


@dataclass(frozen=True, slots=True)
class StoredLinear(ABC):
    """Storage of the weight [n, k] of one module. source: where the config file says so.

    config_names: of fields that the config file calls otherwise; "" for those that it has not.
    """

    config_names: ClassVar[Mapping[str, str]] = {}
    source: str

    def problem(self, n: int, k: int) -> str | None:  # noqa: ARG002
        """Why a weight of that size cannot be stored so; None by default: any size will do."""
        return None

    @abstractmethod
    def spec(self, k: int) -> QuantSpec | None:
        """The quantization of its canonical rows; None where no run-time format holds them."""

    @abstractmethod
    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """Its tensors, by their names within the module."""

    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:  # noqa: ARG002
        """Canonical rows from its tensors, for those that have a `spec`.

        Raises ValueError for content that the config file excludes.
        """
        raise ValueError(f"no format keeps codes of {self.source}; use quantization='dequantized'")

    def numbers(self, tensors: Mapping[str, Tensor], dtype: str) -> Tensor:
        """The weight [n, k] that its tensors stand for, in a data type of PyTorch's.

        By default that of its canonical rows, whose inputs are in order, some rows at a time.
        """
        import torch

        from quire.kernels.formats.table import format_of
        from quire.kernels.reference_arrays import few_rows
        from quire.kernels.reference_quantized import PIECE_ELEMENTS
        from quire.kernels.torch_dtypes import torch_dtype
        from quire.quantization.stored_weight import sizes_of

        weight = self.rows(tensors)
        n, k = sizes_of(weight)
        out = torch.empty(n, k, dtype=torch_dtype(dtype), device=weight.codes.device)
        for own in few_rows(n, k, PIECE_ELEMENTS):
            out[own] = format_of(weight.spec).dequantize(weight.map_rows(itemgetter(own)))
        return out

    def order(self, k: int) -> tuple[str, int] | None:  # noqa: ARG002
        """The tensor that has the group of each input, if any, and the inputs of a group."""
        return None

    @property
    def settings(self) -> str:
        """The config file's entry on quantization, for messages: " (group_size=128)", or ""."""
        own = [field.name for field in fields(self) if field.name != "source"]
        named = ((self.config_names.get(name, name), getattr(self, name)) for name in own)
        found = ", ".join(f"{name}={value!r}" for name, value in named if name)
        return f" ({found})" if found else ""


class CheckpointFormat(ABC):
    """Quantization of a checkpoint's weights. It can be compared and hashed.

    name: of the method, as config.json has it. choice: the settings that say which modules are
    quantized, for messages; empty where the tensors say it. otherwise: scheme on CPUs of quantized
    weights whose codes are not kept; "none", and on GPUs: they become numbers of the model's data
    type.
    """

    name: str
    choice: str = ""
    otherwise: str = "none"

    @abstractmethod
    def stored_linear(self, module: str) -> StoredLinear | None:
        """The storage of a linear layer's weight; None where it is not quantized."""

    def stored_table(self, module: str) -> StoredLinear | None:  # noqa: ARG002
        """The storage of an embedding; None where it is not quantized."""
        return None
