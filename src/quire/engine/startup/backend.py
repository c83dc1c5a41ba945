"""What is to be started, and what a start needs of the model that was loaded for it. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quire.config import EngineConfig
from quire.core.pooling_params import PoolingParams
from quire.core.request_limits import RequestLimits
from quire.engine.core.executor import Executor
from quire.engine.startup.resolved_config import length_limit, settle
from quire.engine.startup.step_tuning import StepTable
from quire.hub import resolve_model
from quire.layers.forward_context import Heartbeat
from quire.models.config.model_config import ModelConfig
from quire.models.config.pooling_config import read_pooling
from quire.sampling.structured_mask import Matcher


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What settings and a model's config files come to on a type of device.

    config: settled for it; asked: as given. length_limit: positions that a request may have.
    """

    asked: EngineConfig
    config: EngineConfig
    path: Path
    model_config: ModelConfig
    pooling: PoolingParams
    length_limit: int


def task_of(asked: EngineConfig, device_type: str) -> Task:
    """device_type: "cpu" or "cuda". Raises ConfigError or CheckpointError."""
    config = settle(asked, device_type)
    path = resolve_model(config.model.model, config.model.revision)
    model_config = ModelConfig.from_folder(path)
    return Task(
        asked=asked,
        config=config,
        path=path,
        model_config=model_config,
        pooling=read_pooling(path, config.model.pooling, model_config.hidden_size),
        length_limit=length_limit(config, model_config),
    )


class Backend(Protocol):
    """A loaded model. device, dtype, kv_type: by PyTorch's names.

    config: settled, with what was measured. table: what a CPU's steps take, where that was.
    """

    config: EngineConfig
    task: Task
    device: str
    dtype: str
    kv_type: str
    table: StepTable | None

    def compiling(self) -> AbstractContextManager[None]:
        """Around all that launches kernels which may have to be compiled first."""

    def kv_budget(self) -> int:
        """Bytes that the KV cache may take where the settings leave that open."""

    def allocate(self, num_blocks: int) -> None:
        """Make the KV cache. Raises MemoryError."""

    def make_executor(
        self, limits: RequestLimits, matchers: Mapping[str, Matcher], heartbeat: Heartbeat
    ) -> Executor:
        """An executor, which has still to `get_ready`. heartbeat: called in long steps."""

    def has_started(self) -> None:
        """Give back what only a start needs."""
