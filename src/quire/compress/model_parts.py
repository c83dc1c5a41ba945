"""A checkpoint's parts, one at a time: embedding, decoder layers, final norm and head in float32.

Owns that no more than one decoder layer has to be in memory. Quantized weights become the numbers
that they stand for, and their activations are rounded as the checkpoint's format says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quire.compress.whole_attention import whole_attention
from quire.core.layer_spec import (
    LayerSpec,
    LinearSpec,
    UnsupportedModelError,
    check_features,
    layer_module,
)
from quire.errors import CheckpointError
from quire.kernels import reference
from quire.kernels.dispatch import kernels_for
from quire.kernels.operands import LinearWeight
from quire.kernels.reference_quantized import round_int8
from quire.kernels.torch_dtypes import torch_dtype
from quire.layers.linear_layers import LinearBase
from quire.layers.norm import RMSNorm
from quire.layers.parameter import LayerOptions, Weight, WeightShapeError
from quire.layers.rope import RotaryEmbedding
from quire.model_folder import named_path
from quire.models.checkpoint_formats.checkpoint_scheme import common_spec, parts_of
from quire.models.checkpoints.checkpoint import Checkpoint
from quire.models.config.model_config import ModelConfig
from quire.models.families.llama import COMPUTED, LlamaDecoderLayer
from quire.models.loading.checkpoint_source import read_tensors
from quire.models.loading.expected_tensors import ExpectedTensor, expected_tensors
from quire.models.loading.quantized_source import quantized_sources
from quire.models.loading.tied_head import check_tied_head

# x [T, K], weight, bias → [T, N]
Operation = Callable[[Tensor, LinearWeight, Tensor | None], Tensor]
Rounding = Callable[[Tensor], Tensor]  # of activations [T, K]


class ModelParts:
    """The parts of a folder's model as modules in float32 on a device. Raises CheckpointError.

    checkpoint: opened elsewhere, such as the finished part of one; None to open the folder's.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        checkpoint: Checkpoint | None = None,
        config: ModelConfig | None = None,
    ) -> None:
        self.config = config or ModelConfig.from_folder(folder)
        self.spec, self.device = self.config.spec, device
        self.dtype = torch_dtype(self.config.own_dtype)  # of its 16-bit weights
        try:
            check_features(self.spec, COMPUTED - {"MoESpec"})
        except UnsupportedModelError as error:
            raise CheckpointError(
                f"{named_path(folder)} has a {error}, which is neither quantized nor verified "
                "layer by layer; serve it with quantization='int8', or another format"
            ) from error
        self.checkpoint = checkpoint or Checkpoint.open(folder)
        self.prefix = self.checkpoint.missing_prefix
        check_tied_head(self.checkpoint, self.spec, self.prefix)
        kernels = replace(kernels_for("meta"), attention=whole_attention)
        self.options = LayerOptions(torch.float32, device, kernels)
        sources = quantized_sources(self.config, None, self.prefix)
        self._quantized = {source.weight: source for source in sources}

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors in the files."""
        return sum(entry.num_bytes for entry in self.checkpoint.entries.values())

    def stored_name(self, name: str) -> str:
        """A tensor's name in this checkpoint's files."""
        return name.removeprefix(self.prefix)

    def layer(self, index: int) -> LlamaDecoderLayer:
        """A decoder layer with its weights; attention's keys and values are in `ctx.kv[0]`."""
        module = layer_module(index)
        options = replace(self.options, module=module)
        layer = LlamaDecoderLayer(self.spec.layers[index], 0, options)
        self._fill(layer, f"{module}.")
        for linear in linears_of(layer).values():
            linear.process_after_load()
            rounding = self.activation_rounding(f"{module}.{linear.spec.module}", linear.spec)
            set_linear(linear, partial(_rounded_linear, rounding))
        return layer

    def activation_rounding(self, module: str, linear: LinearSpec) -> Rounding | None:
        """The function that rounds a linear layer's activations; None if they are not rounded."""
        stored = self.config.checkpoint_format
        spec = None if stored is None else common_spec(parts_of(stored, module, linear), linear.k)
        return None if spec is None else _ROUNDINGS.get(spec.codes)

    def rotary(self, index: int, length: int) -> RotaryEmbedding:
        """The rotary embedding of a layer, for sequences of this length."""
        return RotaryEmbedding(self.spec.layers[index].attention.rope, length, self.options)

    def embed(self, samples: Iterable[list[int]]) -> list[Tensor]:
        """The embeddings of each sample's token ids: float32 [T, H]."""
        spec = self.spec.embedding
        table = self.tensor(f"{spec.module}.weight")
        scale = torch.tensor(spec.scale, dtype=self.dtype).item()
        ids = (torch.tensor(sample, device=table.device) for sample in samples)
        return [F.embedding(each, table).float() * scale for each in ids]

    def head(self) -> Callable[[Tensor], Tensor] | None:
        """The function from states [T, H] to logits [T, V]; None for models without a head."""
        spec = self.spec
        if spec.head is None:
            return None
        name = spec.embedding.module if spec.is_head_tied else spec.head.module
        weight = self.tensor(f"{name}.weight").float()
        bias = self.tensor(f"{name}.bias").float() if spec.head.bias else None

        def logits(states: Tensor) -> Tensor:
            found = F.linear(states, weight, bias)
            cap = spec.logit_soft_cap
            return found if cap is None else reference.soft_capped(found, cap)

        return logits

    def final_norm(self) -> RMSNorm:
        """The norm after the last layer."""
        norm = RMSNorm(self.spec.final_norm, self.options)
        self._load(norm.weight, f"{self.spec.final_norm.module}.weight", None)
        return norm

    def tensor(self, name: str) -> Tensor:
        """A weight by its name, in the files' data type unless it is quantized."""
        found = self._quantized.get(self.stored_name(name))
        if found is None:
            return self._read({self.stored_name(name)})[self.stored_name(name)]
        names = set(found.tensors(self.checkpoint.entries.keys()))
        loaded = found.load(self._read(names), torch.float32)
        assert isinstance(loaded, Tensor)
        return loaded

    def stored(self, name: str) -> Tensor:
        """A tensor by its name, in the data type in which a copy of the model has it."""
        return self.tensor(name)

    def tensor_names(self, prefix: str) -> list[ExpectedTensor]:
        """The unquantized tensors of a model whose parameters' names begin so."""
        return [t for t in expected_tensors(self.spec) if t.parameter.startswith(prefix)]

    def _fill(self, module: nn.Module, prefix: str) -> None:
        parameters = dict(module.named_parameters())
        for expected in self.tensor_names(prefix):
            param = parameters[expected.parameter.removeprefix(prefix)]
            assert isinstance(param, Weight)
            self._load(param, expected.name, expected.part)

    def _load(self, param: Weight, name: str, part: str | None) -> None:
        try:
            param.load(self.tensor(name), part)
        except WeightShapeError as error:
            stored = self.stored_name(name)
            if stored in self.checkpoint.entries:
                raise self.checkpoint.entries[stored].wrong(str(error)) from error
            raise CheckpointError(
                f"{self.checkpoint.folder}: {stored}: {error}; download it again"
            ) from error

    def _read(self, names: set[str]) -> dict[str, Tensor]:
        found = {}
        for entry, tensor in read_tensors(self.checkpoint, names, self.device):
            if not _is_finite(tensor):
                raise CheckpointError(
                    f"{entry.file}: {entry.name} has infinite numbers, or some that are none "
                    "(NaN); download it again, or take weights that are finite"
                )
            found[entry.name] = tensor
        return found


