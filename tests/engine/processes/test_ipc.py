"""Frames between front and engine: real sockets, an engine without a model in a thread."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from child_process import run_to_end
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.config import EngineConfig
from quire.core.messages import (
    AbortRequests,
    AddRequest,
    EngineMessage,
    EngineStats,
    GetEngineView,
    RequestDelta,
    StepOutput,
    TokenLogprobs,
)
from quire.core.pooling_params import PoolingParams
from quire.core.request_output import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.engine.core.engine_info import EngineInfo
from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.frontend.output_processor import MAX_DEATHS_SEEN
from quire.engine.processes import ipc
from quire.engine.processes.control_channel import EngineDown
from quire.engine.processes.engine_process import EngineProcess
from quire.engine.processes.ipc import EngineConnection, EngineSocket, Sent
from quire.engine.processes.process_link import ProcessLink
from quire.engine.processes.status_page import StatusPage
from quire.engine.startup.null_engine import start_null_engine
from quire.errors import EngineError, InvalidRequestError, OverloadedError, QuireError
from quire.hub import tokenizer_folder
from quire.shared_memory import clear_page, create_shared_memory
from quire.tokenizer.tokenizer import Tokenizer

CONFIG = EngineConfig.from_options(load_format="null", num_blocks=2000)
TOKENIZER = Tokenizer.from_folder(tokenizer_folder(CONFIG))


# ---------------------------------------------------------------------- what arrives


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineSocket, zmq.Socket]]:
    address = f"ipc://{tmp_path_factory.mktemp('ipc')}/engine"
    engine, context = EngineSocket(address), zmq.Context()
    client = context.socket(zmq.DEALER)
    client.setsockopt(zmq.IDENTITY, b"front")
    client.connect(address)
    yield engine, client
    context.destroy(linger=0)
    engine.close()


def add(request_id: str, **fields: Any) -> AddRequest:
    sampling = SamplingParams(**({"max_tokens": 5} | fields))
    return AddRequest(request_id=request_id, prompt_token_ids=[5, 6], sampling=sampling)


def frame(*messages: EngineMessage) -> bytes:
    return msgspec.msgpack.encode(list(messages))


def wrong(**fields: Any) -> bytes:
    """A message that is one but for these fields of its sampling parameters."""
    plain = msgspec.to_builtins(add("a"))
    plain["sampling"] |= fields
    return msgspec.msgpack.encode([plain])


BAD = [
    [b""],
    [b"\x80\x04K\x01."],  # a pickle
    [frame(add("a")), frame(add("b"))],
    [msgspec.msgpack.encode(msgspec.to_builtins(add("a")))],  # no list
    [msgspec.msgpack.encode([{"type": "shutdown"}])],
    [msgspec.msgpack.encode([{"type": "add"}])],
    [wrong(temperature=-1.0)],
    [wrong(unknown=1)],
    [wrong(max_tokens="five")],
]


@pytest.mark.parametrize("parts", BAD)
def test_what_cannot_be_read_is_counted_and_dropped(
    ends: tuple[EngineSocket, zmq.Socket], parts: list[bytes]
) -> None:
    engine, client = ends
    before = engine.num_bad_frames
    client.send_multipart(parts)
    client.send(frame(AbortRequests(request_ids=["a"])))
    found = []
    while not found:
        found = engine.receive(5.0)
    assert found == [(b"front", [AbortRequests(request_ids=["a"])])]
    assert engine.num_bad_frames == before + 1


@settings(max_examples=150)
@given(st.lists(st.one_of(st.binary(max_size=200), st.builds(frame)), min_size=1, max_size=3))
def test_any_bytes_leave_the_engine_in_working_order(
    ends: tuple[EngineSocket, zmq.Socket], parts: list[bytes]
) -> None:
    engine, client = ends
    client.send_multipart(parts)
    client.send(frame(AbortRequests(request_ids=["end"])))
    found: list[EngineMessage] = []
    while not found or found[-1] != AbortRequests(request_ids=["end"]):
        for _, messages in engine.receive(5.0):
            found += messages


def test_an_oversized_frame_costs_only_its_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipc, "MAX_FRAME_BYTES", 1000)
    engine, context = EngineSocket(f"ipc://{tmp_path}/engine"), zmq.Context()
    large, small = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    for client in (large, small):
        client.connect(f"ipc://{tmp_path}/engine")
    large.send(bytes(2000))
    assert engine.receive(0.1) == []
    small.send(frame(add("a")))
    ((_, messages),) = engine.receive(5.0)
    assert messages == [add("a")]
    context.destroy(linger=0)
    engine.close()


def test_what_is_no_zeromq_is_hung_up_on(tmp_path: Path) -> None:
    engine = EngineSocket(f"ipc://{tmp_path}/engine")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(f"{tmp_path}/engine")
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        assert engine.receive(0.1) == []
    engine.close()


FEW_DESCRIPTORS = """
import asyncio, os, resource, sys
import zmq
from quire.engine.processes.ipc import EngineConnection

