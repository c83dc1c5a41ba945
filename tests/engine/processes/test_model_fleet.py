"""Which models are loaded, unloaded and refused, by the limit, their use and their files."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from model_fleets import MIB, Busy, InConstantUse, fleet_of, let_tasks_run, plan, reply
from test_engine_supervisor import INFO

from quire.config import EngineConfig
from quire.engine.core.engine_info import EngineInfo
from quire.engine.processes import fleet_model, model_fleet
from quire.engine.processes.control_channel import (
    ControlMessage,
    LoadModel,
    ModelStatus,
    ReleaseModel,
    UnloadModel,
)
from quire.engine.processes.fleet_model import ModelSpec
from quire.engine.processes.model_fleet import ModelFleet
from quire.engine.processes.server_supervisor import ServerSupervisor, ServerSupervisorSettings
from quire.errors import CheckpointError, ConfigError, EngineError, QuireError
from quire.logs import LogOptions

SETTINGS = ServerSupervisorSettings(
    worker_module="none",
    worker_settings=b"",
    num_workers=0,
    hang_timeout=0.0,
    load_timeout=0.0,
    log=LogOptions("error", "text"),
)


def start(*plans: ModelSpec, limit: int | None) -> None:
    async def run() -> None:
        with socket.socket() as listener:
            async with ServerSupervisor(SETTINGS, [listener]) as supervisor:
                await ModelFleet(supervisor, plans, memory_bytes=limit).start()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("plans", "limit", "failure", "problem"),
    [
        ([plan("a")], 100 * MIB, ConfigError, "model a takes 268,435,456 bytes"),
        ([plan("a", at_start=False)], 100 * MIB, ConfigError, "raise it, or lower"),
        ([plan("a"), plan("b")], 300 * MIB, ConfigError, "models of the start take 536,870,912"),
        ([plan("a", "./nowhere", at_start=False)], None, CheckpointError, "nowhere"),
        (
            [plan("a", tokenizer=str(Path(__file__).parent))],
            None,
            CheckpointError,
            "is not a model: it has no config.json",
        ),
    ],
)
def test_impossible_settings_are_refused_at_the_start(
    plans: list[ModelSpec], limit: int, failure: type[QuireError], problem: str
) -> None:
    with pytest.raises(failure, match=problem):
        start(*plans, limit=limit)


def test_what_files_a_start_waits_for_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Storage that does not answer: the parent reads a model's files first."""
    stalled = tmp_path / "config.json"
    os.mkfifo(stalled)
    writer = os.open(stalled, os.O_RDWR)

    def read(_config: EngineConfig, _limit: int | None) -> None:
        with stalled.open("rb", buffering=0) as file:
            file.read(1)
        raise CheckpointError("it was empty")

    def end_read(name: str) -> None:
        note(name)
        os.write(writer, b"x")

    note = fleet_model._note_slow_files
    monkeypatch.setattr(fleet_model, "NOTE_SECONDS", 0.1)
    monkeypatch.setattr(fleet_model, "_measured", read)
    monkeypatch.setattr(fleet_model, "_note_slow_files", end_read)
    with caplog.at_level("WARNING"), pytest.raises(CheckpointError, match="it was empty"):
        start(plan("a"), limit=None)
    os.close(writer)
    assert [str(stalled) in line for line in caplog.messages] == [True]


class Deathbed:
    """A fake supervisor: the engine dies for good while processes are requested."""

    clients = ("0",)

    def __init__(self) -> None:
        self.fleet: ModelFleet
        self.states: list[str] = []
        self.jobs: list[asyncio.Task[None]] = []
        self._on_end: Callable[[BaseException], None]

    def spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.jobs.append(asyncio.create_task(job))
        return self.jobs[-1]

    def start_engine(
        self, _name: str, _config: EngineConfig, on_end: Callable[[BaseException], None]
    ) -> object:
        self._on_end = on_end
        return object()

    async def wait_until_started(self, _supervisor: object) -> EngineInfo:
        return INFO

    async def stop_engine(self, name: str, _why: str) -> None:
        raise KeyError(name)  # as the supervisor does with one that it does not have

    def broadcast(self, message: ControlMessage) -> None:
        if isinstance(message, ModelStatus):
            self.states.append(message.state)
        if isinstance(message, ReleaseModel):
            self._on_end(EngineError("it died again and again"))
            self.fleet.on_message("0", reply(message, agreed=False))


@pytest.mark.parametrize("grace", [0.0, 1.0])
def test_an_engine_that_dies_while_it_is_being_unloaded_is_unloaded(grace: float) -> None:
    async def run() -> list[str]:
        parent = Deathbed()
        plans = [plan("a", at_start=False), plan("b", at_start=False)]
        parent.fleet = ModelFleet(cast(ServerSupervisor, parent), plans)
        model = parent.fleet._models["a"]
        await model.measure(parent.fleet._memory_bytes)
        parent.fleet.on_message("0", LoadModel(name="a"))
        await parent.jobs[-1]
        async with model.changing:
            await parent.fleet._unload(model, grace)
        parent.fleet.on_message("0", UnloadModel(name="a", grace=1.0))  # and once more
        await parent.jobs[-1]
        return parent.states

    assert asyncio.run(run()) == ["loading", "loaded", "unloading", "unloaded", "unloaded"]


class Late(InConstantUse):
    """Its API process was stopped when it was asked first, and then has requests of the model."""

    orders: list[ReleaseModel]

    def broadcast(self, message: ControlMessage) -> None:
        if not isinstance(message, ReleaseModel):
            super().broadcast(message)
            return
        self.orders.append(message)
        if len(self.orders) > 1:
            self.fleet.on_message("0", reply(self.orders[0], agreed=True))
            self.fleet.on_message("0", reply(message, agreed=False))


