"""Which models are loaded, unloaded and refused, by their memory, their use and their files."""

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
from test_engine_supervisor import INFO

from quire.config import EngineConfig
from quire.engine.core.engine_info import EngineInfo
from quire.engine.processes import fleet_model, model_fleet
from quire.engine.processes.control_channel import (
    ControlMessage,
    LoadModel,
    ModelReleased,
    ModelStatus,
    ReleaseModel,
    UnloadModel,
)
from quire.engine.processes.fleet_model import ModelSpec
from quire.engine.processes.model_fleet import ModelFleet
from quire.engine.processes.server_supervisor import ServerSupervisor, ServerSupervisorSettings
from quire.errors import CheckpointError, ConfigError, EngineError, QuireError
from quire.logs import LogOptions

MIB = 1 << 20
SETTINGS = ServerSupervisorSettings(
    worker_module="none",
    worker_settings=b"",
    num_workers=0,
    hang_timeout=0.0,
    load_timeout=0.0,
    log=LogOptions("error", "text"),
)


def plan(
    name: str, model: str = "quire-tiny", *, at_start: bool = True, tokenizer: str | None = None
) -> ModelSpec:
    config = EngineConfig.from_options(model=model, tokenizer=tokenizer, load_format="null")
    return ModelSpec(name=name, config=config, at_start=at_start)


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


def reply(order: ReleaseModel, *, agreed: bool) -> ModelReleased:
    """An API process's reply."""
    return ModelReleased(name=order.name, number=order.number, agreed=agreed)


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


