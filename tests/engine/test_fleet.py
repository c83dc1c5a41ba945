"""Whether models fit is told before any of them is loaded."""

from __future__ import annotations

import asyncio
import socket

import pytest

from quire.config import EngineConfig
from quire.engine.fleet import Fleet, FleetSettings, ModelPlan
from quire.engine.supervisor import Supervisor, SupervisorSettings
from quire.errors import CheckpointError, ConfigError, QuireError
from quire.logs import LogOptions

MIB = 1 << 20
SETTINGS = SupervisorSettings(
    worker_module="none",
    worker_settings=b"",
    num_workers=0,
    hang_timeout=0.0,
    log=LogOptions("error", "text"),
)


def plan(name: str, model: str = "quire-tiny", *, at_start: bool = True) -> ModelPlan:
    config = EngineConfig.from_options(model=model, load_format="null")
    return ModelPlan(name=name, config=config, at_start=at_start)


def start(*plans: ModelPlan, limit: int | None) -> None:
    async def run() -> None:
        with socket.socket() as listener:
            async with Supervisor(SETTINGS, listener) as supervisor:
                await Fleet(supervisor, plans, FleetSettings(memory_bytes=limit)).start()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("plans", "limit", "failure", "problem"),
    [
        ([plan("a")], 100 * MIB, ConfigError, "model a takes 268,435,456 bytes"),
        ([plan("a", at_start=False)], 100 * MIB, ConfigError, "raise it, or lower"),
        ([plan("a"), plan("b")], 300 * MIB, ConfigError, "models of the start take 536,870,912"),
        ([plan("a", "./nowhere", at_start=False)], None, CheckpointError, "nowhere"),
    ],
)
def test_what_cannot_be_is_told_at_the_start(
    plans: list[ModelPlan], limit: int, failure: type[QuireError], problem: str
) -> None:
    with pytest.raises(failure, match=problem):
        start(*plans, limit=limit)
