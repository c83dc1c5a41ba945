"""The format of a stored weight as metadata beside its tensors. No torch at import.

Owns the JSON object that travels with a weight in files of prepared weights, both ways. A weight's
format is read from it and never guessed from data types or shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from quire.kernels.cpu.native_structs import NativeFormat
from quire.kernels.operands import PackedWeight, QuantizedWeight, QuantSpec
from quire.quantization.scheme import FORMATS

Description = Mapping[str, Any]  # as JSON has it

_SIZES = ("outputs", "inputs", "group")  # of a packed weight


def describe(weight: Any) -> Description:
    """The format of what `linear` takes: a plain tensor, canonical rows or a packed weight."""
    if isinstance(weight, PackedWeight):
        sizes = {name: getattr(weight, name) for name in _SIZES}
        return {"layout": "packed", "format": NativeFormat(weight.format).name, **sizes}
    if isinstance(weight, QuantizedWeight):
        return {"layout": "rows", **asdict(weight.spec)}
    return {"layout": "plain"}


def tensors_of(weight: Any) -> dict[str, Any]:
    """The tensors of a weight, by the names under which they are stored."""
    if isinstance(weight, PackedWeight):
        return {"packed": weight.packed}
    if isinstance(weight, QuantizedWeight):
        names = ("codes", "scale", "zeros")
        found = {name: getattr(weight, name, None) for name in names}
        return {name: tensor for name, tensor in found.items() if tensor is not None}
    return {"weight": weight}


def restore(description: Description, tensors: Mapping[str, Any]) -> Any:
    """The weight that was described, from its tensors or arrays by name.

    Raises LookupError for a description or a tensor that is missing or unknown.
    """
    try:
        return _restored(description, tensors)
    except (TypeError, ValueError) as error:
        raise LookupError(f"the weight format {description!r} is not known") from error


def _restored(description: Description, tensors: Mapping[str, Any]) -> Any:
    layout = description["layout"]
    if layout == "plain":
        return tensors["weight"]
    if layout == "packed":
        sizes = {name: int(description[name]) for name in _SIZES}
        packed, found = tensors["packed"], NativeFormat[description["format"]]
        return PackedWeight(packed, **sizes, format=found)
    if layout != "rows":
        raise LookupError(f"the layout {layout!r} is not known")
    spec = QuantSpec(**{field.name: description[field.name] for field in fields(QuantSpec)})
    return FORMATS[spec.codes](spec).rows(tensors)
