"""The format of a stored weight as metadata beside its tensors. No torch at import.

Owns the JSON object that travels with a weight in files of prepared weights, both ways, and that
its tensors have the sizes which it says. A weight's format is read from it and never guessed from
data types or shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from quire.kernels.cpu.native_structs import FLOAT_BYTES
from quire.kernels.formats.native_format import NativeFormat, packs_floats
from quire.kernels.formats.table import format_of, format_of_packed
from quire.kernels.operands import GpuWords, PackedWeight, QuantizedWeight, QuantSpec

Description = Mapping[str, Any]  # as JSON has it

_SIZES = ("outputs", "inputs", "group")  # of a packed weight


def describe(weight: Any) -> Description:
    """The format of what `linear` takes: a plain tensor, canonical rows or a packed weight."""
    if isinstance(weight, PackedWeight):
        sizes = {name: getattr(weight, name) for name in _SIZES}
        kernel, permuted = NativeFormat(weight.format).name, weight.permutation is not None
        return {"layout": "packed", "format": kernel, **sizes, "permuted": permuted}
    if isinstance(weight, QuantizedWeight):
        return {"layout": "rows", **asdict(weight.spec)}
    assert not isinstance(weight, GpuWords)  # a GPU's packed words are not stored
    return {"layout": "plain"}


def tensors_of(weight: Any) -> dict[str, Any]:
    """The tensors of a weight, by the names under which they are stored."""
    if isinstance(weight, PackedWeight | QuantizedWeight | GpuWords):
        return weight.tensors
    return {"weight": weight}


def restore(description: Description, tensors: Mapping[str, Any]) -> Any:
    """The weight that was described, from its tensors or arrays by name.

    Raises LookupError for a description that is not known, a tensor that is missing, or one whose
    size is not the described one.
    """
    try:
        weight = _restored(description, tensors)
        sizes_of(weight)
    except KeyError as error:
        raise LookupError(f"a weight has no {error} of {description!r}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise LookupError(f"the weight format {description!r} is not known") from error
    return weight


def sizes_of(weight: Any) -> tuple[int, int]:
    """Outputs and inputs of a weight. Raises LookupError if its tensors do not have them."""
    if isinstance(weight, PackedWeight):
        found, (n, k) = weight.packed.nbytes, (weight.outputs, weight.inputs)
        expected = _packed_bytes(NativeFormat(weight.format), n, k, weight.group)
        if found != expected:
            raise LookupError(f"it has {found} packed bytes, not the {expected} of {weight.format}")
    elif isinstance(weight, QuantizedWeight):
        n, k = format_of(weight.spec).size_of(weight)
    else:
        return int(weight.shape[0]), int(weight.shape[1])
    _check_permutation(weight.tensors.get("permutation"), k)
    return n, k


def _restored(description: Description, tensors: Mapping[str, Any]) -> Any:
    layout = description["layout"]
    if layout == "plain":
        return tensors["weight"]
    permutation = tensors["permutation"] if description["permuted"] else None
    if layout == "packed":
        sizes = {name: int(description[name]) for name in _SIZES}
        packed, found = tensors["packed"], NativeFormat[description["format"]]
        return PackedWeight(packed, **sizes, format=found, permutation=permutation)
    if layout != "rows":
        raise LookupError(f"the layout {layout!r} is not known")
    spec = QuantSpec(**{field.name: description[field.name] for field in fields(QuantSpec)})
    return format_of(spec).rows(tensors)


def _packed_bytes(layout: NativeFormat, n: int, k: int, group: int) -> int:
    """Bytes of a packed weight by its sizes. Raises ValueError for sizes that no weight has."""
    if layout in FLOAT_BYTES:
        if group < 0 or not packs_floats(n, k):
            raise ValueError("sizes that no packed weight has")
        return n * k * FLOAT_BYTES[layout]
    return format_of_packed(layout, group).packed_bytes(n, k)


def _check_permutation(permutation: Any, k: int) -> None:
    """Raise LookupError unless it is None or names each of k inputs."""
    if permutation is None:
        return
    if tuple(permutation.shape) != (k,) or set(permutation.tolist()) != set(range(k)):
        raise LookupError(f"its permutation is not one of {k} inputs")
