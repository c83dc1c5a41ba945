"""Choice of each weight's format, by the name of the setting.

No torch: the memory plan asks for bytes before anything is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Protocol

import msgspec

from quire.core.layer_spec import Role
from quire.errors import ConfigError
from quire.kernels.formats.fp4 import MXFP4
from quire.kernels.formats.fp8 import FP8, FP8_A16
from quire.kernels.formats.int4 import INT4, INT4_GROUP_64
from quire.kernels.formats.int8 import INT8, INT8_A16, INT8_GROUP_64, INT8_UNROTATED
from quire.kernels.formats.nf4 import NF4
from quire.kernels.formats.weight_format import WeightFormat


class FormatChoice(Protocol):
    """The choice of a run-time format for each weight of a model."""

    @property
    def name(self) -> str:
        """Name in logs."""

    def format_for(self, module: str, role: Role, n: int, k: int) -> WeightFormat | None:
        """The format of a weight [n, k]; None for the model's data type."""


class Scheme(msgspec.Struct, frozen=True):
    """A model's weight formats, by role and module name.

    formats: by role; the first one that a weight's sizes allow is taken. overrides: patterns of
    module names, as of file names, and the schemes that apply to these modules instead, None for
    the model's data type; the first that matches decides. A head among them has the format of
    layers, where the scheme itself would give it more bits.
    """

    name: str
    formats: Mapping[Role, tuple[WeightFormat, ...]]
    overrides: tuple[tuple[str, Scheme | None], ...] = ()

    def format_for(self, module: str, role: Role, n: int, k: int) -> WeightFormat | None:
        """The format of a weight [n, k]; None for the model's data type.

        module: name of its module in the model, such as "model.layers.0.mlp.down_proj".
        """
        own = self.applying_to(module)
        if own is not self and role == "head":  # named, and so not left to the scheme's choice
            role = "layer"
        formats = () if own is None else own.formats.get(role, ())
        return next((each for each in formats if each.fits(n, k)), None)

    @property
    def choices(self) -> list[WeightFormat]:
        """Formats that it may choose, those of overrides included."""
        own = [each for formats in self.formats.values() for each in formats]
        others = (each.choices for _, each in self.overrides if each is not None)
        return own + [each for choices in others for each in choices]

    @property
    def codes(self) -> set[str]:
        """Formats that it may choose, by `QuantSpec.codes`."""
        return {each.spec.codes for each in self.choices}

    def applying_to(self, module: str) -> Scheme | None:
        """This scheme, or the one that overrides it for a module."""
        matching = (each for pattern, each in self.overrides if fnmatchcase(module, pattern))
        return next(matching, self)


_FP8 = Scheme("fp8", {"layer": (FP8,), "head": (FP8,)})
_NUMBERS = Scheme("dequantized", {})
SCHEMES: dict[str, dict[str, Scheme]] = {  # by setting, then by the type of a device
    "fp8": {"cpu": _FP8, "cuda": _FP8},
    "fp8_w8a16": {
        "cpu": Scheme("fp8_w8a16", {"layer": (FP8,), "head": (FP8,)}),  # rounds no activations
        "cuda": Scheme("fp8_w8a16", {"layer": (FP8_A16,), "head": (FP8_A16,)}),
    },
    "int8": {
        "cpu": Scheme("int8", {"layer": (INT8,), "head": (INT8,)}),
        "cuda": Scheme("int8", {"layer": (INT8_UNROTATED,), "head": (INT8_UNROTATED,)}),
    },
    "w8a16": {
        "cpu": Scheme("w8a16", {"layer": (INT8_A16,), "head": (INT8_A16,)}),
        "cuda": Scheme("w8a16", {"layer": (INT8_GROUP_64,), "head": (INT8_GROUP_64,)}),
    },
    "int4": {
        "cpu": Scheme("int4", {"layer": (INT4, INT8), "head": (INT8,)}),
        "cuda": Scheme("int4", {"layer": (INT4_GROUP_64, FP8), "head": (FP8,)}),
    },
    "nf4": {
        "cpu": Scheme("nf4", {"layer": (NF4, INT8), "head": (INT8,)}),
        "cuda": Scheme("nf4", {"layer": (NF4, FP8), "head": (FP8,)}),
    },
    "mxfp4": {
        "cpu": Scheme("mxfp4", {"layer": (MXFP4, INT8), "head": (INT8,)}),
        "cuda": Scheme("mxfp4", {"layer": (MXFP4, FP8), "head": (FP8,)}),
    },
    "dequantized": {"cpu": _NUMBERS, "cuda": _NUMBERS},
}


def scheme_of(name: str, device: str, overrides: str | None = None) -> Scheme | None:
    """The scheme of a setting; None for "none" without overrides. Raises ConfigError.

    device: its type. overrides: `pattern=scheme` of modules, with commas between.
    """
    found = _named(name, "quantization", device)
    if overrides is None:
        return found
    rules = tuple(_override(rule.strip(), device) for rule in overrides.split(","))
    return msgspec.structs.replace(found or Scheme(name, {}), overrides=rules)


def _named(name: str, setting: str, device: str) -> Scheme | None:
    if name == "none":
        return None
    if name not in SCHEMES:
        raise ConfigError(f"{setting} must be one of none, {', '.join(SCHEMES)}, not {name!r}")
    return SCHEMES[name][device]


def _override(rule: str, device: str) -> tuple[str, Scheme | None]:
    pattern, equals, name = rule.rpartition("=")
    if not (pattern and equals):
        raise ConfigError(
            f"quantization_overrides must hold pattern=format, as in lm_head=int8, not {rule!r}"
        )
    return pattern, _named(name, f"quantization_overrides: the format of {pattern!r}", device)


def check_patterns(scheme: Scheme, modules: Collection[str]) -> None:
    """Raise ConfigError for an override that matches none of a model's linear layers."""
    for pattern, _ in scheme.overrides:
        if not any(fnmatchcase(module, pattern) for module in modules):
            known = dict.fromkeys(module.rpartition(".")[2] for module in modules)
            raise ConfigError(
                f"quantization_overrides: {pattern!r} matches no linear layer of the model; their "
                f"names are such as {matching_name(pattern, modules)}, and end with "
                f"{', '.join(known)}"
            )


def matching_name(pattern: str, modules: Collection[str]) -> str:
    """A module and a pattern that matches it, for the message on a pattern that matches none.

    They have the last of its words that a module has: of `down_proj` and of the regular expression
    `re:.*down_proj`, '*.down_proj'.
    """
    words = re.findall(r"\w+", pattern.removeprefix("re:"))
    tails = [".".join(words[start:]) for start in range(len(words))]
    patterns = [found for tail in tails for found in (f"*.{tail}", f"*.{tail}.*")]
    first = next(iter(modules))
    known = (first, f"*{first[first.rfind('.') :]}")
    pairs = ((m, found) for found in patterns for m in modules if fnmatchcase(m, found))
    return "{!r}, which {!r} matches".format(*next(pairs, known))
