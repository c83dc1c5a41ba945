"""Weights that know how to load themselves, and the options all layers are built with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.kernels.dispatch import Kernels

# (parameter, tensor of the checkpoint, name of the part it is or None for the whole)
WeightLoader = Callable[[Tensor, Tensor, str | None], None]


class WeightShapeError(ValueError):
    """A checkpoint's tensor does not fit the parameter it belongs to."""


class Weight(nn.Parameter):
    """A parameter with its own loader; never trained."""

    weight_loader: WeightLoader

    def __new__(cls, data: Tensor, weight_loader: WeightLoader | None = None) -> Weight:
        """Wrap data; without a loader the tensor of the checkpoint is copied whole."""
        weight: Weight = super().__new__(cls, data, requires_grad=False)
        weight.weight_loader = weight_loader or copy_whole
        return weight


def copy_whole(param: Tensor, loaded: Tensor, part: str | None = None) -> None:
    """Copy a tensor of the same shape, converting its dtype. Raises WeightShapeError."""
    assert part is None
    if loaded.shape != param.shape:
        raise WeightShapeError(
            f"its shape is {list(loaded.shape)}, but the model needs {list(param.shape)}"
        )
    param.copy_(loaded)


class LoadedModule(nn.Module, ABC):
    """A module with something to do once its weights are loaded."""

    @abstractmethod
    def process_after_load(self) -> None:
        """Bring the weights into their run-time form. Called once."""


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """How layers are made: the data type and place of their weights, and the kernels they call."""

    dtype: torch.dtype
    device: torch.device
    kernels: Kernels

    def empty(self, *shape: int) -> Tensor:
        """An uninitialised tensor for a weight."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)
