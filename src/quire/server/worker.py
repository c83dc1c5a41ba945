"""The API process: `python -m quire.server.worker`, started only by the supervisor.

It serves HTTP on a socket that the parent process holds; the engines are other processes. Owns the
connections between the two: which engines there are, and when they die or come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop
import zmq

from quire.background import NUM_THREADS, SWITCH_SECONDS, BackgroundThreads
from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.processes.control_channel import (
    ControlMessage,
    EngineDown,
    EngineUp,
    ModelStatus,
    ParentConnection,
    ReleaseModel,
    StartFailed,
    StartWorker,
    WorkerReady,
)
from quire.engine.processes.process_link import ProcessLink
from quire.engine.processes.status_page import StatusPage
from quire.errors import QuireError
from quire.logs import configure_logging
from quire.server.admission.in_flight import shared_counters
from quire.server.app import build_server
from quire.server.model_loading import ModelLoader
from quire.server.model_registry import ModelRegistry
from quire.server.settings import ServerSettings
from quire.server.uvicorn_server import Server
from quire.tokenizer.load_tokenizer import load_tokenizer

logger = logging.getLogger(__name__)

# Objects allocated and not yet freed that start a garbage collection of cycles. Requests in flight
# are thousands and leave no cycles: with Python's own 700 they would be scanned again and again.
GC_THRESHOLD = 50_000
RETRY_SECONDS = 0.5  # where a connection to an engine cannot be opened
CONNECT_SECONDS = 10.0  # for engines that run already, and their tokenizers


def main() -> None:
    """Serve until the parent process sends SIGTERM."""
    # also what uvicorn raises again once it has shut down
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    line = ParentConnection()
    start = line.receive()
    assert isinstance(start, StartWorker)
    configure_logging(start.log)
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(line, start))
        except QuireError as error:
            line.send(StartFailed.by(error))


async def _serve(line: ParentConnection, start: StartWorker) -> None:
    settings = msgspec.msgpack.decode(start.settings, type=ServerSettings)
    make_counters = partial(shared_counters, start.counters, start.row, settings.api_server_count)
    models = ModelRegistry(start.models, settings, make_counters)
    loader = ModelLoader(models, line.send)
    frontends = EngineFrontends(start.client, line.send, loader, start.memory)
    frontends.run_task(StatusPage(start.memory, start.row, writable=True).report_forever())
    loop = asyncio.get_running_loop()
    loop.set_default_executor(BackgroundThreads(NUM_THREADS, "quire-worker"))
    line.follow(lambda message: loop.call_soon_threadsafe(frontends.handle, message))
    app = build_server(loader, settings, Path(start.metrics_folder))
    admin = None if start.admin is None else socket.socket(fileno=start.admin)

    def on_ready() -> None:
        frontends.run_task(_report_ready(frontends, line))

    server = Server(app, settings, on_ready, admin=admin)
    are_running = all(model.state == "loaded" for model in start.models if model.at_start)
    if are_running and settings.api_server_count > 1:
        with contextlib.suppress(TimeoutError):  # an engine that dies now is reported as usual
            async with asyncio.timeout(CONNECT_SECONDS):  # others take connections meanwhile
                await frontends.connected.wait()
    with contextlib.ExitStack() as stack:
        listeners = [socket.socket(fileno=number) for number in start.listeners]
        await server.serve(sockets=[stack.enter_context(each) for each in listeners])


async def _report_ready(frontends: EngineFrontends, line: ParentConnection) -> None:
    await frontends.connected.wait()
    gc.collect()
    gc.freeze()  # what exists now stays: full collections need not scan it
    gc.set_threshold(GC_THRESHOLD)
    line.send(WorkerReady())


class EngineFrontends:
    """This process's connections to the engines.

    send: to the parent process. memory: that of status pages. connected: set once all engines of
    the server's start are there.
    """

    def __init__(
        self,
        client: str,
        send: Callable[[ControlMessage], None],
        loader: ModelLoader,
        memory: int,
    ) -> None:
        self.loader = loader
        self.connected = asyncio.Event()
        self._client = client
        self._send, self._memory = send, memory
        self._links: dict[str, ProcessLink] = {}
        self._ups: dict[str, EngineUp] = {}  # the engines that accept requests, by model
        self._tasks: set[asyncio.Task[None]] = set()
        self._check_complete()

    def run_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task of its own."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def handle(self, message: ControlMessage) -> None:
        """Handle a message from the parent process."""
        match message:
            case EngineUp():
                self._ups[message.name] = message
                self._meet(message)
            case EngineDown():
                self._ups.pop(message.name, None)
                if message.name in self._links:
                    self._links[message.name].engine_died(message)
            case ModelStatus():
                self.loader.set_status(message)
            case ReleaseModel():
                self.run_task(self.loader.leave(message))

    def _meet(self, up: EngineUp) -> None:
        """Connect to an engine, or try again later: clients may have all file descriptors."""
        if self._ups.get(up.name) is not up:  # it has ended meanwhile
            return
        try:
            page = StatusPage(self._memory, up.page)
            if up.name in self._links:
                self._links[up.name].engine_returned(up.info, up.address, page)
            else:
                link = self._links[up.name] = ProcessLink(self._client, up.address, page)
                self.run_task(self._connect(link, up))
        except (OSError, zmq.ZMQError) as error:
            logger.error("no connection to the engine of %s, tried again: %s", up.name, error)
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._meet, up)

    async def _connect(self, link: ProcessLink, up: EngineUp) -> None:
        """Connect an engine for the first time; a thread reads its tokenizer."""
        try:
            tokenizer = await asyncio.to_thread(load_tokenizer, up.config)
            if not link.is_alive:  # the engine has ended meanwhile; another one is reported anew
                self._links.pop(up.name)
                return
            info = self._ups[up.name].info  # another process may have replaced the first
            engine = AsyncEngine(link, tokenizer, info, up.config.model.seed)
            self.loader.attach(up.name, engine)
        except Exception as error:  # else the model would stay "loading"
            failed = StartFailed.by(error)
            if not isinstance(error, QuireError):
                logger.exception("model %s cannot be used", up.name)
            if self.loader.models.entry(up.name).status.at_start:
                self._send(failed)
            else:
                await self._links.pop(up.name).close()
                self.loader.give_up(up.name, failed.message)
            return
        self._check_complete()

    def _check_complete(self) -> None:
        entries = self.loader.models.entries()
        if all(entry.model is not None for entry in entries if entry.status.at_start):
            self.connected.set()


if __name__ == "__main__":
    main()
