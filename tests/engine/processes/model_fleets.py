"""Fleets of models without processes, and a fake supervisor of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, cast

from test_engine_supervisor import INFO

from quire.config import EngineConfig
from quire.engine.core.engine_info import EngineInfo
from quire.engine.processes.control_channel import (
    ControlMessage,
    LoadModel,
    ModelReleased,
    ModelStatus,
    ReleaseModel,
)
from quire.engine.processes.fleet_model import ModelSpec
from quire.engine.processes.model_fleet import ModelFleet
from quire.engine.processes.server_supervisor import ServerSupervisor

MIB = 1 << 20


def plan(
    name: str, model: str = "quire-tiny", *, at_start: bool = True, tokenizer: str | None = None
) -> ModelSpec:
    config = EngineConfig.from_options(model=model, tokenizer=tokenizer, load_format="null")
    return ModelSpec(name=name, config=config, at_start=at_start)


def reply(order: ReleaseModel, *, agreed: bool) -> ModelReleased:
    """An API process's reply."""
    return ModelReleased(name=order.name, number=order.number, agreed=agreed)


class Busy:
    """A fake engine that has work all the time."""

    @property
    def last_used(self) -> float:
        return time.monotonic()


class InConstantUse:
    """A fake supervisor: requests of loaded models end only where no new ones are started.

    longest: seconds that the longest request takes.
    """

    clients = ("0",)

    def __init__(self, longest: float = 0.0) -> None:
        self.fleet: ModelFleet
        self.jobs: list[asyncio.Task[None]] = []
        self.longest, self.failure = longest, ""
        self.stopped: list[str] = []
        self.statuses: list[tuple[str, str]] = []

    def spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.jobs.append(asyncio.create_task(job))
        return self.jobs[-1]

    def start_engine(self, _name: str, _config: EngineConfig, _on_end: object) -> object:
        return Busy()

    async def wait_until_started(self, _supervisor: object) -> EngineInfo:
        return INFO

    async def stop_engine(self, name: str, _why: str) -> None:
        self.stopped.append(name)

    def broadcast(self, message: ControlMessage) -> None:
        if isinstance(message, ModelStatus):
            self.failure = message.failure or self.failure
            self.statuses.append((message.name, message.state))
        if isinstance(message, ReleaseModel):
            agreed = message.grace > self.longest
            self.fleet.on_message("0", reply(message, agreed=agreed))

    async def request(self, name: str) -> str:
        """The reason why a request of this model is refused; "" if it is not."""
        self.failure = ""
        self.fleet.on_message("0", LoadModel(name=name))
        await self.jobs[-1]
        assert not self.fleet._models[name].failure, "a server with it is ready"
        return self.failure


async def no_sleep(_seconds: float) -> None:
    """Takes the place of asyncio.sleep where the clock is a fake, which tests advance."""


async def let_tasks_run() -> None:
    """Let them go on as far as they can, where asyncio.sleep is a fake."""
    for _ in range(20):
        await asyncio.wait([asyncio.create_task(no_sleep(0.0))])


async def fleet_of(parent: InConstantUse, *names: str, limit: int) -> ModelFleet:
    """A fleet of on-demand models of 256 MiB each."""
    plans = [plan(name, at_start=False) for name in names]
    parent.fleet = ModelFleet(cast(ServerSupervisor, parent), plans, memory_bytes=limit)
    for model in parent.fleet._models.values():
        await model.measure(parent.fleet._memory_bytes)
    return parent.fleet
