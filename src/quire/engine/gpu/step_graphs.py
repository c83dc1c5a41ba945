"""Recorded steps (CUDA graphs), one set per step size: one or two launches for a whole step.

Owns the recordings; step_work.py has what a step does, cuda_graph.py how it is recorded, and
step_sizes.py which sizes there are. A step that only decodes is one recording. One with parts of
prompts is two, since few of its tokens are followed by a sampled one: the layers by the number of
tokens, and what only sampled tokens need by the number of samples.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

import torch

from quire.engine.core.step_sizes import StepSize, StepSizes
from quire.engine.gpu.step_work import ModelWork, StepTensors, TokenStates

logger = logging.getLogger(__name__)

# What is recorded, and its size in tokens: decodes without and with shared prefixes, layers for any
# prompts and for short ones; for "draw", sampling, its size in samples.
Part = tuple[Literal["decode", "shared decode", "layers", "short layers", "draw"], int]


class Recording(Protocol):
    """A recorded launch that can be repeated."""

    def replay(self) -> StepTensors | None:
        """Launch it; the results are in the same memory each time."""


Record = Callable[[Callable[[], StepTensors | None]], Recording]


class StepGraphs:
    """Runs steps by replaying their CUDA graphs.

    record: records a part of a step; None: kernels are launched one by one.
    """

    def __init__(self, work: ModelWork, sizes: StepSizes, record: Record | None) -> None:
        self._work = work
        self._sizes = sizes
        self._record = record
        self._recordings: dict[Part, Recording] = {}
        self._tokens: TokenStates | None = None  # the output of "layers", the input of "draw"

    def replays(self, size: StepSize) -> bool:
        """Whether steps of this size are replayed."""
        return all(part in self._recordings for part in _parts_of(size))

    def run(self, size: StepSize, before_draw: Callable[[], object]) -> StepTensors:
        """Launch a step; its results are valid until the next one is launched.

        before_draw: launches what only sampling needs, if possible while layers are busy.
        """
        if not self.replays(size):
            tokens = self._work.forward(size)
            before_draw()
            return self._work.finish(tokens, size.num_samples)
        tensors = None
        for part in _parts_of(size):
            if not _is_layers(part):
                before_draw()
            tensors = self._recordings[part].replay()
        assert tensors is not None
        return tensors

    def warm_up_all(self, clear: Callable[[StepSize], None]) -> None:
        """Launch every kernel of every part, those of the largest first.

        clear: makes the inputs of a step of that size those of no requests.
        """
        for part in self._parts():
            self._warm_up(part, clear)
        self._tokens = None

    def record_all(self, clear: Callable[[StepSize], None]) -> None:
        """Record every part, the largest first, so that the others fit into its memory.

        What happens at a kernel's first launch must not be recorded, so each part is warmed up.
        """
        if self._record is None:
            return
        begin = time.monotonic()
        for part in self._parts():
            self._warm_up(part, clear)
            self._recordings[part] = self._record(partial(self._launch, part))
        logger.info("%d CUDA graphs: %.2f s", len(self._recordings), time.monotonic() - begin)

    def _parts(self) -> list[Part]:
        """All parts that are recorded, in that order."""
        if self._record is None:
            return []
        parts: list[Part] = [("decode", count) for count in self._sizes.decodes]
        parts += [("shared decode", count) for count in self._sizes.shared_decodes]
        parts += [("layers", count) for count in self._sizes.mixed]
        parts += [("short layers", count) for count in self._sizes.short_mixed]
        parts.sort(key=lambda part: part[1], reverse=True)
        return parts + [("draw", count) for count in reversed(self._sizes.samples)]

    def _warm_up(self, part: Part, clear: Callable[[StepSize], None]) -> None:
        if part[0] != "draw":
            clear(_size_of(part))
        self._launch(part, is_warm_up=True)

    def _launch(self, part: Part, *, is_warm_up: bool = False) -> StepTensors | None:
        kind, count = part
        if kind == "draw":
            assert self._tokens is not None, "layers come first"
            return self._work.finish(self._tokens, count)
        tokens = self._work.forward(_size_of(part), is_warm_up=is_warm_up)
        if not _is_layers(part):
            return self._work.finish(tokens, count)
        if self._tokens is None:  # the largest comes first
            self._tokens = tokens.map(torch.empty_like)
        self._tokens.fill(tokens)
        return None


def _parts_of(size: StepSize) -> list[Part]:
    """The parts of a step, in the order of their launches."""
    if size.has_prefills:
        layers: Part = ("short layers" if size.has_few_keys else "layers", size.num_tokens)
        return [layers, ("draw", size.num_samples)]
    return [("shared decode" if size.has_shared else "decode", size.num_tokens)]


def _size_of(part: Part) -> StepSize:
    """The step size that a part is recorded for."""
    kind, count = part
    return StepSize(
        count,
        count,
        has_prefills=_is_layers(part),
        has_shared=kind == "shared decode",
        has_few_keys=kind == "short layers",
    )


def _is_layers(part: Part) -> bool:
    """Whether sampling is a part of its own, after this one."""
    return part[0] in ("layers", "short layers")
