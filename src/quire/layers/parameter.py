"""Weights that know how to load themselves, and the options all layers are built with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.core.layer_spec import LinearSpec
from quire.kernels.dispatch import Kernels
from quire.kernels.operands import LoadedWeight, QuantizedWeight
from quire.quantization.scheme import FormatChoice

# (parameter, tensor of the checkpoint, name of the part it is or None for the whole)
WeightLoader = Callable[[Tensor, Tensor, str | None], None]


class WeightShapeError(ValueError):
    """A checkpoint's tensor does not fit the parameter it belongs to."""


class Weight(nn.Parameter):
    """A parameter with its own loader; never trained.

    rows: codes that were loaded in place of numbers, by part. The parameter then has no memory.
    """

    weight_loader: WeightLoader
    rows: dict[str | None, QuantizedWeight]

    def __new__(cls, data: Tensor, weight_loader: WeightLoader | None = None) -> Weight:
        """Wrap data; without a loader the tensor of the checkpoint is copied whole."""
        weight: Weight = super().__new__(cls, data, requires_grad=False)
        weight.weight_loader = weight_loader or copy_whole
        weight.rows = {}
        return weight

    def load(self, loaded: LoadedWeight, part: str | None) -> None:
        """Take a tensor of the checkpoint, or canonical rows; part: which it is, None for all."""
        if isinstance(loaded, Tensor):
            self.allocate()
            self.weight_loader(self, loaded, part)
        else:
            self.rows[part] = loaded

    def release(self) -> None:
        """Free the weight's memory; it keeps its shape."""
        if not self.is_meta:
            self.untyped_storage().resize_(0)

    def allocate(self) -> None:
        """Allocate memory for the weight, if it has none."""
        storage, num_bytes = self.untyped_storage(), self.numel() * self.itemsize
        if not self.is_meta and storage.nbytes() < num_bytes:
            storage.resize_(num_bytes)


def copy_whole(param: Tensor, loaded: Tensor, part: str | None = None) -> None:
    """Copy a tensor of the same shape, converting its dtype. Raises WeightShapeError."""
    assert part is None
    if loaded.shape != param.shape:
        raise WeightShapeError(
            f"its shape is {list(loaded.shape)}, but the model needs {list(param.shape)}"
        )
    param.copy_(loaded)


class LinearModule(nn.Module, ABC):
    """The part of a layer that its linear method reads: weight [out, in], and maybe a bias."""

    spec: LinearSpec
    weight: Weight
    bias: Tensor | None

    @abstractmethod
    def load_rows(self, param: Tensor, loaded: Tensor, part: str | None) -> None:
        """Fill a parameter whose first dimension is the output's."""

    @abstractmethod
    def loaded_weight(self) -> LoadedWeight:
        """The loaded weight, all parts in one: [out, in], or canonical rows."""

    @abstractmethod
    def order_rows(self, rows: LoadedWeight, kernels: Kernels) -> LoadedWeight:
        """The rows in the order that fused kernels read, and the bias, too."""


def keep_at_hand(model: nn.Module) -> None:
    """Make each module's parts plain attributes, too, once they change no more.

    PyTorch searches for them by a method of its own, some twenty times in each layer of each step:
    with a small model on a CPU that is a tenth of the step.
    """
    for module in model.modules():
        for parts in (module._parameters, module._buffers, module._modules):
            vars(module).update(parts)


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """Options of layers: the data type and device of their weights, and the kernels they call.

    scheme: which weights are quantized to which formats; None for none. module: name of the decoder
    layer that they are in, empty outside of one.
    """

    dtype: torch.dtype
    device: torch.device
    kernels: Kernels
    scheme: FormatChoice | None = None
    module: str = ""

    def empty(self, *shape: int) -> Tensor:
        """An uninitialised tensor for a weight."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)
