"""Fills a model's parameters, and finishes each module as soon as it has all it waits for.

So a weight that is quantized or packed does not wait in its loaded form for the last one, and at
any time few are there in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch import nn

from quire.layers.linear_layers import LinearBase
from quire.layers.parameter import Weight


class Filling:
    """Counts tensors still to be loaded. expected: for each of them, the parameter it fills."""

    def __init__(self, model: nn.Module, expected: Iterable[Weight]) -> None:
        self._model = model
        # the first module that has a parameter is its owner: an embedding, not the head tied to it
        self._owners = {
            id(param): module
            for module in reversed(list(model.modules()))
            for param in module.parameters(recurse=False)
        }
        self._tied_modules: dict[nn.Module, list[nn.Module]] = {}  # by the owner of a parameter
        for module in model.modules():
            for param in module.parameters(recurse=False):
                if (owner := self._owners[id(param)]) is not module:
                    self._tied_modules.setdefault(owner, []).append(module)
        self._missing = Counter(self._owners[id(param)] for param in expected)
        self._finished: set[nn.Module] = set()

    def filled(self, param: Weight) -> None:
        """Note that one tensor has been loaded. The caller then forgets the parameter."""
        owner = self._owners[id(param)]
        self._missing[owner] -= 1
        if self._missing[owner] == 0:
            for module in (owner, *self._tied_modules.get(owner, ())):
                if self._missing[module] == 0:
                    self._finish(module)

    def end(self) -> None:
        """Finish modules without weights, which no tensor has completed."""
        for module in self._model.modules():
            self._finish(module)

    def _finish(self, module: nn.Module) -> None:
        if isinstance(module, LinearBase) and module not in self._finished:
            self._finished.add(module)
            module.process_after_load()
