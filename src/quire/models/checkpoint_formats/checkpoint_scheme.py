"""Formats of a quantized checkpoint's weights while the model runs. No torch.

Codes are kept as they are where the device has kernels for them and all parts of a fused weight are
quantized alike. Other weights become numbers of the model's data type while they are loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from quire.config import ModelSettings
from quire.core.layer_spec import LinearSpec, ModelSpec, Role
from quire.dtypes import HOPPER_MAJOR
from quire.kernels.formats.table import format_of
from quire.kernels.formats.weight_format import WeightFormat
from quire.kernels.operands import QuantSpec
from quire.options import require
from quire.quantization.scheme import FormatChoice, check_patterns, scheme_of

if TYPE_CHECKING:
    from quire.models.checkpoint_formats.checkpoint_format import CheckpointFormat, StoredLinear

# Formats that a type of device multiplies at speed. For a device to keep checkpoints' codes in one,
# add the format's name here, and its operand to the device's `linear` (and `pack`).
_SERVED = {
    "cpu": ("int4", "int8", "nf4", "mxfp4"),
    "cuda": ("fp8", "int4", "int8", "nf4", "mxfp4", "nvfp4"),
}
# The same, for a GPU of Hopper's compute capability, whose kernels for them are in bfloat16 alone.
_ON_HOPPER = ("int8_group", "fp8_block", "fp8_block_a16", "fp8_a16")
_ON_OTHERS = ("fp8_a16",)  # the same, for GPUs of another


class StoredPart(msgspec.Struct, frozen=True):
    """A weight of a checkpoint, or a part of a fused one. part: None for the whole.

    module: its name in the checkpoint; n: its outputs.
    """

    module: str
    part: str | None
    n: int
    stored: StoredLinear | None


class CheckpointScheme:
    """A choice of formats by what a checkpoint stores, of `served_formats`.

    device: type of the model's device.
    """

    def __init__(
        self, checkpoint: CheckpointFormat, spec: ModelSpec, device: str, served: tuple[str, ...]
    ) -> None:
        self.name = checkpoint.name
        self._checkpoint, self._served = checkpoint, served
        self._on_cpu = device == "cpu"
        # not INT8 on GPUs, which do not rotate: too coarse for activations with outliers
        self._otherwise = scheme_of(checkpoint.otherwise, device) if self._on_cpu else None
        self._quantized = _quantized_modules(checkpoint, spec)
        self._linears = dict(stored_weights(spec))

    def format_for(self, module: str, role: Role, n: int, k: int) -> WeightFormat | None:
        """See `Scheme.format_for`."""
        linear = self._linears.get(module)
        parts = [] if linear is None else parts_of(self._checkpoint, module, linear)
        found = common_spec(parts, k)
        if found is None or found.codes not in self._served:
            if self._otherwise is None or module not in self._quantized:
                return None
            return self._otherwise.format_for(module, role, n, k)
        return format_of(found)


def served_formats(device: str, dtype: str, capability: tuple[int, int] | None) -> tuple[str, ...]:
    """Formats in which a checkpoint's codes are kept, by `QuantSpec.codes`.

    device: its type. dtype: the model's. capability: the GPU's; None, if unknown, is Hopper's.
    """
    found = _SERVED.get(device, ())
    if device != "cuda":
        return found
    if capability is not None and capability[0] != HOPPER_MAJOR:
        return found + _ON_OTHERS
    return found + _ON_HOPPER if dtype == "bfloat16" else found


def choose_formats(
    settings: ModelSettings,
    checkpoint: CheckpointFormat | None,
    spec: ModelSpec,
    device: str,
    *,
    dtype: str = "bfloat16",
    capability: tuple[int, int] | None = None,
) -> FormatChoice | None:
    """The formats of a model's weights; None for its data type.

    The settings go before what the checkpoint has. device, dtype, capability: see
    `served_formats`. Raises ConfigError for a format that the GPU has no kernels for, and for
    overrides that match nothing, or that would be of a checkpoint's formats.
    """
    setting, overrides = settings.scheme, settings.quantization_overrides
    served = served_formats(device, dtype, capability)
    if setting == "none" and checkpoint is not None:
        require(
            overrides is None,
            f"quantization_overrides changes weights of the checkpoint, which is quantized by "
            f"{checkpoint.name}; leave it out, or give quantization, too",
        )
        return CheckpointScheme(checkpoint, spec, device, served)
    found = scheme_of(setting, device, overrides)
    if found is not None:
        modules = [name for name, linear in spec.named_linears if linear.role != "router"]
        check_patterns(found, modules)
        missing = found.codes & set(_ON_HOPPER) - set(served)
        require(
            "int8_group" not in missing,
            "quantization w8a16 needs a Hopper GPU and bfloat16; take int8, or dtype='bfloat16'",
        )
        require(
            not missing,
            "quantization fp8_w8a16 needs bfloat16 on a Hopper GPU; take fp8, or dtype='bfloat16'",
        )
    return found


def _quantized_modules(checkpoint: CheckpointFormat, spec: ModelSpec) -> set[str]:
    """Linear layers whose weight is quantized, or a part of it, or the embedding that it is."""
    found = {
        module
        for module, linear in stored_weights(spec)
        if any(part.stored is not None for part in parts_of(checkpoint, module, linear))
    }
    is_tied = spec.is_head_tied and checkpoint.stored_table(spec.embedding.module) is not None
    return found | ({spec.head.module} if spec.head is not None and is_tied else set())


def stored_weights(spec: ModelSpec) -> list[tuple[str, LinearSpec]]:
    """Linear layers with a weight of their own in checkpoints: all but a tied head."""
    tied = spec.head if spec.is_head_tied else None
    return [(name, linear) for name, linear in spec.named_linears if linear is not tied]


def parts_of(checkpoint: CheckpointFormat, module: str, linear: LinearSpec) -> list[StoredPart]:
    """The stored tensors that fill the weight of a linear layer.

    Routers of experts are never quantized, though not all config files say so.
    """
    prefix, rows = module.removesuffix(linear.module), {p.name: p.rows for p in linear.parts}
    return [
        StoredPart(
            f"{prefix}{source}",
            part,
            linear.n if part is None else rows[part],
            None if linear.role == "router" else checkpoint.stored_linear(f"{prefix}{source}"),
        )
        for source, part in linear.sources()
    ]


def common_spec(parts: list[StoredPart], k: int) -> QuantSpec | None:
    """The quantization of the canonical rows of all parts; None where they differ."""
    specs = {None if part.stored is None else part.stored.spec(k) for part in parts}
    return specs.pop() if len(specs) == 1 else None
