"""Values of a few names that set Quire's sampling params: llama.cpp's stages that are off.

Its `samplers` are the stages that a request has, and those left out have no effect, whatever their
params; penalties that reach no token (`repeat_last_n` 0) have none either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.compat.foreign_name import same_value

# llama.cpp's stages in its own order, by their letters, each with the params that switch it off
_STAGES: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "e": (
        "penalties",
        {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    ),
    "d": ("dry", {}),
    "s": ("top_n_sigma", {}),
    "k": ("top_k", {"top_k": 0}),
    "y": ("typ_p", {}),
    "p": ("top_p", {"top_p": 1.0}),
    "m": ("min_p", {"min_p": 0.0}),
    "x": ("xtc", {}),
    "t": ("temperature", {"temperature": 1.0}),
}
STAGES = [name for name, _ in _STAGES.values()]
LETTERS = "".join(_STAGES)
_OFF = dict(_STAGES.values())
_SPELLINGS = {"typical_p": "typ_p", "temp": "temperature"}


def are_in_order(samplers: Any) -> bool:
    """Whether these are some of llama.cpp's stages in its own order, which is taken for Quire's."""
    found = _names(samplers)
    return found is not None and found == [name for name in STAGES if name in found]


def params_set_by(name: str, value: Any) -> Mapping[str, float]:
    """The sampling params that this value of a name sets, over what they are set to otherwise."""
    if name == "repeat_last_n" and same_value(value, 0):
        return _OFF["penalties"]
    if name == "samplers" and value and are_in_order(value):
        found = _names(value) or ()
        return {n: v for stage, off in _OFF.items() if stage not in found for n, v in off.items()}
    return {}


def _names(samplers: Any) -> list[str] | None:
    """The stages of a list, of a text with semicolons, or of a text of letters; None for others."""
    given = samplers
    if isinstance(samplers, str) and ";" not in samplers and samplers not in _OFF:
        given = [_STAGES[letter][0] if letter in _STAGES else letter for letter in samplers]
    elif isinstance(samplers, str):
        given = samplers.split(";")
    if not isinstance(given, list):
        return None
    names = [name for name in given if isinstance(name, str)]
    return [_SPELLINGS.get(name, name) for name in names] if len(names) == len(given) else None
