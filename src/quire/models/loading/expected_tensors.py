"""The tensors that a checkpoint must hold for a model, from the description of its layers.

No torch. Owns the names; what a parameter does with a tensor is known to its own loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quire.core.layer_spec import LinearSpec, ModelSpec, layer_module


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """One tensor of a checkpoint, the parameter that it fills, and which part of that (None: all).

    Names of parameters are those of checkpoints, but for weights that are fused here.
    """

    name: str
    parameter: str
    part: str | None = None


def expected_tensors(spec: ModelSpec) -> list[ExpectedTensor]:
    """All of a model, each once. A tied head has none of its own."""
    found = [_plain(f"{spec.embedding.module}.weight")]
    for index, layer in enumerate(spec.layers):
        prefix = f"{layer_module(index)}."
        found += [_plain(f"{prefix}{norm.module}.weight") for norm in layer.norms]
        for linear in layer.linears:
            found += _linear(prefix, linear)
    found.append(_plain(f"{spec.final_norm.module}.weight"))
    if spec.head is not None and not spec.is_head_tied:
        found += _linear("", spec.head)
    return found


def _plain(name: str) -> ExpectedTensor:
    return ExpectedTensor(name, name)


def _linear(prefix: str, linear: LinearSpec) -> Iterator[ExpectedTensor]:
    for leaf in ("weight", "bias") if linear.bias else ("weight",):
        for module, part in linear.sources():
            name, own = f"{prefix}{module}.{leaf}", f"{prefix}{linear.module}.{leaf}"
            yield ExpectedTensor(name, own, part)
