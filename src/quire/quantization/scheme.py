"""Which format each weight of a model gets, by the name of the setting.

No torch: the memory plan asks for bytes before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from quire.core.layer_spec import Role
from quire.errors import ConfigError
from quire.kernels.formats.fp8 import FP8
from quire.kernels.formats.int4 import INT4
from quire.kernels.formats.int8 import INT8
from quire.kernels.formats.mxfp4 import MXFP4
from quire.kernels.formats.nf4 import NF4
from quire.kernels.formats.weight_format import WeightFormat


class FormatChoice(Protocol):
    """Which format each weight of a model has while it runs."""

    @property
    def name(self) -> str:
        """Name in logs."""

    def format_for(self, module: str, role: Role, n: int, k: int) -> WeightFormat | None:
        """The format of a weight [n, k]; None for the model's data type."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Which weights of a model get which weight format.

    formats: by role; the first one that a weight's sizes allow is taken. ignored: patterns of
    module names, as of file names, whose weights stay in the model's data type. devices: types of
    those with kernels for it.
    """

    name: str
    formats: Mapping[Role, tuple[WeightFormat, ...]]
    ignored: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu", "cuda")

    def format_for(self, module: str, role: Role, n: int, k: int) -> WeightFormat | None:
        """The format of a weight [n, k]; None for the model's data type.

        module: name of its module in the model, such as "model.layers.0.mlp.down_proj".
        """
        if any(fnmatchcase(module, pattern) for pattern in self.ignored):
            return None
        return next((each for each in self.formats.get(role, ()) if each.fits(n, k)), None)


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("fp8", {"layer": (FP8,), "head": (FP8,)}),
        Scheme("int8", {"layer": (INT8,), "head": (INT8,)}, devices=("cpu",)),
        Scheme("int4", {"layer": (INT4, INT8), "head": (INT8,)}, devices=("cpu",)),
        Scheme("nf4", {"layer": (NF4, INT8), "head": (INT8,)}, devices=("cpu",)),
        Scheme("mxfp4", {"layer": (MXFP4, INT8), "head": (INT8,)}, devices=("cpu",)),
        Scheme("dequantized", {}),
    )
}


def scheme_of(name: str) -> Scheme | None:
    """The scheme of a setting; None for "none". Raises ConfigError for an unknown name."""
    if name == "none":
        return None
    if name not in SCHEMES:
        raise ConfigError(f"quantization must be one of none, {', '.join(SCHEMES)}, not {name!r}")
    return SCHEMES[name]


def check_device(name: str, device: str) -> None:
    """Raise ConfigError if a setting's scheme has no kernels for a type of device."""
    scheme = scheme_of(name)
    if scheme is not None and device not in scheme.devices:
        others = [s.name for s in SCHEMES.values() if device in s.devices and s.formats]
        raise ConfigError(
            f"quantization is {name!r}, which runs on {' and '.join(scheme.devices)} alone, but "
            f"device is {device!r}; use quantization {' or '.join(others)}, or device='cpu'"
        )
