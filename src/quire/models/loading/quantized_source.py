"""Quantized weights of a checkpoint: checked before anything is loaded, then made of their tensors.

Owns which tensors of a checkpoint make up a weight, and the errors that name them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.errors import CheckpointError
from quire.kernels.operands import LoadedWeight
from quire.kernels.torch_dtypes import dtype_name
from quire.models.checkpoint_formats.checkpoint_format import (
    LARGEST_EXPONENT,
    StoredLinear,
    StoredTensor,
)
from quire.models.checkpoint_formats.checkpoint_scheme import common_spec, parts_of, stored_weights
from quire.models.checkpoint_formats.integer_rows import check_groups, permutation_of
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.checkpoints.safetensors_header import TensorEntry
from quire.models.config.model_config import ModelConfig
from quire.quantization.scheme import FormatChoice
from quire.quantization.stored_weight import sizes_of


@dataclass(frozen=True, slots=True)
class QuantizedSource:
    """A quantized weight [n, k] of a checkpoint, or a part of a fused one.

    module: its name in the checkpoint. fused: that of the layer that it fills. keeps_codes: whether
    they stay codes; else they become numbers.
    """

    module: str
    fused: str
    stored: StoredLinear
    n: int
    k: int
    keeps_codes: bool

    @property
    def weight(self) -> str:
        """The name that the weight has in checkpoints that are not quantized."""
        return f"{self.module}.weight"

    def tensors(self, present: Iterable[str] = ()) -> dict[str, StoredTensor]:
        """The tensors that it needs, and those that it has beside them, by their full names."""
        found = {f"{self.module}.{name}": t for name, t in self._layout().items()}
        return {name: tensor for name, tensor in found.items() if tensor.needed or name in present}

    def _layout(self) -> Mapping[str, StoredTensor]:
        return self.stored.tensors(self.n, self.k)

    def load(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> LoadedWeight:
        """The weight from its tensors by their full names. Raises CheckpointError."""
        own = {name.removeprefix(f"{self.module}."): tensor for name, tensor in tensors.items()}
        try:
            self._check_numbers(own)
            if self.keeps_codes:
                return self._sized(self.stored.rows(own))
            return self._sized(self.stored.numbers(own, dtype_name(dtype)))
        except ValueError as error:
            raise CheckpointError(f"{self.module}: {error}") from error

    def _sized(self, weight: LoadedWeight) -> LoadedWeight:
        """The weight. Raises ValueError where its own settings give it other sizes than [n, k]."""
        try:
            found = sizes_of(weight)
        except LookupError as error:
            raise ValueError(str(error)) from error
        if found != (self.n, self.k):
            raise ValueError(
                f"its tensors say that it is {list(found)}, but this model's is "
                f"{[self.n, self.k]}; download the file again"
            )
        return weight

    def _check_numbers(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise ValueError for what makes all logits NaN: not finite, or too large."""
        layout = self._layout()
        for name, tensor in tensors.items():
            own = layout[name]
            are_numbers = tensor.is_floating_point() and not own.are_codes
            if not (own.needed and are_numbers and tensor.numel()):
                continue
            largest = _largest(tensor)
            if not largest <= 2.0**LARGEST_EXPONENT:  # or NaN
                is_large = math.isfinite(largest)
                what = f"is too large ({largest:.3g})" if is_large else "is not finite"
                raise ValueError(f"its {name} has a number that {what}; download the file again")

    def check(self, entry: TensorEntry) -> None:
        """Raise CheckpointError for a tensor of another shape or data type."""
        expected = self.tensors({entry.name})[entry.name]
        shapes = " or ".join(str(list(shape)) for shape in expected.shapes)
        why = f"of {self.stored.source}{self.stored.settings}"
        if expected.shapes and entry.shape not in expected.shapes:
            raise entry.wrong(f"its shape is {list(entry.shape)}, not the {shapes} {why}")
        if entry.dtype not in expected.dtypes:
            known = " or ".join(expected.dtypes)
            raise entry.wrong(f"its data type is {entry.dtype}, not the {known} {why}")


def _largest(tensor: Tensor) -> float:
    """The largest magnitude of numbers; NaN if there is one."""
    if tensor.dtype != torch.float8_e4m3fn:
        return tensor.float().abs().max().item()
    codes = tensor.view(torch.int8)  # as many as weights, so they are not made wider
    is_nan = codes.max() == 0x7F or codes.view(torch.uint8).max() == 0xFF
    return math.nan if is_nan else 0.0


def quantized_sources(
    model_config: ModelConfig, scheme: FormatChoice | None, prefix: str
) -> list[QuantizedSource]:
    """The quantized weights of a checkpoint.

    prefix: that its names lack. Raises CheckpointError for sizes that its format does not have.
    """
    checkpoint, found = model_config.checkpoint_format, list[QuantizedSource]()
    if checkpoint is None:
        return found
    table = model_config.spec.embedding
    if (stored := checkpoint.stored_table(table.module)) is not None:
        name, sizes = table.module.removeprefix(prefix), (table.vocab_size, table.hidden_size)
        _check_sizes(table.module, stored, *sizes)
        found.append(QuantizedSource(name, table.module, stored, *sizes, keeps_codes=False))
    for module, linear in stored_weights(model_config.spec):
        parts = parts_of(checkpoint, module, linear)
        wanted = scheme.format_for(module, linear.role, linear.n, linear.k) if scheme else None
        common = common_spec(parts, linear.k)
        keeps_codes = wanted is not None and wanted.spec == common
        for part in parts:
            if part.stored is None:
                continue
            name = part.module.removeprefix(prefix)
            source = QuantizedSource(name, module, part.stored, part.n, linear.k, keeps_codes)
            _check_sizes(part.module, part.stored, part.n, linear.k)
            found.append(source)
    return found


def _check_sizes(module: str, stored: StoredLinear, n: int, k: int) -> None:
    """Raise CheckpointError for a weight [n, k] that cannot be stored so."""
    if problem := stored.problem(n, k):
        raise CheckpointError(
            f"{module}: {problem}; correct {stored.source}{stored.settings}, or take another "
            "checkpoint"
        )


def check_orders(checkpoint: Checkpoint, sources: Iterable[QuantizedSource]) -> None:
    """Read the group of each input where weights have it (act-order), and check it.

    Raises CheckpointError for groups of different sizes, and for parts of a fused weight whose
    codes are kept but ordered differently.
    """
    known = list(sources)
    owners = {f"{s.module}.{order[0]}": s for s in known if (order := s.stored.order(s.k))}
    orders: dict[str, Tensor | None] = {}  # by module; None for inputs in their own order
    for entry, tensor in checkpoint.tensors(owners.keys() & checkpoint.entries.keys()):
        source = owners[entry.name]
        order = source.stored.order(source.k)
        assert order is not None
        try:
            check_groups(tensor, order[1])
        except ValueError as error:
            raise entry.wrong(str(error)) from error
        orders[source.module] = permutation_of(tensor)
    first: dict[str, QuantizedSource] = {}
    for source in known:
        other = first.setdefault(source.fused, source)
        own, its = orders.get(source.module), orders.get(other.module)
        same = own is its or (own is not None and its is not None and torch.equal(own, its))
        if source.keeps_codes and not same:
            raise CheckpointError(
                f"{source.module}: its g_idx orders inputs in another way than that of "
                f"{other.module}, but both are parts of one weight here; quantize them with one "
                "order, or give quantization='int8'"
            )
