"""Which models make room for others, by their memory and their use."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from model_fleets import MIB, Busy, InConstantUse, fleet_of, let_tasks_run, no_sleep, reply

from quire.config import EngineConfig
from quire.engine.processes import fleet_model, model_fleet
from quire.engine.processes.control_channel import (
    ControlMessage,
    LoadModel,
    ModelReleased,
    ReleaseModel,
)
from quire.engine.processes.model_fleet import ModelFleet
from quire.errors import ConfigError


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


def test_a_model_whose_files_grew_beyond_the_limit_is_refused_for_that() -> None:
    async def run() -> None:
        fleet = await fleet_of(InConstantUse(), "a", limit=300 * MIB)
        model = fleet._models["a"]
        assert model.footprint is not None
        model.footprint = msgspec.structs.replace(model.footprint, weights=300 * MIB)
        with pytest.raises(ConfigError, match="but model_memory_bytes is 314,572,800; raise it"):
            await fleet._memory.ensure_fits(model)

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
