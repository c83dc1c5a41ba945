"""When an engine that dies is started again, and when the supervisor gives up."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from supervised import supervisor_of

from quire.config import EngineConfig
from quire.core.request_limits import RequestLimits
from quire.engine.core.engine_info import EngineInfo
from quire.engine.processes import (
    child_process,
    engine_supervisor,
    liveness,
    server_supervisor,
    status_page,
    worker_supervisor,
)
from quire.engine.processes.child_process import Child, SpawnError
from quire.engine.processes.control_channel import (
    ControlMessage,
    EngineDown,
    EngineStarted,
    EngineUp,
    StartEngine,
    StartFailed,
    StartWorker,
    WorkerReady,
)
from quire.engine.processes.liveness import MAX_DEATHS
from quire.engine.processes.server_supervisor import ServerSupervisor, ServerSupervisorSettings
from quire.engine.processes.status_page import StatusPage
from quire.engine.processes.worker_supervisor import WorkerSupervisor
from quire.errors import EngineError, QuireError
from quire.logs import LogOptions
from quire.shared_memory import PAGE_BYTES, clear_page, create_shared_memory


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
FAILED = StartFailed(kind="CheckpointError", message="there is no tokenizer")


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
        def note(message: EngineUp | EngineDown) -> None:
            messages.append(message)
            if isinstance(message, EngineDown):
                last_used.append(supervisor.last_used)

        supervisor = supervisor_of(tmp_path, note)
        await supervisor.run()

    monkeypatch.setattr(engine_supervisor.Child, "spawn", spawn)
    monkeypatch.setattr(liveness, "BACKOFF_SECONDS", (0.0,) * MAX_DEATHS)
    monkeypatch.setattr(liveness, "STEADY_SECONDS", STEADY)
    with pytest.raises(EngineError, match="5 times in a row"):
        asyncio.run(keep())
    assert len(spawned) == count
    assert [first.num_restarts for first in spawned] == list(range(count))
    downs = [message.will_return for message in messages if isinstance(message, EngineDown)]
    assert downs == [True] * (count - 1) + [False]
    assert last_used == sorted(set(last_used))  # each process has worked: later than the last


def test_an_engine_that_is_stopped_leaves_no_files_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models may be loaded and unloaded for months."""
    counts: list[int] = []  # of files, while it is there and afterwards

    async def spawn(_module: str, first: StartEngine, **_: object) -> Mortal:
        Path(first.address.removeprefix("ipc://")).touch()
        return Mortal(first, num_steps=1, seconds=60.0)

    async def load_and_unload() -> int:
        settings = ServerSupervisorSettings(
            worker_module="", worker_settings=b"", num_workers=0, hang_timeout=0.0,
            load_timeout=0.0, log=LogOptions(level="info", format="text"),
        )  # fmt: skip
        with socket.socket() as listener:
            async with ServerSupervisor(settings, [listener]) as supervisor:
                for _ in range(5):
                    engine = supervisor.start_engine("m", EngineConfig(), supervisor.fail)
                    await supervisor.wait_until_started(engine)
                    counts.append(len(list(supervisor._folder.glob("engine-*"))))
                    await supervisor.stop_engine("m", "it is over")
                    counts.append(len(list(supervisor._folder.glob("engine-*"))))
                return os.fstat(supervisor._memory).st_size

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(engine_supervisor.Child, "spawn", spawn)
    # for the model's engines in turn
    assert asyncio.run(load_and_unload()) == 2 * PAGE_BYTES
    assert counts == [1, 0] * 5


async def supervise_two_starts(folder: Path, ups: list[EngineUp]) -> None:
    """Keep an engine running until it has started twice, by what is added to `ups`."""

    def note(message: EngineUp | EngineDown) -> None:
        ups.extend([message] if isinstance(message, EngineUp) else [])
        if len(ups) == 2:
            task.cancel()

    supervisor = supervisor_of(folder, note)
    task = asyncio.create_task(supervisor.run())
    await task


