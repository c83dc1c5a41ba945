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
    from quire.kernels.operands import Fp8Weight

# What a weight multiplies: the hidden states of a layer, or the last ones to logits. Embeddings are
# looked up, norms and biases are few: they stay in the model's data type.
Role = Literal["layer", "head"]


class WeightForm(Protocol):
    """How a weight [N, K] is kept and multiplied; `names` are the tensors that it is kept as."""

    names: tuple[str, ...]

    def make(self, weight: Tensor, kernels: Kernels) -> tuple[Tensor, ...]:
        """The tensors that stay of a weight in the model's data type, one for each name."""

    def multiply(
        self, x: Tensor, kept: tuple[Tensor, ...], bias: Tensor | None, kernels: Kernels
    ) -> Tensor:
        """x [T, K] · weightᵀ + bias [N] → [T, N] in x's data type."""

    def operand(self, kept: tuple[Tensor, ...]) -> Fp8Weight:
        """The weight as fused products take it."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A choice of forms, each named by the module of this room that makes it."""

    name: str
    forms: dict[Role, str]

    def form(self, role: Role) -> WeightForm | None:
        """The form of weights of a role; None if they are left as they are."""
        if role not in self.forms:
            return None
        form: WeightForm = import_module(f"quire.quantization.{self.forms[role]}").FORM
        return form

    def weight_bytes(self, role: Role, n: int, k: int, item: int) -> int:
        """Bytes of a weight [n, k] of a role; item: of a number in the model's data type."""
        if role not in self.forms:
            return n * k * item
        bits, bytes_per_row = _SIZES[self.forms[role]]
        return n * (k * bits // 8 + bytes_per_row)


# form → bits of a number, bytes that a row has besides
_SIZES = {"fp8": (8, 4)}

SCHEMES = {scheme.name: scheme for scheme in (Scheme("fp8", {"layer": "fp8", "head": "fp8"}),)}


def scheme_of(name: str) -> Scheme | None:
    """The scheme of a setting; None for "none". Raises ConfigError for a name that is none."""
    if name == "none":
        return None
    if name not in SCHEMES:
        raise ConfigError(f"quantization is {name!r}; give one of none, {', '.join(SCHEMES)}")
    return SCHEMES[name]