@pytest.mark.parametrize("longest", [0.0, 1e9])
def test_a_model_is_loaded_while_all_others_are_in_constant_use(
    longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1e6
    monkeypatch.setattr(fleet_model.time, "monotonic", lambda: clock)
    monkeypatch.setattr(model_fleet.asyncio, "sleep", no_sleep)

    async def run() -> list[tuple[int, str]]:
        """When which model is loaded, where all three have requests each second."""
        nonlocal clock
        parent = InConstantUse(longest)
        await fleet_of(parent, *"abc", limit=600 * MIB)  # for two
        loads, is_loaded = [], dict.fromkeys("abc", False)
        for second in range(100):
            for name in "abc":
                if not await parent.request(name) and not is_loaded[name]:
                    loads.append((second, name))
                is_loaded |= {n: m.state == "loaded" for n, m in parent.fleet._models.items()}
            clock += 1.0
        first_loaded_first = [name for _, name in loads]
        assert parent.stopped == first_loaded_first[: len(loads) - 2]
        return loads

    loads = asyncio.run(run())
    if longest:  # no request is cut off
        assert loads == [(0, "a"), (0, "b")]
    else:
        assert loads == [(0, "a"), (0, "b"), (31, "c"), (63, "a"), (94, "b")]


def test_no_model_is_unloaded_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has had its turn stays while another one has not, whose memory is needed, too."""
    clock = 1e6
    monkeypatch.setattr(fleet_model.time, "monotonic", lambda: clock)
    monkeypatch.setattr(model_fleet.asyncio, "sleep", no_sleep)

    async def run() -> list[tuple[int, list[str]]]:
        nonlocal clock
        parent = InConstantUse()
        await fleet_of(parent, *"abc", limit=600 * MIB)
        large = parent.fleet._models["c"]
        assert large.footprint is not None
        large.footprint = msgspec.structs.replace(large.footprint, weights=256 * MIB)
        stopped = []
        for second in range(60):
            for name in "abc" if second >= 20 else "ac":
                count = len(parent.stopped)
                await parent.request(name)
                if parent.stopped[count:]:
                    stopped.append((second, parent.stopped[count:]))
            clock += 1.0
        return stopped

    assert asyncio.run(run()) == [(51, ["a", "b"])]


@pytest.mark.parametrize("seconds", [5, 40], ids=["in-its-turn", "asked-and-declines"])
def test_idle_models_stay_where_even_all_of_them_would_not_free_enough(
    seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """seconds: for which the busy one has been loaded."""
    clock = 1e6
    monkeypatch.setattr(fleet_model.time, "monotonic", lambda: clock)
    monkeypatch.setattr(model_fleet.asyncio, "sleep", no_sleep)

    class IdleBut(InConstantUse):
        """A fake supervisor with one busy engine."""

        def start_engine(self, name: str, _config: EngineConfig, _on_end: object) -> object:
            return Busy() if name == "busy" else SimpleNamespace(last_used=1e6)

        def broadcast(self, message: ControlMessage) -> None:
            if not isinstance(message, ReleaseModel):
                super().broadcast(message)
            else:
                agreed = message.name != "busy"
                self.fleet.on_message("0", reply(message, agreed=agreed))

    async def run() -> list[str]:
        nonlocal clock
        parent = IdleBut()
        fleet = await fleet_of(parent, "idle", "busy", "small", "large", limit=600 * MIB)
        for name in ("idle", "busy"):
            assert not await parent.request(name)
        size = fleet._models["large"].footprint
        assert size is not None
        fleet._models["large"].footprint = msgspec.structs.replace(size, weights=300 * MIB)
        clock += seconds
        assert "send it again later" in await parent.request("large")
        assert not parent.stopped
        assert not await parent.request("small")
        return parent.stopped

    assert asyncio.run(run()) == ["idle"]


def test_a_model_in_use_is_not_drained_before_it_has_had_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was idle as others were chosen to make room, and is in use as it is asked."""
    clock = 1e6
    monkeypatch.setattr(fleet_model.time, "monotonic", lambda: clock)

    async def run() -> list[list[str]]:
        nonlocal clock
        parent, stopped = InConstantUse(), []
        fleet = await fleet_of(parent, "a", "b", limit=300 * MIB)  # for one
        assert not await parent.request("a")
        for _ in range(2):
            a, b = fleet._models.values()
            await fleet._memory._unload_enough(b, [a], grace=60.0)
            stopped.append(list(parent.stopped))
            clock += 40.0
        return stopped

    assert asyncio.run(run()) == [[], ["a"]]


@pytest.mark.parametrize("longest", [-1.0, 0.0])
def test_models_that_are_used_alternately_are_not_swapped_at_each_request(
    longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """longest: -1: whenever they are asked, no answer is in flight; 0: one always is."""
    clock = 1e6
    monkeypatch.setattr(fleet_model.time, "monotonic", lambda: clock)
    monkeypatch.setattr(model_fleet.asyncio, "sleep", no_sleep)

    async def run() -> tuple[list[str], list[tuple[str, str]]]:
        nonlocal clock
        parent = InConstantUse(longest)
        await fleet_of(parent, *"ac", limit=300 * MIB)  # for one
        for _ in range(100 * 10):
            await parent.request("a")
            await parent.request("c")
            clock += 0.1
        return parent.stopped, parent.statuses

    stopped, statuses = asyncio.run(run())
    assert stopped == ["a", "c", "a"]
    assert sum(state == "unloading" for _, state in statuses) <= 2 * len(stopped)
    second = statuses.index(("a", "unloading"))  # when it has had its turn
    assert set(statuses[:second]) == {("a", "loading"), ("a", "loaded"), ("c", "unloaded")}


def test_one_client_that_calls_models_in_turn_waits_for_an_idle_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, pauses = 1e6, []

    async def sleep(seconds: float) -> None:
        nonlocal clock
        clock += seconds
        pauses.append(seconds)

    monkeypatch.setattr(fleet_model.time, "monotonic", lambda: clock)
    monkeypatch.setattr(model_fleet.asyncio, "sleep", sleep)

    async def run() -> list[str]:
        nonlocal clock
        parent = InConstantUse(longest=-1.0)
        monkeypatch.setattr(
            parent, "start_engine", lambda *_: SimpleNamespace(last_used=time.monotonic())
        )
        fleet = await fleet_of(parent, *"ac", limit=300 * MIB)
        for idle in (0.0, 0.5, 2.0):
            for name in "ac":
                assert not await parent.request(name)
                engine = fleet._models[name].engine
                assert engine is not None
                cast(SimpleNamespace, engine).last_used = clock
                clock += idle
        return parent.stopped

    assert asyncio.run(run()) == ["a", "c", "a", "c", "a"]
    assert pauses == pytest.approx([1.1, 1.1, 0.6, 0.6], abs=1e-3)


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


def test_a_request_of_a_model_that_is_being_unloaded_waits_until_it_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 1e6
    monkeypatch.setattr(fleet_model.time, "monotonic", lambda: clock)
    monkeypatch.setattr(model_fleet.asyncio, "sleep", no_sleep)

    class Requested(InConstantUse):
        """A request of a model comes while an API process is asked about it."""

        def broadcast(self, message: ControlMessage) -> None:
            if isinstance(message, ReleaseModel):
                self.fleet.on_message("0", LoadModel(name=message.name))
                asyncio.get_running_loop().call_soon(super().broadcast, message)
            else:
                super().broadcast(message)

    async def run() -> list[tuple[str, str]]:
        nonlocal clock
        parent = Requested(longest=-1.0)
        await fleet_of(parent, "a", "b", limit=300 * MIB)  # for one
        assert not await parent.request("a")
        clock += 40.0
        parent.fleet.on_message("0", LoadModel(name="b"))
        await let_tasks_run()
        return parent.statuses

    statuses = asyncio.run(run())
    begin = statuses.index(("a", "unloading"))
    assert statuses[begin : begin + 2] == [("a", "unloading"), ("a", "unloaded")]
    assert ("b", "loaded") in statuses


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


def test_a_model_that_could_not_be_drained_begins_another_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 1e6
    monkeypatch.setattr(fleet_model.time, "monotonic", lambda: clock)

    async def run() -> None:
        nonlocal clock
        parent = InConstantUse(longest=1e9)
        fleet = await fleet_of(parent, "a", limit=300 * MIB)
        assert not await parent.request("a")
        model = fleet._models["a"]
        clock += 40.0
        for grace, had in ((0.0, True), (60.0, False)):
            await fleet._unload(model, grace)
            assert (model.state, model.has_had_turn) == ("loaded", had)

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


def test_a_model_whose_files_grew_beyond_the_limit_is_refused_for_that() -> None:
    async def run() -> None:
        fleet = await fleet_of(InConstantUse(), "a", limit=300 * MIB)
        model = fleet._models["a"]
        assert model.footprint is not None
        model.footprint = msgspec.structs.replace(model.footprint, weights=300 * MIB)
        with pytest.raises(ConfigError, match="but model_memory_bytes is 314,572,800; raise it"):
            await fleet._memory.ensure_fits(model)

    asyncio.run(run())


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


class Answering(InConstantUse):
    """Its requests take long."""

    def broadcast(self, message: ControlMessage) -> None:
        if not isinstance(message, ReleaseModel):
            super().broadcast(message)
        elif not message.grace:
            self.fleet.on_message("0", reply(message, agreed=False))


@pytest.mark.parametrize(
    ("sizes", "first", "beside"),  # MiB; others have 256, the limit is 1,000
    [
        ({"busy": 600, "large": 700}, [], ["small"]),
        ({"busy": 300, "large": 400, "next": 400}, ["next"], []),  # else "next" would be due, too
    ],
)
def test_a_model_that_fits_does_not_wait_until_a_busy_one_is_unloaded(
    sizes: dict[str, int],
    first: list[str],
    beside: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does where it would take the memory that the busy one makes free for another."""
    clock = 1e6
    monkeypatch.setattr(fleet_model.time, "monotonic", lambda: clock)
    monkeypatch.setattr(model_fleet.asyncio, "sleep", no_sleep)

    def loaded(fleet: ModelFleet) -> list[str]:
        return [name for name, model in fleet._models.items() if model.state == "loaded"]

    async def run() -> None:
        nonlocal clock
        parent = Answering()
        fleet = await fleet_of(parent, "busy", "large", "next", "small", "other", limit=1000 * MIB)
        for name, num_mib in sizes.items():
            size = fleet._models[name].footprint
            assert size is not None
            fleet._models[name].footprint = msgspec.structs.replace(
                size, weights=num_mib * MIB - size.total
            )
        for name in ("busy", *first):
            assert not await parent.request(name)
        for _ in range(32):  # the large one is refused for so many seconds
            clock += 1.0
            fleet.on_message("0", LoadModel(name="large"))
            await let_tasks_run()
        assert fleet._models["busy"].state == "unloading"
        for name in ("small", "other"):  # which fits now, too, but not beside the large one
            fleet.on_message("0", LoadModel(name=name))
            await let_tasks_run()
        assert loaded(fleet) == [*first, *beside]
        assert not parent.stopped
        number = fleet._models["busy"].num_questions
        fleet.on_message("0", ModelReleased(name="busy", number=number, agreed=True))
        await let_tasks_run()
        assert loaded(fleet) == ["large", *first, *beside]
        assert parent.stopped == ["busy"]

    asyncio.run(run())