def _is_finite(tensor: Tensor) -> bool:
    """Whether all its numbers are; those of formats of 8 bits become numbers elsewhere."""
    if not tensor.is_floating_point() or tensor.itemsize == 1 or not tensor.numel():
        return True
    return all(bound.isfinite() for bound in torch.aminmax(tensor))  # NaN is both; no copy


def linears_of(layer: LlamaDecoderLayer) -> dict[str, LinearBase]:
    """Linear layers of a decoder layer by their names in it, in the order in which they run."""
    found = {}
    for spec in layer.spec.linears:
        linear = layer.get_submodule(spec.module)
        assert isinstance(linear, LinearBase)
        found[spec.module] = linear
    return found


def stored_norm(spec: LayerSpec, layer: LlamaDecoderLayer, module: str, base: Tensor) -> Tensor:
    """The weight of one of a decoder layer's norms, as checkpoints have it.

    base: what the base model has, which is returned where the norm was not changed.
    """
    norm = layer.get_submodule(module)
    assert isinstance(norm, RMSNorm)
    added = float(next(each.adds_one for each in spec.norms if each.module == module))
    weight = norm.weight.detach()
    return base if torch.equal(weight, base.float() + added) else (weight - added).to(base.dtype)


def weight_of(linear: LinearBase) -> Tensor:
    """The weight [N, K] that a linear layer multiplies by."""
    operand = linear.method.operand
    assert isinstance(operand, Tensor)
    return operand


def set_weight(linear: LinearBase, weight: Tensor) -> None:
    """Let a linear layer multiply by another weight [N, K]."""
    linear.method.operand = weight


def set_linear(linear: LinearBase, operation: Operation) -> None:
    """Let a linear layer call this operation with its input, its weight and its bias."""
    linear.method.kernels = replace(linear.method.kernels, linear=operation)


def _rounded_linear(
    rounding: Rounding | None, x: Tensor, weight: LinearWeight, bias: Tensor | None
) -> Tensor:
    return reference.linear(x if rounding is None else rounding(x), weight, bias)


def _rounded_int8(x: Tensor) -> Tensor:
    codes, scale = round_int8(x)
    return codes.float() * scale


def _rounded_fp8(x: Tensor) -> Tensor:
    codes, scale = reference.quantize_rows(x)
    return codes.float() * scale


# FP8's scales are powers of two: it does not matter how much of a row shares one
_ROUNDINGS: dict[str, Rounding] = {
    "int8": _rounded_int8,
    "fp8": _rounded_fp8,
    "fp8_block": _rounded_fp8,
}
