"""When an engine that dies is started again, and when the supervisor gives up."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from pathlib import Path

import pytest

from quire.config import EngineConfig
from quire.core.request_limits import RequestLimits
from quire.engine.core.engine_info import EngineInfo
from quire.engine.processes import engine_supervisor, restarts
from quire.engine.processes.control_channel import EngineDown, EngineStarted, EngineUp, StartEngine
from quire.engine.processes.engine_supervisor import EngineProcessSettings, EngineSupervisor
from quire.engine.processes.restarts import MAX_DEATHS
from quire.engine.processes.server_supervisor import (
    MAX_ENGINES,
    ServerSupervisor,
    ServerSupervisorSettings,
)
from quire.engine.processes.status_page import StatusPage
from quire.errors import EngineError
from quire.logs import LogOptions
from quire.shared_memory import create_shared_memory


class Mortal:
    """A fake engine process: starts, runs one step, and dies."""

    pid = 1

    def __init__(self, first: StartEngine, num_steps: int, seconds: float) -> None:
        self._memory_page = first.memory, first.page
        self._num_steps = num_steps
        self._seconds = seconds
        self._replies: list[EngineStarted] = [EngineStarted(info=INFO)]

    async def receive(self) -> EngineStarted | None:
        if self._replies:
            return self._replies.pop()
        await asyncio.sleep(self._seconds)
        page = StatusPage(*self._memory_page, writable=True)
        page.heartbeat(self._num_steps, has_work=True)
        page.close()
        return None

    async def end(self) -> int:
        return -9


INFO = EngineInfo(
    model_name="m",
    limits=RequestLimits(max_model_len=8, max_kv_tokens=64, vocab_size=9, max_num_seqs=1),
    eos_token_ids=[],
    dtype="float32",
    device="cpu",
    num_blocks=4,
    block_size=16,
    kv_cache_bytes=0,
)
STEADY = 0.4


@pytest.mark.parametrize(
    ("lives", "count"),
    [
        ([], MAX_DEATHS),  # a step each time, and then death: nothing else will come of it
        ([(1, 1.25 * STEADY)] * 2, 2 + MAX_DEATHS - 1),  # the last of these is the first in a row
        ([(0, 1.25 * STEADY)] * MAX_DEATHS, MAX_DEATHS),  # it was there long, but did nothing
    ],
)
def test_an_engine_that_is_of_no_use_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: list[tuple[int, float]], count: int
) -> None:
    spawned: list[StartEngine] = []

    async def spawn(_module: str, first: StartEngine, **_: object) -> Mortal:
        num_steps, seconds = lives[len(spawned)] if len(spawned) < len(lives) else (1, 0.0)
        spawned.append(first)
        assert len(spawned) <= 2 * MAX_DEATHS, "it is started for ever"
        return Mortal(first, num_steps, seconds)

    messages: list[EngineUp | EngineDown] = []
    last_used: list[float] = []  # at each death

    async def keep() -> None:
        log = LogOptions(level="info", format="text")
        settings = EngineProcessSettings(
            folder=tmp_path, memory=create_shared_memory(), pages=(1, 2),
            number=0, first_epoch=0, hang=0, log=log,
        )  # fmt: skip

        def note(message: EngineUp | EngineDown) -> None:
            messages.append(message)
            if isinstance(message, EngineDown):
                last_used.append(supervisor.last_used)

        supervisor = EngineSupervisor("m", EngineConfig(), settings, note)
        await supervisor.run()

    monkeypatch.setattr(engine_supervisor.Child, "spawn", spawn)
    monkeypatch.setattr(restarts, "BACKOFF_SECONDS", (0.0,) * MAX_DEATHS)
    monkeypatch.setattr(restarts, "STEADY_SECONDS", STEADY)
    with pytest.raises(EngineError, match="5 times in a row"):
        asyncio.run(keep())
    assert len(spawned) == count
    assert [first.num_restarts for first in spawned] == list(range(count))
    downs = [message.will_return for message in messages if isinstance(message, EngineDown)]
    assert downs == [True] * (count - 1) + [False]
    assert last_used == sorted(set(last_used))  # each process has worked: later than the last


def test_an_engine_that_is_stopped_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models may be loaded and unloaded for months."""

    async def spawn(_module: str, first: StartEngine, **_: object) -> Mortal:
        Path(first.address.removeprefix("ipc://")).touch()
        return Mortal(first, num_steps=1, seconds=60.0)

    async def load_and_unload() -> tuple[int, int, int]:
        settings = ServerSupervisorSettings(
            worker_module="", worker_settings=b"", num_workers=0, hang_timeout=0.0,
            log=LogOptions(level="info", format="text"),
        )  # fmt: skip
        with socket.socket() as listener:
            async with ServerSupervisor(settings, [listener]) as supervisor:
                engine = supervisor.start_engine("m", EngineConfig(), supervisor.fail)
                await supervisor.wait_until_started(engine)
                folder, pages = supervisor._folder, supervisor._free_pages
                while_there = len(list(folder.glob("engine-*")))
                await supervisor.stop_engine("m", "it is over")
                return while_there, len(list(folder.glob("engine-*"))), MAX_ENGINES - len(pages)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(engine_supervisor.Child, "spawn", spawn)
    assert asyncio.run(load_and_unload()) == (1, 0, 0)
