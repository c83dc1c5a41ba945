"""Which format each weight of a model gets, by the name of the setting.

No torch: the memory plan asks for bytes before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
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

    formats: by role; the first one that a weight's sizes allow is taken. devices: types of those
    with kernels for it. overrides: patterns of module names, as of file names, and the schemes that
    apply to these modules instead, None for the model's data type; the first that matches decides.
    """

    name: str
    formats: Mapping[Role, tuple[WeightFormat, ...]]
    devices: tuple[str, ...] = ("cpu", "cuda")
    overrides: tuple[tuple[str, Scheme | None], ...] = ()

    def format_for(self, module: str, role: Role, n: int, k: int) -> WeightFormat | None:
        """The format of a weight [n, k]; None for the model's data type.

        module: name of its module in the model, such as "model.layers.0.mlp.down_proj".
        """
        own = self.applying_to(module)
        formats = () if own is None else own.formats.get(role, ())
        return next((each for each in formats if each.fits(n, k)), None)

    def applying_to(self, module: str) -> Scheme | None:
        """This scheme, or the one that overrides it for a module."""
        matching = (each for pattern, each in self.overrides if fnmatchcase(module, pattern))
        return next(matching, self)


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


def scheme_of(name: str, overrides: str | None = None) -> Scheme | None:
    """The scheme of a setting; None for "none" without overrides. Raises ConfigError.

    overrides: `pattern=scheme` of modules, with commas between.
    """
    found = _named(name, "quantization")
    if overrides is None:
        return found
    rules = tuple(_override(rule.strip()) for rule in overrides.split(","))
    return replace(found or Scheme(name, {}), overrides=rules)


def _named(name: str, setting: str) -> Scheme | None:
    if name != "none" and name not in SCHEMES:
        raise ConfigError(f"{setting} must be one of none, {', '.join(SCHEMES)}, not {name!r}")
    return SCHEMES.get(name)


def _override(rule: str) -> tuple[str, Scheme | None]:
    pattern, equals, name = rule.rpartition("=")
    if not (pattern and equals):
        raise ConfigError(
            f"quantization_overrides must hold pattern=format, as in lm_head=int8, not {rule!r}"
        )
    return pattern, _named(name, f"quantization_overrides: the format of {pattern!r}")


def check_patterns(scheme: Scheme, modules: Collection[str]) -> None:
    """Raise ConfigError for an override that matches none of a model's linear layers."""
    for pattern, _ in scheme.overrides:
        if not any(fnmatchcase(module, pattern) for module in modules):
            known = dict.fromkeys(module.rpartition(".")[2] for module in modules)
            raise ConfigError(
                f"quantization_overrides: {pattern!r} matches no linear layer of the model; their "
                f"names are such as {next(iter(modules))!r} and end with {', '.join(known)}"
            )


def check_device(name: str, overrides: str | None, device: str) -> None:
    """Raise ConfigError if a scheme of the settings has no kernels for a type of device."""
    scheme = scheme_of(name, overrides)
    rules = () if scheme is None else scheme.overrides
    for each in (scheme, *(own for _, own in rules)):
        if each is not None and device not in each.devices:
            others = [s.name for s in SCHEMES.values() if device in s.devices and s.formats]
            raise ConfigError(
                f"quantization is {each.name!r}, which runs on {' and '.join(each.devices)} alone, "
                f"but device is {device!r}; use quantization {' or '.join(others)}, or device='cpu'"
            )