@pytest.mark.parametrize("is_first", [True, False])
def test_an_engine_is_started_later_where_the_system_has_no_process_for_it(
    is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies: list[type[Mortal] | None] = [None] if is_first else [Mortal, *[None] * 9, Mortal]

    async def spawn(_module: str, first: StartEngine, **_: object) -> Mortal:
        assert first.num_restarts == (not is_first and len(replies) < 11)  # one has died
        if (kind := replies.pop(0)) is None:
            raise SpawnError("no process can be started")
        return kind(first, num_steps=1, seconds=0.0 if replies else 60.0)

    monkeypatch.setattr(engine_supervisor.Child, "spawn", spawn)
    monkeypatch.setattr(liveness, "LACK_PAUSE", 0.0)
    monkeypatch.setattr(liveness, "BACKOFF_SECONDS", (0.0,) * MAX_DEATHS)
    with pytest.raises(SpawnError if is_first else asyncio.CancelledError):
        asyncio.run(supervise_two_starts(tmp_path, []))
    assert not replies


def test_an_engine_is_started_later_where_there_is_no_memory_for_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process's page is new; the server has requests that wait for it."""
    failures = iter([False, True, False])
    ups: list[EngineUp] = []

    def clear(memory: int, page: int) -> None:
        if next(failures):
            raise OSError(28, "No space left on device")
        clear_page(memory, page)

    async def spawn(_module: str, first: StartEngine, **_: object) -> Mortal:
        return Mortal(first, num_steps=1, seconds=0.0 if not ups else 60.0)

    monkeypatch.setattr(status_page, "clear_page", clear)
    monkeypatch.setattr(engine_supervisor.Child, "spawn", spawn)
    monkeypatch.setattr(liveness, "LACK_PAUSE", 0.0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(supervise_two_starts(tmp_path, ups))


@pytest.mark.parametrize("kind", ["engine", "API process"])
def test_a_process_that_the_system_lacks_for_long_is_given_up(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downs: list[EngineDown] = []
    num_started = 0

    async def start_once(_module: str, first: StartEngine, **_: object) -> object:
        nonlocal num_started
        num_started += 1
        if num_started > 1:
            raise SpawnError("no process can be started")
        if kind == "engine":
            return Mortal(first, num_steps=1, seconds=0.0)
        return await spawning([[WorkerReady()]])()

    async def keep() -> None:
        if kind == "API process":
            return await worker().run()
        return await supervisor_of(tmp_path, downs.append).run()

    monkeypatch.setattr(Child, "spawn", start_once)
    monkeypatch.setattr(liveness, "LACK_PAUSE", 0.01)
    monkeypatch.setattr(liveness, "LACK_SECONDS", 0.5)
    with pytest.raises(EngineError, match=f"{kind} could not be started again for .*the log says"):
        asyncio.run(keep())
    assert num_started > 1 + MAX_DEATHS
    will_return = [down.will_return for down in downs if isinstance(down, EngineDown)]
    assert will_return[-1:] == ([False] if kind == "engine" else [])


def test_a_server_without_shared_memory_says_so_and_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def enter() -> None:
        settings = ServerSupervisorSettings(
            worker_module="", worker_settings=b"", num_workers=1, hang_timeout=0.0,
            load_timeout=0.0, log=LogOptions(level="info", format="text"),
        )  # fmt: skip
        async with ServerSupervisor(settings, []):
            raise AssertionError

    monkeypatch.setattr(server_supervisor, "clear_page", refuse)
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with pytest.raises(EngineError, match="free some memory"):
            asyncio.run(enter())
        assert not os.listdir(folder)


def test_a_process_that_cannot_be_started_is_an_error_with_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object, env: dict[str, str], **__: object) -> None:
        assert env["HF_HUB_OFFLINE"] == "1"  # what it needs is there
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
    with pytest.raises(SpawnError, match=r"temporarily unavailable.*raise their limits"):
        asyncio.run(Child.spawn("module", WorkerReady()))


def test_a_process_that_cannot_be_killed_is_left_to_the_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that waits in a driver; its supervisor would tell nobody that it is gone."""

    class Held:
        pid, returncode = os.getpid(), None

        async def wait(self) -> int:
            await asyncio.sleep(60.0)
            return 0

    async def end() -> int:
        writer = SimpleNamespace(close=lambda: closed.append(True))
        async with asyncio.timeout(10.0):
            return await Child(Held(), asyncio.StreamReader(), writer).end()  # type: ignore[arg-type]

    closed: list[bool] = []
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    monkeypatch.setattr(child_process, "END_SECONDS", 0.1)
    assert asyncio.run(end()) == -signal.SIGKILL
    assert (sent, closed) == ([signal.SIGKILL], [True])
    assert "has not ended: the kernel holds it; it has" in caplog.text


def spawning(
    lives: list[list[ControlMessage] | None],
) -> Callable[..., Awaitable[SimpleNamespace]]:
    """Starts processes that send these messages and end; None: it starts none."""

    async def spawn(*_: object, **__: object) -> SimpleNamespace:
        if (messages := lives.pop(0)) is None:
            raise SpawnError("no process can be started")
        replies = [*messages, None]

        async def receive() -> ControlMessage | None:
            return replies.pop(0)

        async def end() -> int:
            return 1

        return SimpleNamespace(receive=receive, end=end)

    return spawn


def worker() -> WorkerSupervisor:
    """The supervisor of an API process, without a server."""
    first = StartWorker(
        row=0, client="0.0", settings=b"", listeners=[], memory=create_shared_memory(), counters=0,
        metrics_folder="", log=LogOptions(level="info", format="text"),
    )  # fmt: skip
    nothing = lambda *_: None  # noqa: E731
    parent = SimpleNamespace(statuses=list, reachable=list, on_death=nothing, on_message=nothing)
    return WorkerSupervisor("", first, parent, hang=0, load=0)


@pytest.mark.parametrize(
    ("lives", "error"),
    [
        ([None], "no process can be started"),  # at the start of the server
        ([[WorkerReady()], *[None] * 9, [FAILED], None, *[[FAILED]] * 3], "5 times in a row"),
        ([[FAILED]], "no tokenizer"),
        # its files are not there for a moment, while other API processes serve
        ([[WorkerReady()], *[[FAILED]] * (MAX_DEATHS - 1)], "5 times in a row"),
    ],
    ids=["no process at first", "no process later", "at first", "later"],
)
def test_an_api_process_that_cannot_start_is_tried_again(
    lives: list[list[ControlMessage] | None], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = lives.copy()
    monkeypatch.setattr(worker_supervisor.Child, "spawn", spawning(left))
    monkeypatch.setattr(liveness, "LACK_PAUSE", 0.0)
    monkeypatch.setattr(liveness, "BACKOFF_SECONDS", (0.0,) * MAX_DEATHS)

    async def keep() -> None:
        await worker().run()

    with pytest.raises(QuireError, match=error):
        asyncio.run(keep())
    assert not left


def test_an_api_process_that_has_died_is_not_started_again_to_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that shuts down meanwhile does not wait for the pause either."""
    monkeypatch.setattr(worker_supervisor.Child, "spawn", spawning([[WorkerReady()]]))
    monkeypatch.setattr(liveness, "BACKOFF_SECONDS", (60.0,) * MAX_DEATHS)

    async def keep() -> None:
        supervisor = worker()
        task = asyncio.create_task(supervisor.run())
        await supervisor.ready.wait()
        while supervisor.client is not None:
            await asyncio.sleep(0.01)
        supervisor.leave()
        async with asyncio.timeout(10.0):
            await task

    asyncio.run(keep())
