"""Which form each weight of a model gets, by the name of the setting.

No torch: the memory plan asks for bytes before anything is loaded. A form lives in a module of its
own and is imported when a layer needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol

from quire.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.dispatch import Kernels
    from quire.kernels.operands import QuantizedWeight

# What a weight multiplies: the hidden states of a layer, or the last ones to logits. Embeddings are
# looked up, norms and biases are few: they stay in the model's data type.
Role = Literal["layer", "head"]

INT4_GROUP = 32  # numbers of a row that share a scale
_PIECE = 2**22  # elements that are widened to float32 at once


class WeightForm(Protocol):
    """How a weight [N, K] is kept and multiplied; `names` are the tensors that it is kept as."""

    names: tuple[str, ...]

    def make(self, weight: Tensor, kernels: Kernels) -> tuple[Tensor, ...]:
        """The tensors that stay of a weight in the model's data type, one for each name."""

    def operand(self, kept: tuple[Tensor, ...]) -> QuantizedWeight:
        """These as products take them."""

    def multiply(
        self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, kernels: Kernels
    ) -> Tensor:
        """x [T, K] · weightᵀ + bias [N] → [T, N] in x's data type."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A choice of forms, each named by the module of this room that makes it.

    devices: types of those with kernels for it.
    """

    name: str
    forms: dict[Role, str]
    devices: tuple[str, ...] = ("cpu", "cuda")

    def form_name(self, role: Role, k: int, default: str) -> str:
        """The form of weights [N, k] of a role, or the default if they are left as they are."""
        name = self.forms.get(role, default)
        return "int8" if name == "int4" and k % INT4_GROUP else name

    def form(self, role: Role, k: int) -> WeightForm | None:
        """The form of weights [N, k] of a role; None if they are left as they are."""
        if role not in self.forms:
            return None
        name = self.form_name(role, k, "")
        form: WeightForm = import_module(f"quire.quantization.{name}").FORM
        return form

    def weight_bytes(self, role: Role, n: int, k: int, item: int) -> int:
        """Bytes of a weight [n, k] of a role; item: of a number in the model's data type."""
        name = self.form_name(role, k, "")
        return n * (k * item if not name else _row_bytes(name, k))


def _row_bytes(form: str, k: int) -> int:
    """Bytes of k numbers of one output, with their scales: one, and those of four bits."""
    return k // 2 + k // INT4_GROUP * 2 + 4 if form == "int4" else k + 4


def in_pieces(n: int, k: int) -> list[slice]:
    """Cut n rows of k numbers so that a piece is small beside the whole."""
    step = max(1, _PIECE // k)
    return [slice(start, start + step) for start in range(0, n, step)]


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("fp8", {"layer": "fp8", "head": "fp8"}),
        Scheme("int8", {"layer": "int8", "head": "int8"}, devices=("cpu",)),
        Scheme("int4", {"layer": "int4", "head": "int8"}, devices=("cpu",)),
    )
}


def scheme_of(name: str) -> Scheme | None:
    """The scheme of a setting; None for "none". Raises ConfigError for a name that is none."""
    if name == "none":
        return None
    if name not in SCHEMES:
        raise ConfigError(f"quantization is {name!r}; give one of none, {', '.join(SCHEMES)}")
    return SCHEMES[name]


def check_device(name: str, device: str) -> None:
    """Raise ConfigError if a setting's scheme has no kernels for a type of device."""
    scheme = scheme_of(name)
    if scheme is not None and device not in scheme.devices:
        others = [s.name for s in SCHEMES.values() if device in s.devices]
        raise ConfigError(
            f"quantization is {name!r}, which runs on {' and '.join(scheme.devices)} alone, but "
            f"device is {device!r}; give quantization {' or '.join(others)}, or device='cpu'"
        )