def test_a_late_reply_does_not_answer_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_fleet, "ANSWER_SECONDS", 0.01)

    async def run() -> None:
        parent = Late()
        parent.orders = []
        fleet = await fleet_of(parent, "a", limit=300 * MIB)
        assert not await parent.request("a")
        for _ in range(2):
            await fleet._unload(fleet._models["a"], grace=0.0)
        assert fleet._models["a"].state == "loaded"
        assert not parent.stopped

    asyncio.run(run())


def test_requests_do_not_wait_for_a_model_whose_load_fails_unexpectedly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_config: EngineConfig, _limit: int | None) -> None:
        raise MemoryError

    async def run() -> tuple[str, str]:
        parent = InConstantUse()
        fleet = await fleet_of(parent, "a", limit=300 * MIB)
        fleet._models["a"].footprint = None
        monkeypatch.setattr(fleet_model, "_measured", fail)
        fleet.on_message("0", LoadModel(name="a"))
        await parent.jobs[-1]
        return parent.failure, fleet._models["a"].state

    failure, state = asyncio.run(run())
    assert failure == "the model could not be loaded; the log says why"
    assert state == "unloaded"
    assert "MemoryError" in caplog.text


def test_a_load_for_which_no_thread_is_left_is_refused_with_the_reason(
    no_thread_left: Callable[[], AbstractContextManager[None]],
) -> None:
    async def run() -> str:
        parent = InConstantUse()
        fleet = await fleet_of(parent, "a", limit=300 * MIB)
        fleet._models["a"].footprint = None
        with no_thread_left():
            fleet.on_message("0", LoadModel(name="a"))
            await parent.jobs[-1]
        return parent.failure

    assert "no thread could be started" in asyncio.run(run())


def test_an_api_process_that_dies_uses_no_model() -> None:
    class Dying(InConstantUse):
        def broadcast(self, message: ControlMessage) -> None:
            if isinstance(message, ReleaseModel):
                self.fleet.on_death("0")
            else:
                super().broadcast(message)

    async def run() -> list[str]:
        parent = Dying()
        fleet = await fleet_of(parent, "a", limit=300 * MIB)
        assert not await parent.request("a")
        await fleet._unload(fleet._models["a"], grace=0.0)
        return parent.stopped

    assert asyncio.run(run()) == ["a"]


def test_a_failed_load_is_not_tried_again_at_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, tries = 1e6, []
    monkeypatch.setattr(fleet_model.time, "monotonic", lambda: clock)

    def fail(config: EngineConfig, _limit: int | None) -> None:
        tries.append(config)
        raise CheckpointError("it is damaged; download it again")

    async def run() -> None:
        nonlocal clock
        parent = InConstantUse()
        fleet = await fleet_of(parent, "a", limit=300 * MIB)
        fleet._models["a"].footprint = None
        monkeypatch.setattr(fleet_model, "_measured", fail)
        for seconds, count in ((0.0, 1), (4.0, 1), (4.0, 2)):
            clock += seconds
            parent.failure = ""
            fleet.on_message("0", LoadModel(name="a"))
            await parent.jobs[-1]
            assert (parent.failure, len(tries)) == ("it is damaged; download it again", count)

    asyncio.run(run())


def test_with_a_limit_a_model_has_the_kv_cache_that_it_had_when_it_was_loaded() -> None:
    class Smaller(InConstantUse):
        async def wait_until_started(self, _supervisor: object) -> EngineInfo:
            return msgspec.structs.replace(INFO, kv_cache_bytes=5 * MIB)

    async def run() -> None:
        parent = Smaller()
        fleet = await fleet_of(parent, "a", limit=300 * MIB)
        assert not await parent.request("a")
        model = fleet._models["a"]
        assert model.footprint is not None
        assert model.footprint.kv_cache == 5 * MIB
        assert fleet._config(model).cache.kv_cache_memory_bytes == 5 * MIB

    asyncio.run(run())


def test_a_model_that_was_loaded_again_meanwhile_is_not_taken_for_an_unused_one() -> None:
    async def run() -> list[str]:
        parent = InConstantUse(longest=-1.0)
        fleet = await fleet_of(parent, "a", limit=300 * MIB)
        assert not await parent.request("a")
        model = fleet._models["a"]
        cast(Any, model).engine = SimpleNamespace(last_used=time.monotonic() - 100.0)
        async with model.changing:
            job = asyncio.create_task(fleet._unload_if_unused(model, 60.0))
            await let_tasks_run()
            cast(Any, model).engine = Busy()
        await job
        return parent.stopped

    assert asyncio.run(run()) == []


def test_what_measuring_finds_replaces_what_it_found_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The settings, too: they name the files' revision, for all processes."""
    settings, size, quality = plan("pinned").config, object(), object()

    def measured(_config: EngineConfig, _limit: int | None) -> object:
        return settings, size, quality

    def failing(_config: EngineConfig, _limit: int | None) -> object:
        raise CheckpointError("its files have gone")

    async def run() -> None:
        model = fleet_model.FleetModel(plan("a"))
        monkeypatch.setattr(fleet_model, "_measured", measured)
        await model.measure(None)
        assert model.plan.config is settings
        assert (model.footprint, model.quality) == (size, quality)
        monkeypatch.setattr(fleet_model, "_measured", failing)
        with pytest.raises(CheckpointError):
            await model.measure(None)
        assert model.quality is None

    asyncio.run(run())
