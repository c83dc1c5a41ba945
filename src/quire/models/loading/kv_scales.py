"""Scales of an FP8 KV cache, from the checkpoint into the weights around it.

Keys and values are divided by their scales when they are written, queries and attention's outputs
multiplied by them. All of these are linear in weights: rows of the QKV projection (or head norms)
and the output projection. Scales are rounded up to powers of two, so folding them in is exact and
costs no step anything, on any device. FP8 is floating point: its precision stays, and its range
grows.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from quire.core.layer_spec import AttentionSpec, ModelSpec, layer_module
from quire.models.checkpoint_formats.checkpoint_format import SCALE_DTYPES
from quire.models.checkpoint_formats.kv_cache_scheme import kv_scale_name
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.checkpoints.safetensors_header import TensorEntry

logger = logging.getLogger(__name__)

LayerScales = dict[str, float]  # "k" and "v", each where the checkpoint has one

# Weights times scales within these powers of two keep their precision in every data type and every
# format of codes. Beyond, numbers overflow, also where the scale divides. Values of 448 * 4,096
# occur in no model; smaller scales only use less of FP8's range, as the least one does.
_LEAST, _MOST = 2.0**-12, 2.0**12


def read_kv_scales(checkpoint: Checkpoint, prefix: str) -> dict[str, LayerScales]:
    """Scales of each layer's keys and values by the layer's module, as powers of two.

    The greatest one of a layer's heads counts for all. prefix: that names lack. Raises
    CheckpointError for what is not a scale.
    """
    names = {name: found for name in checkpoint.entries if (found := kv_scale_name(name))}
    scales = defaultdict[str, LayerScales](dict)
    used = {name for name, found in names.items() if found.kinds}
    for entry, tensor in checkpoint.tensors(used):
        found, scale = names[entry.name], _power_of_two(entry, tensor)
        layer = scales[prefix + found.layer]
        for kind in found.kinds:
            layer[kind] = max(layer.get(kind, 0.0), scale)
    if names:
        text = "KV scales of %d layers are folded into their weights; %d of queries and "
        text += "probabilities have no use here"
        logger.info(text, len(scales), len(names) - len(used))
    return dict(scales)


def _power_of_two(entry: TensorEntry, tensor: Tensor) -> float:
    """The least power of two, of those in range, that is not less than any scale of the tensor."""
    if entry.dtype not in SCALE_DTYPES:
        known = " or ".join(SCALE_DTYPES)
        raise entry.wrong(f"its data type is {entry.dtype}, not the {known} of KV scales")
    wide = tensor.float().flatten()
    if len(wide) == 0 or not bool((wide.isfinite() & (wide > 0.0)).all()):
        raise entry.wrong("a KV scale is not above zero; remove it, or calibrate again")
    if (largest := wide.max().item()) > _MOST:
        raise entry.wrong(f"a KV scale is {largest:.3g}; remove it, or calibrate again")
    mantissa, exponent = math.frexp(largest)
    return max(_LEAST, math.ldexp(1.0, exponent - (mantissa == 0.5)))


def folding_factors(
    spec: ModelSpec, scales: Mapping[str, LayerScales], in_float16: set[str]
) -> dict[str, Tensor]:
    """The factors of each weight: for its rows [N], or for all of it [1].

    in_float16: layers with numbers in float16, which small factors would bring below its normal
    range: there scales below one stay out, as they only move numbers within the range of FP8.
    """
    found: dict[str, Tensor] = {}
    for index, layer in enumerate(spec.layers):
        module = layer_module(index)
        if module in scales:
            least = 1.0 if module in in_float16 else 0.0
            key, value = (max(scales[module].get(kind, 1.0), least) for kind in "kv")
            own = _attention_factors(layer.attention, key, value)
            found |= {f"{module}.{name}": factors for name, factors in own}
    return {name: factors for name, factors in found.items() if not bool((factors == 1.0).all())}


def _attention_factors(
    attention: AttentionSpec, key: float, value: float
) -> Iterator[tuple[str, Tensor]]:
    parts = {"q": 1.0, "k": 1.0, "v": 1.0 / value}
    if attention.query_norm is None or attention.key_norm is None:
        parts |= {"q": key, "k": 1.0 / key}
    elif not attention.key_norm.adds_one:  # 1 + w times a factor is no such sum of 16 bits
        yield f"{attention.query_norm.module}.weight", torch.tensor([key])
        yield f"{attention.key_norm.module}.weight", torch.tensor([1.0 / key])
    qkv = attention.qkv
    each = {part.name: torch.full((part.rows,), parts[part.name]) for part in qkv.parts}
    for module, part in qkv.sources():
        factors = torch.cat(list(each.values())) if part is None else each[part]
        for leaf in ("weight", "bias") if qkv.bias else ("weight",):
            yield f"{module}.{leaf}", factors
    yield f"{attention.output.module}.weight", torch.tensor([value])