def connect():
    return EngineConnection(f"ipc://{sys.argv[1]}/none", "front", print)

async def main():
    connect().close()  # to an engine that has died since
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    files = []
    try:
        while True:
            files.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for _ in range(8):
        try:
            connection = connect()
        except zmq.ZMQError as error:
            print(error)
        else:
            await asyncio.sleep(0.01)
            connection.close()
            await asyncio.sleep(0.01)
        os.close(files.pop())

asyncio.run(main())
"""


def test_a_process_without_file_descriptors_does_not_die_of_a_new_engine(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FEW_DESCRIPTORS, str(tmp_path)]
    done = run_to_end(command)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Too many open files" in done.stdout


# ---------------------------------------------------------------------- fronts and engines


class Engine:
    """An engine process without the process. slow: seconds that each of its turns takes longer."""

    def __init__(self, folder: Path, number: int, *, is_running: bool = True) -> None:
        self.address, memory = f"ipc://{folder}/{number}", create_shared_memory()
        clear_page(memory, 0)
        self.page = StatusPage(memory, 0)
        core, self.info = start_null_engine(CONFIG)
        self.socket = EngineSocket(self.address)
        self.core = core
        page = StatusPage(memory, 0, writable=True)
        self.process = EngineProcess(core, self.socket, page, number)
        self.pause = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if is_running:
            self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(self.pause):
            self.process.run_once(0.01)

    def kill(self) -> None:
        self._ends.set()
        self._thread.join()
        self.socket.close()


class Front:
    """One client, and engines one after another."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()
        self.server = self._next()
        self.link = ProcessLink("front", self.server.address, self.server.page)
        self.engine = AsyncEngine(self.link, TOKENIZER, self.server.info, 0)

    def _next(self) -> Engine:
        return Engine(self._folder, next(self._numbers))

    def lose(self, *, is_blameless: bool = False) -> None:
        self.server.kill()
        self.link.engine_died(EngineDown(name="m", will_return=True, is_blameless=is_blameless))

    def restart(self) -> None:
        self.server = self._next()
        info: EngineInfo = self.server.info
        self.link.engine_returned(info, self.server.address, self.server.page)

    async def until_running(self, count: int) -> None:
        """Wait until this number of requests is in the engine's batch."""
        while len(self.server.core._scheduler._batch.running) < count:
            await asyncio.sleep(0.001)

    async def collect(self, max_tokens: int, **options: Any) -> list[RequestOutput]:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        return [part async for part in self.engine.generate([7, 8, 9], sampling, **options)]


def run(tmp_path: Path, scenario: Callable[[Front], Awaitable[None]]) -> None:
    async def main() -> None:
        front = Front(tmp_path)
        try:
            async with asyncio.timeout(120):  # a guard, not a measure: the machine may be busy
                await scenario(front)
        finally:
            await front.engine.close()
            front.server.kill()

    asyncio.run(main())


def tokens(parts: list[RequestOutput]) -> list[int]:
    return [token_id for part in parts for token_id in part.outputs[0].token_ids]


def test_streams_go_on_in_the_next_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(front: Front) -> None:
        whole = tokens(await front.collect(300))
        front.server.pause = 0.001
        tasks = [asyncio.create_task(front.collect(300, stream=i % 2 == 0)) for i in range(4)]
        await front.until_running(4)
        assert not any(task.done() for task in tasks)
        front.lose()
        assert (front.engine.is_alive, front.engine.is_restarting) == (False, True)
        with pytest.raises(OverloadedError):
            await front.collect(3)
        front.restart()
        assert front.engine.is_alive
        for task in tasks:
            parts = await task
            assert tokens(parts) == whole
            assert [part.finished for part in parts] == [False] * (len(parts) - 1) + [True]
        assert front.engine.stats.epoch == 1

    with caplog.at_level(logging.INFO, "quire.engine.frontend.request_tracker"):
        run(tmp_path, scenario)
    assert "4 unfinished answers continue in it" in caplog.text


