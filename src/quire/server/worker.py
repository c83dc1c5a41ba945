"""The API process: `python -m quire.server.worker`, started by the supervisor alone.

HTTP on a socket that the parent holds, engines in other processes. Owns how the two are joined:
the application is told of each engine that can be reached, and when it dies or comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import uvloop

from quire.background import step_back
from quire.engine.frontend.async_engine import AsyncEngine
from quire.engine.processes.control_channel import (
    Control,
    EngineDown,
    EngineUp,
    LeaveModel,
    ModelCondition,
    ParentLine,
    StartFailed,
    StartWorker,
    WorkerReady,
)
from quire.engine.processes.process_link import ProcessLink
from quire.errors import QuireError
from quire.hub import tokenizer_folder
from quire.logs import configure_logging
from quire.server.admission.in_flight import shared_counts
from quire.server.app import build_server
from quire.server.http.uvicorn_server import Server
from quire.server.model_loading import Loader
from quire.server.model_registry import ModelRegistry
from quire.server.settings import ServerSettings
from quire.tokenizer.tokenizer import Tokenizer

# Threads for what would hold the loop up, such as encoding long texts. A flood of those waits for
# one of these threads: with asyncio's own number (cores + 4) it would take the engine's cores.
NUM_HELPERS = max(2, (os.cpu_count() or 1) // 2)
# Objects made and not yet freed that cause a look for cycles. Requests under way are thousands, and
# leave no cycles: with Python's own 700 they would be looked through again and again.
YOUNG_OBJECTS = 50_000
MEETING_SECONDS = 10.0  # for engines that run already, and their tokenizers


def main() -> None:
    """Serve as the parent says, until it asks to end."""
    signal.signal(signal.SIGTERM, _leave)  # also what uvicorn raises again once it has shut down
    line = ParentLine()
    start = line.receive()
    assert isinstance(start, StartWorker)
    configure_logging(start.log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(line, start))
        except QuireError as error:
            line.send(StartFailed.by(error))


async def _serve(line: ParentLine, start: StartWorker) -> None:
    settings = msgspec.msgpack.decode(start.settings, type=ServerSettings)
    place, folder = int(start.client.partition(".")[0]), Path(start.metrics_folder)
    counts = partial(shared_counts, folder / "heads", place, settings.api_server_count)
    models = ModelRegistry(start.models, settings, counts)
    fronts = Fronts(start.client, line.send, Loader(models, line.send))
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(NUM_HELPERS, "quire-helper", step_back))
    line.follow(lambda message: _call(loop, fronts, message))
    app = build_server(fronts.loader, settings, folder)
    admin = None if start.admin is None else socket.socket(fileno=start.admin)

    def on_ready() -> None:
        fronts.begin(_say_ready(fronts, line))

    server = Server(app, settings, on_ready, admin=admin)
    are_running = all(model.state == "loaded" for model in start.models if model.at_start)
    if are_running and settings.api_server_count > 1:
        await _meet_engines(fronts)
    with socket.socket(fileno=start.listener) as listener:
        await server.serve(sockets=[listener])


async def _meet_engines(fronts: Fronts) -> None:
    """For a process among others that serve already: until then, connections are theirs."""
    with contextlib.suppress(TimeoutError):  # an engine that dies now is told of, as ever
        async with asyncio.timeout(MEETING_SECONDS):
            await fronts.are_complete.wait()


async def _say_ready(fronts: Fronts, line: ParentLine) -> None:
    await fronts.are_complete.wait()
    gc.collect()
    gc.freeze()  # what is there now stays; each full collection would look through all of it
    gc.set_threshold(YOUNG_OBJECTS)
    line.send(WorkerReady())


class Fronts:
    """This process's ends of the engines. are_complete: it has those of the server's start.

    tell: sends to the parent.
    """

    def __init__(self, client: str, tell: Callable[[Control], None], loader: Loader) -> None:
        self.loader = loader
        self.are_complete = asyncio.Event()
        self._client = client
        self._tell = tell
        self._links: dict[str, ProcessLink] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._check_complete()

    def begin(self, job: Coroutine[Any, Any, None]) -> None:
        """Run something beside."""
        task = asyncio.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    def handle(self, message: Control) -> None:
        """Take news from the parent."""
        match message:
            case EngineUp():
                with contextlib.suppress(FileNotFoundError):  # it was unloaded; that is told next
                    self._follow(message)
            case EngineDown() if message.name in self._links:
                link = self._links[message.name]
                link.engine_died(will_return=message.will_return, why=message.why)
            case ModelCondition():
                self.loader.tell(message)
            case LeaveModel():
                self.begin(self.loader.leave(message))

    def _follow(self, up: EngineUp) -> None:
        if up.name in self._links:
            self._links[up.name].engine_returned(up.info, up.address, up.page_path)
        else:
            link = self._links[up.name] = ProcessLink(self._client, up.address, up.page_path)
            self.begin(self._meet(link, up))

    async def _meet(self, link: ProcessLink, up: EngineUp) -> None:
        """An engine that was not known before; its tokenizer is read beside the loop."""
        try:
            folder = tokenizer_folder(up.config)
            tokenizer = await asyncio.to_thread(Tokenizer.from_folder, folder)
        except QuireError as error:
            if self.loader.models.entry(up.name).condition.at_start:
                self._tell(StartFailed.by(error))
            else:
                await self._links.pop(up.name).close()
                self.loader.give_up(up.name, str(error))
            return
        engine = AsyncEngine(link, tokenizer, up.info, up.config.model.seed)
        self.loader.attach(up.name, engine)
        self._check_complete()

    def _check_complete(self) -> None:
        entries = self.loader.models.entries()
        if all(entry.served is not None for entry in entries if entry.condition.at_start):
            self.are_complete.set()


def _call(loop: asyncio.AbstractEventLoop, fronts: Fronts, message: Control) -> None:
    loop.call_soon_threadsafe(fronts.handle, message)


def _leave(*_: object) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
