"""The result of profiling a step: operations with their bytes, FLOPs and time. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np

from quire.engine.profile.roofline import Roofline
from quire.engine.startup.step_tuning import StepTable
from quire.errors import ConfigError
from quire.kernels.ragged_batch import RaggedBatch
from quire.models.config.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class StepShape:
    """Requests of a step, all alike. num_new: tokens each computes; context: in its cache then.

    One new token is a decode step; as many as the context has, the prefill of prompts.
    """

    num_requests: int
    num_new: int
    context: int

    def batch(self, block_size: int) -> RaggedBatch:
        """The step on the host; each request has blocks of its own, all that there are."""
        blocks_each = -(-self.context // block_size)
        table = np.arange(self.num_requests * blocks_each, dtype=np.int32)
        lens, contexts = (np.full(self.num_requests, n) for n in (self.num_new, self.context))
        return RaggedBatch.of(lens, contexts, table.reshape(-1, blocks_each), block_size)

    def check(self, model_config: ModelConfig) -> None:
        """Raise ConfigError for more positions than the model has."""
        if self.context > model_config.max_position_embeddings:
            name = "context" if self.num_new == 1 else "prefill"
            raise ConfigError(
                f"{name} is {self.context}, but the model knows positions up to "
                f"{model_config.max_position_embeddings}; lower it"
            )


@dataclass(frozen=True, slots=True)
class Operation:
    """All calls of one kind in a step. floor: the least seconds by the roofline."""

    name: str
    shape: str
    count: int
    num_bytes: int
    flops: int
    seconds: float
    floor: float
    memory_bound: bool


@dataclass(frozen=True, slots=True)
class Profile:
    """A step's operations with their times, and what the device could do at best.

    runtime: what ran it. seconds: of the step as a whole. table: what an engine measures when it
    starts, where it does.
    """

    model: str
    device: str
    dtype: str
    runtime: str
    step: StepShape
    roofline: Roofline
    operations: list[Operation]
    seconds: float
    table: StepTable | None

    def together(self) -> Operation:
        """The sum of all operations of the step."""
        count, num_bytes, flops = (
            sum(getattr(op, name) for op in self.operations)
            for name in ("count", "num_bytes", "flops")
        )
        seconds = sum(op.seconds for op in self.operations)
        floor = sum(op.floor for op in self.operations)
        bound = self.roofline.is_memory_bound(num_bytes, flops)
        return Operation("all of these", "", count, num_bytes, flops, seconds, floor, bound)

    def as_json(self) -> dict[str, Any]:
        """The profile as JSON values."""
        return asdict(self) | {"table": msgspec.to_builtins(self.table, str_keys=True)}