def test_a_request_whose_first_step_ends_an_idle_engine_is_seen(tmp_path: Path) -> None:
    """A death without work is nobody's fault, and would be caused again and again."""
    engine, context = Engine(tmp_path, 0, is_running=False), zmq.Context()
    had_work: list[bool] = []

    def die() -> None:
        had_work.append(engine.page.has_work)
        raise KeyboardInterrupt

    client = context.socket(zmq.DEALER)
    client.connect(engine.address)
    client.send(frame(GetEngineView()))  # no request: who watches keeps no model loaded
    assert engine.socket._socket.poll(60_000), "the message has not come"
    engine.process.run_once(0.0)
    assert (engine.page.has_work, engine.page.last_work) == (False, 0.0)
    engine.core.step = die  # type: ignore[assignment]
    client.send(frame(add("poison")))
    assert engine.socket._socket.poll(60_000), "the request has not come"
    with pytest.raises(KeyboardInterrupt):
        engine.process.run_once(0.0)
    assert had_work == [True]
    context.destroy(linger=0)
    engine.socket.close()


def test_a_request_that_was_there_at_two_deaths_is_given_up(tmp_path: Path) -> None:
    async def scenario(front: Front) -> None:
        front.server.pause = 0.001
        poison = asyncio.create_task(front.collect(3000))
        await front.until_running(1)
        front.lose()
        front.restart()
        front.server.pause = 0.001
        later = asyncio.create_task(front.collect(1000))
        await front.until_running(2)
        front.lose()
        with pytest.raises(EngineError, match="twice"):
            await poison
        front.restart()
        assert len(tokens(await later)) == 1000

    run(tmp_path, scenario)


def test_an_answer_too_long_to_go_on_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(front: Front) -> None:
        front.server.pause = 0.001
        long = SamplingParams(max_tokens=2000, n=2)
        stream = front.engine.generate([7] * 2000, long)
        await anext(stream)
        short = [asyncio.create_task(front.collect(300)) for _ in range(2)]
        await front.until_running(4)
        front.lose()
        monkeypatch.setattr(ipc, "MAX_FRAME_BYTES", 4000)
        front.restart()
        with pytest.raises(EngineError, match="too large to continue"):
            async for _ in stream:
                pass
        assert [len(tokens(await task)) for task in short] == [300, 300]
        assert not front.server.core.has_work  # nor does its other answer go on

    run(tmp_path, scenario)


def test_deaths_from_outside_are_no_requests_fault(tmp_path: Path) -> None:
    async def scenario(front: Front) -> None:
        whole = tokens(await front.collect(1000))
        front.server.pause = 0.001
        stream = asyncio.create_task(front.collect(1000))
        for _ in range(4):
            await front.until_running(1)
            front.lose(is_blameless=True)
            front.restart()
            front.server.pause = 0.001
        front.server.pause = 0.0
        assert tokens(await stream) == whole

    run(tmp_path, scenario)


def test_a_request_that_sees_many_deaths_ends_whatever_their_cause(tmp_path: Path) -> None:
    """One that kills engines in a way that is taken for another's must not kill for ever."""

    async def scenario(front: Front) -> None:
        front.server.pause = 0.001
        stream = asyncio.create_task(front.collect(3000))
        for _ in range(MAX_DEATHS_SEEN):
            assert not stream.done()
            await front.until_running(1)
            front.lose(is_blameless=True)
            front.restart()
            front.server.pause = 0.001
        with pytest.raises(EngineError, match="engine"):
            await stream

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("why", "is_unload", "kind"),
    [
        ("", False, EngineError),
        ("it died 5 times in a row", False, EngineError),
        ("unloaded", True, OverloadedError),
    ],
)
def test_an_engine_that_does_not_return_ends_its_streams(
    tmp_path: Path, why: str, is_unload: bool, kind: type[QuireError]
) -> None:
    async def scenario(front: Front) -> None:
        front.server.pause = 0.001
        stream = asyncio.create_task(front.collect(3000))
        await front.until_running(1)
        front.server.kill()
        front.link.engine_died(
            EngineDown(name="m", will_return=False, is_unload=is_unload, why=why)
        )
        with pytest.raises(kind, match=why or "stopped"):
            await stream
        with pytest.raises(kind, match=why or "stopped"):  # as later ones do
            await front.collect(1)
        assert not front.engine.is_alive

    run(tmp_path, scenario)


def test_an_engine_that_is_gone_before_it_is_met_again(tmp_path: Path) -> None:
    """It is restarted and unloaded at once; requests that waited for it get an error."""

    async def scenario(front: Front) -> None:
        front.server.pause = 0.001
        stream = asyncio.create_task(front.collect(3000))
        await front.until_running(1)
        front.lose()
        memory = create_shared_memory()
        clear_page(memory, 0)
        gone = StatusPage(memory, 0)
        front.link.engine_returned(front.server.info, f"ipc://{tmp_path}/gone", gone)
        assert front.link.seconds_since_heartbeat >= 0.0  # of the one before
        front.link.engine_died(
            EngineDown(name="m", will_return=True)
        )  # no second death of what ran in the first
        await asyncio.sleep(0.01)
        assert not stream.done()
        front.link.engine_died(EngineDown(name="m", will_return=False))
        with pytest.raises(EngineError, match="has stopped"):
            await stream

    run(tmp_path, scenario)


def test_a_backlog_of_large_frames_leaves_time_to_the_event_loop(tmp_path: Path) -> None:
    """Each frame has log-probabilities that take some milliseconds to read."""
    address = f"ipc://{tmp_path}/engine"
    scores = TokenLogprobs(list(range(10_000)), [-1.0] * 10_000, 1)
    step = StepOutput(
        deltas=[RequestDelta(request_id="a", token_ids=[0], logprobs=[scores])],
        stats=EngineStats(),
    )
    num_tokens: list[int] = []

    async def scenario() -> None:
        engine = EngineSocket(address)
        client = EngineConnection(
            address, "front", lambda step: num_tokens.append(len(step.deltas[0].token_ids))
        )
        client.send([AbortRequests(request_ids=["a"])])
        assert engine.receive(5.0)
        for _ in range(40):
            assert engine.send(b"front", step) is Sent.OK
        time.sleep(0.2)  # until all have arrived
        while sum(num_tokens) < 40:
            await asyncio.sleep(0)
        client.close()
        engine.close()

    asyncio.run(scenario())
    assert sum(num_tokens) == 40
    assert max(num_tokens) <= 5


def test_what_does_not_stream_comes_with_the_first_token_and_with_the_last(tmp_path: Path) -> None:
    async def scenario(front: Front) -> None:
        parts = await front.collect(200, stream=False)
        assert [len(part.outputs[0].token_ids) for part in parts] in ([1, 199], [200])
        assert parts[-1].finished

    run(tmp_path, scenario)


def test_who_only_watches_has_the_figures_of_all(tmp_path: Path) -> None:
    async def scenario(front: Front) -> None:
        server = front.server
        link = ProcessLink("watcher", server.address, server.page)
        watcher = AsyncEngine(link, TOKENIZER, server.info, 0)
        await front.collect(20)
        await watcher.view()
        while watcher.stats.num_generation_tokens < 20:  # a busy machine answers late
            await watcher.view()
        await front.collect(20)
        while watcher.stats.num_generation_tokens < 40:  # told without having asked again
            await asyncio.sleep(0.01)
        await watcher.close()

    run(tmp_path, scenario)


def test_the_figures_of_an_idle_engine_are_those_of_now(tmp_path: Path) -> None:
    async def scenario(front: Front) -> None:
        await front.collect(40)
        assert front.engine.stats.num_cached_blocks == 2
        await front.engine.reset_prefix_cache()
        async with asyncio.timeout(30):
            while front.engine.stats.num_cached_blocks:
                await asyncio.sleep(0.01)

    run(tmp_path, scenario)


def test_a_view_waits_for_a_client_that_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asks for the next view only after it got this one.

    Its outbox is not encoded with each step: it grows, and others wait for that.
    """
    engine = Engine(tmp_path, 0, is_running=False)
    sent: list[StepOutput] = []
    outcomes = [Sent.FULL, Sent.OK, Sent.OK]

    def send(_client: bytes, step: StepOutput) -> Sent:
        sent.append(step)
        return outcomes.pop(0)

    arrived = [[(b"front", [GetEngineView()])], [], []]
    monkeypatch.setattr(engine.socket, "receive", lambda _patience: arrived.pop(0))
    monkeypatch.setattr(engine.socket, "send", send)
    engine.process.run_once(0.0)
    engine.process._stats_sent_at = time.monotonic() + 60
    engine.process.run_once(0.0)
    assert [step.view is not None for step in sent] == [True]
    engine.process._stats_sent_at = 0.0
    engine.process.run_once(0.0)
    assert [step.view is not None for step in sent] == [True, True]
    engine.socket.close()


def test_requests_of_a_client_that_has_disconnected_are_aborted(tmp_path: Path) -> None:
    async def scenario(front: Front) -> None:
        front.server.pause = 0.001
        stream = asyncio.create_task(front.collect(3000))
        await front.until_running(1)
        assert front.server.core.has_work
        await front.link.close()
        while front.server.core.has_work:
            await asyncio.sleep(0.01)
        stream.cancel()

    run(tmp_path, scenario)


def test_requests_of_a_client_that_dies_with_unread_frames_are_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipc, "MAX_UNREAD_FRAMES", 5)
    engine, context = Engine(tmp_path, 0, is_running=False), zmq.Context()
    client = context.socket(zmq.DEALER)
    client.setsockopt(zmq.RCVHWM, 5)
    client.connect(engine.address)
    client.send(frame(add("a", max_tokens=3000)))
    outboxes = engine.process._clients._outboxes
    while not any(outbox.is_full for outbox in outboxes.values()):
        engine.process.run_once(0.01)
    context.destroy(linger=0)
    end = time.monotonic() + 30
    while outboxes and time.monotonic() < end:
        engine.process.run_once(0.01)
    assert not outboxes
    assert not engine.core.has_requests
    engine.socket.close()


def test_a_request_too_large_for_a_frame_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(front: Front) -> None:
        monkeypatch.setattr(ipc, "MAX_FRAME_BYTES", 1000)
        params = SamplingParams(max_tokens=5)
        answers = [front.engine.complete([5] * length, params) for length in (3000, 3)]
        large, small = await asyncio.gather(*answers, return_exceptions=True)
        assert isinstance(large, InvalidRequestError)
        assert re.search("takes .* bytes; send a shorter one", str(large))
        assert isinstance(small, RequestOutput)  # of the same turn of the event loop

    run(tmp_path, scenario)


def test_an_id_in_use_is_dropped(tmp_path: Path) -> None:
    engine, context = Engine(tmp_path, 0, is_running=False), zmq.Context()
    first, second = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    for client in (first, second):
        client.connect(engine.address)
    first.send(frame(add("a", max_tokens=50)))
    engine.process.run_once(5.0)
    second.send(frame(add("a")))
    assert engine.socket._socket.poll(5000)  # there before the first one's answer has ended
    while engine.core.has_work:
        engine.process.run_once(0.0)
    received = []
    while first.poll(100):
        received += msgspec.msgpack.decode(first.recv(), type=StepOutput).deltas
    assert sum(len(delta.token_ids) for delta in received) == 50
    assert engine.socket.num_bad_frames == 1
    context.destroy(linger=0)
    engine.socket.close()


def test_embeddings_come_from_the_next_engine(tmp_path: Path) -> None:
    async def scenario(front: Front) -> None:
        front.server.pause = 0.2  # and each prompt takes two steps
        params_list = [PoolingParams(pooling="mean"), PoolingParams(dimensions=20)]
        asks = [front.engine.embed([7] * 3000, params) for params in params_list]
        tasks = [asyncio.create_task(ask) for ask in asks]
        await front.until_running(1)
        front.lose()
        front.restart()
        whole, cut = [await task for task in tasks]
        assert [len(received.embedding or b"") // 4 for received in (whole, cut)] == [256, 20]
        assert struct.unpack("<f", (whole.embedding or b"")[:4]) == (1.0,)
        assert [received.outputs[0].finish_reason for received in (whole, cut)] == ["stop", "stop"]
        assert front.engine.metrics.finished == {"stop": 2}

    run(tmp_path, scenario)
